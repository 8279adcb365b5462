"""Atomic writes of files and of result directories."""

from __future__ import annotations

import ctypes
import hashlib
import os
import re
import shutil
import stat
import sys
import tempfile
import weakref
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from uds_lens.errors import ResultFormatError, StorageError

# Where something may be written: nowhere that holds what this library did not write.

RECORDS = ("manifest.json", "unlearning.json", "relearning.json", "quantisation.json")
"""Files that say what a directory is."""

MARK = b"made with uds_lens"
"""In every page of a figure."""

_HEAD, _TAIL = 1 << 14, 1 << 10
_JSON = re.compile(rb'\A\s*\{\s*"format"\s*:\s*"(uds_lens\.[\w.]+)"')
_PAGE = re.compile(rb'<meta name="generator" content="uds_lens[ "]')


def located(path: str | os.PathLike[str]) -> Path:
    """A path as the system has it: `~` is the home directory."""
    path = Path(path)
    try:
        return path.expanduser()
    except RuntimeError:  # a user that does not exist
        return path


def format_of(path: str | os.PathLike[str]) -> str | None:
    """What a file of ours, or the record of a directory of ours, says it is; None where it says nothing.

    Args:
        path: A JSON file, or a directory.
    """
    path = located(path)
    records = [path / name for name in RECORDS] if path.is_dir() else [path]
    for record in records:
        if found := _JSON.match(_ends(record)):
            return found[1].decode()
    return None


def made_here(path: str | os.PathLike[str]) -> bool:
    """Whether this library wrote what stands at a path: it says so in its `format`, its generator, or its mark.

    Args:
        path: A file, or a directory with a record in it.
    """
    path = located(path)
    if format_of(path) is not None:
        return True
    ends = _ends(path)
    return bool(_PAGE.search(ends) or MARK in ends)


def require_fresh(
    path: str | os.PathLike[str],
    *,
    directory: bool,
    format: str | None = None,
    begins: bytes | tuple[bytes, ...] | None = None,
) -> Path:
    """The place to write to, before any work is done for it.

    Free is a place where nothing stands, or an empty directory, or what this library wrote itself.

    Args:
        path: Where something will be written.
        directory: Whether that will be a directory.
        format: What it will say it is; a result of ours that is something else is not free. None accepts all of ours.
        begins: First bytes of a file that cannot carry a mark (a table); a file that begins so, or in one of
            these ways, is ours.

    Returns:
        The path, with `~` as the home directory.

    Raises:
        ResultFormatError: Something else stands there.
        StorageError: Nothing can be written there.
    """
    place = located(path)
    if directory:
        _require_no_foreign_directory(place)
    else:
        _require_no_foreign_file(place, begins)
    if format is not None and (found := format_of(place)) not in (None, format):
        raise ResultFormatError(
            f"{_short(place)} holds a saved {str(found).removeprefix('uds_lens.')}: choose another place, or remove it."
        )
    _require_writable(place)
    return place


def _require_no_foreign_directory(place: Path) -> None:
    if not os.path.lexists(place) or (place.is_dir() and (not _entries(place) or made_here(place))):
        return
    raise ResultFormatError(f"{_short(place)} exists and is no saved result: choose another directory.")


def _require_no_foreign_file(place: Path, begins: bytes | tuple[bytes, ...] | None) -> None:
    if place.is_dir():
        raise ResultFormatError(f"{_short(place)} is a directory: name a file in it.")
    if not os.path.lexists(place) or made_here(place):
        return
    if begins is not None and _ends(place).startswith(begins):
        return
    raise ResultFormatError(
        f"{_short(place)} exists and was not written by uds_lens: choose another name, or remove it."
    )


def _require_writable(place: Path) -> None:
    above = Path(os.path.realpath(place)).parent
    while not os.path.lexists(above):
        above = above.parent
    if not above.is_dir():
        raise StorageError(f"cannot write {_short(place)}: {_short(above)} is a file. Choose another place.")
    if not os.access(above, os.W_OK | os.X_OK):
        raise StorageError(
            f"cannot write {_short(place)}: no permission in {_short(above)}. Choose another place."
        )


def _entries(folder: Path) -> list[str]:
    try:
        return os.listdir(folder)
    except OSError:
        return ["?"]


def _ends(path: Path) -> bytes:
    """The first and last bytes of a regular file; none of anything else."""
    if not path.is_file():
        return b""
    try:
        with open(path, "rb") as file:
            head = file.read(_HEAD)
            size = file.seek(0, os.SEEK_END)
            file.seek(max(len(head), size - _TAIL))
            return head + file.read(_TAIL)
    except OSError:
        return b""


def _short(path: Path) -> str:
    return repr(str(path)[-200:])


# What the system says against a write, whoever was writing, as an error of ours.

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


# Hidden places in which files grow until they are whole, and what becomes of them when a process dies.
#
# A scratch place is locked while its process lives. What is not locked was left behind: the next write to
# the same path removes it.

if sys.platform != "win32":
    import fcntl

NEW, _OLD = ".uds_lens.part", ".uds_lens.old"
_SPILLED = "uds_lens-spilled-"
_RANDOM = re.compile(r"[a-z0-9_]{8}")
_LONGEST = 120
"""Bytes of a name that are kept in that of its scratch place: systems allow 255."""


@contextmanager
def scratch_file(path: Path) -> Iterator[Path]:
    """An empty hidden neighbour of `path`, gone afterwards if it is still there."""
    with _scratch(path, NEW, is_file=True) as place:
        yield place


@contextmanager
def scratch_directory(path: Path, *, holds_old: bool = False) -> Iterator[Path]:
    """The same as a directory; `holds_old` says that what stood at `path` is moved into it for a moment."""
    with _scratch(path, _OLD if holds_old else NEW, is_file=False) as place:
        yield place


class SpillFolder:
    """A directory for what does not fit into memory. It goes with this object; those of dead processes go before."""

    path: Path
    """The directory."""

    def __init__(self) -> None:
        for place in _scratch_entries(Path(tempfile.gettempdir())):
            if place.name.startswith(_SPILLED):
                _remove_unless_locked(place)
        held = _held(lambda: Path(tempfile.mkdtemp(prefix=_SPILLED)))
        self.path = held.__enter__()
        self._close = weakref.finalize(self, held.__exit__, None, None, None)

    def close(self) -> None:
        """Remove it."""
        self._close()


def remove_left_behind(path: Path) -> None:
    """Remove the scratch places of writes to `path` whose process died; put back what such a write had moved away."""
    prefix = _prefix(path)
    for place in _scratch_entries(path.parent):
        suffix = next((end for end in (NEW, _OLD) if place.name.endswith(end)), None)
        if suffix is None or not place.name.startswith(prefix):
            continue
        if not _RANDOM.fullmatch(place.name[len(prefix) : -len(suffix)]):
            continue
        if suffix == _OLD and not os.path.lexists(path):
            with _lock_of(place) as free:
                if free:
                    with suppress(OSError):
                        os.rename(place / "old", path)
        _remove_unless_locked(place)


@contextmanager
def _scratch(path: Path, suffix: str, *, is_file: bool) -> Iterator[Path]:
    def create() -> Path:
        where, prefix = path.parent, _prefix(path)
        if not is_file:
            return Path(tempfile.mkdtemp(dir=where, prefix=prefix, suffix=suffix))
        descriptor, name = tempfile.mkstemp(dir=where, prefix=prefix, suffix=suffix)
        os.close(descriptor)
        return Path(name)

    remove_left_behind(path)
    with _held(create) as place:
        yield place


@contextmanager
def _held(create: Callable[[], Path]) -> Iterator[Path]:
    """Create a place and lock it. Whoever cleans up may have taken it in between: then another is created."""
    while True:
        place = create()
        with _lock_of(place, wait=True):
            if not place.exists():
                continue
            try:
                yield place
            finally:
                _remove(place)
            return


@contextmanager
def _lock_of(place: Path, *, wait: bool = False) -> Iterator[bool]:
    """Lock a file or directory until the block ends; False where another process holds it, or locks do not exist."""
    if sys.platform == "win32":  # there nothing is taken for left behind
        yield False
        return
    try:
        descriptor = os.open(place, os.O_RDONLY)
    except OSError:
        yield False
        return
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
            free = True
        except OSError:
            free = False
        yield free
    finally:
        os.close(descriptor)


def _remove_unless_locked(place: Path) -> None:
    with _lock_of(place) as free:
        if free:
            _remove(place)


def _remove(place: Path) -> None:
    if place.is_dir() and not place.is_symlink():
        shutil.rmtree(place, ignore_errors=True)
    else:
        with suppress(OSError):
            place.unlink()


def _scratch_entries(folder: Path) -> list[Path]:
    try:
        return list(folder.iterdir())
    except OSError:
        return []


def _prefix(path: Path) -> str:
    name = path.name
    if len(os.fsencode(name)) > _LONGEST:
        name = f"{name[:30]}-{hashlib.blake2b(os.fsencode(name), digest_size=6).hexdigest()}"
    return f".{name}."


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


# Files read once and whole: what is checked is what is parsed.

LARGEST = 8 << 30
"""Bytes of a file that is still read."""


def read_file(path: str | os.PathLike[str], *, most: int = LARGEST) -> bytes:
    """The bytes of a regular file; devices and pipes, which never end, are refused.

    Args:
        path: The file.
        most: Bytes at most.

    Raises:
        ResultFormatError: It is missing, no file, too large, or the system cannot read it.
    """
    path = Path(path)
    told = repr(str(path)[-200:])
    try:
        descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise ResultFormatError(f"{told} cannot be read: {reason}.") from error
    state = os.fstat(descriptor)
    if not stat.S_ISREG(state.st_mode):
        os.close(descriptor)
        raise ResultFormatError(f"{told} cannot be read: it is no regular file.")
    with open(descriptor, "rb") as file:
        if state.st_size > most:
            raise ResultFormatError(
                f"{told} has {state.st_size >> 20} MiB: expected at most {most >> 20} MiB. Is it the right file?"
            )
        try:
            return file.read(most + 1)
        except (OSError, MemoryError) as error:
            raise ResultFormatError(f"{told} cannot be read: {error}.") from error


def sha256_bytes(content: bytes) -> str:
    """Hexadecimal SHA-256.

    >>> sha256_bytes(b"")[:8]
    'e3b0c442'
    """
    return hashlib.sha256(content).hexdigest()


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
