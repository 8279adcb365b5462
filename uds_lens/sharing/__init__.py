"""Results where others look for them: next to Open-Unlearning's runs, on the Hub, and in the records of evaluations."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
