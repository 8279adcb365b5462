"""Means that keep what is undefined undefined."""

from __future__ import annotations

import math
from collections.abc import Sequence


def harmonic_mean(values: Sequence[float]) -> float:
    """Harmonic mean: `n / sum(1 / v)`.

    Args:
        values: Numbers >= 0.

    Returns:
        Between the smallest and the largest value; 0 if one of them is 0, NaN if one is NaN or there is none.

    Raises:
        ValueError: A value is negative.

    Example:
        >>> harmonic_mean([1.0, 0.5]), harmonic_mean([1.0, 0.0])
        (0.6666666666666666, 0.0)
    """
    if not values or any(math.isnan(value) for value in values):
        return math.nan
    if min(values) < 0:
        raise ValueError(f"a harmonic mean needs values >= 0; got {min(values)!r}.")
    return len(values) / sum(1 / value for value in values) if min(values) > 0 else 0.0


def mean_of_defined(values: Sequence[float]) -> float:
    """Mean of the values that are not NaN; NaN if there is none.

    >>> mean_of_defined([1.0, float("nan"), 2.0])
    1.5
    """
    defined = [value for value in values if not math.isnan(value)]
    return math.fsum(defined) / len(defined) if defined else math.nan
