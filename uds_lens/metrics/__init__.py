"""Twenty-two metrics of unlearning, Utility, the aggregates and custom metrics, all measured by one call: `evaluate`.

Names load on first use, so that reading `METRICS` loads no torch.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
