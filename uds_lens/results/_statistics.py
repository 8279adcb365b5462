"""Intervals, adjusted p-values and rank correlation: shared by audits and tables of models, free of torch."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np


class Interval(NamedTuple):
    """A confidence interval; both ends are NaN where it is undefined."""

    low: float
    high: float


NO_INTERVAL = Interval(math.nan, math.nan)  # the undefined interval


def holm(p: Sequence[float]) -> list[float]:
    """Adjust p-values by Holm's step-down method, which bounds the chance of any false rejection.

    The i-th smallest of k p-values becomes `max over j <= i of (k - j + 1) p_j`, at most 1.

    Args:
        p: p-values; NaN does not count.

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
    """Two-sided."""
    n: int
    """Pairs used."""


def spearman(left: Sequence[float | int], right: Sequence[float | int]) -> Correlation:
    """Rank-correlate the pairs where both values exist; NaN with fewer than three, or without variation.

    >>> spearman([1, 2, 3, 4], [10, 20, 30, float("nan")])
    Correlation(rho=1.0, p_value=0.0, n=3)
    """
    pairs = np.array([p for p in zip(left, right, strict=True) if not any(map(math.isnan, p))], dtype=float)
    if len(pairs) < 3 or np.ptp(pairs, axis=0).min() == 0:
        return Correlation(math.nan, math.nan, len(pairs))
    from scipy.stats import spearmanr

    result = spearmanr(pairs[:, 0], pairs[:, 1])
    return Correlation(float(result.statistic), float(result.pvalue), len(pairs))
