"""What was read from one source: its states at every row's window, in memory or, above a budget, on disk."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

import torch
from jaxtyping import Float
from torch import Tensor

from uds_lens._compat.torch import is_out_of_memory
from uds_lens._progress import progress
from uds_lens._storage import IN_TEMPORARY, SpillFolder, writing
from uds_lens._types import Engine, LastLayer, Site
from uds_lens.audit._inputs import MeasureAgain, Plan
from uds_lens.audit._memory import GIB, run_halving
from uds_lens.data import TokenBatch
from uds_lens.errors import DataError, ModelBusyError, ModelError, warn_once
from uds_lens.models import HookedModel, ModelSource, open_model
from uds_lens.patching import (
    NaiveTarget,
    SpanCache,
    WavefrontTarget,
    capture,
    choose_engine,
    fall_back,
    open_target,
    row_layout,
)
from uds_lens.patching._costs import SCORES_AT_ONCE
from uds_lens.patching._engines import checked_rows
from uds_lens.patching._passes import packable
from uds_lens.results._records import ModelRecord
from uds_lens.results._settings import AuditConfig, RunOptions


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
        self._left = 0
        self._write(parts)

    def get(self, row: int) -> Float[Tensor, "layer win d_model"]:
        """States of one row.

        Raises:
            DataError: The row was never put.
        """
        if row in self._rows:
            return self._rows[row]
        if row not in self._files:
            raise DataError(f"no states for row {row}: read the source on the same plan.")
        from safetensors import safe_open

        with safe_open(self._files[row], framework="pt") as file:
            return file.get_tensor(str(row))

    def _write(self, parts: dict[int, Tensor]) -> None:
        from safetensors.torch import save_file

        if self._folder is None:
            self._folder = SpillFolder()
        file = self._folder.path / f"{len(self._files)}.safetensors"
        with writing(self._folder.path, advice=IN_TEMPORARY):
            save_file({str(row): part for row, part in parts.items()}, file)
        self._files.update(dict.fromkeys(parts, file))


@dataclass(frozen=True, eq=False)
class SourceStates:
    """One source's states on every row of a plan, on the CPU."""

    record: ModelRecord
    """The model they come from."""

    store: StateStore
    """The states by row."""

    site: Site = "resid_post"
    """Point of the block they were read at."""

    last_layer: LastLayer = "resid_post"
    """What stands for the last layer."""

    def cache(self, batch: TokenBatch) -> SpanCache:
        """The states of a batch's rows, padded to its window by repeating each row's last position."""
        width = batch.window.shape[1]
        parts = [_padded(self.store.get(row), width) for row in batch.rows]
        return SpanCache(torch.stack(parts), self.site, self.last_layer, self.record.name)


def read_source(
    source: ModelSource, plan: Plan, *, role: str, config: AuditConfig, options: RunOptions, share: int = 1
) -> SourceStates:
    """Open a source, keep its states at the windows, close it.

    Args:
        source: The model.
        plan: Rows and batches.
        role: What the progress bar calls it.
        config: What is measured.
        options: How it is run.
        share: How many sources share the memory for states.

    Returns:
        The states.

    Raises:
        ModelError: It produces states that are NaN or infinite; names the first example.
    """
    with opened(source, config, options) as model:
        # Before the first pass: on a CPU, bitsandbytes repacks 4-bit weights then.
        record = ModelRecord.of(model)
        require_finite_head(model)
        read_states = _reader(model, plan, config, options)
        batches, side = plan.batches_for(model), row_layout(model).padding_side

        def read(rows: Sequence[int]) -> None:
            batch = plan.batch_of(rows, side)
            states = read_states(batch)
            plan.require_finite(states.isfinite().all(-1).all(-1).all(-1), rows, model.name, "hidden states")
            store.put(batch, states)

        while True:
            store = StateStore(budget=int(options.memory_gib * GIB / share))
            try:
                for rows in progress(batches, desc=f"read {role}", unit="batch", enabled=options.progress):
                    run_halving(rows, read, about=f"read {model.name} {options.token_budget}")
            except MeasureAgain:  # all rows are read in one way
                continue
            return SourceStates(record, store, config.site, config.last_layer)


def _reader(
    model: HookedModel, plan: Plan, config: AuditConfig, options: RunOptions
) -> Callable[[TokenBatch], Float[Tensor, "batch layer win d_model"]]:
    """Return what reads a batch's states; where the fast way fails, it raises `MeasureAgain` and reads plainly then."""
    packed = runs_packed(model, plan)
    engine = plan.reading(model, site=config.site, packed=packed, engine=options.engine)

    def read(batch: TokenBatch) -> Float[Tensor, "batch layer win d_model"]:
        nonlocal engine
        try:
            return read_by(batch, packed and engine != "naive")
        except Exception as error:
            if engine == "naive" or options.engine != "auto" or config.site != "resid_post":
                raise
            if is_out_of_memory(error) or isinstance(error, ModelBusyError):
                raise
            engine = plan.read_plainly(model, error, packed=packed)
            raise MeasureAgain from error

    def read_by(batch: TokenBatch, packed: bool) -> Float[Tensor, "batch layer win d_model"]:
        cache = capture(
            model, batch, site=config.site, last_layer=config.last_layer, packed=packed, engine=engine
        )
        return cache.states

    return read


def require_finite_head(model: HookedModel) -> None:
    """Raise unless final norm and head hold numbers: states are read before them, and would not show it.

    Raises:
        ModelError: Naming the part.
    """
    for what, part in (("final norm", model.anatomy.final_norm), ("head", model.hf.get_output_embeddings())):
        weights = (
            [] if part is None else [w for w in part.parameters() if w.is_floating_point() and not w.is_meta]
        )
        if not all(bool(weight.sum(dtype=torch.float32).isfinite()) for weight in weights):
            raise ModelError(
                f"the {what} of {model.name!r} holds NaN or infinite weights: the model is broken, whatever its inner "
                "states are. Check the checkpoint."
            )


def runs_packed(model: HookedModel, plan: Plan) -> bool:
    """Whether a model runs on packed rows, as the plan says it does; where it cannot after all, warn."""
    if plan.packed and not packable(model):
        warn_once(
            f"{model.name!r} runs on padded rows, since it has hooks or is a Bridge, and the other models of this "
            "audit on packed ones: where its weights are those of `full`, deltas may be of the size of rounding "
            "instead of exactly 0. Hand it to the same call as the other models.",
            key=f"padded {model.name} {model.fingerprint}",
        )
        return False
    return plan.packed


def opened(
    source: ModelSource, config: AuditConfig, options: RunOptions
) -> AbstractContextManager[HookedModel]:
    """Open one checkpoint the way the audit asks for; one that the caller has open stays open."""
    own = isinstance(source, str | os.PathLike)
    model = open_model(
        source,
        dtype=config.dtype,
        device=options.device,
        device_map=options.device_map,
        revision=options.revision,
        offline=options.offline,
        trust_remote_code=options.trust_remote_code,
    )
    model.keeps_weights = model.keeps_weights or own
    return model.held() if model is source else model  # another thread's hooks would be seen on it


def _padded(states: Float[Tensor, "layer win d_model"], width: int) -> Float[Tensor, "layer wider d_model"]:
    missing = width - states.shape[1]
    if not missing:
        return states
    return torch.cat([states, states[:, -1:].expand(-1, missing, -1)], dim=1)


# The pass over `full`: every source is patched into it, batch by batch, against one recording of each
# batch.


@dataclass(frozen=True, eq=False)
class PatchScores:
    """What patching one source into `full` costs."""

    delta: Float[Tensor, "example layer"]
    """Log-probability lost, nats per token, float64: mean over the entity's tokens."""

    norm_ratio: Float[Tensor, "example layer"]
    """Norm of the patched-in state over that of the state it replaces, mean over patched positions."""

    cosine: Float[Tensor, "example layer"]
    """Cosine between the two states, mean over patched positions."""

    engine: Engine
    """Engine that measured all of it."""

    @classmethod
    def empty(cls, n_examples: int, n_layers: int, engine: Engine) -> PatchScores:
        """All NaN, to be filled."""
        shape = (n_examples, n_layers)
        delta, ratio, cosine = (torch.full(shape, torch.nan, dtype=torch.float64) for _ in range(3))
        return cls(delta, ratio, cosine, engine)


@dataclass(frozen=True, eq=False)
class TargetScores:
    """The pass over `full`: its own log-probabilities, and the scores of each source."""

    record: ModelRecord
    """The target."""

    engine: Engine
    """Engine that was used."""

    device: str
    """Device the target ran on."""

    rows: str
    """How rows stood side by side."""

    s_full: Float[Tensor, "example"]
    """Mean log-probability of the entity's tokens under `full`, nats per token."""

    sources: list[PatchScores]
    """One per source, in their order."""


class Target:
    """`full`, open, with an engine chosen; use it in a `with` block.

    With `keep`, recordings of batches stay in memory up to `RunOptions.memory_gib`, so that every further source
    costs its patched variants only; batches beyond that are recorded again.
    """

    def __init__(
        self,
        full: ModelSource,
        plan: Plan,
        *,
        config: AuditConfig,
        options: RunOptions,
        keep: bool = False,
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
        self._kept: dict[tuple[int, ...], WavefrontTarget | NaiveTarget] = {}

    @property
    def fingerprint(self) -> str:
        """Fingerprint of the weights as they are now: the caller may have trained a live model since it was opened."""
        return self.model.fingerprint if self._live else self.record.fingerprint

    def __enter__(self) -> Target:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._kept.clear()
        self._stack.close()

    def score(self, sources: Sequence[SourceStates]) -> TargetScores:
        """Patch sources in; each batch is recorded once for all of them.

        Where the fast engine fails on a batch, all batches are measured again by the reference.

        Raises:
            ModelError: A log-probability is NaN or infinite; names the first example.
        """
        while True:
            try:
                return self._score_by_one_engine(sources)
            except MeasureAgain:
                continue

    def _score_by_one_engine(self, sources: Sequence[SourceStates]) -> TargetScores:
        n_examples = len(self.plan.rows)
        s_full = torch.full((n_examples,), torch.nan, dtype=torch.float64)
        scores = [PatchScores.empty(n_examples, self.model.n_layers, self.engine) for _ in sources]

        def score_once(rows: list[int]) -> None:
            on_batch = self._on(rows)
            batch = _batch_of(on_batch)
            s_full[rows] = _mean_over_tokens(on_batch.logprobs, batch)
            self.plan.require_finite(s_full[rows].isfinite(), rows, self.model.name, "log-probabilities")
            for source, into in zip(sources, scores, strict=True):
                self._score_source(source, into, rows, on_batch)

        def score(rows: list[int]) -> None:
            try:
                score_once(rows)
            except Exception as error:
                if not self._may_fall_back(error):
                    raise
                self._fall_back(error)
                raise MeasureAgain from error

        batches = progress(self._batches, desc="patch into full", unit="batch", enabled=self.options.progress)
        about = f"patch {self.model.name} {self.options.token_budget}"
        self._batches = [
            piece
            for rows in batches
            for piece in run_halving(rows, score, relieve=self._give_back, about=about)
        ]
        return TargetScores(self.record, self.engine, str(self.model.device), self.rows, s_full, scores)

    @property
    def rows(self) -> str:
        """How rows stood side by side, for the record."""
        return self.layout.described(packed=self.packed)

    def _score_source(
        self,
        source: SourceStates,
        into: PatchScores,
        rows: list[int],
        on_batch: WavefrontTarget | NaiveTarget,
    ) -> None:
        true_states = self.config.exact_noop and self.config.last_layer == "resid_post"
        if true_states and source.record.fingerprint == self.record.fingerprint:
            into.delta[rows], into.norm_ratio[rows], into.cosine[rows] = 0.0, 1.0, 1.0
            return
        batch = _batch_of(on_batch)
        cache = source.cache(batch)
        cache = SpanCache(
            cache.states.to(self.model.device, self.model.dtype), cache.site, cache.last_layer, cache.name
        )
        own = self._own_states(on_batch)
        into.delta[rows] = self._delta(on_batch, cache, own)
        finite = into.delta[rows].isfinite().all(-1)
        self.plan.require_finite(finite, rows, source.record.name, "patched log-probabilities")
        ratio, cosine = _closeness(cache.states, own, batch)
        into.norm_ratio[rows], into.cosine[rows] = ratio, cosine

    def _delta(
        self,
        on_batch: WavefrontTarget | NaiveTarget,
        cache: SpanCache,
        own: Float[Tensor, "batch layer win d_model"],
    ) -> Float[Tensor, "batch layer"]:
        """Nats per token lost by each patched layer; exactly 0 where the patch is a no-op."""
        batch = _batch_of(on_batch)
        same = cache.same_as(own, batch.patched_mask).cpu()
        if not self.config.exact_noop:
            same = torch.zeros_like(same)
        layers = (~same).any(0).nonzero()[:, 0].tolist()
        lost = torch.zeros(same.shape, dtype=torch.float64)
        if layers:
            patched = on_batch.patched(cache, layers=layers)[:, layers]
            # Both are float32 and may cancel: the difference is taken in float64, which Apple's GPU does not have.
            difference = on_batch.logprobs.cpu().double()[:, None] - patched.cpu().double()
            lost[:, layers] = _mean_over_tokens(difference, batch)
        return lost.masked_fill(same, 0.0)

    def _on(self, rows: list[int]) -> WavefrontTarget | NaiveTarget:
        key = tuple(rows)
        if key in self._kept:
            return self._kept[key]
        batch = self.plan.batch_of(rows, self.layout.padding_side).to(self.model.device)
        on_batch = open_target(
            self.model,
            batch,
            site=self.config.site,
            engine=self.engine,
            packed=self.packed,
            scores_at_once=self._scores_at_once,
            reading=self.reading,
        )
        if isinstance(on_batch, WavefrontTarget) and on_batch.recording.nbytes <= self._left:
            self._left -= on_batch.recording.nbytes
            self._kept[key] = on_batch
        return on_batch

    def _may_fall_back(self, error: Exception) -> bool:
        """Whether a failure is the fast engine's: not memory, not broken models, and nobody insists on the engine."""
        fast = self.engine == "wavefront" and self.options.engine == "auto"
        return fast and not isinstance(error, ModelError) and not is_out_of_memory(error)

    def _fall_back(self, error: Exception) -> None:
        self.engine = fall_back(self.model, error)
        self._kept.clear()

    def _give_back(self) -> bool:
        """Let go of kept recordings, or else hold fewer attention scores; whether recordings were there."""
        kept = bool(self._kept)
        self._kept.clear()
        self._left = 0
        if not kept:
            self._scores_at_once = max((self._scores_at_once or SCORES_AT_ONCE) // 2, 1 << 16)
        return kept

    def _own_states(
        self, on_batch: WavefrontTarget | NaiveTarget
    ) -> Float[Tensor, "batch layer win d_model"]:
        """The target's own states at the patch site: what a patch replaces."""
        if self.config.site == "resid_post":
            return on_batch.states
        return capture(self.model, _batch_of(on_batch), site=self.config.site).states

    def _choose(self) -> Engine:
        """The engine that passes the self-check on two rows."""
        if not self.plan.rows:
            return "wavefront"
        if self.reading == "naive" and not self.model.runs_hooks:
            return "naive"  # it was said when the first model of this kind was read
        rows = checked_rows(self.plan.rows)
        batch = self.plan.tried(self.model, rows)
        return choose_engine(self.model, batch, site=self.config.site, packed=self.packed)


def score_sources(
    full: ModelSource,
    sources: Sequence[SourceStates],
    plan: Plan,
    *,
    config: AuditConfig,
    options: RunOptions,
) -> TargetScores:
    """Open `full`, patch every source into it, close it.

    Raises:
        ModelError: A log-probability is NaN or infinite; names the first example.
    """
    with Target(full, plan, config=config, options=options) as target:
        return target.score(sources)


def _batch_of(on_batch: WavefrontTarget | NaiveTarget) -> TokenBatch:
    return on_batch.recording.batch if isinstance(on_batch, WavefrontTarget) else on_batch.batch


def _mean_over_tokens(values: Tensor, batch: TokenBatch) -> Tensor:
    """Mean over the scored window positions (last axis), whatever stands at the others; float64, on the CPU."""
    scored, values = batch.scored_mask.cpu(), values.cpu().double()
    count = scored.sum(-1).reshape(-1, *[1] * (values.ndim - 2))
    return torch.where(scored if values.ndim == 2 else scored[:, None], values, 0.0).sum(-1) / count


def _closeness(
    source: Float[Tensor, "batch layer win d_model"],
    own: Float[Tensor, "batch layer win d_model"],
    batch: TokenBatch,
) -> tuple[Float[Tensor, "batch layer"], Float[Tensor, "batch layer"]]:
    """How far from the target's own state the patch is: norm ratio and cosine, mean over patched positions."""
    source, own = source.float(), own.float()
    ratio = source.norm(dim=-1) / own.norm(dim=-1)
    cosine = torch.nn.functional.cosine_similarity(source, own, dim=-1)
    patched = batch.patched_mask[:, None]
    count = patched.sum(-1).cpu()
    return (
        torch.where(patched, ratio, 0.0).sum(-1).cpu().double() / count,
        torch.where(patched, cosine, 0.0).sum(-1).cpu().double() / count,
    )
