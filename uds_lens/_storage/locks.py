"""Files that one process at a time holds."""

from __future__ import annotations

import warnings
from pathlib import Path

from filelock import BaseFileLock, FileLock, SoftFileLock, Timeout


def hold(file: Path, *, timeout: float) -> BaseFileLock | None:
    """Hold a file until it is released or this process dies; None where another one still holds it after a time.

    Where the file system has no locks (some Lustre, FUSE and Drive mounts), `soft.NAME` next to it, a file with machine
    and process number, takes its place; only a process of the same machine can tell that its holder died.
    """
    lock: BaseFileLock = FileLock(file)
    while True:
        file.parent.mkdir(parents=True, exist_ok=True)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # filelock reports that it falls back to a soft lock
                lock.acquire(timeout=timeout)
            return lock
        except Timeout:
            return None
        except FileNotFoundError:  # the process that held it has just removed the folder
            continue
        except (OSError, NotImplementedError):
            if isinstance(lock, SoftFileLock):
                raise
            lock = SoftFileLock(file.with_name(f"soft.{file.name}"))
