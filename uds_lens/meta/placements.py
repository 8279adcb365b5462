"""The area under the ROC curve of two samples, its variance by DeLong, and its interval."""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Float


class Interval(NamedTuple):
    """Both ends; NaN where there is none."""

    low: float
    """Lower end."""

    high: float
    """Upper end."""


NO_INTERVAL = Interval(math.nan, math.nan)


def pair_kernel(positives: Float[np.ndarray, "p"], negatives: Float[np.ndarray, "n"]) -> np.ndarray:
    """Who is above whom: 1 where a positive is larger, 0.5 where equal, 0 where smaller.

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
