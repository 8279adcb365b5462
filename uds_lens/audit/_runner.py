"""Run an audit's passes, with batching, spilling to disk, halving of batches, and fallback to the plain engine.

`read_sources` reads the sources, and `Target` keeps `full` open. `_two_stage.py` contains the measurement, and
`_states.py` the states of sources. If a model is larger than memory, its blocks are read one at a time, and each block
is run on all batches.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import replace
from functools import partial
from pathlib import PurePath
from typing import Any, TypeAlias, TypeGuard, TypeVar

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from uds_lens._compat.torch import is_out_of_memory
from uds_lens._compat.transformers import attention_of
from uds_lens._progress import about, progress, tell
from uds_lens._types import Engine
from uds_lens.audit._inputs import Plan, Source, kind_of
from uds_lens.audit._kept import keep_record, keeping, kept_place, load_kept
from uds_lens.audit._memory import GIB, memory_of_audit, run_halving
from uds_lens.audit._states import SourceStates, StateStore, mean_over_tokens, require_finite_head
from uds_lens.errors import ConfigError, ModelBusyError, ModelError, Setting, warn_once
from uds_lens.models import HookedModel
from uds_lens.models._by_block import StreamedModel
from uds_lens.models._hooked import ModelSource, pick_device
from uds_lens.patching import SpanCache, open_target, row_layout
from uds_lens.patching._costs import SCORES_AT_ONCE
from uds_lens.patching._engines import (
    WavefrontTarget,
    checked_rows,
    choose_engine,
    fall_back,
    patch_on_the_way,
    tried_once,
)
from uds_lens.patching._plain import capture_all
from uds_lens.patching._readout import own_logprobs as logprobs_of
from uds_lens.patching._side_by_side import embed_tokens_of, packable, why_not_streamed
from uds_lens.patching._states import PatchEngine
from uds_lens.results._records import ModelRecord, open_to_measure
from uds_lens.results._settings import AuditConfig, RunOptions

T = TypeVar("T")

Patched: TypeAlias = Float[Tensor, "batch layer win"]
"""Log-probabilities of the scored tokens with each layer patched."""


class _MeasureAgain(Exception):  # noqa: N818 - a signal, not an error
    """Raised in a pass whose engine has been replaced, so that the whole pass is repeated."""


def read_sources(
    sources: Sequence[Source], plan: Plan, *, config: AuditConfig, options: RunOptions
) -> list[SourceStates]:
    """Read all sources, opening one at a time; if the fast engine fails on any, reread all with the plain engine."""
    share = len(sources) + (plan.counterfactual is not None)
    if options.stream is True:  # checked first, so that no source is rejected after others have been read
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
    """Open a source, keep its window states (and, if requested, its own log-probabilities), and close it.

    For a streamed source, states kept by an interrupted audit are used instead.

    Raises:
        ModelError: The source cannot be opened or read, or produces states that are NaN or infinite.
    """
    place = kept_place(source, plan, config, options) if is_streamed(source, options) else None
    if (kept := load_kept(place, config)) is not None:
        tell(f"{kept.record.name}: using states kept by an earlier run")
        return kept
    own_logprobs = own_logprobs or place is not None
    with opened(source, config, options, plan.tokenizer) as model, keeping(place) as folder:
        # Hash before the first pass, in which bitsandbytes repacks 4-bit weights on a CPU. Streamed models are hashed
        # as they are read.
        record = ModelRecord.of(model) if model.is_resident else None
        if model.is_resident:
            require_finite_head(model)
        plan.require_embedded(model)
        packed, side = runs_packed(model, plan), row_layout(model).padding_side
        weights = "" if record is None else record.fingerprint
        engine = plan.reading(model, weights, site=config.site, packed=packed, engine=options.engine)
        s_source = torch.full((len(plan.rows),), torch.nan, dtype=torch.float64)
        store: StateStore  # outlives the model; created anew for each attempt

        def read(part: list[list[int]]) -> None:
            nonlocal engine
            batches = [plan.batch_of(rows, side) for rows in part]
            how: Any = {"packed": packed and engine != "naive", "engine": engine, "show": options.progress}
            states_at = partial(capture_all, model, batches, desc=f"reading {role}", **how)
            try:
                caches = states_at(site=config.site, last_layer=config.last_layer)
                with model.head():
                    if not model.is_resident:
                        require_finite_head(model)
                    # the head reads the residual stream, even if another site is patched
                    residual = caches if not own_logprobs or config.site == "resid_post" else states_at()
                    for rows, batch, cache in zip(part, batches, residual, strict=True) if own_logprobs else ():
                        s_source[rows] = mean_over_tokens(logprobs_of(model, batch, cache), batch)
            except Exception as error:
                may_fall_back = options.engine == "auto" and engine != "naive" and config.site == "resid_post"
                if (
                    not (may_fall_back and model.is_resident)
                    or is_out_of_memory(error)
                    or isinstance(error, ModelBusyError)
                ):
                    raise
                engine = plan.read_plainly(model, error, packed=packed)
                raise _MeasureAgain from error
            for rows, batch, cache in zip(part, batches, caches, strict=True):
                states = cache.states
                plan.require_finite(states.isfinite().all(-1).all(-1).all(-1), rows, model.name, "hidden states")
                # copies to memory or disk: the states on the device are freed after this batch
                store.put(batch, states)

        parts = parts_of(model, plan, 0, config, options)
        while True:
            store = StateStore(budget=int(options.memory_gib * GIB / share), kept_in=folder)
            try:
                for part in shown(parts, model, f"reading {role}", options):
                    run_halving(part, read, about=f"read {model.name} {options.token_budget}")
                break
            except _MeasureAgain:  # all rows must be read by the same engine
                continue
        own = s_source if own_logprobs else None
        states = SourceStates(record or ModelRecord.of(model), store, config.site, config.last_layer, logprobs=own)
        keep_record(folder, states)
    if place is not None:
        store.moved_to(place)
    return states


def parts_of(
    model: HookedModel, plan: Plan, n_sources: int, config: AuditConfig, options: RunOptions
) -> list[list[list[int]]]:
    """Return groups of batches that run through the blocks together: single batches, or when streaming, as many as fit.

    This also reads the weights that a streamed model needs before its blocks.
    """
    batches, side = plan.batches_for(model), row_layout(model).padding_side
    if model.is_resident:
        return [[rows] for rows in batches]
    embed_tokens_of(model, [plan.batch_of(rows, side) for rows in batches])
    planned = replace(plan, batches=batches)
    estimate = memory_of_audit(model.name, planned, n_sources=n_sources, config=config, options=options, streamed=True)
    parts = [range(len(batches))] if estimate is None else estimate.parts
    return [[batches[number] for number in part] for part in parts]


def shown(parts: Sequence[T], model: HookedModel, desc: str, options: RunOptions) -> Iterable[T]:
    """Iterate over parts with a progress bar; when streaming, the loop over blocks shows the bar instead."""
    return progress(parts, desc=desc, unit="batch", enabled=options.progress) if model.is_resident else parts


def runs_packed(model: HookedModel, plan: Plan) -> bool:
    """Return whether a model runs on packed rows; warn if the plan has packed rows but the model cannot use them."""
    if plan.packed and not packable(model):
        warn_once(
            f"{model.name!r} has hooks or is a Bridge, so it runs on padded rows, while the other models of this "
            "audit run on packed ones: layers whose weights equal those of `full` may differ by rounding, instead of "
            "giving exactly 0. Pass this model in the same call as the other models.",
            key=f"padded {model.name} {model.fingerprint}",
        )
        return False
    return plan.packed


def is_streamed(source: ModelSource, options: RunOptions) -> TypeGuard[str | os.PathLike[str]]:
    """Return whether a source is streamed: the options require it, and the source is not an open model."""
    return options.stream is True and isinstance(source, str | os.PathLike)


def require_streamable(sources: Sequence[object], options: RunOptions) -> None:
    """Raise `ModelError` if a source is to be streamed but its weights cannot be read block by block."""
    for source in sources:
        if not isinstance(source, str | os.PathLike):
            continue
        if (why := why_not_streamed(source, revision=options.revision, offline=options.offline)) is not None:
            raise ModelError(f"{os.fspath(source)!r} cannot be streamed: {why}.")


def opened(
    source: ModelSource, config: AuditConfig, options: RunOptions, tokenizer: Any = None
) -> AbstractContextManager[HookedModel]:
    """Open a checkpoint with the settings of the audit; a model that the caller opened stays open.

    A `tokenizer` that was read before, and fits, is not read again.
    """
    if is_streamed(source, options):
        dtype, device = getattr(torch, config.dtype), pick_device(options.device)
        where: Any = {"revision": options.revision, "offline": options.offline, "tokenizer": tokenizer}
        streamed = StreamedModel(os.fspath(source), dtype=dtype, device=device, **where)
        streamed.hf.set_attn_implementation(config.attention)
        return streamed
    model = open_to_measure(source, dtype=config.dtype, run=options, tokenizer=tokenizer)
    if isinstance(source, str | os.PathLike):
        model.hf.set_attn_implementation(config.attention)
    elif config.attention != "eager" and (own := attention_of(model.hf.config)) != config.attention:
        raise ConfigError(
            Setting("attention", config.attention), f": {model.name!r} is open with {own!r}. Pass its directory."
        )
    return model.held() if model is source else model  # another thread's hooks would affect the model


class Target:
    """The open model `full` and the engine chosen for it; to be used in a `with` block.

    With `keep`, up to `RunOptions.memory_gib` of recorded batches stay in memory, so that each further source costs
    only its patched variants; other batches are recorded again. When streaming, all batches and sources pass through a
    block while it is loaded.
    """

    def __init__(
        self, full: ModelSource, plan: Plan, *, config: AuditConfig, options: RunOptions, keep: bool = False
    ) -> None:
        self.plan, self.config, self.options = plan, config, options
        self._stack = ExitStack()
        self.model = self._stack.enter_context(opened(full, config, options, plan.tokenizer))
        self._record = ModelRecord.of(self.model) if self.model.is_resident else None
        plan.require_embedded(self.model)
        self._live = not isinstance(full, str | os.PathLike)
        self.layout = row_layout(self.model)
        self.packed = runs_packed(self.model, plan)
        weights = "" if self._record is None else self._record.fingerprint
        how: Any = {"site": config.site, "packed": self.packed, "engine": options.engine}
        self.reading = plan.reading(self.model, weights, **how)
        self.engine: Engine = options.engine if options.engine != "auto" else self._choose()
        self._left = int(options.memory_gib * GIB) if keep else 0
        self._parts: list[list[list[int]]] | None = None
        self._scores_at_once: int | None = None
        self._kept: dict[tuple[int, ...], PatchEngine] = {}

    @property
    def record(self) -> ModelRecord:
        """The record of the model. Its fingerprint requires reading any weights that have not been read yet."""
        if self._record is None:
            self._record = ModelRecord.of(self.model)
        return self._record

    @property
    def fingerprint(self) -> str:
        """Fingerprint of the current weights (the caller may have trained a live model since it was opened)."""
        return self.model.fingerprint if self._live else self.record.fingerprint

    @property
    def rows(self) -> str:
        """How rows are batched, for the provenance."""
        return self.layout.described(packed=self.packed)

    def __enter__(self) -> Target:
        return self

    def __exit__(self, *_: object) -> None:
        self._kept.clear()
        self._stack.close()

    def states_of(self, source: SourceStates, engine: PatchEngine) -> SpanCache:
        """Return a source's states on the rows of a batch, ready to be patched in."""
        cache = source.cache(engine.batch)
        return replace(cache, states=cache.states.to(self.model.device, self.model.dtype))

    def run_batches(
        self,
        work: Callable[[PatchEngine, list[int], Sequence[Patched | None]], None],
        sources: Sequence[SourceStates] = (),
        knowledge: Bool[Tensor, "example layer"] | None = None,
    ) -> None:
        """Call `work(engine, rows, patched)` on every batch.

        If memory runs out, batches are halved. If the fast engine fails, all batches are run again with the plain one,
        so that a single engine measures everything.

        Args:
            work: Measures the rows of a batch; may be called on the same rows again. When streaming, `patched` contains
                the result for each source. Otherwise it contains None, and `work` patches in the states itself.
            sources: The states to patch in.
            knowledge: The layers to measure for each example; None for all.
        """

        def work_or_fall_back(part: list[list[int]]) -> None:
            try:
                for (engine, patched), rows in zip(self._engines_on(part, sources, knowledge), part, strict=True):
                    work(engine, rows, patched)
            except Exception as error:
                # Fall back only if the engine was not chosen explicitly and the cause is not a lack of memory or a
                # broken model.
                fast = self.engine == "wavefront" and self.options.engine == "auto" and self.model.is_resident
                if not fast or isinstance(error, ModelError) or is_out_of_memory(error):
                    raise
                self.engine = fall_back(self.model, error)
                self._kept.clear()
                raise _MeasureAgain from error

        label = f"patch {self.model.name} {self.options.token_budget}"
        if self._parts is None:
            self._parts = parts_of(self.model, self.plan, len(sources), self.config, self.options)
        while True:
            try:
                self._parts = [
                    piece
                    for part in shown(self._parts, self.model, "patching into full", self.options)
                    for piece in run_halving(part, work_or_fall_back, relieve=self._give_back, about=label)
                ]
                return
            except _MeasureAgain:
                continue

    def _engines_on(
        self, part: list[list[int]], sources: Sequence[SourceStates], knowledge: Bool[Tensor, "example layer"] | None
    ) -> list[tuple[PatchEngine, Sequence[Patched | None]]]:
        if self.model.is_resident:
            return [(self._engine_on(rows), [None] * len(sources)) for rows in part]
        batches = [self.plan.batch_of(rows, self.layout.padding_side) for rows in part]
        return patch_on_the_way(  # type: ignore[return-value]
            self.model,
            batches,
            [[partial(source.at, batch) for source in sources] for batch in batches],
            packed=self.packed,
            exact_noop=self.config.exact_noop,
            wanted=None if knowledge is None else [knowledge[rows] for rows in part],
            desc="patching into full",
            show=self.options.progress,
        )

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
        """Drop kept recordings and return True; without any, hold fewer attention scores and return False."""
        kept = bool(self._kept)
        self._kept.clear()
        self._left = 0
        if not kept:
            self._scores_at_once = max((self._scores_at_once or SCORES_AT_ONCE) // 2, 1 << 16)
        return kept

    def _choose(self) -> Engine:
        """Return an engine that passes a self-check on two rows."""
        if not self.plan.rows or not self.model.is_resident:
            return "wavefront"
        if self.reading == "naive" and not self.model.runs_hooks:
            return "naive"  # the warning was given when the first model of this kind was read
        batch, site = self.plan.batch_to_try(self.model, checked_rows(self.plan.rows)), self.config.site
        choose = partial(choose_engine, self.model, batch, site=site, packed=self.packed)
        about = (site, repr(self.options.device_map), *kind_of(self.model, self.packed))
        return tried_once(choose, ("patching", self.record.fingerprint, *about), self.plan.rows)
