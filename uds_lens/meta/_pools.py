"""Statistics of two pools of models: resampling by clusters, AUC with DeLong's variance, intervals."""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import Float

from uds_lens.errors import ConfigError, DataError
from uds_lens.results import Interval
from uds_lens.results._statistics import NO_INTERVAL

if TYPE_CHECKING:
    import pandas as pd


SMALLEST = 5
"""Models in both pools together below which nothing is computed."""


@dataclass(frozen=True, eq=False)
class Pools:
    """The models of a table that lie in a pool, P first."""

    frame: pd.DataFrame
    """Their rows, P before N."""

    knows: np.ndarray
    """Whether each is in P."""

    strata: tuple[Hashable, ...] | None
    """Pool and variant of each; None without the columns."""

    clusters: tuple[Hashable, ...] | None
    """Training run of each; None without the columns."""

    problem: str | None
    """Why there are no clusters."""

    def independent(self) -> tuple[Hashable, ...]:
        """The pool of each: strata of models that have nothing to do with each other."""
        return tuple(bool(knows) for knows in self.knows)


def split_pools(frame: pd.DataFrame, label: str, cluster: Sequence[str]) -> Pools:
    """Find the pools.

    Args:
        frame: One row per model.
        label: Column that says which pool: True or 1 for P, False or 0 for N, missing for neither.
        cluster: Columns; the last names the run, those before it the variant. Empty for independent models.

    Returns:
        The pools.

    Raises:
        DataError: No such column, other values in it, an empty pool, or too few models.
    """
    import pandas as pd

    cluster = (cluster,) if isinstance(cluster, str) else tuple(cluster)
    if label not in frame.columns:
        raise DataError(
            f"the table lacks the column {label!r}: it says which models know (True), which do not (False), "
            "and is empty for models in neither pool."
        )
    column = frame[label]
    numbers = pd.to_numeric(column.map(_as_number), errors="coerce")
    strange = column[column.notna() & ~numbers.isin([0, 1])]
    if len(strange):
        raise DataError(
            f"the column {label!r} must be True, False or empty; got {str(strange.iloc[0])[:40]!r} in row "
            f"{list(frame.index).index(strange.index[0])}."
        )
    n_p, n_n = int((numbers == 1).sum()), int((numbers == 0).sum())
    if not n_p or not n_n or n_p + n_n < SMALLEST:
        raise DataError(
            f"both pools need models, {SMALLEST} in all; the column {label!r} puts {n_p} in P (True) "
            f"and {n_n} in N (False)."
        )
    rows = pd.concat([frame[numbers == 1], frame[numbers == 0]])
    knows = np.array([True] * n_p + [False] * n_n)
    problem = _problem(rows, cluster)
    if problem is not None:
        return Pools(rows, knows, None, None, problem)
    keys = list(rows[list(cluster)].astype(str).itertuples(index=False, name=None))
    strata = tuple((bool(k), *key[:-1]) for k, key in zip(knows, keys, strict=True))
    return Pools(rows, knows, strata, tuple(key[-1] for key in keys), None)


def _as_number(value: object) -> object:
    """Text as CSV files write it."""
    return {"true": 1, "false": 0}.get(value.lower(), value) if isinstance(value, str) else value


def _problem(rows: pd.DataFrame, cluster: Sequence[str]) -> str | None:
    if not cluster:
        return "models were declared independent (cluster=())"
    missing = [name for name in cluster if name not in rows.columns]
    if missing:
        return f"the table lacks the column {', '.join(map(repr, missing))}"
    for name in cluster:
        empty = int(rows[name].isna().sum())
        if empty:
            return f"the column {name!r} is empty for {empty} models of the pools"
    return None


def check_resampling(confidence: float, n_resamples: int) -> None:
    """Raise `ConfigError` for settings that give no interval."""
    if not 0 < confidence < 1:
        raise ConfigError(f"confidence must lie between 0 and 1; got {confidence!r}.")
    if n_resamples < 2:
        raise ConfigError(f"n_resamples must be at least 2; got {n_resamples!r}.")


def cluster_weights(
    strata: Sequence[Hashable],
    clusters: Sequence[Hashable],
    *,
    n_resamples: int,
    rng: np.random.Generator,
) -> np.ndarray:
    """Draw how often each row counts in each resample of whole clusters within each stratum.

    Of the `c` clusters of a stratum, `c - 1` are drawn with replacement and weighted by `c / (c - 1)`: a plain
    bootstrap of few clusters would give a variance too small by the factor `(c - 1) / c`. A stratum of one cluster
    keeps its weight of 1, and adds nothing to the spread.

    Args:
        strata: Stratum of each row.
        clusters: Cluster of each row, told apart within a stratum.
        n_resamples: Number of resamples.
        rng: Source of randomness.

    Returns:
        One row per resample, one column per row; each stratum's weights sum to its number of clusters, if they are
        equal in size to its number of rows.

    References:
        Rao and Wu (1988), Journal of the American Statistical Association 83, 231-241.

    Example:
        >>> rng = np.random.default_rng(0)
        >>> weights = cluster_weights(["a"] * 4, [1, 1, 2, 2], n_resamples=3, rng=rng)
        >>> weights.sum(1).tolist(), bool((weights[:, 0] == weights[:, 1]).all())
        ([4.0, 4.0, 4.0], True)
    """
    weights = np.ones((n_resamples, len(strata)))
    for stratum in dict.fromkeys(strata):
        rows = [i for i, other in enumerate(strata) if other == stratum]
        names = list(dict.fromkeys(clusters[i] for i in rows))
        count = len(names)
        if count == 1:
            continue
        drawn = rng.multinomial(count - 1, [1 / count] * count, size=n_resamples) * (count / (count - 1))
        place = {name: at for at, name in enumerate(names)}
        for i in rows:
            weights[:, i] = drawn[:, place[clusters[i]]]
    return weights


def weighted_auc(
    kernel: np.ndarray, positive_weights: np.ndarray, negative_weights: np.ndarray
) -> np.ndarray:
    """AUC of each resample, to first order: how far the placements of the drawn models lie from their mean.

    `AUC + mean_w(V10 - AUC) + mean_w(V01 - AUC)`, with the placements V10 (row means of the kernel) and V01 (column
    means). The exact AUC of a resample, the kernel's mean under the product of the weights, spreads too much: the part
    of the error that belongs to single pairs is in each of the placements already and would be counted a third time,
    which at an AUC near 1 is a fifth of the variance. With every model drawn by itself, the spread is DeLong's.

    Args:
        kernel: `pair_kernel` of the two pools.
        positive_weights: One row per resample, one column per positive.
        negative_weights: The same for the negatives.

    Returns:
        One AUC per resample, which may pass 0 or 1; NaN where a pool has no weight.

    Example:
        >>> kernel = np.array([[1.0, 0.5]])
        >>> weighted_auc(kernel, np.ones((1, 1)), np.array([[1.0, 3.0]])).tolist()
        [0.625]
    """
    auc = kernel.mean()
    return (
        auc
        + _weighted_mean(kernel.mean(1) - auc, positive_weights)
        + _weighted_mean(kernel.mean(0) - auc, negative_weights)
    )


def _weighted_mean(values: np.ndarray, weights: np.ndarray) -> np.ndarray:
    total = weights.sum(1)
    return np.divide(weights @ values, total, out=np.full(len(total), np.nan), where=total > 0)


@dataclass(frozen=True, eq=False)
class Draws:
    """The weights of one set of models."""

    knows: np.ndarray
    """Which of them are in P."""

    weights: np.ndarray
    """Resample x model."""

    strata: tuple[Hashable, ...]
    """Stratum of each model."""

    runs: int
    """Clusters."""

    freedom: int
    """Clusters minus strata: degrees of freedom of a variance between them."""

    problem: str | None
    """Why they say nothing about the spread."""

    def aucs(self, kernel: np.ndarray) -> np.ndarray:
        """F in every resample."""
        return weighted_auc(kernel, self.weights[:, self.knows], self.weights[:, ~self.knows])


@dataclass(frozen=True, eq=False)
class PoolBootstrap:
    """Draws resamples of pools; the same models always get the same ones, so that metrics are compared in pairs."""

    pools: Pools
    n_resamples: int
    seed: int
    _kept: dict[tuple[str, bytes], Draws] = field(default_factory=dict)

    def independent(self, there: np.ndarray) -> Draws:
        """Models one by one, within pools.

        Args:
            there: Which models of the pools have a value.
        """
        strata = [self.pools.independent()[i] for i in np.flatnonzero(there)]
        return self._draw("independent", there, strata, range(len(strata)))

    def clustered(self, there: np.ndarray) -> Draws | None:
        """Whole runs, within pool and variant; None where the table does not tell them.

        Args:
            there: Which models of the pools have a value.
        """
        if self.pools.strata is None or self.pools.clusters is None:
            return None
        kept = np.flatnonzero(there)
        strata, clusters = self.pools.strata, self.pools.clusters
        return self._draw("clustered", there, [strata[i] for i in kept], [clusters[i] for i in kept])

    def _draw(
        self, kind: str, there: np.ndarray, strata: Sequence[Hashable], clusters: Sequence[Hashable]
    ) -> Draws:
        key = (kind, there.tobytes())
        if key not in self._kept:
            rng = np.random.default_rng(self.seed)
            weights = cluster_weights(strata, clusters, n_resamples=self.n_resamples, rng=rng)
            runs = len(set(zip(strata, clusters, strict=True)))
            alone = _lone_strata(strata, clusters)
            self._kept[key] = Draws(
                knows=self.pools.knows[there],
                weights=weights,
                strata=tuple(strata),
                runs=runs,
                freedom=runs - len(set(strata)),
                problem=f"one run only in {alone}: its spread is unknown" if alone else None,
            )
        return self._kept[key]


def _lone_strata(strata: Sequence[Hashable], clusters: Sequence[Hashable]) -> str:
    """The strata with a single cluster, in words; empty without one."""
    runs: dict[Hashable, set[Hashable]] = {}
    for stratum, name in zip(strata, clusters, strict=True):
        runs.setdefault(stratum, set()).add(name)
    return ", ".join(_words(stratum) for stratum, names in runs.items() if len(names) == 1)


def _words(stratum: Hashable) -> str:
    knows, *variant = stratum if isinstance(stratum, tuple) else (stratum,)
    return " ".join(["P" if knows else "N", *map(str, variant)])


def pair_kernel(positives: Float[np.ndarray, "p"], negatives: Float[np.ndarray, "n"]) -> np.ndarray:
    """Compare all pairs: 1 where a positive is larger, 0.5 where equal, 0 where smaller.

    Args:
        positives: m of the models that know.
        negatives: m of those that do not.

    Returns:
        One row per positive, one column per negative. Its mean is the AUC.

    Example:
        >>> pair_kernel(np.array([0.2, 0.9]), np.array([0.2, 0.1])).tolist()
        [[0.5, 1.0], [1.0, 1.0]]
    """
    above = (positives[:, None] > negatives[None, :]).astype(float)
    return above + 0.5 * (positives[:, None] == negatives[None, :])


def delong_covariance(kernels: Sequence[np.ndarray]) -> np.ndarray:
    """Covariance of the AUCs of several metrics on the same models.

    `cov(V10) / n_p + cov(V01) / n_n`, with the placements `V10` (row means of a kernel) and `V01` (column means).

    Args:
        kernels: One `pair_kernel` per metric, models in the same order.

    Returns:
        Square matrix; NaN with fewer than two models in a pool.

    References:
        DeLong, DeLong and Clarke-Pearson (1988), Biometrics 44, 837-845.

    Example:
        >>> kernel = pair_kernel(np.array([0.2, 0.9]), np.array([0.3, 0.1]))
        >>> delong_covariance([kernel]).item()
        0.125
    """
    n_p, n_n = kernels[0].shape
    if min(n_p, n_n) < 2:
        return np.full((len(kernels), len(kernels)), math.nan)
    rows = np.stack([kernel.mean(1) for kernel in kernels])
    columns = np.stack([kernel.mean(0) for kernel in kernels])
    return np.atleast_2d(np.cov(rows)) / n_p + np.atleast_2d(np.cov(columns)) / n_n


def clustered_error(
    kernel: np.ndarray, positives: Sequence[Hashable], negatives: Sequence[Hashable]
) -> tuple[float, int]:
    """Return the standard error of an AUC whose models come in clusters, and its degrees of freedom.

    The variance of the mean placement of each pool, from the sums over clusters of the distances to the AUC:
    `sum_pools G / (G - 1) sum_g (sum_{i in g} (V_i - AUC))^2 / n^2`.

    Args:
        kernel: `pair_kernel` of the two pools.
        positives: Cluster of each positive.
        negatives: Cluster of each negative.

    Returns:
        The error, NaN where a pool has a single cluster; and the number of clusters minus 2.

    References:
        Obuchowski (1997), Biometrics 53, 567-578.

    Example:
        >>> kernel = pair_kernel(np.array([0.2, 0.9]), np.array([0.3, 0.1]))
        >>> error, freedom = clustered_error(kernel, "ab", "cd")
        >>> round(error**2, 6), freedom
        (0.125, 2)
    """
    variance, freedom = 0.0, 0
    for placements, clusters in ((kernel.mean(1), positives), (kernel.mean(0), negatives)):
        names = list(dict.fromkeys(clusters))
        if len(names) < 2:
            return math.nan, 0
        sums = np.bincount([names.index(each) for each in clusters], placements - kernel.mean())
        variance += len(names) / (len(names) - 1) * float((sums**2).sum()) / len(placements) ** 2
        freedom += len(names) - 1
    return math.sqrt(variance), freedom


def clustered_interval(
    kernel: np.ndarray, positives: Sequence[Hashable], negatives: Sequence[Hashable], confidence: float
) -> Interval:
    """Return the interval of an AUC for more clusters like these: t, on the logit scale.

    At an AUC of 0 or 1 it is Wilson's with the smaller number of clusters, since no cluster differs there.

    Args:
        kernel: `pair_kernel` of the two pools.
        positives: Cluster of each positive.
        negatives: Cluster of each negative.
        confidence: Of the interval.

    Returns:
        The interval; NaN where a pool has a single cluster, or no placement differs from the AUC.

    Example:
        >>> kernel = pair_kernel(np.array([0.2, 0.9, 0.6, 0.8]), np.array([0.3, 0.1, 0.2, 0.1]))
        >>> [round(end, 2) for end in clustered_interval(kernel, "aabb", "ccdd", 0.95)]
        [0.06, 1.0]
    """
    from scipy.stats import t

    error, freedom = clustered_error(kernel, positives, negatives)
    if math.isnan(error):
        return NO_INTERVAL
    auc = float(kernel.mean())
    if auc in (0.0, 1.0):
        smaller = min(len(set(positives)), len(set(negatives)))
        return wilson_interval(auc, smaller, normal_quantile(confidence))
    return logit_interval(auc, error if error > 1e-9 else 0.0, float(t.ppf(0.5 + confidence / 2, freedom)))


def normal_quantile(confidence: float) -> float:
    """Two-sided quantile of the normal distribution.

    >>> round(normal_quantile(0.95), 6)
    1.959964
    """
    from scipy.stats import norm

    return float(norm.ppf(0.5 + confidence / 2))


def logit_interval(auc: float, standard_error: float, quantile: float) -> Interval:
    """Interval of an AUC that stays within 0 and 1: symmetric on the logit scale.

    `logit(F) ± quantile * se / (F (1 - F))`, back on the scale of F.

    Args:
        auc: F, strictly between 0 and 1.
        standard_error: Of F.
        quantile: Of the normal or t distribution.

    Returns:
        The interval; NaN for F at 0 or 1, or an error of 0.

    Example:
        >>> low, high = logit_interval(0.5, 0.1, 1.96)
        >>> round(low, 4), round(high, 4)
        (0.3135, 0.6865)
    """
    if not 0 < auc < 1 or not standard_error > 0:
        return NO_INTERVAL
    centre, reach = math.log(auc / (1 - auc)), quantile * standard_error / (auc * (1 - auc))
    return Interval(_expit(centre - reach), _expit(centre + reach))


def _expit(x: float) -> float:
    return 1 / (1 + math.exp(-x)) if x > 0 else 1 - 1 / (1 + math.exp(min(x, 700)))


def wilson_interval(auc: float, n: int, quantile: float) -> Interval:
    """Interval of an AUC of exactly 0 or 1, where DeLong's variance is 0: Wilson's, as if `n` pairs had been seen.

    Args:
        auc: 0 or 1.
        n: Models in the smaller pool.
        quantile: Of the normal distribution.

    Returns:
        From `n / (n + z^2)` to 1, or its mirror image.

    Example:
        >>> round(wilson_interval(1.0, 30, 1.959964).low, 4)
        0.8865
    """
    bound = n / (n + quantile**2)
    return Interval(bound, 1.0) if auc > 0.5 else Interval(0.0, 1 - bound)


FEWEST = 5
"""Clusters below which a mean has no interval: a variance from fewer is hardly known, and t says little of values that
are not normal."""

_SAME = 1e-6
"""Values nearer than this are the same: the epsilon of Q and R leaves 1e-8 where they are 0."""


def clustered_mean(
    values: np.ndarray, clusters: Sequence[str] | np.ndarray, confidence: float
) -> tuple[Interval, str | None]:
    """Return the interval of a mean of values between 0 and 1, and why there is none.

    The variance is that of the sums of clusters, each corrected for its own weight `h` (`1 / (1 - h)`), and the
    quantile is that of a t distribution with Satterthwaite's degrees of freedom for that estimator: the smaller of
    those under independent models and under models alike within clusters. With clusters of equal size this is the t
    interval of the cluster means. It is symmetric on the logit scale. Where all values are 0, or all 1, no cluster
    differs and the bound is exact as for a share: `1 - (alpha / 2)^(1 / G)` away.

    Args:
        values: One number per model.
        clusters: The cluster of each.
        confidence: Of the interval.

    Returns:
        Both ends, NaN with a reason for fewer than `FEWEST` clusters or where nothing varies.

    References:
        Bell and McCaffrey (2002), Survey Methodology 28, 169-181.

    Example:
        >>> interval, _ = clustered_mean(np.array([0.5, 0.6, 0.7, 0.8, 0.9]), list("abcde"), 0.95)
        >>> round(interval.low, 3), round(interval.high, 3)
        (0.478, 0.856)
        >>> clustered_mean(np.ones(3), ["a", "b", "c"], 0.95)[1]
        '3 clusters; an interval needs 5'
    """
    from scipy.stats import t

    names, place = np.unique(np.asarray(clusters, dtype=str), return_inverse=True)
    count, n = len(names), len(values)
    if count < FEWEST:
        return NO_INTERVAL, f"{count} cluster{'' if count == 1 else 's'}; an interval needs {FEWEST}"
    mean, size = float(values.mean()), np.bincount(place)
    nearest = 0.0 if mean < 0.5 else 1.0
    if np.abs(values - nearest).max() <= _SAME:
        reach = 1 - (0.5 - confidence / 2) ** (1 / count)
        return (Interval(0.0, reach) if nearest == 0 else Interval(1 - reach, 1.0)), None
    weight = size / n
    sums = np.bincount(place, values - mean) / n
    error = math.sqrt(float((sums**2 / (1 - weight)).sum()))
    if error <= 1e-9:
        return NO_INTERVAL, "all clusters have the same mean"
    scale = np.sqrt(np.outer(1 - weight, 1 - weight))
    independent = (np.diag(size) - np.outer(size, size) / n) / scale
    effects = (size / np.sqrt(1 - weight))[:, None] * (np.eye(count) - weight)
    freedom = min(float(np.trace(m) ** 2 / (m**2).sum()) for m in (independent, effects @ effects.T))
    return logit_interval(mean, error, float(t.ppf(0.5 + confidence / 2, freedom))), None


def dominated_by(values: np.ndarray, clusters: Sequence[str] | np.ndarray) -> str | None:
    """Return the cluster behind more than half of how far a mean lies from the nearer of 0 and 1; None without one.

    Such a mean says mostly what that cluster is like, and other samples may hold no such cluster, or two: where most
    models were at 0, in simulations, intervals from five to eight clusters held the truth in 80 to 90 % of cases
    (`benchmarks/coverage_faithfulness.py`).

    >>> dominated_by(np.array([0.0, 0.0, 0.02, 0.4]), list("abcd"))
    'd'
    """
    names, place = np.unique(np.asarray(clusters, dtype=str), return_inverse=True)
    away = np.bincount(place, np.abs(values - (0.0 if values.mean() < 0.5 else 1.0)))
    return str(names[away.argmax()]) if len(names) > 1 and 2 * away.max() > max(away.sum(), _SAME) else None
