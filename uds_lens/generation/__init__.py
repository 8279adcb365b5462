"""Text generation (greedy and sampled), end-of-answer tokens, and ROUGE."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
