"""Atomic writes of files and of result directories."""

from __future__ import annotations

import ctypes
import os
import shutil
import sys
from collections.abc import Collection, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from uds_lens.errors import StorageError
from uds_lens.storage.fresh import located
from uds_lens.storage.refused_writes import writing
from uds_lens.storage.scratch import NEW, scratch_directory, scratch_file

_TRIES = 20
"""Attempts to put a directory in place while other processes do the same."""


def atomic_write_bytes(path: str | os.PathLike[str], content: bytes) -> None:
    """Write `content` to a temporary neighbour, flush it to disk, and move it into place.

    Raises:
        StorageError: The system refuses (disk full, no permission ...); what stood there is as it was.
    """
    path = located(path)
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        with scratch_file(path) as place:
            _write(place, content)
            os.chmod(place, 0o666 & ~_umask())
            os.replace(place, path)


def atomic_write_text(path: str | os.PathLike[str], content: str) -> None:
    """`atomic_write_bytes` for text, as UTF-8. Halves of characters, which no file can hold, are written escaped."""
    atomic_write_bytes(path, content.encode("utf-8", "backslashreplace"))


def atomic_files(
    path: str | os.PathLike[str], files: Mapping[str, bytes], *, own: Collection[str] = ()
) -> None:
    """Write a directory of files at once; what else stands in it, beside these and `own`, stays.

    Args:
        path: The directory.
        files: Content by name.
        own: Names that an earlier write may have left and that go.

    Raises:
        StorageError: The system refuses; what stood there is as it was.
    """
    with atomic_directory(path, own={*files, *own}) as folder, writing(located(path)):
        for name, content in files.items():
            _write(folder / name, content)


@contextmanager
def atomic_directory(path: str | os.PathLike[str], *, own: Collection[str] | None = None) -> Iterator[Path]:
    """Yield an empty sibling directory that takes the place of `path` when the block ends well.

    A block that raises, or a process that dies, leaves what stood at `path` as it was.

    Args:
        path: The directory.
        own: Names in it that are replaced; everything else that stands there is kept. None replaces all.

    Raises:
        StorageError: The system refuses; what stood there is as it was.
    """
    path = Path(os.path.realpath(located(path)))
    with ExitStack() as stack:
        with writing(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            place = stack.enter_context(scratch_directory(path))
        yield place
        with writing(path):
            _open_to_others(place)
            keep = own is not None and path.is_dir()
            if keep:
                _link_others(path, place, own or ())
            _swap(place, path)
            if keep:
                _move_others(place, path, own or ())


def _write(file: Path, content: bytes) -> None:
    with open(file, "wb") as stream:
        stream.write(content)
        stream.flush()
        os.fsync(stream.fileno())


def _swap(new: Path, path: Path) -> None:
    """Put a directory in the place of another, or of none, though others may do so too."""
    for _ in range(_TRIES):
        if not path.exists():
            if _renamed(new, path):
                return
        elif _exchange(new, path) or _replaced(new, path):
            return
    raise StorageError(f"{str(path)!r} is being written by other processes: save somewhere else.")


def _renamed(new: Path, path: Path) -> bool:
    """Rename; False where somebody else has put a directory there in the meantime."""
    try:
        os.rename(new, path)
    except OSError:
        if path.exists():
            return False
        raise
    return True


def _replaced(new: Path, path: Path) -> bool:
    """Without an atomic exchange there is a moment with neither: what stood there then lies in a scratch place."""
    with scratch_directory(path, holds_old=True) as old:
        try:
            os.rename(path, old / "old")
        except FileNotFoundError:
            return False
        try:
            os.rename(new, path)
        except BaseException:
            os.rename(old / "old", path)
            raise
        os.rename(old / "old", new)
    return True


def _exchange(one: Path, other: Path) -> bool:
    """Let two paths change places in one step (Linux); False where the system cannot."""
    rename = getattr(ctypes.CDLL(None), "renameat2", None) if sys.platform == "linux" else None
    if rename is None:
        return False
    here, exchange = -100, 2  # AT_FDCWD, RENAME_EXCHANGE
    return rename(here, os.fsencode(one), here, os.fsencode(other), exchange) == 0


def _link_others(old: Path, new: Path, own: Collection[str]) -> None:
    """Bring what is not `own` into the new directory before it takes over, so that no moment lacks it."""
    for entry in list(os.scandir(old)):
        if entry.name in own or entry.name.endswith(NEW):
            continue
        target = new / entry.name
        if entry.is_dir(follow_symlinks=False):
            shutil.copytree(entry.path, target, symlinks=True, copy_function=_link)
        else:
            _link(entry.path, str(target))


def _link(source: str, target: str, *, follow_symlinks: bool = False) -> None:
    """A second name for a file; a copy where the system has no such thing."""
    try:
        os.link(source, target, follow_symlinks=False)
    except (OSError, NotImplementedError):
        shutil.copy2(source, target, follow_symlinks=False)


def _move_others(old: Path, new: Path, own: Collection[str]) -> None:
    """Bring what came into the old directory since."""
    for entry in list(os.scandir(old)):
        target = new / entry.name
        if entry.name in own:
            continue
        if not os.path.lexists(target):
            with suppress(OSError):
                os.rename(entry.path, target)
        elif entry.is_dir(follow_symlinks=False) and target.is_dir():
            _move_others(Path(entry.path), target, ())


def _open_to_others(folder: Path) -> None:
    """Modes as the umask says: a scratch place is private, and so are the files that safetensors writes."""
    mask = _umask()
    os.chmod(folder, 0o777 & ~mask)
    for place, folders, files in os.walk(folder):
        for name in folders:
            os.chmod(os.path.join(place, name), 0o777 & ~mask)
        for name in files:
            os.chmod(os.path.join(place, name), 0o666 & ~mask)


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
