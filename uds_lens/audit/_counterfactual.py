"""A stage 1 without a retain model: `full`'s own states on counterfactuals, the mean over several of each example."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Float
from torch import Tensor

from uds_lens.audit._inputs import CounterfactualPlan, Plan
from uds_lens.audit._runner import read_source
from uds_lens.audit._states import SourceStates
from uds_lens.models import ModelSource
from uds_lens.results._settings import AuditConfig, RunOptions

if TYPE_CHECKING:
    from uds_lens.audit._two_stage import TargetScores


def read_draws(
    full: ModelSource, plan: Plan, *, config: AuditConfig, options: RunOptions, share: int
) -> list[SourceStates]:
    """Read `full` on all counterfactuals, as one source for each draw; a row with fewer begins again with its first."""
    counterfactual = plan.counterfactual
    assert counterfactual is not None
    read = read_source(full, counterfactual.plan, role="counterfactuals", config=config, options=options, share=share)
    record = replace(
        read.record,
        name=f"{read.record.name} on counterfactuals",
        fingerprint=counterfactual.fingerprint(read.record.fingerprint),
    )
    read = replace(read, record=record, logprobs=None)  # the latter are of other questions
    places, count = counterfactual.places, counterfactual.draws
    return [replace(read, rows=[rows[n % len(rows)] for rows in places]) for n in range(count)]


def with_mean_of_draws(scores: TargetScores, counterfactual: CounterfactualPlan) -> TargetScores:
    """Put one source, the mean over each row's draws, in the place of the draws."""
    draws, rows = scores.sources[: counterfactual.draws], range(len(counterfactual.places))

    def mean(name: str) -> Float[Tensor, "example layer"]:
        return mean_of_draws([getattr(scores, name) for scores in draws], counterfactual, rows)

    joined = replace(draws[0], delta=mean("delta"), norm_ratio=mean("norm_ratio"), cosine=mean("cosine"))
    return replace(scores, sources=[joined, *scores.sources[len(draws) :]])


def mean_of_draws(
    draws: Sequence[Float[Tensor, "row layer"]], counterfactual: CounterfactualPlan, rows: Sequence[int]
) -> Float[Tensor, "row layer"]:
    """Average some rows over their own draws; a row with fewer than there are has its first ones again behind them."""
    counts = torch.tensor([len(counterfactual.places[row]) for row in rows])
    first = torch.arange(len(draws))[:, None] < counts
    return torch.where(first[..., None], torch.stack(list(draws)), 0.0).sum(0) / counts[:, None]


def origin_of_draws(plan: Plan, config: AuditConfig) -> dict[str, Any]:
    """Say for the record what stood in for a retain model; empty with one."""
    if plan.counterfactual is None:
        return {}
    counts = [len(rows) for rows in plan.counterfactual.places[: len(plan.encoded.rows)]]
    drawn = {"from": config.counterfactual, "draws": max(counts, default=0), "fewest": min(counts, default=0)}
    return {"counterfactual": {**drawn, "seed": config.seed}}
