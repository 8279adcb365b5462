"""Faithfulness: does a metric rank models that know above models that do not, and how sure is that?"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from uds_lens.checked_arguments import arguments_checked
from uds_lens.meta.declarations import Points
from uds_lens.meta.direction import directions, oriented
from uds_lens.meta.placements import (
    NO_INTERVAL,
    Interval,
    clustered_interval,
    delong_covariance,
    logit_interval,
    normal_quantile,
    pair_kernel,
    wilson_interval,
)
from uds_lens.meta.pool_bootstrap import Draws, PoolBootstrap
from uds_lens.meta.pools import split_pools
from uds_lens.meta.required_columns import FAITHFULNESS
from uds_lens.meta.resampling import check_resampling
from uds_lens.meta.variants import left_out

if TYPE_CHECKING:
    import pandas as pd


@arguments_checked
def faithfulness(
    frame: pd.DataFrame,
    *,
    metrics: Sequence[str] | None = None,
    direction: Mapping[str, Points] | None = None,
    label: str = "knows",
    cluster: Sequence[str] = ("variant", "run"),
    confidence: float = 0.95,
    n_resamples: int = 2000,
    seed: int = 0,
) -> pd.DataFrame:
    """How well each metric tells models that know from models that do not.

    `F = P(m_P > m_N) + 0.5 P(m_P = m_N)`, with m the value of a metric of knowledge and `1 - value` of a metric of
    erasure. Three intervals stand beside it: DeLong's on the logit scale (Wilson's at F = 0 or 1, with the smaller
    pool's n); a bootstrap within pools; and one within pool and variant that keeps the models of a run together (both
    of the placements, see `weighted_auc`).
    All three hold for more models of the *same* variants only. What they leave out is shown beside them: the range of
    F with one variant left out, and `new_variants_low` to `new_variants_high`, an interval for variants that nobody
    trained, with whole variants as clusters (t with as many degrees of freedom as there are variants minus 2, on the
    logit scale; Wilson's with the smaller number of variants at F = 0 or 1). With three variants a pool it is wide.

    Args:
        frame: One row per model: metrics, `label`, and the columns of `cluster`.
        metrics: Which columns; None takes the declared metrics, or those of `direction`.
        direction: What a higher value means, for metrics that are not declared.
        label: Column with the pool.
        cluster: The last column names the run, those before it the variant; empty if all models are independent.
        confidence: Of the intervals.
        n_resamples: Of the bootstraps.
        seed: Of the bootstraps.

    Returns:
        One row per metric, columns as in `uds_lens.meta.FAITHFULNESS`. NaN with `reason` where a pool has no value;
        no interval with `reason` where all pairs are tied or a pool has one model; no interval for new variants where
        a pool has a single one.

    Raises:
        DataError: A column is missing or holds no numbers; a pool is empty; fewer than five models.
        ConfigError: A direction is not known.

    Example:
        >>> import pandas as pd
        >>> frame = pd.DataFrame({"knows": [1, 1, 1, 0, 0, 0], "x": [0.9, 0.8, 0.3, 0.4, 0.2, 0.1]})
        >>> row = faithfulness(frame, direction={"x": "knowledge"}).iloc[0]
        >>> f"{row['auc']:.4f}", row["interval"], row["cluster_reason"]
        ('0.8889', 'delong', "the table lacks the column 'variant', 'run'")

    References:
        Lee, Kim and Jo (2026), arXiv 2605.24614; DeLong et al. (1988); Rao and Wu (1988).
    """
    import pandas as pd

    check_resampling(confidence, n_resamples)
    ways = directions(frame, metrics, direction)
    pools = split_pools(frame, label, cluster)
    bootstrap = PoolBootstrap(pools, n_resamples, seed)
    rows = [_row(name, points, bootstrap, confidence) for name, points in ways.items()]
    return pd.DataFrame(rows, columns=list(FAITHFULNESS))


def _row(name: str, points: Points, bootstrap: PoolBootstrap, confidence: float) -> dict[str, Any]:
    pools = bootstrap.pools
    values = pools.frame[name].astype(float)
    m, there = oriented(values, points).to_numpy(), values.notna().to_numpy()
    own = values.to_numpy()
    p, n = pools.knows & there, ~pools.knows & there
    row: dict[str, Any] = dict.fromkeys(FAITHFULNESS, math.nan)
    row |= {"metric": name, "direction": points, "interval": None, "reason": None}
    row |= {"n_p": int(p.sum()), "n_n": int(n.sum()), "n_missing": int((~there).sum()), "n_runs": 0}
    row |= {"mean_p": _mean(own[p]), "mean_n": _mean(own[n]), "cluster_reason": pools.problem}
    if not p.any() or not n.any():
        row["reason"] = f"no model of {'P' if not p.any() else 'N'} has a value"
        return row
    kernel = pair_kernel(m[p], m[n])
    row |= {"auc": float(kernel.mean()), "tied_share": float((m[p][:, None] == m[n][None, :]).mean())}
    row |= {"share_at_0": float((own[there] == 0).mean()), "share_at_1": float((own[there] == 1).mean())}
    row |= _analytic(kernel, confidence)
    draws = bootstrap.independent(there)
    row["boot_low"], row["boot_high"] = _resampled(kernel, draws, normal_quantile(confidence))
    clustered = bootstrap.clustered(there)
    return row if clustered is None else row | _clustered(kernel, m[there], clustered, confidence)


def _analytic(kernel: np.ndarray, confidence: float) -> dict[str, Any]:
    auc, z = float(kernel.mean()), normal_quantile(confidence)
    error = float(np.sqrt(delong_covariance([kernel])[0, 0]))
    if auc in (0.0, 1.0):
        low, high = wilson_interval(auc, min(kernel.shape), z)
        return {"standard_error": error, "low": low, "high": high, "interval": "wilson"}
    low, high = logit_interval(auc, error, z)
    reason = None
    if math.isnan(error):
        reason = "no interval: a pool has one model with a value"
    elif not error > 0:
        tied = bool((kernel == 0.5).all())
        reason = "constant: all models have the same value" if tied else "no interval: the variance is 0"
    kind = None if reason else "delong"
    return {"standard_error": error, "low": low, "high": high, "interval": kind, "reason": reason}


def _resampled(kernel: np.ndarray, draws: Draws, quantile: float) -> Interval:
    """The error of F over resamples, as an interval on the logit scale."""
    if draws.problem is not None:
        return NO_INTERVAL
    spread = float(np.std(draws.aucs(kernel), ddof=1))
    return logit_interval(float(kernel.mean()), spread if spread > 1e-12 else 0.0, quantile)


def _clustered(kernel: np.ndarray, m: np.ndarray, draws: Draws, confidence: float) -> dict[str, Any]:
    """Return what runs and variants say: an interval from each, and the range of F with one variant left out."""
    from scipy.stats import t

    without = [auc for _, auc, _, _ in left_out(m, draws.strata) if not math.isnan(auc)]
    positives, negatives = (
        [each for each, knows in zip(draws.strata, draws.knows, strict=True) if knows == pool]
        for pool in (True, False)
    )
    new = clustered_interval(kernel, positives, negatives, confidence)
    found: dict[str, Any] = {
        "n_runs": draws.runs,
        "variants_low": min(without, default=math.nan),
        "variants_high": max(without, default=math.nan),
        "new_variants_low": new.low,
        "new_variants_high": new.high,
    }
    if draws.problem is not None:
        return found | {"cluster_reason": draws.problem}
    low, high = _resampled(kernel, draws, float(t.ppf(0.5 + confidence / 2, draws.freedom)))
    if math.isnan(low):
        return found | {"cluster_reason": "F is the same in all resamples: they cannot show any spread"}
    return found | {"cluster_low": low, "cluster_high": high}


def _mean(values: np.ndarray) -> float:
    return float(values.mean()) if len(values) else math.nan
