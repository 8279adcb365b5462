"""Depth while a model trains: a callback for any transformers `Trainer`, and the curve it measures."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
