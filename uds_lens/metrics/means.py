"""Means that keep what is undefined undefined."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from uds_lens.checked_arguments import arguments_checked


class Undefined(Exception):  # noqa: N818 - it is an outcome, not a failure
    """A metric has no value; the message says why, as a clause."""


@arguments_checked
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


@arguments_checked
def geometric_mean(probabilities: Sequence[float]) -> float:
    """Geometric mean over the answers of one example, for example its paraphrases; NaN without any.

    >>> round(geometric_mean([0.5, 0.125]), 6), geometric_mean([0.5, 0.0])
    (0.25, 0.0)
    """
    if not probabilities or any(math.isnan(p) for p in probabilities):
        return math.nan
    if min(probabilities) == 0:
        return 0.0
    return math.exp(math.fsum(math.log(p) for p in probabilities) / len(probabilities))


def harmonic_of_parts(parts: Mapping[str, float]) -> float:
    """Harmonic mean of named values.

    Raises:
        Undefined: One of them is NaN; names it.

    Example:
        >>> harmonic_of_parts({"a": 1.0, "b": 0.5})
        0.6666666666666666
    """
    undefined = [name for name, value in parts.items() if math.isnan(value)]
    if undefined:
        raise Undefined(f"{', '.join(undefined)} has no value")
    return harmonic_mean(list(parts.values()))
