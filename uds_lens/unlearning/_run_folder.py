"""Where a run keeps its checkpoints until it is finished, so that it can be killed and called again."""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
import sys
import warnings
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from uds_lens._storage import atomic_write_text, sha256_file
from uds_lens._storage.claims import SILENCE, Claims
from uds_lens.errors import ConfigError, UdsLensWarning
from uds_lens.unlearning._alternates import FILE as ALTERNATES
from uds_lens.unlearning._job import digest
from uds_lens.unlearning._record import counted_twice, read_record

# Sizes and hashes of the files in a directory: whether they are still as they were written.


def file_sums(folder: Path, *, but: Collection[str] = ()) -> dict[str, list[Any]]:
    """Size in bytes and SHA-256 of every file in a directory, by its path in it.

    Args:
        folder: The directory.
        but: Names that are left out.
    """
    return {
        file.relative_to(folder).as_posix(): [file.stat().st_size, sha256_file(file)]
        for file in sorted(folder.rglob("*"))
        if file.is_file() and file.name not in but
    }


def difference(folder: Path, sums: Mapping[str, Sequence[Any]]) -> str | None:
    """In what a directory is not as it was, in words; None where it is. Files that came since do not matter."""
    for name, (size, known) in sums.items():
        file = folder / name
        if not file.is_file():
            return f"{name} is missing"
        if file.stat().st_size != size:
            return f"{name} has {file.stat().st_size} bytes instead of {size}"
        if sha256_file(file) != known:
            return f"{name} was altered"
    return None


# Checkpoints of a run that may be killed: each says what whole is, and only whole ones are gone on from.

CONTENTS = "uds_lens_contents.json"
"""File in a checkpoint, written last: size and hash of every other file."""

_NAME = re.compile(r"checkpoint-(\d+)")


def checkpoints(folder: Path) -> list[Path]:
    """The checkpoints in a folder, whole or not, oldest first."""
    found = [path for path in folder.iterdir() if _NAME.fullmatch(path.name) and path.is_dir()]
    return sorted(found, key=step_of)


def step_of(checkpoint: Path) -> int:
    """The optimiser step a checkpoint was made after."""
    return int(checkpoint.name.rpartition("-")[2])


def seal(checkpoint: Path) -> None:
    """Write down what a finished checkpoint holds, then remove those before it."""
    contents = file_sums(checkpoint, but=(CONTENTS,))
    atomic_write_text(checkpoint / CONTENTS, json.dumps(contents, indent=1) + "\n")
    for older in checkpoints(checkpoint.parent):
        if step_of(older) < step_of(checkpoint):
            shutil.rmtree(older)


def damage(checkpoint: Path) -> str | None:
    """What is wrong with a checkpoint, in words; None where it is as it was written."""
    try:
        contents: dict[str, Any] = json.loads((checkpoint / CONTENTS).read_text(encoding="utf-8"))
        return difference(checkpoint, contents)
    except FileNotFoundError:
        return "it was not written to its end"
    except (OSError, ValueError, TypeError, AttributeError) as error:
        return f"{CONTENTS} cannot be read ({type(error).__name__})"


def last_whole(folder: Path) -> Path | None:
    """The newest whole checkpoint in a folder, or None; those that are not whole are removed.

    Warns:
        UdsLensWarning: A checkpoint was damaged after it was written, or there are some and none is whole.
    """
    found = checkpoints(folder)
    whole, broken = None, {}
    for path in reversed(found):
        problem = damage(path)
        if problem is None:
            whole = path
            break
        broken[path] = problem
        shutil.rmtree(path)
    told = "; ".join(f"{path.name}: {problem}" for path, problem in broken.items())
    altered = any((problem != "it was not written to its end") for problem in broken.values())
    if broken and (whole is None or altered):
        then = "the run starts again" if whole is None else f"the run goes on from {whole.name}"
        warnings.warn(
            UdsLensWarning(f"{str(folder)!r} has checkpoints that are not whole ({told}): {then}."),
            stacklevel=2,
        )
    return whole


# One run in several processes, one per device: the first prepares and saves, the others wait for it.


@dataclass(frozen=True)
class JointProcesses:
    """What this process is among those that train together (torchrun, accelerate launch)."""

    rank: int
    """Number of this process, from 0."""

    world: int
    """How many there are."""

    @classmethod
    def joined(cls, device: str) -> JointProcesses:
        """Join the others, if there are any; each takes its own device.

        Args:
            device: As in `TrainOptions`.
        """
        world = int(os.environ.get("WORLD_SIZE", "1"))
        if world > 1:
            from accelerate import PartialState

            PartialState(cpu=device == "cpu")
        return cls(int(os.environ.get("RANK", "0")), world)

    @property
    def is_first(self) -> bool:
        """Whether this process prepares and saves."""
        return self.rank == 0

    def wait(self) -> None:
        """Go on when all have come here."""
        if self.world > 1:
            import torch

            torch.distributed.barrier()


if sys.platform != "win32":
    import fcntl

_RUN, _LOCK, _CLAIM = "run.json", "lock", "claim"
_KEY = re.compile(r"[0-9a-f]{32}")


class RunFolder:
    """A hidden directory beside the result, named after it. It goes when the result is there."""

    def __init__(
        self, out: Path, *, depends_on: Mapping[str, Any], record: str, processes: JointProcesses
    ) -> None:
        self.out, self.record, self.processes = out, record, processes
        self.depends_on, self.key = depends_on, digest(depends_on)
        self.folder = folder_of(out)

    def is_finished(self) -> bool:
        """Whether `out` already holds the whole result of this very run.

        Raises:
            ConfigError: `out` holds the result of another run.
            ResultFormatError: Its record was altered.

        Warns:
            UdsLensWarning: It holds this result, but not as it was saved, or as several processes trained it in
                version 0.1.0: the run is done again.
        """
        if not os.path.lexists(self.out) or not any(self.out.iterdir()):
            return False
        record = read_record(self.out) if (self.out / self.record).is_file() else {}
        if not record:
            raise ConfigError(
                f"{str(self.out)!r} holds something that is no result of this run: choose another place, or remove it."
            )
        if record["key"] != self.key:
            differences = _differences(record.get("depends_on") or {}, self.depends_on)
            raise ConfigError(
                f"{str(self.out)!r} holds the result of another run{differences}: choose another place, or remove it."
            )
        changed = difference(self.out, record["files"])
        problem = None if changed is None else f"is not as it was saved ({changed})"
        if problem is None and counted_twice(record):
            problem = (
                f"was trained by {record['n_devices']} processes that counted some visits twice in the last batch, "
                "as version 0.1.0 did"
            )
        if problem is not None:
            warnings.warn(
                UdsLensWarning(f"{str(self.out)!r} {problem}: the run is done again."), stacklevel=2
            )
        return problem is None

    @contextmanager
    def opened(self) -> Iterator[Path]:
        """The directory, locked, with what an earlier try of this very run left there.

        Raises:
            ConfigError: Another process is at it, or something else is there under its name.

        Warns:
            UdsLensWarning: Another run was left unfinished there; its checkpoints are removed.
        """
        if not self.processes.is_first:
            self.processes.wait()
            yield self.folder
            self.processes.wait()
            return
        self._require_ours()
        with _locked(self.folder, self.out):
            self._begin()
            self.processes.wait()
            yield self.folder
            self.processes.wait()
            self._empty()
            (self.folder / _LOCK).unlink(missing_ok=True)
            with suppress(OSError):  # something that is not ours was put there
                self.folder.rmdir()

    def _begin(self) -> None:
        left = _key_in(self.folder / _RUN)
        if left is not None and left != self.key:
            warnings.warn(
                UdsLensWarning(
                    f"{str(self.folder)!r} holds an unfinished run with other settings or data: its checkpoints are "
                    "removed."
                ),
                stacklevel=4,
            )
            self._empty()
        atomic_write_text(self.folder / _RUN, json.dumps({"format": "uds_lens.run", "key": self.key}) + "\n")

    def _require_ours(self) -> None:
        """Nothing foreign may stand under the name of the folder."""
        if not os.path.lexists(self.folder):
            return
        names = {path.name for path in self.folder.iterdir()} if self.folder.is_dir() else {""}
        if names - {_LOCK, _CLAIM} and _key_in(self.folder / _RUN) is None:
            raise ConfigError(
                f"{str(self.folder)!r} is where the run would keep its checkpoints, and holds something else: choose "
                "another name for the result, or remove it."
            )

    def _empty(self) -> None:
        for path in checkpoints(self.folder):
            shutil.rmtree(path)
        for name in (ALTERNATES, _RUN):
            (self.folder / name).unlink(missing_ok=True)


def folder_of(out: Path) -> Path:
    """The hidden directory in which the run for a result keeps its checkpoints."""
    return out.parent / f".{out.name}.run"


def saved_so_far(out: Path) -> str:
    """What a run that was stopped has saved, in words."""
    folder = folder_of(out)
    found = [x for x in checkpoints(folder) if (x / CONTENTS).is_file()] if folder.is_dir() else []
    if not found:
        return "no checkpoint is written yet; run the same again to start anew"
    return f"step {step_of(found[-1])} is saved in {folder}; run the same again to go on from there"


@contextmanager
def _locked(folder: Path, out: Path) -> Iterator[None]:
    """Hold the folder for this process until the block ends.

    The system lets go of a lock when a process dies. Where the file system has no locks (some Lustre, FUSE and Drive
    mounts) or the system has none, a claim with a heartbeat takes their place.

    Raises:
        ConfigError: Another process holds it.
    """
    descriptor = _lock(folder, out)
    if descriptor is not None:
        try:
            yield
        finally:
            os.close(descriptor)
        return
    claim = Claims(folder).take(_CLAIM)
    if claim is None:
        raise ConfigError(
            f"another process is making {str(out)!r}: wait for it, or choose another place. This file system has no "
            f"locks: a process that died on another machine counts as alive for {SILENCE / 60:g} minutes."
        )
    with claim:
        yield
    shutil.rmtree(folder / _CLAIM, ignore_errors=True)
    with suppress(OSError):  # something that is not ours was put there
        folder.rmdir()


def _lock(folder: Path, out: Path) -> int | None:
    """Lock a file in the folder and return its descriptor; None where there are no such locks."""
    if sys.platform == "win32":
        return None
    while True:
        folder.mkdir(parents=True, exist_ok=True)
        try:
            descriptor = os.open(folder / _LOCK, os.O_RDWR | os.O_CREAT, 0o666)
        except FileNotFoundError:  # another process has just finished, and removed the folder
            continue
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(descriptor)
            if error.errno not in (errno.EAGAIN, errno.EWOULDBLOCK, errno.EACCES):
                return None
            raise ConfigError(
                f"another process is making {str(out)!r}: wait for it, or choose another place."
            ) from error
        if _is_at(descriptor, folder / _LOCK):
            return descriptor
        os.close(descriptor)  # the same, a moment later


def _is_at(descriptor: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), os.stat(path))
    except FileNotFoundError:
        return False


def _differences(there: Mapping[str, Any], asked: Mapping[str, Any]) -> str:
    """In which settings two runs differ, as far as the record says."""

    def flat(parts: Mapping[str, Any]) -> dict[str, Any]:
        config = parts.get("config")
        return {**parts, **(config if isinstance(config, Mapping) else {}), "config": None}

    one, other = flat(there), flat(asked)
    if not there:
        return ""
    names = [name for name in other if one.get(name) != other[name]]
    shown = [f"{name} {str(one.get(name))[:40]!r}, not {str(other[name])[:40]!r}" for name in names[:3]]
    return f" ({'; '.join(shown)}{' ...' if len(names) > 3 else ''})" if shown else ""


def _key_in(file: Path) -> str | None:
    """The key of the run that a file tells of; None where there is none, or it is something else."""
    try:
        key = json.loads(file.read_text(encoding="utf-8"))["key"]
    except (FileNotFoundError, IsADirectoryError, NotADirectoryError, ValueError, KeyError, TypeError):
        return None
    return key if isinstance(key, str) and _KEY.fullmatch(key) else None
