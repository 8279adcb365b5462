"""Files that are either whole or absent, never overwrite foreign files, and reveal later changes."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
