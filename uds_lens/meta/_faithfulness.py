"""Faithfulness: does a metric rank models that know above models that do not, and how sure is that?"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import combinations
from typing import TYPE_CHECKING, Any

import numpy as np

from uds_lens.errors import ConfigError, DataError
from uds_lens.meta._columns import FAITHFULNESS, LEAVE_ONE_OUT, PAIRS, THRESHOLDS, VARIANTS
from uds_lens.meta._direction import Points, directions, oriented
from uds_lens.meta._pools import (
    Draws,
    PoolBootstrap,
    check_resampling,
    clustered_interval,
    delong_covariance,
    logit_interval,
    normal_quantile,
    pair_kernel,
    split_pools,
    wilson_interval,
)
from uds_lens.results import holm
from uds_lens.results._statistics import NO_INTERVAL, Interval

if TYPE_CHECKING:
    import pandas as pd


def variant_table(
    frame: pd.DataFrame,
    *,
    metrics: Sequence[str] | None = None,
    direction: Mapping[str, Points] | None = None,
    label: str = "knows",
    variant: str = "variant",
    run: str = "run",
    confidence: float = 0.95,
) -> pd.DataFrame:
    """Compute F between each variant of P and each variant of N.

    A high F over all models can hide a variant that a metric misreads; with three variants per pool nine numbers
    show it. Each has an interval for more runs of these two variants: t on the logit scale with runs as clusters,
    Wilson's with the smaller number of runs where F is 0 or 1. The lowest of nine numbers is low by chance too; nothing
    is adjusted for that.

    Args:
        frame: One row per model: metrics, `label`, `variant`.
        metrics: Which columns; None takes the declared metrics, or those of `direction`.
        direction: What a higher value means, for metrics that are not declared.
        label: Column with the pool.
        variant: Column with the kind of training.
        run: Column with the training run; without it, or where it has gaps, there is no interval.
        confidence: Of the intervals.

    Returns:
        One row per metric and pair of variants, columns as in `uds_lens.meta.VARIANTS`; `auc` is NaN where one of
        the two has no value, the interval where one of them has a single run.

    Raises:
        DataError: A column is missing; a pool is empty.
        ConfigError: A direction is not known.

    Example:
        >>> import pandas as pd
        >>> frame = pd.DataFrame({"knows": [1, 1, 1, 0, 0], "variant": list("abbcc"), "x": [0.9, 0.1, 0.6, 0.2, 0.3]})
        >>> variant_table(frame, direction={"x": "knowledge"})["auc"].tolist()
        [1.0, 0.5]
    """
    import pandas as pd

    check_resampling(confidence, 2)
    rows: list[dict[str, Any]] = []
    pools = split_pools(frame, label, (variant, run))
    for name, m, knows, names in _oriented(frame, metrics, direction, label, variant):
        there = ~np.isnan(m)
        for one in dict.fromkeys(names[knows]):
            for other in dict.fromkeys(names[~knows]):
                in_p = np.flatnonzero(knows & (names == one) & there)
                in_n = np.flatnonzero(~knows & (names == other) & there)
                p, n = m[in_p], m[in_n]
                kernel = pair_kernel(p, n)
                tied = float((p[:, None] == n[None, :]).mean()) if kernel.size else math.nan
                ends = NO_INTERVAL
                if kernel.size and pools.clusters is not None:
                    of_p, of_n = ([pools.clusters[i] for i in rows] for rows in (in_p, in_n))
                    ends = clustered_interval(kernel, of_p, of_n, confidence)
                rows.append(
                    {
                        "metric": name,
                        "variant_p": one,
                        "variant_n": other,
                        "auc": float(kernel.mean()) if kernel.size else math.nan,
                        "low": ends.low,
                        "high": ends.high,
                        "n_p": len(p),
                        "n_n": len(n),
                        "tied_share": tied,
                    }
                )
    return pd.DataFrame(rows, columns=list(VARIANTS))


def leave_one_variant_out(
    frame: pd.DataFrame,
    *,
    metrics: Sequence[str] | None = None,
    direction: Mapping[str, Points] | None = None,
    label: str = "knows",
    variant: str = "variant",
) -> pd.DataFrame:
    """Compute F with each variant left out in turn: how much depends on one of them.

    Args:
        frame: One row per model: metrics, `label`, `variant`.
        metrics: Which columns; None takes the declared metrics, or those of `direction`.
        direction: What a higher value means, for metrics that are not declared.
        label: Column with the pool.
        variant: Column with the kind of training.

    Returns:
        One row per metric and variant, columns as in `uds_lens.meta.LEAVE_ONE_OUT`; `auc` is NaN where nothing is
        left of a pool.

    Raises:
        DataError: A column is missing; a pool is empty.
        ConfigError: A direction is not known.

    Example:
        >>> import pandas as pd
        >>> frame = pd.DataFrame({"knows": [1, 1, 1, 0, 0], "variant": list("abbcd"), "x": [0.9, 0.1, 0.6, 0.2, 0.3]})
        >>> leave_one_variant_out(frame, direction={"x": "knowledge"})[["pool", "variant", "auc"]].values.tolist()
        [['P', 'a', 0.5], ['P', 'b', 1.0], ['N', 'c', 0.6666666666666666], ['N', 'd', 0.6666666666666666]]
    """
    import pandas as pd

    rows: list[dict[str, Any]] = []
    for name, m, knows, names in _oriented(frame, metrics, direction, label, variant):
        there = ~np.isnan(m)
        strata = [(bool(k), str(v)) for k, v in zip(knows[there], names[there], strict=True)]
        for stratum, auc, n_p, n_n in left_out(m[there], strata):
            pool = "P" if stratum[0] else "N"
            rows.append(
                {"metric": name, "pool": pool, "variant": stratum[1], "auc": auc, "n_p": n_p, "n_n": n_n}
            )
    return pd.DataFrame(rows, columns=list(LEAVE_ONE_OUT))


def left_out(m: np.ndarray, strata: Sequence[Any]) -> list[tuple[Any, float, int, int]]:
    """Each stratum `(pool, variant, ...)`: itself, F without it (NaN for an empty pool), what stays of P and N."""
    found = []
    for stratum in dict.fromkeys(strata):
        kept = [i for i, other in enumerate(strata) if other != stratum]
        p = m[[i for i in kept if strata[i][0]]]
        n = m[[i for i in kept if not strata[i][0]]]
        kernel = pair_kernel(p, n)
        found.append((stratum, float(kernel.mean()) if kernel.size else math.nan, len(p), len(n)))
    return found


def _oriented(
    frame: pd.DataFrame,
    metrics: Sequence[str] | None,
    direction: Mapping[str, Points] | None,
    label: str,
    variant: str,
) -> list[tuple[str, np.ndarray, np.ndarray, np.ndarray]]:
    ways = directions(frame, metrics, direction)
    pools = split_pools(frame, label, (variant, variant))
    if pools.problem is not None:
        raise DataError(f"{pools.problem}: it says which kind of training a model had.")
    names = pools.frame[variant].astype(str).to_numpy(dtype=object)
    return [
        (name, oriented(pools.frame[name], points).to_numpy(), pools.knows, names)
        for name, points in ways.items()
    ]


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
    """Measure how well each metric tells models that know from models that do not.

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


def thresholds(
    frame: pd.DataFrame,
    *,
    metrics: Sequence[str] | None = None,
    direction: Mapping[str, Points] | None = None,
    label: str = "knows",
    models: pd.DataFrame | None = None,
) -> pd.DataFrame:
    """Find every cut that separates the pools best, by Youden's J.

    `J = share of P above the cut - share of N above it`. Cuts lie midway between neighbouring pool values. Where
    several reach the largest J the lowest is chosen, the most careful one: "unlearned" means `m <= threshold`. The
    others are rows too, because the number of models called unlearned can differ much between them.

    Args:
        frame: One row per model: metrics and `label`.
        metrics: Which columns; None takes the declared metrics, or those of `direction`.
        direction: What a higher value means, for metrics that are not declared.
        label: Column with the pool.
        models: Unlearned models with the same metrics, to count those at or below each cut.

    Returns:
        One row per metric and best cut, columns as in `uds_lens.meta.THRESHOLDS`; a row with NaN and a reason where
        no cut is better than chance.

    Raises:
        DataError: A column is missing or holds no numbers; a pool is empty.
        ConfigError: A direction is not known.

    Example:
        >>> import pandas as pd
        >>> frame = pd.DataFrame({"knows": [1, 1, 1, 0, 0, 0], "x": [0.9, 0.8, 0.3, 0.4, 0.2, 0.1]})
        >>> found = thresholds(frame, direction={"x": "knowledge"})
        >>> found[["threshold", "chosen", "n_n_below"]].round(3).values.tolist()
        [[0.25, True, 2], [0.6, False, 3]]
    """
    import pandas as pd

    ways = directions(frame, metrics, direction)
    pools = split_pools(frame, label, ())
    rows: list[dict[str, Any]] = []
    for name, points in ways.items():
        m = oriented(pools.frame[name], points).to_numpy()
        p, n = m[pools.knows & ~np.isnan(m)], m[~pools.knows & ~np.isnan(m)]
        others = None
        if models is not None and name in models.columns:
            others = oriented(models[name], points).to_numpy()
        rows += _rows(name, points, p, n, others)
    return pd.DataFrame(rows, columns=list(THRESHOLDS))


def _rows(
    name: str, points: Points, p: np.ndarray, n: np.ndarray, others: np.ndarray | None
) -> list[dict[str, Any]]:
    empty = {
        **dict.fromkeys(THRESHOLDS, math.nan),
        "metric": name,
        "chosen": True,
        "n_best": 0,
        "reason": None,
    }
    if not len(p) or not len(n):
        return [{**empty, "reason": f"no model of {'P' if not len(p) else 'N'} has a value"}]
    levels = np.unique(np.concatenate([p, n]))
    cuts = (levels[:-1] + levels[1:]) / 2
    # Counts instead of shares: equal J must be equal to the last bit.
    p_below = (p[:, None] <= cuts).sum(0)
    n_below = (n[:, None] <= cuts).sum(0)
    scaled = n_below * len(p) - p_below * len(n)
    if not len(cuts) or scaled.max() <= 0:
        return [{**empty, "reason": "no cut puts more of P than of N above it"}]
    best = np.flatnonzero(scaled == scaled.max())
    return [
        {
            **empty,
            "threshold": float(cuts[at]),
            "value": float(cuts[at] if points == "knowledge" else 1 - cuts[at]),
            "chosen": place == 0,
            "youden": float(scaled[at]) / (len(p) * len(n)),
            "accuracy": float(len(p) - p_below[at] + n_below[at]) / (len(p) + len(n)),
            "n_best": len(best),
            "n_p_below": int(p_below[at]),
            "n_n_below": int(n_below[at]),
            "n_models": math.nan if others is None else int((others <= cuts[at]).sum()),
        }
        for place, at in enumerate(best)
    ]


POWER = 0.8
"""Probability with which a difference of size `detectable` is found."""


def compare(
    frame: pd.DataFrame,
    one: str,
    other: str,
    *,
    direction: Mapping[str, Points] | None = None,
    cluster: Sequence[str] = ("variant", "run"),
    confidence: float = 0.95,
    n_resamples: int = 2000,
    seed: int = 0,
) -> pd.Series:
    """Compare the faithfulness of two metrics on the models that have both.

    DeLong's paired test, `z = (F_1 - F_2) / se` with the covariance of the two, and the same difference in a
    bootstrap that draws whole runs within pool and variant, with a t distribution. Both hold for more models of
    the same variants.

    Args:
        frame: One row per model: the two metrics, `knows`, and the columns of `cluster`.
        one: A metric.
        other: Another.
        direction: What a higher value means, for metrics that are not declared.
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
        cluster=cluster,
        confidence=confidence,
        n_resamples=n_resamples,
        seed=seed,
    )
    return table.iloc[0]


def compare_all(
    frame: pd.DataFrame,
    *,
    metrics: Sequence[str] | None = None,
    against: str | None = None,
    direction: Mapping[str, Points] | None = None,
    cluster: Sequence[str] = ("variant", "run"),
    confidence: float = 0.95,
    n_resamples: int = 2000,
    seed: int = 0,
) -> pd.DataFrame:
    """Compare all pairs of metrics, or one with all others, with Holm's adjustment over the table.

    Args:
        frame: One row per model: metrics, `knows`, and the columns of `cluster`.
        metrics: Which columns; None takes the declared metrics, or those of `direction`.
        against: Compare this metric with each other one, and no other pairs.
        direction: What a higher value means, for metrics that are not declared.
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
    pools = split_pools(frame, "knows", cluster)
    m = {name: oriented(pools.frame[name], points).to_numpy() for name, points in ways.items()}
    pairs = (
        list(combinations(ways, 2))
        if against is None
        else [(against, name) for name in ways if name != against]
    )
    bootstrap = PoolBootstrap(pools, n_resamples, seed)
    rows = [_pairs_row(one, other, m, bootstrap, confidence) for one, other in pairs]
    table = pd.DataFrame(rows, columns=list(PAIRS))
    for name in ("p", "cluster_p"):
        table[f"{name}_holm"] = holm(table[name].tolist())
    return table


def _pairs_row(
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
    return row | _pairs_clustered(kernels, bootstrap, there, confidence)


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


def _pairs_clustered(
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
