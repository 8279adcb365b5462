"""Run an audit's passes: batches, spilling to disk, halving when memory runs out, falling back to the plain engine.

The measurement itself is in `_two_stage.py`, the states of sources are in `_states.py`. Here are `read_sources`, and
`Target`, which keeps `full` open. Models larger than memory take the same two steps in `_streamed.py`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import replace
from functools import partial
from pathlib import PurePath

import torch
from jaxtyping import Bool
from torch import Tensor

from uds_lens._compat.torch import is_out_of_memory
from uds_lens._progress import about, progress
from uds_lens._types import Engine
from uds_lens.audit._inputs import Plan, Source, where_of
from uds_lens.audit._memory import GIB, run_halving
from uds_lens.audit._states import SourceStates, StateStore, mean_over_tokens, require_finite_head, require_same_full
from uds_lens.audit._streamed import StreamedTarget, read_streamed, require_streamable
from uds_lens.errors import ModelBusyError, ModelError, warn_once
from uds_lens.models import HookedModel, ModelSource, open_model
from uds_lens.patching import SpanCache, WavefrontTarget, capture, choose_engine, fall_back, open_target, row_layout
from uds_lens.patching._costs import SCORES_AT_ONCE
from uds_lens.patching._engines import checked_rows
from uds_lens.patching._readout import own_logprobs as logprobs_of
from uds_lens.patching._side_by_side import packable
from uds_lens.patching._states import PatchEngine
from uds_lens.results._records import ModelRecord
from uds_lens.results._settings import AuditConfig, RunOptions


class _MeasureAgain(Exception):  # noqa: N818 - a signal, not an error
    """Raised in the middle of a pass whose engine was replaced: the whole pass is repeated."""


def read_sources(
    sources: Sequence[Source], plan: Plan, *, config: AuditConfig, options: RunOptions
) -> list[SourceStates]:
    """Read all sources, one open at a time; where fast reading fails on one, all are read again plainly."""
    share = len(sources) + (plan.counterfactual is not None)
    if options.stream is True:  # each would be refused when its turn comes, after the others were read
        require_streamable([source.model for source in sources], options)
    while True:
        n_fallen, states = len(plan.fallen), []
        for number, source in enumerate(sources, start=1):
            role, label = source.name, ""
            if source.role == "unlearned" and source.index and isinstance(source.model, str | os.PathLike):
                role, label = source.role, f"{PurePath(source.model).name} ({number} of {len(sources)})"
            with about(label) if label else nullcontext():
                read = partial(read_source, source.model, plan, role=role, config=config, options=options, share=share)
                states.append(read(own_logprobs=True))
        if len(plan.fallen) == n_fallen or len(states) == 1:
            return states


def read_source(
    source: ModelSource,
    plan: Plan,
    *,
    role: str,
    config: AuditConfig,
    options: RunOptions,
    share: int = 1,
    own_logprobs: bool = False,
) -> SourceStates:
    """Open a source, keep its states at the windows, and the log-probabilities it gives itself if asked; close it."""
    if options.stream is True and isinstance(source, str | os.PathLike):
        return read_streamed(source, plan, role=role, config=config, options=options, share=share)
    with opened(source, config, options) as model:
        # Before the first pass: on a CPU, bitsandbytes repacks 4-bit weights then.
        record = ModelRecord.of(model)
        require_finite_head(model)
        plan.require_embedded(model)
        packed = runs_packed(model, plan)
        engine = plan.reading(model, site=config.site, packed=packed, engine=options.engine)
        batches, side = plan.batches_for(model), row_layout(model).padding_side
        s_source = torch.full((len(plan.rows),), torch.nan, dtype=torch.float64)
        store: StateStore  # outlives the model; a new one for each attempt

        def read(rows: Sequence[int]) -> None:
            nonlocal engine
            batch = plan.batch_of(rows, side)
            of = partial(capture, model, batch, packed=packed and engine != "naive", engine=engine)
            try:
                cache = of(site=config.site, last_layer=config.last_layer)
                if own_logprobs:
                    logprobs = logprobs_of(model, batch, cache if config.site == "resid_post" else of())
                    s_source[list(rows)] = mean_over_tokens(logprobs, batch)
            except Exception as error:
                may_fall_back = options.engine == "auto" and engine != "naive" and config.site == "resid_post"
                if not may_fall_back or is_out_of_memory(error) or isinstance(error, ModelBusyError):
                    raise
                engine = plan.read_plainly(model, error, packed=packed)
                raise _MeasureAgain from error
            states = cache.states
            plan.require_finite(states.isfinite().all(-1).all(-1).all(-1), rows, model.name, "hidden states")
            store.put(batch, states)  # a copy in memory or on disk: those on the device are gone after this batch

        while True:
            store = StateStore(budget=int(options.memory_gib * GIB / share))
            try:
                for rows in progress(batches, desc=f"reading {role}", unit="batch", enabled=options.progress):
                    run_halving(rows, read, about=f"read {model.name} {options.token_budget}")
            except _MeasureAgain:  # all rows are read in one way
                continue
            own = s_source if own_logprobs else None
            return SourceStates(record, store, config.site, config.last_layer, logprobs=own)


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


def target_of(full: ModelSource, plan: Plan, *, config: AuditConfig, options: RunOptions) -> Target | StreamedTarget:
    """Return `full`, to be opened in a `with` block: in memory, or streamed where the options say so."""
    if options.stream is True and isinstance(full, str | os.PathLike):
        return StreamedTarget(full, plan, config=config, options=options)
    return Target(full, plan, config=config, options=options)


def opened(source: ModelSource, config: AuditConfig, options: RunOptions) -> AbstractContextManager[HookedModel]:
    """Open one checkpoint the way the audit asks for; one that the caller has open stays open."""
    opened_here = isinstance(source, str | os.PathLike)
    model = open_model(
        source, dtype=config.dtype, device=options.device, device_map=options.device_map, **where_of(options)
    )
    model.keeps_weights = model.keeps_weights or opened_here
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
        plan.require_embedded(self.model)
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

    def __exit__(self, *_: object) -> None:
        self._kept.clear()
        self._stack.close()

    def require_weights(self, expected: str, *, now: bool = True) -> None:
        """Raise `ModelError` unless `full` is the model of an earlier stage 1; a streamed one waits for its run."""
        require_same_full(self.record.name, self.fingerprint, expected)

    def states_of(self, source: SourceStates, engine: PatchEngine) -> SpanCache:
        """Return a source's states on the rows of a batch, as they are patched in."""
        cache = source.cache(engine.batch)
        return replace(cache, states=cache.states.to(self.model.device, self.model.dtype))

    def run_batches(
        self,
        work: Callable[[PatchEngine, list[int]], None],
        sources: Sequence[SourceStates] = (),
        knowledge: Bool[Tensor, "example layer"] | None = None,
    ) -> None:
        """Call `work(engine, rows)` on every batch, recorded or ready to run.

        Where memory runs out, batches are halved; where the fast engine fails, all are run again by the plain one, so
        that one engine measures all of it.

        Args:
            work: Measures the rows of a batch; it may be called on the same rows again.
            sources: What `work` patches in; only a streamed target has to know.
            knowledge: Where it asks; only a streamed target has to know.
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
            batches = progress(self._batches, desc="patching into full", unit="batch", enabled=show)
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
