"""Silence about what is none of a user's business: bars over files, optional kernels."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def quiet() -> Iterator[None]:
    """No bars of transformers over the files of a checkpoint, and no note of bitsandbytes that a kernel is missing."""
    from transformers.utils import logging as transformers_logging

    kernels = logging.getLogger("bitsandbytes.backends.cpu.ops")
    level, bars = kernels.level, transformers_logging.is_progress_bar_enabled()
    kernels.setLevel(logging.ERROR)
    transformers_logging.disable_progress_bar()
    try:
        yield
    finally:
        kernels.setLevel(level)
        if bars:
            transformers_logging.enable_progress_bar()
