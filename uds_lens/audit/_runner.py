"""Run an audit's passes: batches, spilling to disk, halving when memory runs out, falling back to the plain engine.

The measurement itself is in `_two_stage.py`. Here are the states of sources (`SourceStates`, on the CPU, above a budget
on disk), `read_sources`, and `Target`, which keeps `full` open.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass
from pathlib import Path, PurePath
from types import TracebackType

import torch
from jaxtyping import Float
from torch import Tensor

from uds_lens._compat.torch import is_out_of_memory
from uds_lens._progress import about, progress
from uds_lens._storage import IN_TEMPORARY, SpillFolder, writing
from uds_lens._types import Engine, LastLayer, Site
from uds_lens.audit._inputs import Plan, Source, where_of
from uds_lens.audit._memory import GIB, require_memory, run_halving
from uds_lens.data import TokenBatch
from uds_lens.errors import DataError, ModelBusyError, ModelError, warn_once
from uds_lens.models import HookedModel, ModelSource, open_model
from uds_lens.patching import SpanCache, WavefrontTarget, capture, choose_engine, fall_back, open_target, row_layout
from uds_lens.patching._costs import SCORES_AT_ONCE
from uds_lens.patching._engines import checked_rows
from uds_lens.patching._side_by_side import packable
from uds_lens.patching._states import PatchEngine
from uds_lens.results._records import ModelRecord
from uds_lens.results._settings import AuditConfig, RunOptions


class _MeasureAgain(Exception):  # noqa: N818 - a signal, not an error
    """Raised in the middle of a pass whose engine was replaced: the whole pass is repeated."""


class StateStore:
    """States by row, each cut to its own window; beyond a budget they go to safetensors files.

    The files lie in a temporary directory that is removed with the store, or by the next run if this one is killed.
    """

    def __init__(self, *, budget: int) -> None:
        self._rows: dict[int, Float[Tensor, "layer win d_model"]] = {}
        self._files: dict[int, Path] = {}
        self._left = budget
        self._folder: SpillFolder | None = None

    @property
    def spilled(self) -> int:
        """Number of rows on disk."""
        return len(self._files)

    def put(self, batch: TokenBatch, states: Float[Tensor, "batch layer win d_model"]) -> None:
        """Keep the states of a batch's rows."""
        widths = batch.window_mask.sum(1).tolist()
        parts = {
            row: states[i, :, :width].cpu().contiguous()
            for i, (row, width) in enumerate(zip(batch.rows, widths, strict=True))
        }
        size = sum(part.numel() * part.element_size() for part in parts.values())
        if size <= self._left:
            self._left -= size
            self._rows.update(parts)
            return
        from safetensors.torch import save_file

        self._left = 0
        self._folder = self._folder or SpillFolder()
        file = self._folder.path / f"{len(self._files)}.safetensors"
        with writing(self._folder.path, advice=IN_TEMPORARY):
            save_file({str(row): part for row, part in parts.items()}, file)
        self._files.update(dict.fromkeys(parts, file))

    def get(self, row: int) -> Float[Tensor, "layer win d_model"]:
        """Return the states of one row."""
        if row in self._rows:
            return self._rows[row]
        if row not in self._files:
            raise DataError(f"no states for row {row}: read the source on the same plan.")
        from safetensors import safe_open

        with safe_open(self._files[row], framework="pt") as file:
            return file.get_tensor(str(row))


@dataclass(frozen=True, eq=False)
class SourceStates:
    """One source's states on every row of a plan, on the CPU."""

    record: ModelRecord  # the model they come from
    store: StateStore  # the states by row
    site: Site = "resid_post"  # point of the block they were read at
    last_layer: LastLayer = "resid_post"  # state that is taken for the last layer

    def cache(self, batch: TokenBatch) -> SpanCache:
        """Return the states of a batch's rows, padded to its window by repeating each row's last position."""
        width, parts = batch.window.shape[1], []
        for row in batch.rows:
            states = self.store.get(row)
            filler = states[:, -1:].expand(-1, width - states.shape[1], -1)
            parts.append(torch.cat([states, filler], dim=1) if filler.shape[1] else states)
        return SpanCache(torch.stack(parts), self.site, self.last_layer, self.record.name)


def read_sources(
    full: ModelSource, sources: Sequence[Source], plan: Plan, *, config: AuditConfig, options: RunOptions
) -> list[SourceStates]:
    """Read all sources, one open at a time; where fast reading fails on one, all are read again plainly."""
    require_memory(full, plan, n_sources=len(sources), config=config, options=options)
    while True:
        n_fallen, states = len(plan.fallen), []
        for number, source in enumerate(sources, start=1):
            role, label = source.name, ""
            if source.role == "unlearned" and source.index and isinstance(source.model, str | os.PathLike):
                role, label = source.role, f"{PurePath(source.model).name} ({number} of {len(sources)})"
            with about(label) if label else nullcontext():
                states.append(
                    read_source(source.model, plan, role=role, config=config, options=options, share=len(sources))
                )
        if len(plan.fallen) == n_fallen or len(states) == 1:
            return states


def read_source(
    source: ModelSource, plan: Plan, *, role: str, config: AuditConfig, options: RunOptions, share: int = 1
) -> SourceStates:
    """Open a source, keep its states at the windows, close it."""
    with opened(source, config, options) as model:
        # Before the first pass: on a CPU, bitsandbytes repacks 4-bit weights then.
        record = ModelRecord.of(model)
        require_finite_head(model)
        packed = runs_packed(model, plan)
        engine = plan.reading(model, site=config.site, packed=packed, engine=options.engine)
        batches, side = plan.batches_for(model), row_layout(model).padding_side

        def read(rows: Sequence[int]) -> None:
            nonlocal engine
            batch = plan.batch_of(rows, side)
            try:
                states = capture(
                    model,
                    batch,
                    site=config.site,
                    last_layer=config.last_layer,
                    packed=packed and engine != "naive",
                    engine=engine,
                ).states
            except Exception as error:
                may_fall_back = options.engine == "auto" and engine != "naive" and config.site == "resid_post"
                if not may_fall_back or is_out_of_memory(error) or isinstance(error, ModelBusyError):
                    raise
                engine = plan.read_plainly(model, error, packed=packed)
                raise _MeasureAgain from error
            plan.require_finite(states.isfinite().all(-1).all(-1).all(-1), rows, model.name, "hidden states")
            store.put(batch, states)

        while True:
            store = StateStore(budget=int(options.memory_gib * GIB / share))
            try:
                for rows in progress(batches, desc=f"read {role}", unit="batch", enabled=options.progress):
                    run_halving(rows, read, about=f"read {model.name} {options.token_budget}")
            except _MeasureAgain:  # all rows are read in one way
                continue
            return SourceStates(record, store, config.site, config.last_layer)


def require_finite_head(model: HookedModel) -> None:
    """Raise unless final norm and head hold numbers: states are read before them, and would not show it."""
    for what, part in (("final norm", model.anatomy.final_norm), ("head", model.hf.get_output_embeddings())):
        weights = [] if part is None else part.parameters()
        if not all(
            bool(weight.sum(dtype=torch.float32).isfinite())
            for weight in weights
            if weight.is_floating_point() and not weight.is_meta
        ):
            raise ModelError(
                f"the {what} of {model.name!r} holds NaN or infinite weights: the model is broken, whatever its inner "
                "states are. Check the checkpoint."
            )


def runs_packed(model: HookedModel, plan: Plan) -> bool:
    """Whether a model runs on packed rows, as the plan has it; where it cannot after all, warn."""
    if plan.packed and not packable(model):
        warn_once(
            f"{model.name!r} runs on padded rows, since it has hooks or is a Bridge, and the other models of this "
            "audit on packed ones: where its weights are those of `full`, deltas may be of the size of rounding "
            "instead of exactly 0. Pass it in the same call as the other models.",
            key=f"padded {model.name} {model.fingerprint}",
        )
        return False
    return plan.packed


def opened(source: ModelSource, config: AuditConfig, options: RunOptions) -> AbstractContextManager[HookedModel]:
    """Open one checkpoint the way the audit asks for; one that the caller has open stays open."""
    own = isinstance(source, str | os.PathLike)
    model = open_model(
        source, dtype=config.dtype, device=options.device, device_map=options.device_map, **where_of(options)
    )
    model.keeps_weights = model.keeps_weights or own
    return model.held() if model is source else model  # another thread's hooks would be seen on it


class Target:
    """`full`, open, with an engine chosen; use it in a `with` block.

    With `keep`, recordings of batches stay in memory up to `RunOptions.memory_gib`, so that every further source
    costs its patched variants only; batches beyond that are recorded again.
    """

    def __init__(
        self, full: ModelSource, plan: Plan, *, config: AuditConfig, options: RunOptions, keep: bool = False
    ) -> None:
        self.plan, self.config, self.options = plan, config, options
        self._stack = ExitStack()
        self.model = self._stack.enter_context(opened(full, config, options))
        self.record = ModelRecord.of(self.model)
        self._live = not isinstance(full, str | os.PathLike)
        self.layout = row_layout(self.model)
        self.packed = runs_packed(self.model, plan)
        self.reading = plan.reading(self.model, site=config.site, packed=self.packed, engine=options.engine)
        self.engine: Engine = options.engine if options.engine != "auto" else self._choose()
        self._left = int(options.memory_gib * GIB) if keep else 0
        self._batches = plan.batches_for(self.model)
        self._scores_at_once: int | None = None
        self._kept: dict[tuple[int, ...], PatchEngine] = {}

    @property
    def fingerprint(self) -> str:
        """Fingerprint of the weights as they are now: the caller may have trained a live model since it was opened."""
        return self.model.fingerprint if self._live else self.record.fingerprint

    @property
    def rows(self) -> str:
        """How its rows are batched, for the record."""
        return self.layout.described(packed=self.packed)

    def __enter__(self) -> Target:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._kept.clear()
        self._stack.close()

    def run_batches(self, work: Callable[[PatchEngine, list[int]], None]) -> None:
        """Call `work(engine, rows)` on every batch, recorded or ready to run.

        Where memory runs out, batches are halved; where the fast engine fails, all are run again by the plain one, so
        that one engine measures all of it.
        """

        def work_or_fall_back(rows: list[int]) -> None:
            try:
                work(self._engine_on(rows), rows)
            except Exception as error:
                # A failure of the fast engine: not memory, not a broken model, and nobody insists on the engine.
                fast = self.engine == "wavefront" and self.options.engine == "auto"
                if not fast or isinstance(error, ModelError) or is_out_of_memory(error):
                    raise
                self.engine = fall_back(self.model, error)
                self._kept.clear()
                raise _MeasureAgain from error

        label, show = f"patch {self.model.name} {self.options.token_budget}", self.options.progress
        while True:
            batches = progress(self._batches, desc="patch into full", unit="batch", enabled=show)
            try:
                self._batches = [
                    piece
                    for rows in batches
                    for piece in run_halving(rows, work_or_fall_back, relieve=self._give_back, about=label)
                ]
                return
            except _MeasureAgain:
                continue

    def _engine_on(self, rows: list[int]) -> PatchEngine:
        key = tuple(rows)
        if key in self._kept:
            return self._kept[key]
        engine = open_target(
            self.model,
            self.plan.batch_of(rows, self.layout.padding_side).to(self.model.device),
            site=self.config.site,
            engine=self.engine,
            packed=self.packed,
            scores_at_once=self._scores_at_once,
            reading=self.reading,
        )
        if isinstance(engine, WavefrontTarget) and engine.recording.nbytes <= self._left:
            self._left -= engine.recording.nbytes
            self._kept[key] = engine
        return engine

    def _give_back(self) -> bool:
        """Let go of kept recordings, or else hold fewer attention scores; whether recordings were there."""
        kept = bool(self._kept)
        self._kept.clear()
        self._left = 0
        if not kept:
            self._scores_at_once = max((self._scores_at_once or SCORES_AT_ONCE) // 2, 1 << 16)
        return kept

    def _choose(self) -> Engine:
        """Return the engine that passes the self-check on two rows."""
        if not self.plan.rows:
            return "wavefront"
        if self.reading == "naive" and not self.model.runs_hooks:
            return "naive"  # a warning was given when the first model of this kind was read
        batch = self.plan.batch_to_try(self.model, checked_rows(self.plan.rows))
        return choose_engine(self.model, batch, site=self.config.site, packed=self.packed)
