"""Files that are either whole or absent: atomic writes of files and of result directories."""

from __future__ import annotations

import ctypes
import hashlib
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO


def atomic_write_bytes(path: str | os.PathLike[str], content: bytes) -> None:
    """Write `content` to a temporary neighbour, flush it to disk, and move it into place."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".part")
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(name, 0o666 & ~_umask())
        os.replace(name, path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def atomic_write_text(path: str | os.PathLike[str], content: str) -> None:
    """`atomic_write_bytes` for text, as UTF-8."""
    atomic_write_bytes(path, content.encode("utf-8"))


@contextmanager
def atomic_directory(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Yield an empty sibling directory that takes the place of `path` when the block ends well.

    A block that raises, or a process that dies, leaves what stood at `path` as it was.
    """
    path = Path(os.path.realpath(path))
    path.parent.mkdir(parents=True, exist_ok=True)
    scratch = Path(tempfile.mkdtemp(dir=path.parent, prefix=f".{path.name}.", suffix=".part"))
    try:
        yield scratch
        os.chmod(scratch, 0o777 & ~_umask())
        _swap(scratch, path)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _swap(new: Path, path: Path) -> None:
    if not path.exists():
        os.rename(new, path)
        return
    if _exchange(new, path):
        return
    # Without an atomic exchange there is a moment with neither: what stood there then lies in `.old`.
    old = Path(tempfile.mkdtemp(dir=path.parent, prefix=f".{path.name}.", suffix=".old"))
    try:
        os.rename(path, old / "old")
        try:
            os.rename(new, path)
        except BaseException:
            os.rename(old / "old", path)
            raise
    finally:
        shutil.rmtree(old, ignore_errors=True)


def _exchange(one: Path, other: Path) -> bool:
    """Let two paths change places in one step (Linux); False where the system cannot."""
    rename = getattr(ctypes.CDLL(None), "renameat2", None) if sys.platform == "linux" else None
    if rename is None:
        return False
    here, exchange = -100, 2  # AT_FDCWD, RENAME_EXCHANGE
    return rename(here, os.fsencode(one), here, os.fsencode(other), exchange) == 0


def sha256_file(path: str | os.PathLike[str]) -> str:
    """Hexadecimal SHA-256 of a file's bytes."""
    with open(path, "rb") as file:
        return (
            hashlib.file_digest(file, "sha256").hexdigest()
            if hasattr(hashlib, "file_digest")
            else _sha256(file)
        )


def _sha256(file: BinaryIO) -> str:
    """`hashlib.file_digest`, which Python 3.10 lacks."""
    digest = hashlib.sha256()
    for chunk in iter(lambda: file.read(1 << 20), b""):
        digest.update(chunk)
    return digest.hexdigest()


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
