"""Locks that only one process at a time can hold."""

from __future__ import annotations

import warnings
from pathlib import Path

from filelock import BaseFileLock, FileLock, SoftFileLock, Timeout


def hold(file: Path, *, timeout: float) -> BaseFileLock | None:
    """Hold a lock until it is released or this process dies; None if another process still holds it after the timeout.

    On file systems without locks (some Lustre, FUSE and Drive mounts), a file `soft.NAME` with machine and process
    number is used instead; only a process on the same machine can tell that its holder died.
    """
    lock: BaseFileLock = FileLock(file, thread_local=False)
    while True:
        file.parent.mkdir(parents=True, exist_ok=True)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # filelock reports that it falls back to a soft lock
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
