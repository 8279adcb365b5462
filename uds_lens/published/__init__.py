"""Measure published models again: the list of models, their published values, a plan, and a comparison."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
