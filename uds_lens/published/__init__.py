"""Measure published models again: list them, plan and run the measurements, and compare the values."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
