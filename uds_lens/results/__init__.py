"""What was measured, and all that needs no model: settings, records, scores, `DepthAudit`, frames, analyses, files."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
