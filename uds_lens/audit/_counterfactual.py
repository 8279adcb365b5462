"""Stage 1 without a retain model: states of `full` on several counterfactuals per example; results are averaged."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Float
from torch import Tensor

from uds_lens.audit._inputs import CounterfactualPlan, Plan, Source
from uds_lens.audit._runner import read_source, read_sources
from uds_lens.audit._states import SourceStates
from uds_lens.models._hooked import ModelSource
from uds_lens.results._settings import AuditConfig, RunOptions

if TYPE_CHECKING:
    from uds_lens.audit._two_stage import PatchScores


def with_draws(
    states: list[SourceStates],
    full: ModelSource,
    sources: Sequence[Source],
    plan: Plan,
    *,
    config: AuditConfig,
    options: RunOptions,
) -> list[SourceStates]:
    """Prepend one source per draw, which holds the states of `full` on counterfactuals, to the given sources."""
    n_fallen = len(plan.fallen)
    draws = _read_draws(full, plan, config=config, options=options, share=len(sources) + 1)
    if len(plan.fallen) > n_fallen:  # all sources are read in the same way
        states = read_sources(sources, plan, config=config, options=options)
    return [*draws, *states]


def _read_draws(
    full: ModelSource, plan: Plan, *, config: AuditConfig, options: RunOptions, share: int
) -> list[SourceStates]:
    """Read `full` on all counterfactuals; a row with fewer draws than other rows repeats its draws."""
    counterfactual = plan.counterfactual
    assert counterfactual is not None
    of = partial(read_source, full, counterfactual.plan, config=config, options=options, share=share)
    read = of(role="counterfactuals", own_logprobs=True)
    record = replace(
        read.record,
        name=f"{read.record.name} on counterfactuals",
        fingerprint=counterfactual.fingerprint(read.record.fingerprint),
    )
    assert read.logprobs is not None
    draws = []
    for n in range(counterfactual.draws):
        rows = [rows[n % len(rows)] for rows in counterfactual.places]
        draws.append(replace(read, record=record, rows=rows, logprobs=read.logprobs[rows]))
    return draws


def with_mean_of_draws(scores: list[PatchScores], counterfactual: CounterfactualPlan) -> list[PatchScores]:
    """Replace the draws with one source: the mean over each row's draws."""
    draws, rows = scores[: counterfactual.draws], range(len(counterfactual.places))

    def mean(name: str) -> Float[Tensor, "example layer"]:
        return mean_of_draws([getattr(scores, name) for scores in draws], counterfactual, rows)

    joined = replace(draws[0], delta=mean("delta"), norm_ratio=mean("norm_ratio"), cosine=mean("cosine"))
    return [joined, *scores[len(draws) :]]


def mean_of_draws(
    draws: Sequence[Float[Tensor, "row layer"]], counterfactual: CounterfactualPlan, rows: Sequence[int]
) -> Float[Tensor, "row layer"]:
    """Average each row over its own draws, ignoring repetitions in rows with fewer draws."""
    counts = torch.tensor([len(counterfactual.places[row]) for row in rows])
    first = torch.arange(len(draws))[:, None] < counts
    return torch.where(first[..., None], torch.stack(list(draws)), 0.0).sum(0) / counts[:, None]


def mean_stage_1(
    deltas: Float[Tensor, "source row layer"], rows: Sequence[int], plan: Plan
) -> Float[Tensor, "row layer"]:
    """Average stage 1 of some rows over the retain models, or over the draws that replace a retain model."""
    if plan.counterfactual is None:
        return mean_of_models(list(deltas))
    return mean_of_draws(list(deltas), plan.counterfactual, rows)


def mean_of_models(parts: Sequence[Tensor]) -> Tensor:
    """Average the scores of several models; the scores of a single model are returned unchanged."""
    return parts[0] if len(parts) == 1 else torch.stack(list(parts)).mean(0)


def origin_of_draws(plan: Plan, config: AuditConfig) -> dict[str, Any]:
    """Describe what replaces the retain model, for the provenance; empty if there was a retain model."""
    if plan.counterfactual is None:
        return {}
    counts = [len(rows) for rows in plan.counterfactual.places[: len(plan.encoded.rows)]]
    drawn = {"from": config.counterfactual, "draws": max(counts, default=0), "fewest": min(counts, default=0)}
    return {"counterfactual": {**drawn, "seed": config.seed}}
