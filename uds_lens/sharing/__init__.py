"""Exchange results with other tools: Open-Unlearning runs and inspect_ai logs."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
