"""Checkpoints of a run and their locked folder, for resuming interrupted runs."""

from __future__ import annotations

import json
import os
import re
import shutil
import warnings
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from uds_lens._storage.files import atomic_write_text, is_scratch, read_file, refuse_to_replace, sha256_file
from uds_lens._storage.locks import hold
from uds_lens._storage.records import digest, parse_json
from uds_lens.errors import ConfigError, ResultFormatError, UdsLensWarning
from uds_lens.training._curve import RECORD
from uds_lens.unlearning._data import ALTERNATES
from uds_lens.unlearning._record import read_record

CONTENTS = "uds_lens_contents.json"  # last file written to a checkpoint, holding the sizes and hashes of all others

_CHECKPOINT = re.compile(r"checkpoint-(\d+)")
_RUN, _FORMAT, _LOCKS = "run.json", "uds_lens.run", ("lock", "soft.lock")
_OURS = (ALTERNATES, RECORD, _RUN)


def file_sums(folder: Path, *, but: Collection[str] = ()) -> dict[str, list[Any]]:
    """Return the size in bytes and SHA-256 of all files in a directory, by relative path, except names in `but`."""
    return {
        file.relative_to(folder).as_posix(): [file.stat().st_size, sha256_file(file)]
        for file in sorted(folder.rglob("*"))
        if file.is_file() and file.name not in but
    }


def difference(folder: Path, sums: Mapping[str, Sequence[Any]]) -> str | None:
    """Describe how a directory differs from its recorded hashes; None if it does not. Additional files are ignored."""
    for name, (size, known) in sums.items():
        file = folder / name
        if not file.is_file():
            return f"{name} is missing"
        if file.stat().st_size != size:
            return f"{name} has {file.stat().st_size} bytes instead of {size}"
        if sha256_file(file) != known:
            return f"{name} was altered"
    return None


def checkpoints(folder: Path) -> list[Path]:
    """Return the checkpoints in a folder, intact or not, oldest first."""
    return sorted(
        (path for path in folder.iterdir() if _CHECKPOINT.fullmatch(path.name) and path.is_dir()), key=step_of
    )


def step_of(checkpoint: Path) -> int:
    """Return the optimiser step of a checkpoint."""
    return int(checkpoint.name.rpartition("-")[2])


def seal(checkpoint: Path) -> None:
    """Record the contents of a finished checkpoint, then remove older checkpoints."""
    contents = file_sums(checkpoint, but=(CONTENTS,))
    atomic_write_text(checkpoint / CONTENTS, json.dumps(contents, indent=1) + "\n")
    for older in checkpoints(checkpoint.parent):
        if step_of(older) < step_of(checkpoint):
            shutil.rmtree(older)


def damage(checkpoint: Path) -> str | None:
    """Describe the damage to a checkpoint; None if it is intact."""
    try:
        if not os.path.lexists(checkpoint / CONTENTS):
            return "it is incomplete"
        return difference(checkpoint, parse_json(read_file(checkpoint / CONTENTS), where=CONTENTS))
    except (ResultFormatError, OSError, ValueError, TypeError) as error:
        return f"{CONTENTS} cannot be read ({type(error).__name__})"


def last_intact(folder: Path) -> Path | None:
    """Return the newest intact checkpoint, or None, after removing newer damaged checkpoints.

    Warns:
        UdsLensWarning: A checkpoint was damaged after it was written, or checkpoints exist but none is intact.
    """
    intact, problems = None, {}
    for path in reversed(checkpoints(folder)):
        problem = damage(path)
        if problem is None:
            intact = path
            break
        problems[path.name] = problem
        shutil.rmtree(path)
    if problems and (intact is None or set(problems.values()) != {"it is incomplete"}):
        described = "; ".join(f"{name}: {problem}" for name, problem in problems.items())
        then = "starts over" if intact is None else f"resumes from {intact.name}"
        warnings.warn(
            UdsLensWarning(f"skipped damaged checkpoints in {str(folder)!r} ({described}): the run {then}."),
            stacklevel=2,
        )
    return intact


@dataclass(frozen=True)
class JointProcesses:
    """Position of this process among all processes of a training run (torchrun, accelerate launch)."""

    rank: int  # rank of this process, from 0
    world: int  # number of processes

    @classmethod
    def joined(cls, device: str) -> JointProcesses:
        """Join the other processes, if any, with one device per process."""
        world = int(os.environ.get("WORLD_SIZE", "1"))
        if world > 1:
            from accelerate import PartialState

            PartialState(cpu=device == "cpu")
        return cls(int(os.environ.get("RANK", "0")), world)

    @property
    def is_first(self) -> bool:
        """Whether this process prepares the data and saves the result."""
        return self.rank == 0

    def wait(self) -> None:
        """Wait until all processes have reached this point."""
        if self.world > 1:
            import torch

            torch.distributed.barrier()


class RunFolder:
    """The hidden directory `.NAME.run` next to the result, which is removed once the result is saved."""

    def __init__(
        self, out: Path, *, depends_on: Mapping[str, Any], record: str, processes: JointProcesses, redo: bool = False
    ) -> None:
        self.out, self.record, self.processes, self.redo = out, record, processes, redo
        self.depends_on, self.key = depends_on, digest(depends_on)
        self.folder = folder_of(out)

    def is_finished(self) -> bool:
        """Return whether `out` already holds the complete result of this run, unless `redo` is set."""
        if self.redo or not os.path.lexists(self.out) or not any(self.out.iterdir()):
            return False
        if not (self.out / self.record).is_file():
            refuse_to_replace(self.out, "something other than a result of this run", of="TrainOptions")
        try:
            record = read_record(self.out)
        except ResultFormatError as error:
            problem = str(error).removesuffix(": measure again.")
        else:
            if record["key"] != self.key:
                differences = _differences(record["depends_on"], self.depends_on)
                refuse_to_replace(self.out, f"the result of another run{differences}", of="TrainOptions")
            changed = difference(self.out, record["files"])
            if changed is None:
                return True
            problem = f"{str(self.out)!r} has changed since it was saved ({changed})"
        warnings.warn(UdsLensWarning(f"{problem}: training again."), stacklevel=2)
        return False

    @contextmanager
    def opened(self) -> Iterator[Path]:
        """Yield the locked directory, which keeps files from an earlier attempt at the same run."""
        if not self.processes.is_first:
            self.processes.wait()
            yield self.folder
            self.processes.wait()
            return
        if os.path.lexists(self.folder):
            names = [path.name for path in self.folder.iterdir()] if self.folder.is_dir() else [""]
            foreign = [name for name in names if name not in (*_LOCKS, _RUN) and not is_scratch(name)]
            if foreign and _key_in(self.folder / _RUN) is None:
                raise ConfigError(
                    f"the run's checkpoints would go to {str(self.folder)!r}, which holds other files: choose "
                    "another name for the result, or remove those files."
                )
        with _locked(self.folder, self.out):
            left = _key_in(self.folder / _RUN)
            if left is not None and left != self.key:
                warnings.warn(
                    UdsLensWarning(
                        f"{str(self.folder)!r} holds an unfinished run with different settings or data: removing its "
                        "checkpoints."
                    ),
                    stacklevel=3,
                )
                self._empty()
            atomic_write_text(self.folder / _RUN, json.dumps({"format": _FORMAT, "key": self.key}) + "\n")
            self.processes.wait()
            yield self.folder
            self.processes.wait()
            self._empty()
            for name in _LOCKS:
                (self.folder / name).unlink(missing_ok=True)
            with suppress(OSError):  # the folder contains other files
                self.folder.rmdir()

    def _empty(self) -> None:
        for path in checkpoints(self.folder):
            shutil.rmtree(path)
        ours = [path for path in self.folder.iterdir() if path.name in _OURS or is_scratch(path.name)]
        for path in sorted(ours, key=lambda path: path.name == _RUN):  # run.json, which identifies the rest, last
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path, ignore_errors=True)
            else:
                path.unlink(missing_ok=True)


def folder_of(out: Path) -> Path:
    """Return the hidden directory for a run's checkpoints."""
    return out.parent / f".{out.name}.run"


def saved_so_far(out: Path) -> str:
    """Describe what an interrupted run has saved."""
    folder = folder_of(out)
    saved = [x for x in checkpoints(folder) if (x / CONTENTS).is_file()] if folder.is_dir() else []
    if not saved:
        return "no checkpoint has been saved yet; run the same command again to start over"
    return f"step {step_of(saved[-1])} is saved in {folder}; run the same command again to resume from there"


@contextmanager
def _locked(folder: Path, out: Path) -> Iterator[None]:
    """Lock the folder until the block ends or the process dies."""
    lock = hold(folder / _LOCKS[0], timeout=0.5)
    if lock is None:
        lock_file, soft = (folder / name for name in _LOCKS)
        raise ConfigError(
            f"another process is training {str(out)!r}: wait until it has finished, or choose another directory. If no "
            f"other process is running, remove {str(soft if soft.exists() else lock_file)!r}."
        )
    try:
        yield
    finally:
        with suppress(OSError):
            lock.release()


def _differences(there: Mapping[str, Any], asked: Mapping[str, Any]) -> str:
    """Describe the settings in which two runs differ."""
    one, other = ({**parts, **(parts.get("config") or {}), "config": None} for parts in (there, asked))
    names = [name for name in other if one.get(name) != other[name]]
    shown = [f"{name} {str(one.get(name))[:40]!r}, not {str(other[name])[:40]!r}" for name in names[:3]]
    return f" ({'; '.join(shown)}{' ...' if len(names) > 3 else ''})" if shown else ""


def _key_in(file: Path) -> str | None:
    """Return the key in a run file; None if the file does not exist or is not a run file."""
    try:
        run = parse_json(read_file(file), where=file.name)
    except ResultFormatError:
        return None
    return run.get("key") if run.get("format") == _FORMAT else None
