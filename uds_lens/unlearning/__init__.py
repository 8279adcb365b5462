"""Unlearning methods, and the two perturbations that test them: relearning and quantisation.

Importing this package loads no torch: names load on first use, so that the command line can name the methods at once.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
