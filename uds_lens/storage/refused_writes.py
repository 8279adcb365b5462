"""What the system says against a write, whoever was writing, as an error of ours."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

from uds_lens.errors import StorageError

AS_IT_WAS = "What stood there is as it was; free space, or choose another place."

IN_TEMPORARY = "Free space there, or set TMPDIR to a directory with more of it."

_FULL = ("i/o error", "no space left", "file write failed", "disk quota", "file too large")
"""Words of errors of safetensors and torch, which have no class or number of their own for a full disk."""


@contextmanager
def writing(path: str | os.PathLike[str], *, advice: str = AS_IT_WAS) -> Iterator[None]:
    """Around whatever writes at a place.

    Args:
        path: The place.
        advice: What to do about it.

    Raises:
        StorageError: The system refuses: disk full, no permission, no such place.
    """
    try:
        yield
    except StorageError:
        raise
    except OSError as error:
        raise _refused(path, error.strerror or str(error), advice) from error
    except Exception as error:
        reason = str(error)
        if not any(words in reason.lower() for words in _FULL):
            raise
        raise _refused(path, reason[:120].rstrip("."), advice) from error


def _refused(path: str | os.PathLike[str], reason: str, advice: str) -> StorageError:
    return StorageError(f"cannot write {os.fspath(path)[-200:]!r}: {reason}. {advice}")
