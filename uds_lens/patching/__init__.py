"""Reusable patching tools: read states from one model, patch them into another, and measure what is lost."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
