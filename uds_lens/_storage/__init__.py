"""Files that are either whole or absent, that never overwrite foreign files, and that say when they were altered."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
