"""What a finished audit tells without running a model again."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch

from uds_lens.checked_arguments import arguments_checked
from uds_lens.errors import ConfigError
from uds_lens.results.frames import examples_frame

if TYPE_CHECKING:
    import pandas as pd

    from uds_lens.results.audit_scores import AuditScores

TAUS = (0.0, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5)
"""Thresholds a sweep tries by default, nats per token."""


class Correlation(NamedTuple):
    """Spearman rank correlation; NaN where it is undefined."""

    rho: float
    """Between -1 and 1."""
    p_value: float
    """Two-sided."""
    n: int
    """Pairs used."""


@arguments_checked
def tau_sweep(audit: AuditScores, taus: Sequence[float] | None = None) -> pd.DataFrame:
    """Score the same deltas with other thresholds.

    Args:
        audit: A finished audit.
        taus: Thresholds in nats per token; default `TAUS`.

    Returns:
        One row per tau: `ke_mean`, `ke_std`, `ke_min`, `ke_max`, `ke_median` (KE layers per example),
        `n_measured`, `n_not_measurable`, `uds` (NaN where nothing is measurable).
    """
    import pandas as pd

    rows = []
    for tau in TAUS if taus is None else taus:
        at = audit.with_tau(tau)
        sizes = at.ke_mask.sum(-1).double()
        some = len(sizes) > 0
        rows.append(
            {
                "tau": tau,
                "ke_mean": float(sizes.mean()) if some else math.nan,
                "ke_std": float(sizes.std()) if len(sizes) > 1 else math.nan,
                "ke_min": float(sizes.min()) if some else math.nan,
                "ke_max": float(sizes.max()) if some else math.nan,
                "ke_median": float(np.median(sizes.numpy())) if some else math.nan,
                "n_measured": at.n_measured,
                "n_not_measurable": at.n_not_measurable,
                "uds": at.uds,
            }
        )
    return pd.DataFrame(rows)


@arguments_checked
def tau_rank_correlation(
    audits: Mapping[str, AuditScores], taus: Sequence[float] | None = None
) -> pd.DataFrame:
    """Does the ranking of models depend on tau? Spearman correlation with the ranking at each audit's own tau.

    Args:
        audits: Audits of several models by name, all against one baseline.
        taus: Thresholds; default `TAUS`.

    Returns:
        One row per tau: `tau`, `rho`, `n_models` (models with a score at that tau).

    Raises:
        ConfigError: Fewer than three audits.
    """
    import pandas as pd

    if len(audits) < 3:
        raise ConfigError(f"a rank correlation over models needs at least 3 audits; got {len(audits)}.")
    reference = [audit.uds for audit in audits.values()]
    rows = []
    for tau in TAUS if taus is None else taus:
        correlation = spearman(reference, [audit.with_tau(tau).uds for audit in audits.values()])
        rows.append({"tau": tau, "rho": correlation.rho, "n_models": correlation.n})
    return pd.DataFrame(rows)


@arguments_checked
def types_frame(audit: AuditScores) -> pd.DataFrame:
    """Depth by entity type.

    Returns:
        One row per type, sorted by UDS (types without a measurable example last, `uds` NaN): `type`, `n`,
        `n_measured`, `n_tokens_mean`, `n_ke_mean`, `uds`, `uds_low`, `uds_high` (bootstrap, by subject where
        examples of a type share one).
    """
    import pandas as pd

    frame = examples_frame(audit)
    rows: list[dict[str, Any]] = []
    for kind, part in frame.groupby(frame["type"].fillna("(none)"), sort=True):
        scores = torch.tensor(part["uds"].to_numpy(dtype=float))
        interval = audit.interval_of(scores, [audit.subjects[place] for place in part.index])
        rows.append(
            {
                "type": kind,
                "n": len(part),
                "n_measured": int(part["uds"].notna().sum()),
                "n_tokens_mean": float(part["n_tokens"].mean()),
                "n_ke_mean": float(part["n_ke"].mean()),
                "uds": float(part["uds"].mean()),
                "uds_low": interval.low,
                "uds_high": interval.high,
            }
        )
    columns = ["type", "n", "n_measured", "n_tokens_mean", "n_ke_mean", "uds", "uds_low", "uds_high"]
    return pd.DataFrame(rows, columns=columns).sort_values("uds", ignore_index=True)


@arguments_checked
def length_correlation(audit: AuditScores) -> Correlation:
    """Spearman correlation between the number of entity tokens and the example's UDS."""
    return spearman(audit.n_tokens.tolist(), audit.uds_per_example.tolist())


@arguments_checked
def spearman(left: Sequence[float | int], right: Sequence[float | int]) -> Correlation:
    """Rank correlation over the pairs where both values exist; NaN with fewer than three, or without variation.

    >>> spearman([1, 2, 3, 4], [10, 20, 30, float("nan")])
    Correlation(rho=1.0, p_value=0.0, n=3)
    """
    pairs = np.array([p for p in zip(left, right, strict=True) if not any(map(math.isnan, p))], dtype=float)
    if len(pairs) < 3 or np.ptp(pairs, axis=0).min() == 0:
        return Correlation(math.nan, math.nan, len(pairs))
    from scipy.stats import spearmanr

    result = spearmanr(pairs[:, 0], pairs[:, 1])
    return Correlation(float(result.statistic), float(result.pvalue), len(pairs))


@arguments_checked
def clip_shares(audit: AuditScores) -> dict[str, float]:
    """What the clip hides: shares of KE layers, and of measurable examples by their raw score.

    Returns:
        `over_layers`, `negative_layers`: shares of KE layers with raw LER above 1 or below 0. `over_examples`,
        `negative_examples`: the same for each example's weighted raw ratio. NaN where nothing is measurable.
    """
    weights = torch.where(audit.ke_mask, audit.s1_delta, 0.0)
    raw = torch.where(audit.ke_mask, audit.s2_delta, 0.0).sum(-1) / weights.sum(-1)
    measured = raw[~audit.uds_per_example.isnan()]
    some = len(measured) > 0
    return {
        "over_layers": audit.over_erased_share,
        "negative_layers": audit.negative_share,
        "over_examples": float((measured > 1).double().mean()) if some else math.nan,
        "negative_examples": float((measured < 0).double().mean()) if some else math.nan,
    }
