"""Plotly figures made from data frames. Functions return figures, without showing or saving them."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
