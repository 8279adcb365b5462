"""Several retain models: one scale each, and how far the scores against them lie apart."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from uds_lens.results.records import ModelRecord
from uds_lens.results.scores import layer_erasure_ratio, mean_uds, uds_per_example

if TYPE_CHECKING:
    import pandas as pd

    from uds_lens.results.audit_scores import AuditScores


@dataclass(frozen=True, eq=False, kw_only=True)
class RetainStage1:
    """Stage 1 of one of several retain models."""

    model: ModelRecord
    """The model."""

    s1_delta: Float[Tensor, "example layer"]
    """Log-probability lost with its state patched in, nats per token."""

    s1_norm_ratio: Float[Tensor, "example layer"]
    """Norm of its state over that of the state it replaces."""

    s1_cosine: Float[Tensor, "example layer"]
    """Cosine between its state and the state it replaces."""

    control_s1_delta: Float[Tensor, "fact layer"] | None = None
    """As `s1_delta`, on the control facts; None without a control."""


class Spread(NamedTuple):
    """Scores of one unlearned model against several retain models; NaN where a score is."""

    low: float
    """The lowest."""
    high: float
    """The highest."""
    deviation: float
    """Standard deviation; NaN with fewer than two."""


def uds_against(audit: AuditScores, retain: RetainStage1) -> Float[Tensor, "example"]:
    """Depth score of each example on the scale of one retain model.

    The layers are those where the mean S1 of all retain models exceeds tau, but for layers where this one's states cost
    nothing: there it has no scale, and no weight.

    Returns:
        In [0, 1]; exactly 1 where the unlearned model is this retain model, exactly 0 where it is `full`. NaN where no
        such layer is left.
    """
    layers = audit.ke_mask & (retain.s1_delta > 0)
    return uds_per_example(
        retain.s1_delta, layer_erasure_ratio(retain.s1_delta, audit.s2_delta, layers), layers
    )


def retains_frame(audit: AuditScores) -> pd.DataFrame:
    """One row per retain model, in their order.

    Returns:
        `retain` (its name), `fingerprint`, `uds`, `uds_low`, `uds_high` (bootstrap, by subject where examples share
        one), `n_measured`, `s1_mean` (over examples and layers, nats per token). With one retain model a single row,
        that of the audit itself.
    """
    import pandas as pd

    rows = []
    for retain in audit.retains or (_only(audit),):
        scores = uds_against(audit, retain)
        interval = audit.interval_of(scores, audit.subjects)
        rows.append(
            {
                "retain": retain.model.name,
                "fingerprint": retain.model.fingerprint,
                "uds": mean_uds(scores),
                "uds_low": interval.low,
                "uds_high": interval.high,
                "n_measured": int((~scores.isnan()).sum()),
                "s1_mean": float(retain.s1_delta.mean()) if len(scores) else math.nan,
            }
        )
    return pd.DataFrame(rows)


def _only(audit: AuditScores) -> RetainStage1:
    return RetainStage1(
        model=audit.models["retain"],
        s1_delta=audit.s1_delta,
        s1_norm_ratio=audit.s1_norm_ratio,
        s1_cosine=audit.s1_cosine,
    )


def spread_of(scores: tuple[float, ...]) -> Spread:
    """Lowest, highest, standard deviation (n - 1) of scores.

    >>> spread_of((0.2, 0.4))
    Spread(low=0.2, high=0.4, deviation=0.141...)
    """
    if not scores or any(map(math.isnan, scores)):
        return Spread(math.nan, math.nan, math.nan)
    deviation = float(torch.tensor(scores, dtype=torch.float64).std()) if len(scores) > 1 else math.nan
    return Spread(min(scores), max(scores), deviation)
