"""Differences between the weights of two checkpoints, by layer and component."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
