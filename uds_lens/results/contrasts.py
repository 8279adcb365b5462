"""Paired differences on the same questions: their mean, its interval over subjects, its p-value, adjusted p-values.

Facts about one subject are not independent, so everything is drawn by subject.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int

from uds_lens.checked_arguments import arguments_checked
from uds_lens.results.intervals import ROUNDING, Interval, bootstrap_interval

_NAN = Interval(math.nan, math.nan)
_ALL_PATTERNS = 13
"""Groups up to which all sign patterns are tried."""


class Contrast(NamedTuple):
    """A mean over questions with what is known of it."""

    value: float
    """Mean; NaN where no question has a value."""

    interval: Interval
    """By subjects; NaN with fewer than two, and for equal differences without bounds."""

    p: float
    """Two-sided, against 0; NaN with fewer than two subjects."""

    n: int
    """Questions."""

    n_subjects: int
    """Subjects they are about; questions without one count as their own."""


@arguments_checked
def contrast(
    differences: Float[np.ndarray, "question"],
    groups: Int[np.ndarray, "question"],
    *,
    confidence: float = 0.95,
    n_resamples: int = 9999,
    n_flips: int | None = None,
    seed: int = 0,
    bounds: tuple[float, float] | None = None,
) -> Contrast:
    """Mean of paired differences, with an interval over subjects and a test that flips subjects' signs.

    The interval is that of `uds_lens.results.bootstrap_interval`; the p-value is the share of sign patterns over
    subjects whose studentised mean is as large, which is exact where differences are symmetric around 0. All
    `2 ** n_subjects` patterns are tried with 13 subjects or fewer, `n_flips` random ones with more. `smallest_p` is the
    smallest p-value that can come out.

    Args:
        differences: Per question; NaN is left out.
        groups: Subject of each question, as numbers.
        confidence: Coverage of the interval.
        n_resamples: Of the bootstrap behind the interval.
        n_flips: Random sign patterns; None takes `n_resamples`.
        seed: Of what is drawn.
        bounds: Smallest and largest possible difference. Where all differences are equal, the interval allows for
            subjects that differ otherwise and were missed; without bounds it is NaN there.

    Returns:
        The mean and what is known of it. Where all but a few subjects have the same difference, the interval is too
        narrow, as a bootstrap knows only the subjects it is given; the p-value holds there too.

    Raises:
        ConfigError: `confidence` is outside 0 and 1.

    Example:
        >>> found = contrast(np.linspace(0.1, 0.3, 12), np.arange(12) // 2)
        >>> round(found.value, 3), found.n, found.n_subjects, found.interval.low > 0
        (0.2, 12, 6, True)
    """
    defined = ~np.isnan(differences)
    differences, groups = differences[defined], groups[defined]
    n = len(differences)
    if not n:
        return Contrast(math.nan, _NAN, math.nan, 0, 0)
    sums, counts = by_group(differences, groups)
    mean, m = float(sums.sum() / n), len(sums)
    if m < 2:
        return Contrast(mean, _NAN, math.nan, n, m)
    n_flips = n_resamples if n_flips is None else n_flips
    error = _error(sums, counts, mean)
    interval = bootstrap_interval(
        torch.from_numpy(differences),
        clusters=groups.tolist(),
        confidence=confidence,
        n_resamples=n_resamples,
        seed=seed,
        bounds=bounds if np.ptp(differences) < ROUNDING else None,
    )
    if error <= 1e-12 * max(1.0, abs(mean)):  # subjects are all alike: no sign pattern is less extreme
        p = 1.0 if abs(mean) <= 1e-12 else smallest_p(m, n_flips)
        return Contrast(mean, interval, p, n, m)
    random = np.random.default_rng(seed)
    return Contrast(mean, interval, _flipped(sums, counts, n_flips, random), n, m)


@arguments_checked
def holm(p: Sequence[float]) -> list[float]:
    """Holm's adjustment: the chance of any false finding among all stays below the adjusted p. NaN stays NaN.

    >>> holm([0.01, 0.04, float("nan"), 0.03])
    [0.03, 0.06, nan, 0.06]
    """
    known = sorted((value, place) for place, value in enumerate(p) if not math.isnan(value))
    adjusted = [math.nan] * len(p)
    largest = 0.0
    for rank, (value, place) in enumerate(known):
        largest = max(largest, min(1.0, (len(known) - rank) * value))
        adjusted[place] = largest
    return adjusted


def smallest_p(n_subjects: int, n_flips: int = 9999) -> float:
    """Return the smallest p-value that flipping the signs of some subjects can give.

    No pattern but the observed one and its opposite is then as extreme: 2 of `2 ** n_subjects`, where all are tried (13
    subjects or fewer), and 1 of `n_flips + 1` where they are drawn. NaN with fewer than two subjects.

    >>> smallest_p(6), smallest_p(20)
    (0.03125, 0.0001)
    """
    if n_subjects < 2:
        return math.nan
    return 2.0 ** (1 - n_subjects) if n_subjects <= _ALL_PATTERNS else 1 / (1 + n_flips)


def subject_groups(subjects: Sequence[str | None]) -> Int[np.ndarray, "question"]:
    """Subjects as numbers; a question without one is a group of its own.

    >>> subject_groups(["Ada", None, "Ada", None]).tolist()
    [0, 1, 0, 2]
    """
    seen: dict[object, int] = {}
    keys = [place if name is None else name for place, name in enumerate(subjects)]
    return np.array([seen.setdefault(key, len(seen)) for key in keys], dtype=np.int64)


def by_group(values: np.ndarray, groups: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Sum and number of the values of each group."""
    _, place = np.unique(groups, return_inverse=True)
    return np.bincount(place, weights=values), np.bincount(place).astype(float)


def _error(sums: np.ndarray, counts: np.ndarray, mean: float | np.ndarray) -> float | np.ndarray:
    """Cluster-robust standard error of the mean (CR1), over the last axis."""
    m = sums.shape[-1]
    left = sums - np.asarray(mean)[..., None] * counts
    return np.sqrt((left**2).sum(-1) * m / (m - 1)) / counts.sum(-1)


def _flipped(sums: np.ndarray, counts: np.ndarray, draws: int, random: np.random.Generator) -> float:
    """Share of sign patterns over groups whose studentised mean is as far from 0: all patterns of few groups."""
    m, n = len(sums), counts.sum()
    mean = float(sums.sum() / n)
    seen = abs(mean) / float(_error(sums, counts, mean))
    if m <= _ALL_PATTERNS:
        flipped = (1.0 - 2.0 * ((np.arange(1 << m)[:, None] >> np.arange(m)) & 1)) * sums
        means = flipped.sum(-1) / n
        errors = np.asarray(_error(flipped, np.broadcast_to(counts, flipped.shape), means))
        return float((_far(means, errors) >= seen * (1 - 1e-12)).mean())
    signs = random.choice([-1.0, 1.0], (draws, m))
    means = signs @ sums / n
    squares = (sums**2).sum() - 2 * means * (signs @ (sums * counts)) + means**2 * (counts**2).sum()
    errors = np.sqrt(np.maximum(squares, 0.0) * m / (m - 1)) / n  # as in `_error`, the square written out
    return float((1 + (_far(means, errors) >= seen * (1 - 1e-9)).sum()) / (1 + draws))


def _far(means: np.ndarray, errors: np.ndarray) -> np.ndarray:
    return np.asarray(np.abs(means) / np.maximum(errors, np.finfo(float).tiny))
