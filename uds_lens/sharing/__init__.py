"""Export results to other tools: Open-Unlearning's runs and inspect_ai's logs."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
