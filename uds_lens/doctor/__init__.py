"""Would it work? What is installed, what the machine has, and whether models and data fit an audit."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
