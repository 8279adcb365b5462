"""How deep did unlearning go? Unlearning depth scores by cross-model activation patching.

Usage: `import uds_lens as ul`. Importing this package does not import torch: names and subpackages are loaded on first
use.
"""

import lazy_loader

__version__ = "0.1.0"

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
