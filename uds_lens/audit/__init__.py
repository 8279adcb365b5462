"""Running an audit: plan, states of the sources, the patched pass over `full`, and `Baseline` (stage 1, reused)."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
