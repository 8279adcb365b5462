"""Blocks of one model put into another: what an unlearned model answers when `retain`'s or `full`'s are put into it."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
