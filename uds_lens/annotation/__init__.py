"""Which words of an answer carry the knowledge: entities found by models, by other answers, or by names."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
