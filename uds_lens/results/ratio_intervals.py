"""How much the ratio of two means depends on whom was asked, where each mean is over other subjects."""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from jaxtyping import Float
from torch import Tensor

from uds_lens.errors import ConfigError, Setting
from uds_lens.results.intervals import AT_ONCE, FLOOR, NO_INTERVAL, ROUNDING, Interval, cluster_codes, student

if TYPE_CHECKING:
    from numpy.typing import NDArray


class _Sums(NamedTuple):
    """A mean as sums over clusters."""

    total: NDArray[np.float64]
    size: NDArray[np.float64]


def ratio_interval(
    top: Float[Tensor, "some"],
    bottom: Float[Tensor, "other"],
    *,
    top_clusters: Sequence[Hashable | None],
    bottom_clusters: Sequence[Hashable | None],
    confidence: float = 0.95,
    n_resamples: int = 9999,
    seed: int = 0,
) -> Interval:
    """Bootstrap interval of mean(top) / mean(bottom), two sets of values drawn by cluster and apart from each other.

    With m_t, m_b the means, r = m_t / m_b, and se_t, se_b their standard errors over clusters (as in
    `bootstrap_interval`), se^2 = (se_t^2 + r^2 se_b^2) / m_b^2. The clusters of both sets are resampled; the interval
    is `r +- q se`, q the quantile of |r* - r| / max(se*, 0.3 se) over resamples, and at least that of Student's t with
    one degree of freedom less than the smaller number of clusters.

    Args:
        top: Values of the numerator, all finite.
        bottom: Values of the denominator, all finite.
        top_clusters: What each value belongs to, for example its subject; None is a cluster of its own.
        bottom_clusters: The same for the denominator.
        confidence: Coverage.
        n_resamples: Number of resamples.
        seed: Seed of the resampling.

    Returns:
        The interval. NaN with fewer than two clusters on either side, where no cluster differs from the others of its
        side (nothing is known then about how much new ones would), where the mean below is not above 0, or where so
        many resamples of it are not that there is no end.

    Raises:
        ConfigError: `confidence` is outside 0 and 1, or clusters and values differ in number.

    References:
        Hall (1988), On Symmetric Bootstrap Confidence Intervals; the standard error is that of the delta method.

    Example:
        >>> import torch
        >>> top, bottom = torch.tensor([0.1, 0.2, 0.3, 0.2]), torch.tensor([1.0, 2.0, 1.5, 1.2, 1.8])
        >>> found = ratio_interval(top, bottom, top_clusters=[None] * 4, bottom_clusters=[None] * 5)
        >>> 0 < found.low < float(top.mean() / bottom.mean()) < found.high < 1
        True
    """
    if not 0 < confidence < 1:
        raise ConfigError(Setting("confidence"), f" must lie between 0 and 1; got {confidence!r}.")
    if len(top_clusters) != len(top) or len(bottom_clusters) != len(bottom):
        raise ConfigError("clusters must name one cluster per value, above and below.")
    above, below = _sums(top, top_clusters), _sums(bottom, bottom_clusters)
    fewest = min(len(above.total), len(below.total))
    if fewest < 2:
        return NO_INTERVAL
    ratio, error = (float(part[0]) for part in _ratio(above, below, *_once(above, below)))
    if math.isnan(ratio) or error < ROUNDING:
        return NO_INTERVAL
    ratios, errors = _resampled(above, below, n_resamples, np.random.default_rng(seed))
    distance = np.abs(ratios - ratio) / np.maximum(errors, FLOOR * error)
    quantile = float(np.quantile(np.nan_to_num(distance, nan=math.inf), confidence, method="higher"))
    reach = max(quantile, student(confidence, fewest - 1)) * error
    return Interval(ratio - reach, ratio + reach) if math.isfinite(reach) else NO_INTERVAL


def _sums(values: Tensor, clusters: Sequence[Hashable | None]) -> _Sums:
    codes = cluster_codes(clusters)
    return _Sums(np.bincount(codes, values.double().numpy()).astype(float), np.bincount(codes).astype(float))


def _once(*sides: _Sums) -> list[NDArray[np.float64]]:
    """Every cluster once: the data themselves as a resample."""
    return [np.ones((1, len(side.total))) for side in sides]


def _resampled(
    above: _Sums, below: _Sums, n_resamples: int, chance: np.random.Generator
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Ratios of resampled clusters with their standard errors."""
    step = max(1, AT_ONCE // max(len(above.total), len(below.total)))
    found = []
    for start in range(0, n_resamples, step):
        sizes = [(side, len(side.total), min(step, n_resamples - start)) for side in (above, below)]
        times = [chance.multinomial(n, np.full(n, 1 / n), size=size).astype(float) for _, n, size in sizes]
        found.append(_ratio(above, below, *times))
    ratios, errors = zip(*found, strict=True)
    return np.concatenate(ratios), np.concatenate(errors)


def _ratio(
    above: _Sums, below: _Sums, times_above: NDArray[np.float64], times_below: NDArray[np.float64]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Ratio of each resample with its standard error; NaN where the mean below is not above 0."""
    (top, top_error), (bottom, bottom_error) = _mean(above, times_above), _mean(below, times_below)
    bottom = np.where(bottom > 0, bottom, np.nan)
    ratio = top / bottom
    return ratio, np.sqrt(top_error**2 + (ratio * bottom_error) ** 2) / bottom


def _mean(side: _Sums, times: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    n, size = len(side.total), times @ side.size
    mean = times @ side.total / size
    squares = (
        times @ side.total**2
        - 2 * mean * (times @ (side.total * side.size))
        + mean**2 * (times @ side.size**2)
    )
    return mean, np.sqrt(np.maximum(squares, 0.0) * n / (n - 1)) / size
