"""Plotly figures made from data frames. Nothing here shows or saves a figure by itself."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
