"""Unlearning methods, and the two perturbations of the robustness test: relearning and quantisation.

Names are imported lazily, so the command line can list the methods without importing torch.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
