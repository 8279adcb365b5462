"""Keep the states of streamed sources on disk, so that an interrupted audit can be resumed.

Each source has a directory inside the temporary directory, named after a hash of everything that its states depend on.
An audit locks the directories it uses. A lock ends with its process, so the next audit can use the states left by a
killed one. A finished audit removes its states.
"""

from __future__ import annotations

import errno
import json
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from contextvars import ContextVar
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from filelock import BaseFileLock

from uds_lens._storage.files import IN_TEMPORARY, atomic_directory, atomic_write_text, sha256_file, writing
from uds_lens._storage.locks import hold
from uds_lens._storage.records import digest
from uds_lens.audit._inputs import Plan
from uds_lens.audit._states import SourceStates, StateStore
from uds_lens.errors import StorageError, warn_once
from uds_lens.models._by_block import files_of
from uds_lens.models._hooked import pick_device
from uds_lens.results._records import ModelRecord, versions
from uds_lens.results._settings import AuditConfig, RunOptions

_RECORD, _LOCK = "record.json", "lock"
_FORGOTTEN = 7 * 24 * 3600
"""Seconds after which unused states are removed."""

_held: ContextVar[dict[Path, BaseFileLock] | None] = ContextVar("uds_lens_kept_states", default=None)


@contextmanager
def states_kept() -> Iterator[None]:
    """Keep states of streamed sources until the outermost `with` block of this kind ends without an error."""
    if _held.get() is not None:
        yield
        return
    held: dict[Path, BaseFileLock] = {}
    token = _held.set(held)
    try:
        yield
        for place in held:
            shutil.rmtree(place, ignore_errors=True)
            with suppress(OSError):  # not empty: other audits have states there
                place.parent.rmdir()
    finally:
        _held.reset(token)
        for lock in held.values():
            lock.release()


def _key(source: str | os.PathLike[str], plan: Plan, config: AuditConfig, options: RunOptions) -> str:
    """Hash everything that a source's states depend on: its files, the tokens and batches, and how it is run."""
    control = None if plan.control is None else plan.control.ids_hash
    parts: list[Any] = [files_of(source, revision=options.revision, offline=options.offline)]
    parts += [plan.encoded.ids_hash, control, plan.batches, plan.packed, config.dtype, config.last_layer]
    parts += [pick_device(options.device), versions()]
    return digest(parts)


def kept_place(source: str | os.PathLike[str], plan: Plan, config: AuditConfig, options: RunOptions) -> Path | None:
    """Return the directory for a source's states, which an earlier audit may have filled; None if they are not kept.

    Warns if the states cannot be kept.
    """
    held = _held.get()
    if held is None:
        return None
    user = getattr(os, "getuid", lambda: 0)()
    top = Path(tempfile.gettempdir()) / f"uds_lens-kept-{user}"
    place = top / _key(source, plan, config, options)
    if place in held:
        return place / "states"
    with _warned(), writing(top, advice=IN_TEMPORARY):
        top.mkdir(mode=0o700, exist_ok=True)
        if top.is_symlink() or getattr(top.stat(), "st_uid", user) != user:
            raise PermissionError(errno.EPERM, "the directory belongs to another user")
        for other in top.iterdir():
            with suppress(OSError):  # another audit has just removed it
                forgotten = time.time() - other.stat().st_mtime > _FORGOTTEN
                if forgotten and (old := hold(other / _LOCK, timeout=0)) is not None:
                    shutil.rmtree(other, ignore_errors=True)
                    old.release()
        place.mkdir(mode=0o700, exist_ok=True)
        if (lock := hold(place / _LOCK, timeout=0)) is not None:
            held[place] = lock
            return place / "states"
    return None  # another audit is using these states, and removes them at the end


def load_kept(place: Path | None, config: AuditConfig) -> SourceStates | None:
    """Load the kept states; None if there are none, or if a file is missing, truncated or altered.

    A cleaned temporary directory may lack some of the files, and a power failure can leave gaps in them, so states are
    used only if every file matches its recorded hash.
    """
    from safetensors import SafetensorError

    if place is None or not (place / _RECORD).is_file():
        return None
    with suppress(OSError, ValueError, TypeError, KeyError, RecursionError, SafetensorError):
        whole = json.loads((place / _RECORD).read_text("utf-8"))
        kept = whole["kept"]
        if digest(kept) != whole["digest"] or any(sha256_file(place / f) != sha for f, sha in kept["files"].items()):
            return None
        record, s_source = ModelRecord(**kept["record"]), torch.tensor(kept["logprobs"], dtype=torch.float64)
        return SourceStates(record, StateStore.of_folder(place), config.site, config.last_layer, logprobs=s_source)
    return None


def keep_record(folder: Path | None, states: SourceStates) -> None:
    """Write the record that marks the files of a source's states as complete."""
    if folder is None or not states.store.keeps_files or states.logprobs is None:
        return
    with _warned():
        kept = {
            "record": asdict(states.record),
            "logprobs": states.logprobs.tolist(),
            "files": {file.name: sha256_file(file) for file in sorted(folder.glob("*.safetensors"))},
        }
        atomic_write_text(folder / _RECORD, json.dumps({"kept": kept, "digest": digest(kept)}))


@contextmanager
def keeping(place: Path | None) -> Iterator[Path | None]:
    """Yield a directory to write to, moved to `place` at the end; None, with a warning, if it cannot be written."""
    with ExitStack() as stack:
        folder = None
        if place is not None:
            with _warned():
                folder = stack.enter_context(atomic_directory(place))
        yield folder
        with _warned():
            stack.close()


@contextmanager
def _warned() -> Iterator[None]:
    """Warn instead of failing if states that are kept only for resuming cannot be written."""
    try:
        yield
    except (StorageError, NotImplementedError) as error:  # NotImplementedError on file systems without locks
        warn_once(f"states are not kept, so this audit has to start from scratch if it is interrupted: {error}")
