"""The two stages of an audit: read each source's states, patch them into `full`, take what its log-probability loses.

Stage 1 patches the retain models, stage 2 the unlearned ones. A source is first read (`read_sources`: opened, its
states at the windows copied to the CPU, closed); then `full` is opened (`Target`), and every batch of it is patched
with the states of every source. Both stages in one run cost one pass over `full`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

import torch
from jaxtyping import Float
from torch import Tensor

from uds_lens._progress import tell
from uds_lens._settings import as_settings
from uds_lens._types import Engine
from uds_lens.audit._baseline import Baseline, baseline_of, join_stages
from uds_lens.audit._inputs import AuditInputs, Plan, Source, audit_inputs, make_plan, sources_of
from uds_lens.audit._memory import require_memory
from uds_lens.audit._runner import SourceStates, Target, read_source, read_sources
from uds_lens.data import ExamplesLike, TokenBatch
from uds_lens.errors import ModelError
from uds_lens.models import ModelSource, RetainSource, check_compatible, read_checkpoint_info
from uds_lens.patching import SpanCache, capture
from uds_lens.patching._engines import PatchEngine
from uds_lens.results._depth_audit import DepthAudit
from uds_lens.results._records import ModelRecord, provenance
from uds_lens.results._settings import AuditConfig, RunOptions

# Patching sources into `full`.


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


@dataclass(frozen=True, eq=False)
class TargetScores:
    """The pass over `full`: its own log-probabilities, and the scores of each source."""

    record: ModelRecord
    """The target."""

    engine: Engine
    """Engine that measured all of it."""

    device: str
    """Device the target ran on."""

    rows: str
    """How rows stood side by side."""

    s_full: Float[Tensor, "example"]
    """Mean log-probability of the entity's tokens under `full`, nats per token."""

    sources: list[PatchScores]
    """One per source, in their order."""


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
        return patch_sources(target, sources)


def patch_sources(target: Target, sources: Sequence[SourceStates]) -> TargetScores:
    """Patch every source into every batch of `full`; each batch is recorded once for all of them."""
    n_examples, config = len(target.plan.rows), target.config
    s_full = torch.full((n_examples,), torch.nan, dtype=torch.float64)
    shape = (n_examples, target.model.n_layers)
    scores = [tuple(torch.full(shape, torch.nan, dtype=torch.float64) for _ in range(3)) for _ in sources]

    def score(engine: PatchEngine, rows: list[int]) -> None:
        s_full[rows] = mean_over_tokens(engine.logprobs, engine.batch)
        target.plan.require_finite(s_full[rows].isfinite(), rows, target.model.name, "log-probabilities")
        for source, (delta, norm_ratio, cosine) in zip(sources, scores, strict=True):
            true_states = config.exact_noop and config.last_layer == "resid_post"
            if true_states and source.record.fingerprint == target.record.fingerprint:
                delta[rows], norm_ratio[rows], cosine[rows] = 0.0, 1.0, 1.0
                continue
            cache = source.cache(engine.batch)
            cache = replace(cache, states=cache.states.to(target.model.device, target.model.dtype))
            own = engine.states  # what a patch replaces
            if config.site != "resid_post":
                own = capture(target.model, engine.batch, site=config.site).states
            delta[rows] = lost_logprob(engine, cache, own, exact_noop=config.exact_noop)
            finite = delta[rows].isfinite().all(-1)
            target.plan.require_finite(finite, rows, source.record.name, "patched log-probabilities")
            norm_ratio[rows], cosine[rows] = closeness(cache.states, own, engine.batch)

    target.run_batches(score)
    by_source = [PatchScores(delta, norms, cosine, target.engine) for delta, norms, cosine in scores]
    return TargetScores(
        target.record, target.engine, str(target.model.device), target.rows, s_full, by_source
    )


def lost_logprob(
    engine: PatchEngine, cache: SpanCache, own: Float[Tensor, "batch layer win d_model"], *, exact_noop: bool
) -> Float[Tensor, "batch layer"]:
    """Nats per token lost by each patched layer; with `exact_noop`, exactly 0 where the patch changes nothing."""
    same = cache.same_as(own, engine.batch.patched_mask).cpu() & exact_noop
    layers = (~same).any(0).nonzero()[:, 0].tolist()
    lost = torch.zeros(same.shape, dtype=torch.float64)
    if layers:
        patched = engine.patched(cache, layers=layers)[:, layers]
        # Both are float32 and may cancel: the difference is taken in float64, which Apple's GPU does not have.
        difference = engine.logprobs.cpu().double()[:, None] - patched.cpu().double()
        lost[:, layers] = mean_over_tokens(difference, engine.batch)
    return lost.masked_fill(same, 0.0)


def mean_over_tokens(values: Tensor, batch: TokenBatch) -> Tensor:
    """Mean over the scored window positions (last axis), whatever stands at the others; float64, on the CPU."""
    scored, values = batch.scored_mask.cpu(), values.cpu().double()
    count = scored.sum(-1).reshape(-1, *[1] * (values.ndim - 2))
    return torch.where(scored if values.ndim == 2 else scored[:, None], values, 0.0).sum(-1) / count


def closeness(
    source: Float[Tensor, "batch layer win d_model"],
    own: Float[Tensor, "batch layer win d_model"],
    batch: TokenBatch,
) -> tuple[Float[Tensor, "batch layer"], Float[Tensor, "batch layer"]]:
    """Norm ratio and cosine of the patched-in states to those they replace, mean over patched positions."""
    source, own = source.float(), own.float()
    ratio = source.norm(dim=-1) / own.norm(dim=-1)
    cosine = torch.nn.functional.cosine_similarity(source, own, dim=-1)
    patched = batch.patched_mask[:, None]
    count = patched.sum(-1).cpu()
    return (
        torch.where(patched, ratio, 0.0).sum(-1).cpu().double() / count,
        torch.where(patched, cosine, 0.0).sum(-1).cpu().double() / count,
    )


# Both stages in one run, and stage 1 alone.


def audit_from_scratch(
    full: ModelSource,
    retain: RetainSource,
    unlearned: ModelSource,
    examples: ExamplesLike,
    *,
    control: ExamplesLike | None = None,
    config: AuditConfig | None = None,
    options: RunOptions | None = None,
) -> DepthAudit:
    """Measure both stages with one pass over `full`."""
    config = as_settings(AuditConfig, config, name="config")
    options = as_settings(RunOptions, options, name="options")
    sources = [*sources_of("retain", retain), Source("unlearned", 0, unlearned)]
    inputs = audit_inputs(examples, control, config)
    plan = _plan(full, sources, inputs, config, options)
    *retains, last = read_sources(full, sources, plan, config=config, options=options)
    # A retain model as the unlearned one needs no stage 2: it scores exactly 1.
    known = last.record.fingerprint in {source.record.fingerprint for source in retains}
    patched = retains if known else [*retains, last]
    scores = score_sources(full, patched, plan, config=config, options=options)
    baseline = baseline_of(
        scores, [source.record for source in retains], plan, inputs, config=config, full=full
    )
    stage_2_scores = None if known else scores.sources[-1]
    return join_stages(baseline, last.record, stage_2_scores, plan, baseline.provenance)


def measure_baseline(
    full: ModelSource,
    retain: RetainSource,
    examples: ExamplesLike,
    *,
    control: ExamplesLike | None = None,
    config: AuditConfig | None = None,
    options: RunOptions | None = None,
) -> Baseline:
    """Measure stage 1 alone."""
    config = as_settings(AuditConfig, config, name="config")
    options = as_settings(RunOptions, options, name="options")
    sources, inputs = sources_of("retain", retain), audit_inputs(examples, control, config)
    plan = _plan(full, sources, inputs, config, options)
    retains = read_sources(full, sources, plan, config=config, options=options)
    scores = score_sources(full, retains, plan, config=config, options=options)
    return baseline_of(scores, [source.record for source in retains], plan, inputs, config=config, full=full)


def _plan(
    full: ModelSource,
    sources: Sequence[Source],
    inputs: AuditInputs,
    config: AuditConfig,
    options: RunOptions,
) -> Plan:
    models = {"full": full, **{source.name: source.model for source in sources}}
    forget, control = inputs.forget.examples, inputs.control_examples
    return make_plan(models, forget, control=control, config=config, options=options)


# Stage 2 against a baseline.


def audit_models(
    baseline: Baseline, models: Sequence[ModelSource], *, options: RunOptions | None = None
) -> list[DepthAudit]:
    """Measure stage 2 of several models: all are read, then patched into one recording of `full`."""
    if not models:
        return []
    config, options, full = baseline.config, _stage_2_options(baseline, options), _full_of(baseline)
    sources = sources_of("unlearned", list(models))
    plan = _stage_2_plan(baseline, sources, options)
    states = read_sources(full, sources, plan, config=config, options=options)
    with Target(full, plan, config=config, options=options) as target:
        return stage_2(baseline, states, target)


def stage_2(baseline: Baseline, sources: Sequence[SourceStates], target: Target) -> list[DepthAudit]:
    """Measure stage 2 of sources that were read, in a target that must be the `full` of stage 1."""
    if (now := target.fingerprint) != baseline.models["full"].fingerprint:
        raise ModelError(
            f"{target.record.name!r} is not the `full` this baseline was measured with (weights "
            f"{now}, expected {baseline.models['full'].fingerprint}). Measure the baseline "
            "again, or set its `full`."
        )
    retains = {record.fingerprint for role, record in baseline.roles.items() if role != "full"}
    unknown = [source for source in sources if source.record.fingerprint not in retains]
    scores = patch_sources(target, unknown).sources if unknown else []
    by_source = dict(zip(map(id, unknown), scores, strict=True))
    origin = {
        **provenance(
            engine=target.engine,
            device=str(target.model.device),
            rows=target.rows,
            rendered_prompt=baseline.provenance.get("first_prompt"),
            ids_hash=baseline.provenance["ids_hash"],
        ),
        "sample": baseline.provenance.get("sample"),
        "stage_1": dict(baseline.provenance),
    }
    return [join_stages(baseline, s.record, by_source.get(id(s)), target.plan, origin) for s in sources]


def _full_of(baseline: Baseline) -> ModelSource:
    return baseline.full if baseline.full is not None else baseline.models["full"].name


def _stage_2_options(baseline: Baseline, options: RunOptions | None) -> RunOptions:
    """Take the plain engine where stage 1 did, unless one is named."""
    options = as_settings(RunOptions, options, name="options")
    if options.engine == "auto" and baseline.provenance.get("engine") == "naive":
        tell("stage 2 is measured by the naive engine, as stage 1 was")
        return replace(options, engine="naive")
    return options


def _stage_2_plan(baseline: Baseline, sources: Sequence[Source], options: RunOptions) -> Plan:
    """Tokenise and batch again, and check the tokens against those of stage 1."""
    full = _full_of(baseline)
    where = {"offline": options.offline, "trust_remote_code": options.trust_remote_code}
    try:
        read_checkpoint_info(full, revision=options.revision, **where)
    except ModelError as error:
        if baseline.full is not None:
            raise
        raise ModelError(
            f"the `full` this baseline was measured with, {baseline.models['full'].name!r}, cannot be opened from "
            f"here: {error} Say where it is: baseline.with_full(directory)."
        ) from error
    control = None if baseline.control is None else baseline.control.examples
    models = {"full": full, **{source.name: source.model for source in sources}}
    plan = make_plan(models, baseline.examples, control=control, config=baseline.config, options=options)
    hashes = plan.encoded.ids_hash, None if plan.control is None else plan.control.ids_hash
    known = None if baseline.control is None else baseline.control.ids_hash
    if hashes != (baseline.provenance.get("ids_hash"), known):
        raise ModelError(
            "the tokenizer of `full` no longer gives the tokens this baseline was measured on: measure it again."
        )
    return plan


@dataclass(frozen=True, eq=False)
class RecordedBaseline:
    """A baseline whose `full` is open and recorded; made by `Baseline.recorded`."""

    baseline: Baseline
    """Stage 1."""

    plan: Plan
    """Rows and batches."""

    target: Target
    """`full`, open."""

    options: RunOptions
    """How it is run."""

    def audit(self, unlearned: ModelSource) -> DepthAudit:
        """Stage 2 of one model: one pass over it, and its patched variants.

        Raises:
            IncompatibleModelsError: The model does not fit `full`.
            ModelError: The model cannot be opened, or gives NaN.
        """
        where = {"offline": self.options.offline, "trust_remote_code": self.options.trust_remote_code}
        info = read_checkpoint_info(unlearned, revision=self.options.revision, **where)
        check_compatible({"full": read_checkpoint_info(self.target.model), "unlearned": info})
        config = self.baseline.config
        source = read_source(unlearned, self.plan, role="unlearned", config=config, options=self.options)
        return stage_2(self.baseline, [source], self.target)[0]


@contextmanager
def recorded(baseline: Baseline, *, options: RunOptions | None = None) -> Iterator[RecordedBaseline]:
    """Open and record `full`; see `Baseline.recorded`."""
    config, options, full = baseline.config, _stage_2_options(baseline, options), _full_of(baseline)
    plan = _stage_2_plan(baseline, [], options)
    require_memory(full, plan, n_sources=1, config=config, options=options, keep=True)
    with Target(full, plan, config=config, options=options, keep=True) as target:
        yield RecordedBaseline(baseline, plan, target, options)
