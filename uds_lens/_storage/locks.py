"""Locks that only one process at a time can hold."""

from __future__ import annotations

import warnings
from pathlib import Path

from filelock import BaseFileLock, FileLock, SoftFileLock, Timeout


def hold(file: Path, *, timeout: float) -> BaseFileLock | None:
    """Acquire a lock, held until it is released or this process dies; return None after `timeout`.

    On file systems without locks (some Lustre, FUSE and Drive mounts), a file `soft.NAME` that contains host name and
    process id is used instead. Only processes on the same host can then detect that the process holding the lock has
    died.
    """
    lock: BaseFileLock = FileLock(file, thread_local=False)
    while True:
        file.parent.mkdir(parents=True, exist_ok=True)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # filelock warns when it falls back to a soft lock
                lock.acquire(timeout=timeout)
            return lock
        except Timeout:
            return None
        except FileNotFoundError:  # the process that held the lock has just removed the folder
            continue
        except (OSError, NotImplementedError):
            if isinstance(lock, SoftFileLock):
                raise
            lock = SoftFileLock(file.with_name(f"soft.{file.name}"), thread_local=False)
