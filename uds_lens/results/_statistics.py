"""Intervals, adjusted p-values and rank correlation for audits and tables of models, without importing torch."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np


class Interval(NamedTuple):
    """A confidence interval; both ends are NaN if the interval is undefined."""

    low: float
    high: float


NO_INTERVAL = Interval(math.nan, math.nan)  # the undefined interval


def student(confidence: float, degrees_of_freedom: float) -> float:
    """Return the quantile of Student's t for a two-sided interval."""
    from scipy.special import stdtrit  # importing scipy.stats takes a second

    return float(stdtrit(degrees_of_freedom, (1 + confidence) / 2))


def holm(p: Sequence[float]) -> list[float]:
    """Adjust p-values by Holm's step-down method, which bounds the chance of any false rejection.

    The i-th smallest of k p-values becomes `max over j <= i of (k - j + 1) p_j`, at most 1.

    Args:
        p: p-values; NaN values are not counted.

    Returns:
        Adjusted p-values in the same order; NaN stays NaN.

    Example:
        >>> holm([0.01, 0.04, float("nan"), 0.03])
        [0.03, 0.06, nan, 0.06]

    References:
        Holm (1979), Scandinavian Journal of Statistics 6, 65-70.
    """
    defined = sorted((float(value), place) for place, value in enumerate(p) if not math.isnan(value))
    adjusted = [math.nan] * len(p)
    largest = 0.0
    for rank, (value, place) in enumerate(defined):
        largest = max(largest, min(1.0, (len(defined) - rank) * value))
        adjusted[place] = largest
    return adjusted


class Correlation(NamedTuple):
    """Spearman rank correlation; NaN where it is undefined."""

    rho: float
    """Between -1 and 1."""
    p_value: float
    """Two-sided p-value."""
    n: int
    """Number of pairs used."""


_LARGE = 100  # number of pairs above which the t distribution replaces permutations


def rank_correlation(left: Sequence[float | int], right: Sequence[float | int]) -> float:
    """Rank-correlate the pairs where both values exist; NaN with fewer than three pairs, or without variation.

    >>> rank_correlation([1, 2, 3, 4], [10, 20, 30, float("nan")])
    1.0
    """
    return _correlated(_pairs(left, right))[0]


def spearman(left: Sequence[float | int], right: Sequence[float | int]) -> Correlation:
    """Rank-correlate the pairs where both values exist, and test the correlation as if pairs were independent.

    The p-value comes from all permutations with up to 7 pairs, from 9,999 random permutations with up to 100 pairs, and
    from the t distribution with more. NaN with fewer than three pairs, or without variation.

    Example:
        >>> rho, p, n = spearman([1, 2, 3, 4], [10, 20, 30, float("nan")])
        >>> rho, round(p, 4), n  # 2 of 6 orders are as extreme
        (1.0, 0.3333, 3)
    """
    pairs = _pairs(left, right)
    rho, p = _correlated(pairs)
    if not math.isnan(rho) and len(pairs) <= _LARGE:
        from scipy.stats import permutation_test, rankdata

        ranks = rankdata(pairs, axis=0)
        fixed = ranks[:, 1] - ranks[:, 1].mean()
        tested = permutation_test(
            (ranks[:, 0],),
            lambda values, axis: (values * fixed).sum(axis=axis),
            permutation_type="pairings",
            vectorized=True,
            n_resamples=9999,
            rng=np.random.default_rng(0),
        )
        p = float(tested.pvalue)
    return Correlation(rho, p, len(pairs))


def _pairs(left: Sequence[float | int], right: Sequence[float | int]) -> np.ndarray:
    return np.array([p for p in zip(left, right, strict=True) if not any(map(math.isnan, p))], dtype=float)


def _correlated(pairs: np.ndarray) -> tuple[float, float]:
    """Return Spearman's coefficient and its p-value from the t distribution."""
    if len(pairs) < 3 or np.ptp(pairs, axis=0).min() == 0:
        return math.nan, math.nan
    from scipy.stats import spearmanr

    result = spearmanr(pairs[:, 0], pairs[:, 1])
    return float(result.statistic), float(result.pvalue)
