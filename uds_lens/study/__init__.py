"""Models by the hundred: a plan of what to make and measure, workers that can be killed at any time, one table."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
