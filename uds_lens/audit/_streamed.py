"""The two steps of an audit with models that are read a block at a time: states of a source, patches into `full`.

A model is read once: all batches go through each block together. The states of a source that was read are kept under
a key in the temporary directory until the audit is done, so that one that was stopped goes on from there.
"""

from __future__ import annotations

import errno
import json
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from contextvars import ContextVar
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from filelock import FileLock, Timeout
from jaxtyping import Bool
from torch import Tensor

from uds_lens._progress import tell
from uds_lens._storage import IN_TEMPORARY, atomic_directory, atomic_write_text, digest, sha256_file, writing
from uds_lens._types import Engine
from uds_lens.audit._inputs import Plan
from uds_lens.audit._memory import GIB, memory_of_audit, run_halving
from uds_lens.audit._states import SourceStates, StateStore, mean_over_tokens, require_finite_head, require_same_full
from uds_lens.errors import ModelError, Setting, StorageError, warn_once
from uds_lens.models import pick_device
from uds_lens.models._streamed import StreamedModel, files_of, why_not_streamed
from uds_lens.patching import SpanCache, row_layout
from uds_lens.patching._states import PatchEngine
from uds_lens.patching._streamed import StreamedBatch, run_streamed, tokens_in
from uds_lens.results._records import ModelRecord, versions
from uds_lens.results._settings import AuditConfig, RunOptions

_RECORD, _LOCK = "record.json", "lock"
_FORGOTTEN = 7 * 24 * 3600
"""Seconds after which states that no audit came back for are removed."""


def require_streamable(sources: Sequence[object], options: RunOptions) -> None:
    """Raise `ModelError` where a source that is to be read is none whose weights can be read block by block."""
    for source in sources:
        if not isinstance(source, str | os.PathLike):
            continue
        if (why := why_not_streamed(source, revision=options.revision, offline=options.offline)) is not None:
            raise ModelError(f"{os.fspath(source)!r} cannot be streamed: {why}.")


def read_streamed(
    source: str | os.PathLike[str], plan: Plan, *, role: str, config: AuditConfig, options: RunOptions, share: int = 1
) -> SourceStates:
    """Read a source's states block by block, or take those that an audit kept which was stopped; see `read_source`.

    Raises:
        ModelError: Its files cannot be read, or it produces states that are NaN or infinite.
    """
    place = _kept_place(_key(source, plan, config, options))
    if (kept := _load_kept(place, config)) is not None:
        tell(f"{os.fspath(source)}: read before, its states were kept")
        return kept
    with streamed_model(source, config, options) as streamed, _keeping(place) as folder:
        store = StateStore(budget=int(options.memory_gib * GIB / share), kept_in=folder)
        model = streamed.model
        rows_of, side = plan.batches_for(model), row_layout(model).padding_side
        s_source = torch.full((len(plan.rows),), torch.nan, dtype=torch.float64)
        _embed(streamed, plan, rows_of)

        def read(numbers: list[int]) -> None:
            batches = [plan.batch_of(rows_of[number], side) for number in numbers]
            riders = [StreamedBatch(model, batch, packed=plan.packed) for batch in batches]
            run_streamed(streamed, riders, desc=f"reading {role}", show=options.progress)
            with streamed.head():
                require_finite_head(model)
                for number, batch, rider in zip(numbers, batches, riders, strict=True):
                    rider.read_out()
                    s_source[rows_of[number]] = mean_over_tokens(rider.logprobs, batch)
            for number, batch, rider in zip(numbers, batches, riders, strict=True):
                states = rider.source_states(config.last_layer).states
                plan.require_finite(
                    states.isfinite().all(-1).all(-1).all(-1), rows_of[number], model.name, "hidden states"
                )
                store.put(batch, states)

        with _report_reads(streamed):
            for part in _parts(source, plan, rows_of, 0, config, options):
                run_halving(part, read, about=f"read {model.name}")
            streamed.fingerprint()
        record = ModelRecord.of(model)
        if folder is not None and store.keeps_files:
            with _warned():
                kept_record = {
                    "record": asdict(record),
                    "logprobs": s_source.tolist(),
                    "files": {file.name: sha256_file(file) for file in sorted(folder.glob("*.safetensors"))},
                }
                atomic_write_text(folder / _RECORD, json.dumps({"kept": kept_record, "digest": digest(kept_record)}))
    if place is not None:
        store.moved_to(place)
    return SourceStates(record, store, config.site, config.last_layer, logprobs=s_source)


class StreamedTarget:
    """`full`, read once for all batches and sources; use it in a `with` block. It has the face of `Target`."""

    engine: Engine = "wavefront"
    """Engine that measures all of it."""

    def __init__(self, full: str | os.PathLike[str], plan: Plan, *, config: AuditConfig, options: RunOptions) -> None:
        self.plan, self.config, self.options = plan, config, options
        self._streamed = streamed_model(full, config, options)
        self.model = self._streamed.model
        self.layout = row_layout(self.model)
        self._sources: Sequence[SourceStates] = ()
        self._record: ModelRecord | None = None
        self._expected: str | None = None
        self._batches = plan.batches_for(self.model)
        _embed(self._streamed, plan, self._batches)

    def __enter__(self) -> StreamedTarget:
        return self

    def __exit__(self, *_: object) -> None:
        self._streamed.__exit__()

    @property
    def record(self) -> ModelRecord:
        """The model; what of its weights was not read yet is read for the fingerprint."""
        if self._record is None:
            self._streamed.fingerprint()
            self._record = ModelRecord.of(self.model)
        return self._record

    @property
    def rows(self) -> str:
        """How its rows are batched, for the record."""
        return self.layout.described(packed=self.plan.packed)

    def require_weights(self, expected: str, *, now: bool) -> None:
        """Raise `ModelError`, once its weights were read, unless `full` is the model of an earlier stage 1.

        Args:
            expected: Fingerprint of that model.
            now: Read them now: no batch will be run.
        """
        self._expected = expected
        if now:
            require_same_full(self.model.name, self.record.fingerprint, expected)

    def states_of(self, source: SourceStates, engine: PatchEngine) -> SpanCache:
        """Return a source's states on the rows of a batch, as they were patched in."""
        assert isinstance(engine, StreamedBatch)
        return engine.placed(next(i for i, other in enumerate(self._sources) if other is source))

    def run_batches(
        self,
        work: Callable[[PatchEngine, list[int]], None],
        sources: Sequence[SourceStates] = (),
        knowledge: Bool[Tensor, "example layer"] | None = None,
    ) -> None:
        """Call `work(engine, rows)` on every batch, once the model was read for all of them.

        Args:
            work: Measures the rows of a batch; it may be called on the same rows again.
            sources: What it patches in.
            knowledge: Where each example's layers are measured; None: everywhere.
        """
        self._sources, side, config = sources, self.layout.padding_side, self.config

        def patch(numbers: list[int]) -> None:
            batches = [self.plan.batch_of(self._batches[number], side) for number in numbers]
            riders = [
                StreamedBatch(
                    self.model,
                    batch,
                    [partial(source.cache, batch) for source in sources],
                    packed=self.plan.packed,
                    exact_noop=config.exact_noop,
                    wanted=None if knowledge is None else knowledge[self._batches[number]],
                )
                for number, batch in zip(numbers, batches, strict=True)
            ]
            run_streamed(self._streamed, riders, desc="patching into full", show=self.options.progress)
            with self._streamed.head():
                for rider in riders:
                    rider.read_out()
            if self._expected is not None:
                require_same_full(self.model.name, self.record.fingerprint, self._expected)
            for number, rider in zip(numbers, riders, strict=True):
                work(rider, self._batches[number])

        with _report_reads(self._streamed):
            for part in _parts(self.model.name, self.plan, self._batches, len(sources), config, self.options):
                run_halving(part, patch, about=f"patch {self.model.name}")


def require_all_layers(options: RunOptions) -> None:
    """Raise where a streamed `full`, read once for both stages, would have to know stage 1 before stage 2."""
    if options.stream:
        raise ModelError(
            "a streamed model is patched for both stages at once, before stage 1 shows which layers encode the "
            "knowledge. Measure stage 1 first (Baseline.measure, then audit), or use ",
            Setting("stage_2", "all", of="RunOptions"),
            ".",
        )


def streamed_model(source: str | os.PathLike[str], config: AuditConfig, options: RunOptions) -> StreamedModel:
    """Open one checkpoint to be read a block at a time."""
    return StreamedModel(
        source,
        dtype=getattr(torch, config.dtype),
        device=pick_device(options.device),
        revision=options.revision,
        offline=options.offline,
    )


def _parts(
    model: str | os.PathLike[str],
    plan: Plan,
    batches: Sequence[Sequence[int]],
    n_sources: int,
    config: AuditConfig,
    options: RunOptions,
) -> Sequence[Sequence[int]]:
    """Cut the numbers of batches into runs whose states fit into memory while they wait for a block."""
    planned = replace(plan, batches=list(map(list, batches)))
    estimate = memory_of_audit(model, planned, n_sources=n_sources, config=config, options=options, streamed=True)
    return [range(len(batches))] if estimate is None else estimate.parts


def _embed(streamed: StreamedModel, plan: Plan, rows_of: Sequence[Sequence[int]]) -> None:
    plan.require_embedded(streamed.model)
    side = row_layout(streamed.model).padding_side
    if rows_of:
        streamed.embed(tokens_in([plan.batch_of(rows, side) for rows in rows_of]))


@contextmanager
def _report_reads(streamed: StreamedModel) -> Iterator[None]:
    """Say afterwards how much was read, and how fast."""
    start = time.perf_counter()
    yield
    seconds = max(time.perf_counter() - start, 1e-9)
    read, stored = streamed.bytes_read, streamed.bytes_stored
    times = "once" if read == stored else f"{read / stored:.2f} times"
    tell(
        f"{streamed.model.name}: {stored / 1e9:.2f} GB of weights read {times} in {seconds:.1f} s "
        f"({read / seconds / 1e6:.0f} MB/s)"
    )


# States of sources that were read, for an audit that is stopped and begun again: a directory for each, named after what
# they depend on. A lock says that an audit works with them; it ends with its process, so that a killed one leaves them.

_held: ContextVar[dict[Path, FileLock] | None] = ContextVar("uds_lens_kept_states", default=None)


@contextmanager
def streamed_states_kept() -> Iterator[None]:
    """Keep the states of streamed sources until the outermost such block ends well; then remove them."""
    if _held.get() is not None:
        yield
        return
    held: dict[Path, FileLock] = {}
    token = _held.set(held)
    try:
        yield
        for place in held:
            shutil.rmtree(place, ignore_errors=True)
            with suppress(OSError):  # others' states are in it
                place.parent.rmdir()
    finally:
        _held.reset(token)
        for lock in held.values():
            lock.release()


def _key(source: str | os.PathLike[str], plan: Plan, config: AuditConfig, options: RunOptions) -> str:
    """Hash of what a source's states depend on: its files, the tokens and their batches, how they are run."""
    control = None if plan.control is None else plan.control.ids_hash
    parts: list[Any] = [files_of(source, revision=options.revision, offline=options.offline)]
    parts += [plan.encoded.ids_hash, control, plan.batches, plan.packed, config.dtype, config.last_layer]
    parts += [pick_device(options.device), versions()]
    return digest(parts)


def _kept_place(key: str) -> Path | None:
    """Return the directory for states, which a stopped audit may have filled; None where nothing is to be kept.

    Warns where nothing of ours can be kept.
    """
    held = _held.get()
    if held is None:
        return None
    user = getattr(os, "getuid", lambda: 0)()
    top = Path(tempfile.gettempdir()) / f"uds_lens-kept-{user}"
    place = top / key
    if place in held:
        return place / "states"
    with _warned(), writing(top, advice=IN_TEMPORARY):
        top.mkdir(mode=0o700, exist_ok=True)
        if top.is_symlink() or getattr(top.stat(), "st_uid", user) != user:
            raise PermissionError(errno.EPERM, "it belongs to somebody else")
        for other in top.iterdir():
            with suppress(OSError):  # an audit works with them, or has removed them
                if time.time() - other.stat().st_mtime > _FORGOTTEN:
                    with FileLock(other / _LOCK, timeout=0):
                        shutil.rmtree(other, ignore_errors=True)
        place.mkdir(mode=0o700, exist_ok=True)
        lock = FileLock(place / _LOCK)
        with suppress(Timeout):  # another audit works with the same states, and removes them when it is done
            lock.acquire(timeout=0)
            held[place] = lock
            return place / "states"
    return None


def _load_kept(place: Path | None, config: AuditConfig) -> SourceStates | None:
    """Load the states that were kept; None where there are none, or a file of them is gone, cut or altered.

    Temporary directories are cleaned file by file, and a machine that lost its power may leave holes: states are only
    taken where every byte is the one that was written.
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


@contextmanager
def _keeping(place: Path | None) -> Iterator[Path | None]:
    """Yield the directory to write to, which appears atomically; None, with a warning, where nothing can be written."""
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
    """Warn where the disk refuses states that are only kept for an audit that is stopped."""
    try:
        yield
    except (StorageError, NotImplementedError) as error:  # the latter where a file system has no locks
        warn_once(f"states are not kept, so that this audit would begin anew if it is stopped: {error}")
