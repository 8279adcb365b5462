"""Elicitation: can the forgotten answers be extracted, and would a model that never knew the facts give them too?"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
