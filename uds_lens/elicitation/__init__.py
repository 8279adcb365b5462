"""Elicitation: can the answer be made to come out, and would a model that never knew say the same?"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
