"""Transplants: how an unlearned model answers when blocks of `retain` or `full` replace its own."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
