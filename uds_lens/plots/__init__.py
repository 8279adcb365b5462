"""Frames to plotly figures, one figure per file. Nothing here shows, saves or changes anything by itself."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
