"""Intervals of many means over the same examples at once: one for each layer."""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from jaxtyping import Float
from torch import Tensor

from uds_lens.results.all_or_nothing import of_equal_scores, widened
from uds_lens.results.intervals import AT_ONCE, FLOOR, ROUNDING, cluster_codes, student

if TYPE_CHECKING:
    from numpy.typing import NDArray


class ColumnIntervals(NamedTuple):
    """The ends of an interval for each column; NaN on both sides where it is undefined."""

    low: list[float]
    high: list[float]


class _Sums(NamedTuple):
    """Sum and number of the values of each cluster in each column."""

    total: NDArray[np.float64]
    size: NDArray[np.float64]


def column_intervals(
    values: Float[Tensor, "example column"],
    *,
    clusters: Sequence[Hashable | None],
    confidence: float = 0.95,
    n_resamples: int = 9999,
    seed: int = 0,
    bounds: tuple[float, float] | None = None,
) -> ColumnIntervals:
    """Studentised bootstrap interval of each column's mean, whole clusters drawn, the same ones for all columns.

    The method is that of `bootstrap_interval` with clusters, and gives the same ends for a column without NaN. Without
    clusters each example is one of its own: there `bootstrap_interval` takes BCa, and this the studentised bootstrap.

    Args:
        values: NaN are left out of their column.
        clusters: What each example belongs to, for example its subject; None is a cluster of its own.
        confidence: Coverage.
        n_resamples: Number of resamples.
        seed: Seed of the resampling.
        bounds: Smallest and largest possible value; intervals lie within.

    Returns:
        One interval per column. NaN with fewer than two clusters, and for equal values without bounds.

    Example:
        >>> import torch
        >>> values = torch.tensor([[0.4, 1.0], [0.5, 1.0], [0.6, 1.0], [0.7, torch.nan]])
        >>> low, high = column_intervals(values, clusters=[None] * 4, bounds=(0.0, 1.0))
        >>> 0 < low[0] < 0.55 < high[0] < 1, 0.3 < low[1] < high[1] == 1
        (True, True)
    """
    if not len(values):
        return ColumnIntervals([math.nan] * values.shape[1], [math.nan] * values.shape[1])
    data, codes = values.double().numpy(), cluster_codes(clusters)
    sums = _sums(data, codes)
    n = (sums.size > 0).sum(0)
    mean, error = _mean_and_error(sums, n)
    distances = _distances(sums, n, mean, error, n_resamples, np.random.default_rng(seed))
    least = np.array([student(confidence, int(each) - 1) if each > 1 else math.nan for each in n])
    reach = np.maximum(np.quantile(distances, confidence, axis=0), least) * error
    ends = np.stack([mean - reach, mean + reach])
    for place in np.flatnonzero(n > 1):
        there = ~np.isnan(data[:, place])
        scores = data[there, place]
        _, own = np.unique(codes[there], return_inverse=True)
        if np.ptp(scores) < ROUNDING:
            same = (
                of_equal_scores(float(scores[0]), own, bounds, confidence) if bounds else (math.nan, math.nan)
            )
            ends[:, place] = same
            continue
        if error[place] == 0:  # all clusters have the same mean: examples are drawn
            alone = column_intervals(
                values[:, place : place + 1],
                clusters=[None] * len(values),
                confidence=confidence,
                n_resamples=n_resamples,
                seed=seed,
            )
            ends[:, place] = alone.low[0], alone.high[0]
        if bounds:
            low, high = ends[:, place].tolist()
            ends[:, place] = widened(low, high, scores, own, bounds, confidence)
    return ColumnIntervals(*(ends if bounds is None else ends.clip(*bounds)).tolist())


def _sums(values: NDArray[np.float64], codes: NDArray[np.int64]) -> _Sums:
    there = ~np.isnan(values)
    total = np.zeros((int(codes.max()) + 1, values.shape[1]))
    size = np.zeros_like(total)
    np.add.at(total, codes, np.where(there, values, 0.0))
    np.add.at(size, codes, there.astype(float))
    return _Sums(total, size)


def _mean_and_error(sums: _Sums, n: NDArray[np.int64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Mean of each column with its standard error, which is 0 where all clusters have the same mean."""
    with np.errstate(invalid="ignore", divide="ignore"):
        mean = sums.total.sum(0) / sums.size.sum(0)
        squares = ((sums.total - sums.size * mean) ** 2).sum(0)
        error = np.sqrt(squares * n / (n - 1)) / sums.size.sum(0)
    return mean, np.where(error < ROUNDING, 0.0, error)


def _means(
    sums: _Sums, n: NDArray[np.int64], times: NDArray[np.float64]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Means of resamples with their standard errors, a row for each resample; NaN where it holds no value."""
    total, size = sums
    with np.errstate(invalid="ignore", divide="ignore"):
        drawn = times @ size
        mean = times @ total / drawn
        squares = times @ total**2 - 2 * mean * (times @ (total * size)) + mean**2 * (times @ size**2)
        return mean, np.sqrt(np.maximum(squares, 0.0) * n / (n - 1)) / drawn


def _distances(
    sums: _Sums,
    n: NDArray[np.int64],
    mean: NDArray[np.float64],
    error: NDArray[np.float64],
    n_resamples: int,
    chance: np.random.Generator,
) -> NDArray[np.float64]:
    """|m* - m| / se* of each resample and column, with a floor under se*; 0 where the resample holds no value."""
    clusters, found = len(sums.total), []
    for start in range(0, n_resamples, step := max(1, AT_ONCE // clusters)):
        size = min(step, n_resamples - start)
        times = chance.multinomial(clusters, np.full(clusters, 1 / clusters), size=size).astype(float)
        means, errors = _means(sums, n, times)
        with np.errstate(invalid="ignore", divide="ignore"):
            found.append(np.nan_to_num(np.abs(means - mean) / np.maximum(errors, FLOOR * error), posinf=0.0))
    return np.concatenate(found)
