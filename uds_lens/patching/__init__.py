"""Hook utilities for reuse: read states of one model, patch them into another, and measure the loss."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
