"""Unlearning metrics: twenty-two built-in metrics, Utility, aggregates and custom metrics, all measured by `evaluate`.

Names are imported lazily, so `METRICS` is available without importing torch.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
