"""A process of its own for work that will be killed."""

from __future__ import annotations

import os
from collections.abc import Callable


def forked(work: Callable[[], object]) -> int:
    """Id of a child that does the work and ends; forked from this process, which has torch loaded already."""
    pid = os.fork()
    if pid:
        return pid
    try:
        work()
    finally:
        os._exit(0)
