"""Faithfulness: does a metric rank models that know above models that do not, and how certain is the result?"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import combinations, product
from typing import Any

import numpy as np
import pandas as pd

from uds_lens.errors import ConfigError, DataError
from uds_lens.meta._columns import FAITHFULNESS, PAIRS, THRESHOLDS, VARIANTS
from uds_lens.meta._direction import Points, directions, oriented, oriented_columns
from uds_lens.meta._pools import (
    Draws,
    Placements,
    PoolBootstrap,
    Pools,
    check_confidence,
    check_resampling,
    clustered_interval,
    delong_covariance,
    logit_interval,
    normal_quantile,
    split_pools,
    wilson_interval,
)
from uds_lens.results import holm
from uds_lens.results._statistics import NO_INTERVAL, Interval, student

_POWER = 0.8  # probability of detecting a difference of size `detectable`


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
    """Measure how well each metric separates models that know from models that do not.

    `F = P(m_P > m_N) + 0.5 P(m_P = m_N)`, where m is the value for a knowledge metric and `1 - value` for an erasure
    metric. Two intervals hold for more models of the *same* variants: DeLong's on the logit scale (at F = 0 or 1,
    Wilson's with the size of the smaller pool), and a bootstrap within pool and variant that keeps the models of a run
    together. `variants_low` and `variants_high` give the range of F with one variant left out. `new_variants_low` and
    `new_variants_high` hold for *new* variants: a t interval on the logit scale with whole variants as clusters, whose
    degrees of freedom are the number of variants minus 2 (at F = 0 or 1, Wilson's with the smaller number of variants).

    Args:
        frame: One row per model, with metrics, `label`, and the columns in `cluster`.
        metrics: As in `directions`.
        direction: As in `directions`.
        label: Column with the pool.
        cluster: Columns that name the variant and, last, the run; empty if all models are independent.
        confidence: Confidence level of the intervals.
        n_resamples: Number of resamples in the bootstrap.
        seed: Seed of the bootstrap.

    Returns:
        One row per metric, with the columns of `COLUMNS["faithfulness"]`. F is NaN, with `reason`, if a pool has no
        values. There is no interval, with `reason`, if all pairs are tied or a pool has only one model.

    Raises:
        DataError: A column is missing or not numeric; a pool is empty; there are fewer than five models.
        ConfigError: A metric has no direction.

    Example:
        >>> import pandas as pd
        >>> frame = pd.DataFrame({"knows": [1, 1, 1, 0, 0, 0], "x": [0.9, 0.8, 0.3, 0.4, 0.2, 0.1]})
        >>> row = faithfulness(frame, direction={"x": "knowledge"}).iloc[0]
        >>> f"{row['auc']:.4f}", row["interval"], row["cluster_reason"]
        ('0.8889', 'delong', "the table lacks the column 'variant', 'run'")

    References:
        Lee, Kim and Jo (2026), arXiv 2605.24614; DeLong et al. (1988); Rao and Wu (1988).
    """
    check_resampling(confidence, n_resamples)
    ways = directions(frame, metrics, direction)
    bootstrap = PoolBootstrap(split_pools(frame, label, cluster), n_resamples, seed)
    rows = [_row(name, points, bootstrap, confidence) for name, points in ways.items()]
    return pd.DataFrame(rows, columns=list(FAITHFULNESS))


def _row(name: str, points: Points, bootstrap: PoolBootstrap, confidence: float) -> dict[str, Any]:
    pools = bootstrap.pools
    values = pools.frame[name].astype(float)
    m, value = oriented(values, points).to_numpy(), values.to_numpy()
    measured = ~np.isnan(m)
    p, n = pools.knows & measured, ~pools.knows & measured
    row: dict[str, Any] = dict.fromkeys(FAITHFULNESS, math.nan)
    row |= {"metric": name, "direction": points, "interval": None, "reason": None, "cluster_reason": pools.problem}
    row |= {"n_p": int(p.sum()), "n_n": int(n.sum()), "n_missing": int((~measured).sum()), "n_runs": 0}
    row |= {f"mean_{pool}": float(value[rows].mean()) for pool, rows in (("p", p), ("n", n)) if rows.any()}
    if not p.any() or not n.any():
        return row | {"reason": f"no model of {'P' if not p.any() else 'N'} has a value"}
    order = Placements.of(m[p], m[n])
    row |= {"auc": order.auc, "tied_share": order.tied_share}
    row |= {f"share_at_{end}": float((value[measured] == end).mean()) for end in (0, 1)}
    row |= _delong_interval(order, confidence)
    draws = bootstrap.clustered(measured)
    return row if draws is None else row | _by_runs_and_variants(order, draws, confidence)


def _delong_interval(order: Placements, confidence: float) -> dict[str, Any]:
    z = normal_quantile(confidence)
    error = float(np.sqrt(delong_covariance([order])[0, 0]))
    kind, reason = "delong", None
    if order.auc in (0.0, 1.0):
        low, high = wilson_interval(order.auc, min(len(order.p_counts), len(order.n_counts)), z)
        kind = "wilson"
    else:
        low, high = logit_interval(order.auc, error, z)
        if math.isnan(error):
            reason = "no interval: a pool has only one model with a value"
        elif not error > 0:
            constant = order.tied_share == 1
            reason = "constant: all models have the same value" if constant else "no interval: the variance is 0"
    interval = None if reason else kind
    return {"standard_error": error, "low": low, "high": high, "interval": interval, "reason": reason}


def _resampled(order: Placements, draws: Draws, quantile: float) -> Interval:
    """Turn the standard error of F over resamples into an interval on the logit scale."""
    if draws.problem is not None:
        return NO_INTERVAL
    spread = float(np.std(draws.aucs(order), ddof=1))
    return logit_interval(order.auc, spread if spread > 1e-12 else 0.0, quantile)


def _by_runs_and_variants(order: Placements, draws: Draws, confidence: float) -> dict[str, Any]:
    without = [auc for _, auc, _, _ in order.without(draws.strata) if not math.isnan(auc)]
    n_p = len(order.p_counts)
    new = clustered_interval(order, draws.strata[:n_p], draws.strata[n_p:], confidence)
    columns: dict[str, Any] = {
        "n_runs": draws.runs,
        "variants_low": min(without, default=math.nan),
        "variants_high": max(without, default=math.nan),
        "new_variants_low": new.low,
        "new_variants_high": new.high,
    }
    if draws.problem is not None:
        return columns | {"cluster_reason": draws.problem}
    low, high = _resampled(order, draws, student(confidence, draws.freedom))
    if math.isnan(low):
        return columns | {"cluster_reason": "F is the same in all resamples, so they show no spread"}
    return columns | {"cluster_low": low, "cluster_high": high}


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

    A high F over all models can hide a variant that a metric misreads. Each F has an interval for more runs of these
    two variants: a t interval on the logit scale with runs as clusters or, if F is 0 or 1, Wilson's with the smaller
    number of runs. There is no interval if the column `run` is missing or has gaps. The lowest of many F values is low
    partly by chance, which is not adjusted for. Arguments and errors are as in `faithfulness`; `variant` and `run` are
    names of columns.

    Returns:
        One row per metric and pair of variants, with the columns of `COLUMNS["variants"]`. `auc` is NaN if one of the
        two variants has no value, and the interval is NaN if one of them has a single run.

    Example:
        >>> import pandas as pd
        >>> frame = pd.DataFrame({"knows": [1, 1, 1, 0, 0], "variant": list("abbcc"), "x": [0.9, 0.1, 0.6, 0.2, 0.3]})
        >>> variant_table(frame, direction={"x": "knowledge"})["auc"].tolist()
        [1.0, 0.5]
    """
    check_confidence(confidence)
    ways = directions(frame, metrics, direction)
    pools, variants = _pools_with_variants(frame, label, variant)
    runs = split_pools(frame, label, (variant, run)).clusters
    rows: list[dict[str, Any]] = []
    for name, m in oriented_columns(pools.frame, ways).items():
        measured = ~np.isnan(m)
        of_p, of_n = (dict.fromkeys(variants[pool]) for pool in (pools.knows, ~pools.knows))
        for one, other in product(of_p, of_n):
            p, n = (pools.knows & (variants == one) & measured, ~pools.knows & (variants == other) & measured)
            order, ends = Placements.of(m[p], m[n]), NO_INTERVAL
            if runs is not None and p.any() and n.any():
                ends = clustered_interval(order, runs[p], runs[n], confidence)
            row = {"metric": name, "variant_p": one, "variant_n": other, "auc": order.auc, "low": ends.low}
            row |= {"high": ends.high, "n_p": int(p.sum()), "n_n": int(n.sum()), "tied_share": order.tied_share}
            rows.append(row)
    return pd.DataFrame(rows, columns=list(VARIANTS))


def _pools_with_variants(frame: pd.DataFrame, label: str, variant: str) -> tuple[Pools, np.ndarray]:
    """Return the pools and the variant of each model."""
    pools = split_pools(frame, label, (variant,))
    if pools.problem is not None or pools.clusters is None:
        raise DataError(f"{pools.problem}, which names the kind of training of each model.")
    return pools, pools.clusters


def thresholds(
    frame: pd.DataFrame,
    *,
    metrics: Sequence[str] | None = None,
    direction: Mapping[str, Points] | None = None,
    label: str = "knows",
    models: pd.DataFrame | None = None,
) -> pd.DataFrame:
    """Find all thresholds that separate the pools best, as measured by Youden's J.

    `J = share of P above the cut - share of N above it`. Cuts lie midway between neighbouring pool values. If several
    cuts reach the largest J, the lowest one is chosen. It is the most cautious, because "unlearned" means `m <=
    threshold`. The other cuts are listed too, because the number of models called unlearned can differ a lot between
    cuts. Arguments and errors are as in `faithfulness`; `models` holds unlearned models, which are counted at or below
    each cut.

    Returns:
        One row per metric and best cut, with the columns of `COLUMNS["thresholds"]`; one row with NaN and a reason if
        no cut is better than chance.

    Example:
        >>> import pandas as pd
        >>> frame = pd.DataFrame({"knows": [1, 1, 1, 0, 0, 0], "x": [0.9, 0.8, 0.3, 0.4, 0.2, 0.1]})
        >>> cuts = thresholds(frame, direction={"x": "knowledge"})
        >>> cuts[["threshold", "chosen", "n_n_below"]].round(3).values.tolist()
        [[0.25, True, 2], [0.6, False, 3]]
    """
    ways = directions(frame, metrics, direction)
    pools = split_pools(frame, label, ())
    rows: list[dict[str, Any]] = []
    for name, m in oriented_columns(pools.frame, ways).items():
        p, n = m[pools.knows & ~np.isnan(m)], m[~pools.knows & ~np.isnan(m)]
        cuts = _best_cuts(p, n)
        if isinstance(cuts, str):
            empty = {"metric": name, "chosen": True, "n_best": 0, "reason": cuts}
            rows.append(dict.fromkeys(THRESHOLDS, math.nan) | empty)
            continue
        unlearned = None
        if models is not None and name in models.columns:
            unlearned = oriented(models[name], ways[name]).to_numpy()
        for cut in cuts:
            p_below, n_below = int((p <= cut).sum()), int((n <= cut).sum())
            row = {"metric": name, "threshold": float(cut), "chosen": cut == cuts[0], "n_best": len(cuts)}
            row |= {
                "value": float(cut if ways[name] == "knowledge" else 1 - cut),
                "youden": float(n_below * len(p) - p_below * len(n)) / (len(p) * len(n)),
                "n_p_below": p_below,
                "n_n_below": n_below,
                "n_models": math.nan if unlearned is None else int((unlearned <= cut).sum()),
                "reason": None,
            }
            rows.append(row)
    return pd.DataFrame(rows, columns=list(THRESHOLDS))


def _best_cuts(p: np.ndarray, n: np.ndarray) -> np.ndarray | str:
    """Return the thresholds with the largest J, or the reason why there are none."""
    if not len(p) or not len(n):
        return f"no model of {'P' if not len(p) else 'N'} has a value"
    levels = np.unique(np.concatenate([p, n]))
    cuts = (levels[:-1] + levels[1:]) / 2
    # Counts are used rather than shares, so that equal values of J are equal to the last bit.
    p_below, n_below = (np.searchsorted(np.sort(m), cuts, "right") for m in (p, n))
    scaled = n_below * len(p) - p_below * len(n)
    if not len(cuts) or scaled.max() <= 0:
        return "no threshold has a larger share of P than of N above it"
    best: np.ndarray = cuts[scaled == scaled.max()]
    return best


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
    """Compare the faithfulness of two metrics on the models that have values of both.

    The first test is DeLong's paired test, `z = (F_1 - F_2) / se`, where `se` accounts for the covariance of the two F
    values. The second is a t test of the same difference, with its standard error from a bootstrap that draws whole
    runs within pool and variant. Both tests hold for more models of the same variants. Arguments and errors are as in
    `faithfulness`.

    Returns:
        A row as in `COLUMNS["pairs"]`; the p value is NaN, with a reason, if both metrics order all pairs alike.

    Raises:
        ConfigError: `one` is `other`.

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
    resampling: dict[str, Any] = {"confidence": confidence, "n_resamples": n_resamples, "seed": seed}
    return compare_all(frame, metrics=[one, other], direction=direction, cluster=cluster, **resampling).iloc[0]


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
    """Compare all pairs of metrics, or one metric (`against`) with all others.

    p values are Holm-adjusted over the table; intervals are not adjusted. Arguments and errors are as in `compare`.

    Returns:
        One row per pair, with the columns of `COLUMNS["pairs"]`.

    Raises:
        ConfigError: There are fewer than two metrics, or a metric is named twice.

    Example:
        >>> import pandas as pd
        >>> frame = pd.DataFrame({"knows": [1, 1, 1, 0, 0, 0], "x": [0.9, 0.8, 0.3, 0.4, 0.2, 0.1],
        ...                       "y": [0.9, 0.2, 0.3, 0.4, 0.6, 0.1], "z": [0.8, 0.7, 0.6, 0.3, 0.2, 0.1]})
        >>> table = compare_all(frame, direction=dict.fromkeys("xyz", "knowledge"), cluster=())
        >>> table[["one", "other"]].values.tolist()
        [['x', 'y'], ['x', 'z'], ['y', 'z']]
    """
    check_resampling(confidence, n_resamples)
    ways = directions(frame, metrics, direction)
    if len(ways) < 2 or (metrics is not None and len(set(metrics)) < len(metrics)):
        raise ConfigError(f"a comparison needs at least two different metrics; got {', '.join(metrics or ways)}.")
    if against is not None and against not in ways:
        raise ConfigError(f"against={against!r} is not among the metrics {', '.join(ways)}.")
    bootstrap = PoolBootstrap(split_pools(frame, "knows", cluster), n_resamples, seed)
    m = oriented_columns(bootstrap.pools.frame, ways)
    pairs = combinations(ways, 2) if against is None else ((against, name) for name in ways if name != against)
    rows = [{"one": one, "other": other} | _pair(m[one], m[other], bootstrap, confidence) for one, other in pairs]
    table = pd.DataFrame(rows, columns=list(PAIRS))
    for name in ("p", "cluster_p"):
        table[f"{name}_holm"] = holm(table[name].tolist())
    return table


def _pair(one: np.ndarray, other: np.ndarray, bootstrap: PoolBootstrap, confidence: float) -> dict[str, Any]:
    """Compare two metrics, given m of all models."""
    pools = bootstrap.pools
    measured = ~np.isnan(one) & ~np.isnan(other)
    p, n = pools.knows & measured, ~pools.knows & measured
    row: dict[str, Any] = {"n_p": int(p.sum()), "n_n": int(n.sum()), "reason": None}
    row |= {"p": math.nan, "cluster_p": math.nan, "cluster_reason": pools.problem}
    if not p.any() or not n.any():
        return row | {"reason": f"no model of {'P' if not p.any() else 'N'} has values of both metrics"}
    orders = [Placements.of(m[p], m[n]) for m in (one, other)]
    difference = orders[0].auc - orders[1].auc
    row |= {"auc_one": orders[0].auc, "auc_other": orders[1].auc, "difference": difference}
    row |= _delong_test(difference, delong_covariance(orders), confidence)
    if orders[0].same_order(orders[1]):
        row["reason"] = "both metrics order all pairs alike"
    elif math.isnan(row["p"]):
        row["reason"] = "the variance of the difference is 0 or, with too few models, unknown"
    draws = bootstrap.clustered(measured)
    if draws is None:
        return row
    if draws.problem is not None:
        return row | {"cluster_reason": draws.problem}
    error = float(np.std(draws.aucs(orders[0]) - draws.aucs(orders[1]), ddof=1))
    if not error > 1e-9:
        return row | {"cluster_reason": "the difference is the same in all resamples"}
    return row | _clustered_test(difference, error, draws.freedom, confidence)


def _delong_test(difference: float, covariance: np.ndarray, confidence: float) -> dict[str, float]:
    from scipy.special import ndtr, ndtri

    variances = np.diag(covariance)
    variance = float(variances.sum() - 2 * covariance[0, 1])
    if not variance > 1e-18:
        return {}
    error, z = math.sqrt(variance), normal_quantile(confidence)
    spread = math.sqrt(float(variances.prod())) if variances.prod() > 0 else math.nan
    return {
        "correlation": float(covariance[0, 1]) / spread,
        "standard_error": error,
        "low": difference - z * error,
        "high": difference + z * error,
        "p": float(2 * ndtr(-abs(difference) / error)),
        "detectable": error * (z + float(ndtri(_POWER))),
    }


def _clustered_test(difference: float, error: float, freedom: int, confidence: float) -> dict[str, float]:
    from scipy.special import stdtr

    reach = student(confidence, freedom) * error
    return {
        "cluster_standard_error": error,
        "cluster_low": difference - reach,
        "cluster_high": difference + reach,
        "cluster_p": float(2 * stdtr(freedom, -abs(difference) / error)),
    }
