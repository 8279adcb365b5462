"""The measurement itself: sources are read one after the other, then patched into `full`, batch by batch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from uds_lens.audit.config import AuditConfig, RunOptions
from uds_lens.audit.records import ModelRecord
from uds_lens.data import Encoded, ForgetExample, TokenBatch, encode, make_batch, plan_batches
from uds_lens.errors import DataError, ModelError
from uds_lens.models import (
    HookedModel,
    ModelSource,
    check_trio,
    open_model,
    pick_device,
    read_passport,
)
from uds_lens.patching import NaiveTarget, SpanCache, WavefrontTarget, capture, choose_engine, open_target
from uds_lens.progress import progress
from uds_lens.types import Engine

_CALL_COST = {False: 64, True: 2048}
"""What one more batch costs beside its tokens, in tokens: on a CPU, and on a CUDA device."""


@dataclass(frozen=True, eq=False)
class Plan:
    """The tokenised forget set and its batches: the same for every model of an audit."""

    encoded: Encoded
    """Rows, and what was skipped."""

    batches: list[list[int]]
    """Row indices of each batch."""

    pad_token_id: int | None
    """Filler token; masked everywhere."""

    def batch(self, number: int) -> TokenBatch:
        """Tensors of one batch."""
        return make_batch(
            self.encoded.rows,
            indices=self.batches[number],
            pad_token_id=self.pad_token_id,
            padding_side="left",
        )


@dataclass(frozen=True, eq=False)
class SourceStates:
    """One source's states on every batch of a plan, on the CPU."""

    record: ModelRecord
    """The model they come from."""

    caches: list[SpanCache]
    """One per batch."""


@dataclass(frozen=True, eq=False)
class PatchScores:
    """What patching one source into `full` costs."""

    delta: Float[Tensor, "example layer"]
    """Log-probability lost, nats per token, float64: mean over the entity's tokens."""

    norm_ratio: Float[Tensor, "example layer"]
    """Norm of the patched-in state over that of the state it replaces, mean over patched positions."""

    cosine: Float[Tensor, "example layer"]
    """Cosine between the two states, mean over patched positions."""


@dataclass(frozen=True, eq=False)
class TargetScores:
    """The pass over `full`: its own log-probabilities, and the scores of each source."""

    record: ModelRecord
    """The target."""

    engine: Engine
    """Engine that was used."""

    device: str
    """Device the target ran on."""

    s_full: Float[Tensor, "example"]
    """Mean log-probability of the entity's tokens under `full`, nats per token."""

    sources: list[PatchScores]
    """One per source, in their order."""


def make_plan(
    models: Mapping[str, ModelSource],
    examples: Sequence[ForgetExample],
    *,
    config: AuditConfig,
    options: RunOptions,
) -> Plan:
    """Check that the checkpoints fit together, and tokenise the examples with their tokenizer.

    Raises:
        DataError: There is no example at all.
        TrioMismatchError: The checkpoints differ where they must agree.
    """
    if not examples:
        raise DataError("no examples: an audit needs at least one row with question, answer and entity.")
    where = {"offline": options.offline, "trust_remote_code": options.trust_remote_code}
    passports = {
        role: read_passport(model, revision=options.revision, **where) for role, model in models.items()
    }
    tokenizer = check_trio(passports)
    encoded = encode(examples, tokenizer, protocol=config.protocol, scope=config.scope)
    depth = next(iter(passports.values())).shape["depth (layers)"]
    batches = plan_batches(
        encoded.rows,
        token_budget=options.token_budget,
        n_layers=depth if isinstance(depth, int) else 16,
        call_cost=_CALL_COST[pick_device(options.device).startswith("cuda")],
    )
    return Plan(encoded=encoded, batches=batches, pad_token_id=tokenizer.pad_token_id)


def opened(
    source: ModelSource, config: AuditConfig, options: RunOptions
) -> AbstractContextManager[HookedModel]:
    """Open one checkpoint the way the audit asks for; one that the caller has open stays open."""
    model = open_model(
        source,
        dtype=config.dtype,
        device=options.device,
        device_map=options.device_map,
        revision=options.revision,
        offline=options.offline,
        trust_remote_code=options.trust_remote_code,
    )
    return nullcontext(model) if model is source else model


def read_source(
    source: ModelSource, plan: Plan, *, role: str, config: AuditConfig, options: RunOptions
) -> SourceStates:
    """Open a source, keep its states at the patched positions, close it.

    Raises:
        ModelError: It produces states that are NaN or infinite; names the first example.
    """
    with opened(source, config, options) as model:
        caches = []
        for number in progress(range(len(plan.batches)), desc=f"read {role}", enabled=options.progress):
            batch = plan.batch(number)
            cache = capture(model, batch, site=config.site, last_layer=config.last_layer)
            _require_finite(
                cache.states.isfinite().all(-1).all(-1).all(-1), batch, plan, model.name, "hidden states"
            )
            caches.append(SpanCache(cache.states.cpu(), cache.site, cache.last_layer, cache.name))
        return SourceStates(record=ModelRecord.of(model), caches=caches)


def score_sources(
    full: ModelSource,
    sources: Sequence[SourceStates],
    plan: Plan,
    *,
    config: AuditConfig,
    options: RunOptions,
) -> TargetScores:
    """Open `full` once and patch every source into it; each batch is recorded once for all sources.

    Raises:
        ModelError: A log-probability is NaN or infinite; names the first example.
    """
    n_examples = len(plan.encoded.rows)
    with opened(full, config, options) as target:
        engine = options.engine
        if engine == "auto":
            engine = (
                choose_engine(target, _check_batch(plan), site=config.site) if plan.batches else "wavefront"
            )
        shape = (n_examples, target.n_layers)
        s_full = torch.full((n_examples,), torch.nan, dtype=torch.float64)
        scores = [
            PatchScores(*(torch.full(shape, torch.nan, dtype=torch.float64) for _ in range(3)))
            for _ in sources
        ]
        for number in progress(range(len(plan.batches)), desc="patch into full", enabled=options.progress):
            batch = plan.batch(number).to(target.device)
            rows = list(batch.rows)
            on_batch = open_target(target, batch, site=config.site, engine=engine)
            own_states = _states_at_site(target, on_batch, config)
            s_full[rows] = _mean_over_tokens(on_batch.logprobs.double(), batch)
            _require_finite(s_full[rows].isfinite(), batch, plan, target.name, "log-probabilities")
            for source, score in zip(sources, scores, strict=True):
                cache = _on_device(source.caches[number], target)
                score.delta[rows] = _delta(on_batch, cache, own_states, batch, config).cpu()
                finite = score.delta[rows].isfinite().all(-1)
                _require_finite(finite, batch, plan, source.record.name, "patched log-probabilities")
                ratio, cosine = _closeness(cache.states, own_states, batch)
                score.norm_ratio[rows], score.cosine[rows] = ratio.cpu(), cosine.cpu()
        return TargetScores(
            record=ModelRecord.of(target),
            engine=engine,
            device=str(target.device),
            s_full=s_full,
            sources=scores,
        )


def _delta(
    on_batch: WavefrontTarget | NaiveTarget,
    cache: SpanCache,
    own_states: Float[Tensor, "batch layer win d_model"],
    batch: TokenBatch,
    config: AuditConfig,
) -> Float[Tensor, "batch layer"]:
    """Nats per token lost by each patched layer; exactly 0 where the patch is a no-op."""
    same = cache.same_as(own_states, batch.patched_mask)
    if not config.exact_noop:
        same = torch.zeros_like(same)
    layers = (~same).any(0).nonzero()[:, 0].tolist()
    lost = torch.zeros(same.shape, dtype=torch.float64, device=same.device)
    if layers:
        patched = on_batch.patched(cache, layers=layers)[:, layers].double()
        lost[:, layers] = _mean_over_tokens(on_batch.logprobs.double()[:, None] - patched, batch)
    return lost.masked_fill(same, 0.0)


def _mean_over_tokens(values: Tensor, batch: TokenBatch) -> Tensor:
    """Mean over the scored window positions (last axis), whatever stands at the others."""
    scored = batch.scored_mask if values.ndim == 2 else batch.scored_mask[:, None]
    return torch.where(scored, values, 0.0).sum(-1) / batch.scored_mask.sum(-1).reshape(
        -1, *[1] * (values.ndim - 2)
    )


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
    count = patched.sum(-1)
    return (
        torch.where(patched, ratio, 0.0).sum(-1).double() / count,
        torch.where(patched, cosine, 0.0).sum(-1).double() / count,
    )


def _states_at_site(
    target: HookedModel, on_batch: WavefrontTarget | NaiveTarget, config: AuditConfig
) -> Float[Tensor, "batch layer win d_model"]:
    """The target's own states at the patch site: what a patch replaces."""
    if config.site == "resid_post":
        return on_batch.states
    batch = on_batch.recording.batch if isinstance(on_batch, WavefrontTarget) else on_batch.batch
    return capture(target, batch, site=config.site).states


def _on_device(cache: SpanCache, target: HookedModel) -> SpanCache:
    return SpanCache(cache.states.to(target.device, target.dtype), cache.site, cache.last_layer, cache.name)


def _check_batch(plan: Plan) -> TokenBatch:
    """Two rows of unequal length for the self-check: the shortest and a middle one."""
    order = [row for batch in plan.batches for row in batch]
    chosen = sorted({order[0], order[len(order) // 2]})
    return make_batch(plan.encoded.rows, indices=chosen, pad_token_id=plan.pad_token_id)


def _require_finite(
    finite: Bool[Tensor, "batch"], batch: TokenBatch, plan: Plan, name: str, what: str
) -> None:
    if bool(finite.all()):
        return
    row = batch.rows[int((~finite).nonzero()[0, 0])]
    example = plan.encoded.rows[row].example
    raise ModelError(
        f"{name!r} gives NaN or infinite {what}, first for example {example.id!r} ({example.question[:60]!r}): its "
        "weights are broken, or its dtype overflows. Check the checkpoint, or use dtype='float32'."
    )
