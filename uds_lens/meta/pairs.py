"""Is one metric more faithful than another? Paired tests of two areas under the curve."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import combinations
from typing import TYPE_CHECKING, Any

import numpy as np

from uds_lens.checked_arguments import arguments_checked
from uds_lens.errors import ConfigError
from uds_lens.meta.declarations import Points
from uds_lens.meta.direction import directions, oriented
from uds_lens.meta.placements import delong_covariance, normal_quantile, pair_kernel
from uds_lens.meta.pool_bootstrap import PoolBootstrap
from uds_lens.meta.pools import split_pools
from uds_lens.meta.required_columns import PAIRS
from uds_lens.meta.resampling import check_resampling

if TYPE_CHECKING:
    import pandas as pd

POWER = 0.8
"""Probability with which a difference of size `detectable` is found."""


@arguments_checked
def compare(
    frame: pd.DataFrame,
    one: str,
    other: str,
    *,
    direction: Mapping[str, Points] | None = None,
    label: str = "knows",
    cluster: Sequence[str] = ("variant", "run"),
    confidence: float = 0.95,
    n_resamples: int = 2000,
    seed: int = 0,
) -> pd.Series:
    """Compare the faithfulness of two metrics on the models that have both.

    DeLong's paired test, `z = (F_1 - F_2) / se` with the covariance of the two, and the same difference in a
    bootstrap that draws whole runs within pool and variant, with a t distribution. Both speak of more models of
    the same variants.

    Args:
        frame: One row per model: the two metrics, `label`, and the columns of `cluster`.
        one: A metric.
        other: Another.
        direction: What a higher value means, for metrics that are not declared.
        label: Column with the pool.
        cluster: The last column names the run, those before it the variant; empty if all models are independent.
        confidence: Of the intervals.
        n_resamples: Of the bootstrap.
        seed: Of the bootstrap.

    Returns:
        A row as in `uds_lens.meta.PAIRS`; no p value, with a reason, where both metrics order all pairs alike.

    Raises:
        ConfigError: `one` is `other`, or a direction is not known.
        DataError: A column is missing or holds no numbers; a pool is empty.

    Example:
        >>> import pandas as pd
        >>> frame = pd.DataFrame({"knows": [1, 1, 1, 0, 0, 0], "x": [0.9, 0.8, 0.3, 0.4, 0.2, 0.1],
        ...                       "y": [0.9, 0.2, 0.3, 0.4, 0.6, 0.1]})
        >>> row = compare(frame, "x", "y", direction={"x": "knowledge", "y": "knowledge"}, cluster=())
        >>> f"{row['difference']:.3f} {row['p']:.3f}"
        '0.333 0.221'

    References:
        DeLong et al. (1988), Biometrics 44, 837-845.
    """
    table = compare_all(
        frame,
        metrics=[one, other],
        direction=direction,
        label=label,
        cluster=cluster,
        confidence=confidence,
        n_resamples=n_resamples,
        seed=seed,
    )
    return table.iloc[0]


@arguments_checked
def compare_all(
    frame: pd.DataFrame,
    *,
    metrics: Sequence[str] | None = None,
    against: str | None = None,
    direction: Mapping[str, Points] | None = None,
    label: str = "knows",
    cluster: Sequence[str] = ("variant", "run"),
    confidence: float = 0.95,
    n_resamples: int = 2000,
    seed: int = 0,
) -> pd.DataFrame:
    """Compare all pairs of metrics, or one with all others, with Holm's adjustment over the table.

    Args:
        frame: One row per model: metrics, `label`, and the columns of `cluster`.
        metrics: Which columns; None takes the declared metrics, or those of `direction`.
        against: Compare this metric with each other one, and no other pairs.
        direction: What a higher value means, for metrics that are not declared.
        label: Column with the pool.
        cluster: The last column names the run, those before it the variant; empty if all models are independent.
        confidence: Of the intervals, which are not adjusted.
        n_resamples: Of the bootstrap.
        seed: Of the bootstrap.

    Returns:
        One row per pair, columns as in `uds_lens.meta.PAIRS`.

    Raises:
        ConfigError: Fewer than two metrics, one of them twice, or a direction is not known.
        DataError: A column is missing or holds no numbers; a pool is empty.

    Example:
        >>> import pandas as pd
        >>> frame = pd.DataFrame({"knows": [1, 1, 1, 0, 0, 0], "x": [0.9, 0.8, 0.3, 0.4, 0.2, 0.1],
        ...                       "y": [0.9, 0.2, 0.3, 0.4, 0.6, 0.1], "z": [0.8, 0.7, 0.6, 0.3, 0.2, 0.1]})
        >>> table = compare_all(frame, direction=dict.fromkeys("xyz", "knowledge"), cluster=())
        >>> table[["one", "other"]].values.tolist()
        [['x', 'y'], ['x', 'z'], ['y', 'z']]
    """
    import pandas as pd

    check_resampling(confidence, n_resamples)
    ways = directions(frame, metrics, direction)
    if len(ways) < 2 or (metrics is not None and len(set(metrics)) < len(metrics)):
        raise ConfigError(
            f"a comparison needs at least two different metrics; got {', '.join(metrics or ways)}."
        )
    if against is not None and against not in ways:
        raise ConfigError(f"against={against!r} is not among the metrics {', '.join(ways)}.")
    pools = split_pools(frame, label, cluster)
    m = {name: oriented(pools.frame[name], points).to_numpy() for name, points in ways.items()}
    pairs = (
        list(combinations(ways, 2))
        if against is None
        else [(against, name) for name in ways if name != against]
    )
    bootstrap = PoolBootstrap(pools, n_resamples, seed)
    rows = [_row(one, other, m, bootstrap, confidence) for one, other in pairs]
    table = pd.DataFrame(rows, columns=list(PAIRS))
    for name in ("p", "cluster_p"):
        table[f"{name}_holm"] = holm(table[name].to_numpy(dtype=float))
    return table


@arguments_checked
def holm(p: np.ndarray) -> np.ndarray:
    """Holm's step-down adjustment: control of the chance of any false finding.

    The i-th smallest of k p values becomes `max over j <= i of (k - j + 1) p_j`, at most 1.

    Args:
        p: p values; NaN is not counted.

    Returns:
        Adjusted p values in the same order; NaN stays NaN.

    Example:
        >>> holm(np.array([0.01, 0.04, 0.03])).round(3).tolist()
        [0.03, 0.06, 0.06]

    References:
        Holm (1979), Scandinavian Journal of Statistics 6, 65-70.
    """
    found = np.full(len(p), math.nan)
    order = [int(i) for i in np.argsort(p, kind="stable") if not math.isnan(p[i])]
    largest = 0.0
    for place, at in enumerate(order):
        largest = max(largest, (len(order) - place) * float(p[at]))
        found[at] = min(largest, 1.0)
    return found


def _row(
    one: str,
    other: str,
    m: Mapping[str, np.ndarray],
    bootstrap: PoolBootstrap,
    confidence: float,
) -> dict[str, Any]:
    pools = bootstrap.pools
    there = ~np.isnan(m[one]) & ~np.isnan(m[other])
    p, n = pools.knows & there, ~pools.knows & there
    row: dict[str, Any] = {**dict.fromkeys(PAIRS, math.nan), "one": one, "other": other, "reason": None}
    row |= {"n_p": int(p.sum()), "n_n": int(n.sum()), "cluster_reason": pools.problem}
    if not p.any() or not n.any():
        row["reason"] = f"no model of {'P' if not p.any() else 'N'} has both values"
        return row
    kernels = [pair_kernel(m[name][p], m[name][n]) for name in (one, other)]
    first, second = (float(kernel.mean()) for kernel in kernels)
    covariance = delong_covariance(kernels)
    row |= {"auc_one": first, "auc_other": second, "difference": first - second}
    row |= _delong(first - second, covariance, confidence)
    if (kernels[0] == kernels[1]).all():
        row["reason"] = "both metrics order all pairs alike"
    elif math.isnan(row["p"]):
        row["reason"] = "the variance of the difference is unknown: too few models, or 0"
    return row | _clustered(kernels, bootstrap, there, confidence)


def _delong(difference: float, covariance: np.ndarray, confidence: float) -> dict[str, float]:
    from scipy.stats import norm

    own = np.diag(covariance)
    variance = float(own.sum() - 2 * covariance[0, 1])
    if not variance > 1e-18:
        return {}
    error, z = math.sqrt(variance), normal_quantile(confidence)
    spread = math.sqrt(float(own.prod())) if own.prod() > 0 else math.nan
    return {
        "correlation": float(covariance[0, 1]) / spread,
        "standard_error": error,
        "low": difference - z * error,
        "high": difference + z * error,
        "p": float(2 * norm.sf(abs(difference) / error)),
        "detectable": error * (z + float(norm.ppf(POWER))),
    }


def _clustered(
    kernels: Sequence[np.ndarray], bootstrap: PoolBootstrap, there: np.ndarray, confidence: float
) -> dict[str, Any]:
    from scipy.stats import t

    draws = bootstrap.clustered(there)
    if draws is None:
        return {}
    if draws.problem is not None:
        return {"cluster_reason": draws.problem}
    error = float(np.std(draws.aucs(kernels[0]) - draws.aucs(kernels[1]), ddof=1))
    if not error > 1e-9:
        return {"cluster_reason": "the difference is the same in all resamples"}
    difference = float(kernels[0].mean() - kernels[1].mean())
    reach = float(t.ppf(0.5 + confidence / 2, draws.freedom)) * error
    return {
        "cluster_standard_error": error,
        "cluster_low": difference - reach,
        "cluster_high": difference + reach,
        "cluster_p": float(2 * t.sf(abs(difference) / error, draws.freedom)),
    }
