"""Bootstrap weights for models that come in strata and clusters."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

import numpy as np

from uds_lens.errors import ConfigError


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
    """How often each row counts in each resample, when whole clusters are drawn within each stratum.

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
