"""The two stages of an audit: read each source's states, patch them into `full`, and measure the log-probability lost.

Stage 1 patches in the retain models, stage 2 the unlearned ones. Each source is opened, its window states are copied to
the CPU or to disk (`read_sources`), and the source is closed. Then `full` is opened (`Target`), and the states of every
source are patched into every batch. Running both stages together costs a single pass over `full`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from uds_lens._settings import as_settings
from uds_lens._types import Engine
from uds_lens.audit._baseline import Baseline, baseline_of, join_stages, origin_of_stage_2
from uds_lens.audit._counterfactual import mean_stage_1, with_draws, with_mean_of_draws
from uds_lens.audit._inputs import Plan, Source, audit_inputs, make_plan, retain_sources
from uds_lens.audit._kept import states_kept
from uds_lens.audit._memory import settled
from uds_lens.audit._runner import Patched, Target, read_sources
from uds_lens.audit._states import SourceStates, closeness, mean_over_tokens, require_same_full
from uds_lens.data._readers import ExamplesLike
from uds_lens.errors import ModelError, Setting
from uds_lens.models._hooked import ModelSource, RetainSource
from uds_lens.patching import SpanCache, capture
from uds_lens.patching._states import PatchEngine
from uds_lens.results._depth_audit import DepthAudit
from uds_lens.results._scores import ke_mask
from uds_lens.results._settings import AuditConfig, RunOptions


def measure_stages(
    full: ModelSource,
    retain: RetainSource | None,
    unlearned: ModelSource | None,
    examples: ExamplesLike,
    *,
    control: ExamplesLike | None = None,
    config: AuditConfig | None = None,
    options: RunOptions | None = None,
) -> tuple[Baseline, DepthAudit | None]:
    """Measure stage 1 or, with an unlearned model, both stages in one pass over `full`."""
    config = as_settings(AuditConfig, config, name="config")
    options = as_settings(RunOptions, options, name="options")
    sources = retain_sources(retain, config)
    n_retains = len(sources)
    if unlearned is not None:
        sources.append(Source("unlearned", 0, unlearned))
    inputs = audit_inputs(examples, control, config)
    models, facts = {"full": full, **{source.name: source.model for source in sources}}, inputs.forget.examples
    retained = inputs.control_examples
    plan = make_plan(models, facts, control=retained, drawn=inputs.drawn, config=config, options=options)
    config, draws = replace(config, protocol=plan.protocol), plan.counterfactual
    n_sources = len(sources) + (draws.draws if draws else 0)
    options = settled(full, plan, n_sources=n_sources, config=config, options=options)
    only_knowledge = unlearned is not None and _only_knowledge(options, plan)
    if only_knowledge:
        _require_all_layers(options)
    with states_kept():
        states = read_sources(sources, plan, config=config, options=options)
        if draws:
            states = with_draws(states, full, sources, plan, config=config, options=options)
            n_retains = draws.draws
        retains = [source.record for source in states[:n_retains]]
        # If the unlearned model is one of the retain models, stage 2 is not needed: the score is exactly 1.
        of_retains = {record.fingerprint for record in retains}
        new = [source for source in states[n_retains:] if source.record.fingerprint not in of_retains]
        with Target(full, plan, config=config, options=options) as target:
            n_stage_1 = n_retains if only_knowledge else 0
            s_full, scores = patch_sources(target, [*states[:n_retains], *new], n_stage_1=n_stage_1)
            if draws:
                scores, retains = with_mean_of_draws(scores, draws), retains[:1]
            s_retain = _mean_logprobs(states[:n_retains], plan)
            baseline = baseline_of(target, s_full, s_retain, scores, retains, inputs, full=full)
    if unlearned is None:
        return baseline, None
    return baseline, join_stages(baseline, states[-1], scores[-1] if new else None, plan, baseline.provenance)


def _mean_logprobs(retains: Sequence[SourceStates], plan: Plan) -> Float[Tensor, "row"]:
    """Average the entities' log-probabilities under the retain models themselves (or `full` with counterfactuals)."""
    own = torch.stack([source.logprobs for source in retains if source.logprobs is not None])
    return mean_stage_1(own[..., None], range(len(plan.rows)), plan)[:, 0]


def _only_knowledge(options: RunOptions, plan: Plan) -> bool:
    """Return whether stage 2 needs only the knowledge-encoding layers; damage to control facts needs all layers."""
    return options.stage_2 == "knowledge" and plan.control is None


def _require_all_layers(options: RunOptions) -> None:
    """Raise an error if both stages are streamed together but stage 2 depends on the result of stage 1."""
    if options.stream:
        raise ModelError(
            "both stages of a streamed audit are measured together, before stage 1 shows which layers encode the "
            "knowledge. Measure stage 1 first (Baseline.measure, then audit), or use ",
            Setting("stage_2", "all", of="RunOptions"),
            ".",
        )


def measure_stage_2(baseline: Baseline, sources: Sequence[SourceStates], target: Target) -> list[DepthAudit]:
    """Run stage 2 for unlearned models, given their states; `target` must be the `full` of stage 1."""
    retains = {record.fingerprint for role, record in baseline.roles.items() if role != "full"}
    new = [source for source in sources if source.record.fingerprint not in retains]
    expected = baseline.models["full"].fingerprint
    hashed_on_the_way = bool(new) and not target.model.is_resident
    if not hashed_on_the_way:
        require_same_full(target.model.name, target.fingerprint, expected)
    knowledge = baseline.ke_mask if _only_knowledge(target.options, target.plan) else None
    scores = patch_sources(target, new, knowledge=knowledge)[1] if new else []
    if hashed_on_the_way:
        require_same_full(target.model.name, target.fingerprint, expected)
    by_source = dict(zip(map(id, new), scores, strict=True))
    origin = origin_of_stage_2(baseline, target)
    return [join_stages(baseline, s, by_source.get(id(s)), target.plan, origin) for s in sources]


@dataclass(frozen=True, eq=False)
class PatchScores:
    """Effect of patching one source into `full`."""

    # Log-probability lost, nats per token, float64: mean over the entity's tokens.
    delta: Float[Tensor, "example layer"]
    # Norm of the patched-in state divided by that of the replaced state, mean over patched positions.
    norm_ratio: Float[Tensor, "example layer"]
    cosine: Float[Tensor, "example layer"]  # cosine similarity of these two states, mean over patched positions
    engine: Engine  # the engine that was used


def patch_sources(
    target: Target,
    sources: Sequence[SourceStates],
    *,
    knowledge: Bool[Tensor, "example layer"] | None = None,
    n_stage_1: int = 0,
) -> tuple[Float[Tensor, "example"], list[PatchScores]]:
    """Patch every source into every batch of `full`; each batch is recorded once for all of them.

    Args:
        target: `full`.
        sources: The states to patch in.
        knowledge: The layers to measure for each example; None for all.
        n_stage_1: Number of leading sources that are measured at all layers. The remaining sources are measured only at
            layers where the leading sources find knowledge.

    Returns:
        Mean log-probability of the entity's tokens under `full` (nats per token), and the scores of each source.
    """
    n_examples, config, full = len(target.plan.rows), target.config, target.model
    s_full = torch.full((n_examples,), torch.nan, dtype=torch.float64)
    deltas, norms, cosines = (
        torch.full((len(sources), n_examples, full.n_layers), torch.nan, dtype=torch.float64) for _ in range(3)
    )
    if n_stage_1:
        knowledge = torch.zeros(n_examples, full.n_layers, dtype=torch.bool)

    def score(engine: PatchEngine, rows: list[int], patched: Sequence[Patched | None]) -> None:
        s_full[rows] = mean_over_tokens(engine.logprobs, engine.batch)
        target.plan.require_finite(s_full[rows].isfinite(), rows, full.name, "log-probabilities")
        replaced = engine.states
        if config.site != "resid_post":
            replaced = capture(full, engine.batch, site=config.site).states
        for place, (source, delta, norm, cosine) in enumerate(zip(sources, deltas, norms, cosines, strict=True)):
            wanted = None
            if knowledge is not None and place >= n_stage_1:
                if place == n_stage_1 > 0:
                    knowledge[rows] = ke_mask(mean_stage_1(deltas[:place, rows], rows, target.plan), config.tau)
                wanted = knowledge[rows]
            # If a source has the weights of `full`, it has the same states, so patching changes nothing (except in a
            # last layer read after the final norm).
            exact = config.exact_noop and config.last_layer == "resid_post"
            if exact and source.record.fingerprint == target.record.fingerprint:
                delta[rows], norm[rows], cosine[rows] = 0.0, 1.0, 1.0
                continue
            cache = target.states_of(source, engine)
            delta[rows] = lost = lost_logprob(
                engine, cache, replaced, exact_noop=config.exact_noop, wanted=wanted, patched=patched[place]
            )
            finite = (lost.isfinite() if wanted is None else lost.isfinite() | ~wanted).all(-1)
            target.plan.require_finite(finite, rows, source.record.name, "patched log-probabilities")
            norm[rows], cosine[rows] = closeness(cache.states, replaced, engine.batch)

    target.run_batches(score, sources, knowledge)
    return s_full, [PatchScores(*parts, target.engine) for parts in zip(deltas, norms, cosines, strict=True)]


def lost_logprob(
    engine: PatchEngine,
    cache: SpanCache,
    replaced: Float[Tensor, "batch layer win d_model"],
    *,
    exact_noop: bool,
    wanted: Bool[Tensor, "batch layer"] | None = None,
    patched: Patched | None = None,
) -> Float[Tensor, "batch layer"]:
    """Return the nats per token lost by patching each layer; with `exact_noop`, exactly 0 if the patch changes nothing.

    NaN at layers not `wanted`. `patched` contains the log-probabilities with each layer patched, if they are already
    known.
    """
    same = cache.same_as(replaced, engine.batch.patched_mask).cpu() & exact_noop
    changing = ~same if wanted is None else ~same & wanted
    layers = changing.any(0).nonzero()[:, 0].tolist()
    lost = torch.zeros(same.shape, dtype=torch.float64)
    if layers:
        if patched is None:
            patched = engine.patched(cache, layers=layers, wanted=wanted)
        # Most digits of the two float32 numbers may cancel, so subtract in float64 (on the CPU, because Apple GPUs do
        # not support float64).
        difference = engine.logprobs.cpu().double()[:, None] - patched[:, layers].cpu().double()
        lost[:, layers] = mean_over_tokens(difference, engine.batch)
    lost = lost.masked_fill(same, 0.0)
    return lost if wanted is None else lost.masked_fill(~wanted, torch.nan)
