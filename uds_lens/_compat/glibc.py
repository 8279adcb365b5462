"""glibc's allocator on Linux, which keeps freed memory until it is trimmed."""

from __future__ import annotations

import ctypes
import sys
from functools import cache
from typing import Any


def give_back_memory() -> None:
    """Return freed memory to the system, even from the middle of the heap. This does nothing with other C libraries."""
    if (trim := _trim()) is not None:
        trim(0)


@cache
def _trim() -> Any | None:
    return getattr(ctypes.CDLL(None), "malloc_trim", None) if sys.platform == "linux" else None
