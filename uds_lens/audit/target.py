"""The pass over `full`: every source is patched into it, batch by batch, against one recording of each batch."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from types import TracebackType

import torch
from jaxtyping import Float
from torch import Tensor

from uds_lens.audit.memory import GIB, run_halving
from uds_lens.audit.plan import MeasureAgain, Plan
from uds_lens.audit.source_states import SourceStates, opened, runs_packed
from uds_lens.compat.torch import is_out_of_memory
from uds_lens.data import TokenBatch
from uds_lens.errors import ModelError
from uds_lens.models import ModelSource
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
from uds_lens.patching.costs import SCORES_AT_ONCE
from uds_lens.patching.engines import checked_rows
from uds_lens.progress import progress
from uds_lens.results.records import ModelRecord
from uds_lens.results.settings import AuditConfig, RunOptions
from uds_lens.types import Engine


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
