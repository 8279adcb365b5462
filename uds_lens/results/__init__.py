"""Finished measurements and all else that needs no model: settings, scores, `DepthAudit`, tables, comparisons."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
