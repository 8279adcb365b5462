"""Finished audits, and tables of many models, as one HTML file each that opens anywhere, offline."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
