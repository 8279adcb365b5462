"""Studies of hundreds of models: a plan, workers that can be killed at any time, and one table of results."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
