"""The built-in toy world: a small fictitious data set and small checkpoints trained on it."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
