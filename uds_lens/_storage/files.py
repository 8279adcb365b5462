"""Atomic writes of files and directories, which never overwrite other programs' files, and single complete reads."""

from __future__ import annotations

import hashlib
import json
import os
import re
import secrets
import shutil
import stat
import tempfile
import time
import weakref
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from difflib import get_close_matches
from pathlib import Path
from typing import NoReturn, TypeAlias, TypeVar

from filelock import BaseFileLock

from uds_lens._storage.locks import hold
from uds_lens.errors import ConfigError, ResultFormatError, Setting, StorageError

Place: TypeAlias = str | os.PathLike[str]
Read = TypeVar("Read")  # value read from a directory

# By default, only files that this library wrote are overwritten. A JSON file names its format at its beginning, and a
# page its generator. Tables and other formats have no place for such a tag, so a hidden file next to each of them (its
# mark, `.NAME.uds_lens`) contains the hash of what was written. A directory was written by this library if it contains
# one of the records below.

RECORDS = ("manifest.json", "unlearning.json", "relearning.json", "finetuning.json", "quantisation.json")
"""Record files that identify the contents of a directory."""

_JSON = re.compile(rb'\s*\{\s*"format"\s*:\s*"(uds_lens\.[\w.]+)"')
_PAGE = re.compile(
    rb"\s*(?:<!doctype html>\s*)?(?:<html[^<>]*>\s*)?(?:<head>\s*)?(?:<(?:meta|title)[^<>]*>[^<>]*(?:</title>\s*)?)*?"
    rb'<meta name="generator" content="uds_lens \d[^"<>]*">'
)
_HEAD = 1 << 14  # number of bytes at the start of a file that are searched for its format
_MARK, _MARKED = ".uds_lens", "uds_lens.written"  # suffix of a mark's name, and the format that it names
_REMEMBERED = 8  # number of hashes in a mark, because several processes may write the file at once


def generator() -> str:
    """Return the tag in the head of the library's pages."""
    from uds_lens import __version__

    return f'<meta name="generator" content="uds_lens {__version__}">'


def located(path: Place) -> Path:
    """Return a path with `~` expanded to the home directory."""
    return Path(os.path.expanduser(path))


def did_you_mean(path: Place) -> str:
    """Return " Did you mean ...?" with the closest existing path, or an empty string if none is close.

    >>> did_you_mean("/urs"), did_you_mean("/nothing like it")
    (" Did you mean '/usr'?", '')
    """
    place = located(path)
    for part in (place, *place.parents):  # the misspelt part is the one whose parent exists
        if part.parent.is_dir():
            for near in get_close_matches(part.name, _listed(part.parent), n=1):
                meant = part.parent / near / place.relative_to(part)
                return f" Did you mean {_short(meant)}?" if meant.exists() else ""
            break
    return ""


def format_of(path: Place) -> str | None:
    """Return the format named in a JSON file or in a directory's record; None if there is none."""
    path = located(path)
    for record in [path / name for name in RECORDS] if path.is_dir() else [path]:
        if match := _JSON.match(_head(record)):
            return match[1].decode()
    return None


def check_writable(
    path: Place, *, directory: bool, replaced: bool = True, format: str | None = None, overwrite: bool = False
) -> Path:
    """Return the path to write to, after checking that it may be written.

    A path may be written if it does not exist, is an empty directory, or was written by this library; with `overwrite`,
    any file may be replaced. With `replaced=False`, files are added to the directory instead of replacing it.
    """
    place = located(path)
    file_format = format_of(place)
    if directory:
        if replaced and Path.cwd().is_relative_to(os.path.realpath(place)):
            raise StorageError(f"cannot write {_short(place)}: it contains the working directory. Choose a new one.")
        if os.path.lexists(place) and file_format is None and (not place.is_dir() or _entries(place)):
            file_format = format_of(place)  # another process may have been replacing it during the first check
            if file_format is None:
                raise ResultFormatError(f"{_short(place)} exists and is not a saved result: choose another directory.")
    elif place.is_dir():
        raise ResultFormatError(f"{_short(place)} is a directory: choose a file in it.")
    elif os.path.lexists(place):
        ours = file_format is not None if format else bool(_PAGE.match(_head(place)))
        if not (ours or overwrite or is_marked(place)):
            raise ResultFormatError(
                f"{_short(place)} exists and was not written by uds_lens, or was changed afterwards: choose another "
                "name, or remove the file."
            )
    if format is not None and file_format not in (None, format):
        kind = str(file_format).removeprefix("uds_lens.")
        raise ResultFormatError(f"{_short(place)} contains a saved {kind}: choose another path, or remove it.")
    above = Path(os.path.realpath(place)).parent
    while not os.path.lexists(above):
        above = above.parent
    if not above.is_dir():
        raise StorageError(f"cannot write {_short(place)}: {_short(above)} is a file. Choose another path.")
    if not os.access(above, os.W_OK | os.X_OK):
        raise StorageError(f"cannot write {_short(place)}: no permission in {_short(above)}. Choose another path.")
    return place


def refuse_to_replace(path: Place, holds: str, *, of: str | None = None) -> NoReturn:
    """Raise the error for a finished result that another run would replace.

    All commands follow one rule: a result from the same inputs and settings is kept, an unreadable one is measured
    again, and any other result is replaced only with `redo`.
    """
    raise ConfigError(
        f"{_short(located(path))} holds {holds}: choose another ",
        Setting("out"),
        ", or replace it with ",
        Setting("redo", True, of=of),
        ".",
    )


def is_scratch(name: str) -> bool:
    """Return whether a name belongs to an unfinished write (killed, or still running)."""
    return _SCRATCH.fullmatch(name) is not None


def _entries(folder: Path) -> list[str]:
    try:
        names = [name for name in os.listdir(folder) if not is_scratch(name)]
    except OSError:
        return ["?"]
    return [name for name in names if not (name.startswith(".") and name.endswith(_MARK))]


def _head(path: Path) -> bytes:
    with suppress(OSError):
        if path.is_file():  # reading a pipe or a device might never end
            with open(path, "rb") as file:
                return file.read(_HEAD)
    return b""


def _short(path: Path) -> str:
    return repr(str(path)[-200:])


# System errors during writing become this library's errors, whichever library was writing.

AS_IT_WAS = "Existing files are unchanged. Free some space, or choose another path."

IN_TEMPORARY = "Free some space there, or set TMPDIR to a directory with more space."

_FULL = ("i/o error", "no space left", "file write failed", "disk quota", "file too large")
"""Messages about a full disk: safetensors and torch have no error class or number for it."""


@contextmanager
def writing(path: Place, *, advice: str = AS_IT_WAS) -> Iterator[None]:
    """Convert a system error during writing to `StorageError`."""
    try:
        yield
    except StorageError:
        raise
    except Exception as error:
        reason = (error.strerror or str(error)) if isinstance(error, OSError) else str(error)[:120].rstrip(".")
        if not isinstance(error, OSError) and not any(words in reason.lower() for words in _FULL):
            raise
        raise StorageError(f"cannot write {os.fspath(path)[-200:]!r}: {reason}. {advice}") from error


# Files are written to hidden directories, `.NAME.….uds_lens.part` next to NAME, and moved into place once they are
# complete. The writing process holds a lock on its directory. If the lock is free, that process has died, and the next
# process that writes NAME cleans up the directory.

_PART = ".uds_lens.part"
_LOCK, _NEW, _OLD, _GONE = "lock", "new", "old", "gone"  # names inside a hidden directory
_SCRATCH = re.compile(rf"(?s:(\..*\.)[0-9a-f]{{8}}{re.escape(_PART)})")
_LONGEST = 120  # longer file names (in bytes) are shortened in the name of their hidden directory: systems allow 255
_TRIES = 20  # attempts at steps with which other processes may interfere


def _prefix(path: Path) -> str:
    name = path.name
    if len(os.fsencode(name)) > _LONGEST:
        name = f"{name[:30]}-{hashlib.blake2b(os.fsencode(name), digest_size=6).hexdigest()}"
    return f".{name}."


def _held(path: Path) -> tuple[Path, BaseFileLock | None]:
    """Create and lock a hidden directory next to `path`; no other process removes it while the lock is held."""
    _sweep(path)
    for _ in range(_TRIES):
        place = path.parent / f"{_prefix(path)}{secrets.token_hex(4)}{_PART}"
        os.mkdir(place, 0o700)
        lock = None
        with suppress(OSError, NotImplementedError):  # without locks, no process cleans up
            lock = hold(place / _LOCK, timeout=1)
        if place.exists():  # no other process removed it before it was locked
            return place, lock
    raise StorageError(f"{_short(path)} is being written by other processes: save somewhere else.")


def _sweep(path: Path) -> None:
    """Remove what killed writes left next to a path, after restoring the files that they had moved away."""
    for name in _listed(path.parent):
        if (match := _SCRATCH.fullmatch(name)) and match[1] == _prefix(path):
            place = path.parent / name
            with suppress(OSError, NotImplementedError):
                if (lock := hold(place / _LOCK, timeout=0)) is not None:
                    _restore(place, path, ())
                    _remove(place)
                    lock.release()


@contextmanager
def _scratch(path: Path, own: Collection[str] = ()) -> Iterator[Path]:
    """Yield a hidden directory next to `path`; on exit, restore files moved into it (except `own`) and remove it."""
    with writing(path):
        place, lock = _held(path)
    try:
        yield place
    finally:
        with suppress(OSError):  # the next process that writes here will clean it up
            _restore(place, path, own)
            _remove(place)
        if lock is not None:
            lock.release()


def settled(path: Place) -> Path:
    """Return the path of a directory to read, waiting if a save has just moved it away."""
    real = Path(os.path.realpath(located(path)))
    for _ in range(_TRIES):
        _sweep(real)
        if os.path.lexists(real) or not any(name.startswith(_prefix(real)) for name in _listed(real.parent)):
            break
        time.sleep(0.001)
    return located(path)


def read_one_version(path: Place, record: str, read: Callable[[Path], Read]) -> Read:
    """Read a directory that may be overwritten at the same time, without ever mixing two versions.

    `record` is a file that every save writes. If `read` raises `ResultFormatError` (because files are missing or do not
    match), it is called again; the error is raised once the same version has failed twice.
    """
    last = None
    while True:
        folder = settled(path)
        version = _version(folder / record)
        try:
            return read(folder)
        except ResultFormatError:
            if version == last:
                raise
            last = version


def _version(file: Path) -> tuple[int, ...]:
    """Return a value that changes with every write of a file, even if the bytes stay the same."""
    try:
        status = file.stat()
    except OSError:
        return ()
    return status.st_ino, status.st_mtime_ns, status.st_ctime_ns


def _listed(folder: Path) -> list[str]:
    try:
        return os.listdir(folder)
    except OSError:
        return []


def _remove(place: Path) -> None:
    if place.is_dir() and not place.is_symlink():
        shutil.rmtree(place, ignore_errors=True)
    else:
        with suppress(OSError):
            place.unlink()


def remove_inside(folder: Path, place: Path) -> None:
    """Remove a directory and its contents, but only if its real path is inside `folder`."""
    if Path(os.path.realpath(folder)) in Path(os.path.realpath(place)).parents:
        shutil.rmtree(place, ignore_errors=True)


class SpillFolder:
    """A temporary directory, removed with this object, after a `with` block, or by a later process if this one dies."""

    path: Path  # the directory

    def __init__(self) -> None:
        top = Path(tempfile.gettempdir()) / "uds_lens-states"
        with writing(top, advice=IN_TEMPORARY):
            place, lock = _held(top)
            self.path = place / "kept"
            os.mkdir(self.path)
        self._close = weakref.finalize(self, _drop, place, lock, os.getpid())

    def close(self) -> None:
        """Remove the directory."""
        self._close()

    def __enter__(self) -> Path:
        return self.path

    def __exit__(self, *_: object) -> None:
        self.close()


def _drop(place: Path, lock: BaseFileLock | None, pid: int) -> None:
    if os.getpid() == pid:  # a forked child must not remove it when exiting
        _remove(place)
        if lock is not None:
            lock.release()


def atomic_write_bytes(path: Place, content: bytes) -> None:
    """Write a file next to its destination, flush it to disk, and move it into place."""
    path = located(path)
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        with _scratch(path) as place:
            _write(place / _NEW, content)
            os.replace(place / _NEW, path)


def atomic_write_text(path: Place, content: str) -> None:
    """Write text atomically in UTF-8. Unpaired surrogates, which UTF-8 cannot encode, are escaped."""
    atomic_write_bytes(path, content.encode("utf-8", "backslashreplace"))


def atomic_write_marked(path: Place, content: str | bytes) -> None:
    """Write a file whose format has no place for a tag, after writing its mark; see `is_marked`."""
    path = located(path)
    content = content.encode("utf-8", "backslashreplace") if isinstance(content, str) else content
    digest = sha256_bytes(content)
    _mark(path, digest)
    atomic_write_bytes(path, content)
    if digest not in _known(path):  # another process has written the mark and the file in the meantime
        _mark(path, digest)


def is_marked(path: Path) -> bool:
    """Return whether a file is unchanged since `atomic_write_marked` wrote it."""
    try:
        return path.is_file() and sha256_file(path) in _known(path)
    except OSError:
        return False


def _mark(path: Path, digest: str) -> None:
    """Add a hash to a mark, keeping earlier hashes, because the old file stays in place until it is replaced."""
    mark = check_writable(_mark_of(path), directory=False, format=_MARKED)
    digests = [digest, *(other for other in _known(path) if other != digest)][:_REMEMBERED]
    atomic_write_text(mark, json.dumps({"format": _MARKED, "sha256": digests}) + "\n")


def _known(path: Path) -> list[str]:
    """Return the hashes in a file's mark."""
    head = _head(_mark_of(path))
    try:
        digests = json.loads(head)["sha256"] if _JSON.match(head) else []
    except (ValueError, LookupError, RecursionError):
        return []
    return [digest for digest in digests if isinstance(digest, str)] if isinstance(digests, list) else []


def _mark_of(path: Path) -> Path:
    return path.with_name(f"{_prefix(path)[:-1]}{_MARK}")


def atomic_files(path: Place, files: Mapping[str, bytes], *, own: Collection[str] = ()) -> None:
    """Write files into a directory atomically; other files in it stay, except those named in `own`."""
    with atomic_directory(path, own={*files, *own}) as folder, writing(located(path)):
        for name, content in files.items():
            (folder / name).write_bytes(content)


@contextmanager
def atomic_directory(path: Place, *, own: Collection[str] | None = None) -> Iterator[Path]:
    """Yield an empty directory that replaces `path` when the block ends without an error.

    If the block raises or the process dies, `path` is unchanged. With `own` (the names that a save writes), all other
    files in `path` stay.
    """
    path = Path(os.path.realpath(located(path)))
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
    with _scratch(path, () if own is None else own) as place:
        with writing(path):
            os.mkdir(place / _NEW)
        yield place / _NEW
        with writing(path):
            _finish(place / _NEW)
            _put(place, path, own)


def _write(file: Path, content: bytes) -> None:
    with open(file, "wb") as stream:
        stream.write(content)
        stream.flush()
        os.fsync(stream.fileno())


def _finish(folder: Path) -> None:
    """Give all files default permissions (safetensors makes its files private), and flush them to disk."""
    mode = os.stat(folder).st_mode
    for place, _, names in os.walk(folder):
        for name in names:
            file = os.path.join(place, name)
            os.chmod(file, mode & 0o666)
            descriptor = os.open(file, os.O_RDONLY)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)


def _put(place: Path, path: Path, own: Collection[str] | None) -> None:
    """Move the new directory into place; an existing one, even if it just appeared, goes to the hidden directory."""
    for number in range(_TRIES):
        with suppress(FileNotFoundError):
            os.rename(path, place / f"{_GONE if own is None else _OLD}{number:02}")
        try:
            os.rename(place / _NEW, path)
            return
        except OSError:
            if not os.path.lexists(path):
                raise
    raise StorageError(f"{_short(path)} is being written by other processes: save somewhere else.")


def _restore(place: Path, path: Path, own: Collection[str]) -> None:
    """Restore what a save moved away: everything if nothing replaced it, otherwise only files that are not `own`."""
    for old in sorted(place.glob("*[0-9]"), reverse=True):
        if not os.path.lexists(path):
            os.rename(old, path)
        elif old.name.startswith(_OLD):
            _move(old, path, own)


def _move(old: Path, new: Path, own: Collection[str]) -> None:
    """Move files that are not `own` and do not exist at the destination."""
    for entry in list(os.scandir(old)):
        target = new / entry.name
        if entry.name in own:
            continue
        if not os.path.lexists(target):
            os.rename(entry.path, target)
        elif entry.is_dir(follow_symlinks=False) and target.is_dir():
            _move(Path(entry.path), target, ())


# Each file is read once and completely, so that the bytes that are checked are the bytes that are parsed.

LARGEST = 8 << 30  # largest file that is read, in bytes


def read_file(path: Place, *, most: int = LARGEST) -> bytes:
    """Read a regular file. Devices and pipes are refused, because reading them might never end."""
    name = _short(Path(path))
    try:
        state = os.stat(path)
        if not stat.S_ISREG(state.st_mode):
            raise ResultFormatError(f"{name} cannot be read: it is not a regular file.")
        if state.st_size > most:
            raise ResultFormatError(
                f"{name} is {state.st_size >> 20} MiB large: expected at most {most >> 20} MiB. Is it the right file?"
            )
        return Path(path).read_bytes()
    except ResultFormatError:
        raise
    except (OSError, ValueError, MemoryError) as error:
        raise ResultFormatError(f"{name} cannot be read: {getattr(error, 'strerror', None) or error}.") from error


def sha256_bytes(content: bytes) -> str:
    """Return the hexadecimal SHA-256.

    >>> sha256_bytes(b"")[:8]
    'e3b0c442'
    """
    return hashlib.sha256(content).hexdigest()


def sha256_file(path: Place) -> str:
    """Return the hexadecimal SHA-256 of a file's bytes."""
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while chunk := file.read(1 << 20):
            digest.update(chunk)
    return digest.hexdigest()
