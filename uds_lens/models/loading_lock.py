"""One model is loaded at a time.

While transformers, PEFT and TransformerLens build a model they change settings of torch and transformers for the whole
process (the default dtype, functions that fill new weights, hooks of quantisation), and put them back when they are
done. Two threads that do so at once put back what the other has set, and every later model comes out wrong.

What is measured meanwhile must not depend on them: tensors are made with their dtype named.
"""

from __future__ import annotations

import threading

LOADING = threading.RLock()
"""Held around everything that builds a model; the same thread may take it again."""
