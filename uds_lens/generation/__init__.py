"""What rooms that let models answer share: where an answer ends, greedy and sampled continuations, ROUGE."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
