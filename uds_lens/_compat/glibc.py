"""The C library on Linux: memory that was freed and that its allocator keeps."""

from __future__ import annotations

import ctypes
import sys
from functools import cache
from typing import Any


def give_back_memory() -> None:
    """Return freed memory to the system, out of the middle of its heaps too; without effect on other C libraries."""
    if (trim := _trim()) is not None:
        trim(0)


@cache
def _trim() -> Any | None:
    return getattr(ctypes.CDLL(None), "malloc_trim", None) if sys.platform == "linux" else None
