"""Published models measured again: which exist, what was published about them, a plan, a comparison."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
