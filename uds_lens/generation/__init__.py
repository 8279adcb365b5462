"""Greedy and sampled continuations, detecting the end of an answer, and ROUGE."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
