"""Transplants: the answers of an unlearned model with blocks of `retain` or `full` in place of its own."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
