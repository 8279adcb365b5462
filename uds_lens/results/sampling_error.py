"""How far a mean over a random sample of the examples lies from the mean over all of them."""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Float
from torch import Tensor

from uds_lens.results.intervals import Interval, cluster_codes, student

LEAST_WITHIN = 5
"""Degrees of freedom within subjects below which their spread is not estimated apart."""

ROUNDED = 1 / 6
"""Variance of a subject's number of rows about its exact share: mean of p (1 - p) over the part p that is rounded."""


class SampleError(NamedTuple):
    """The error that comes of measuring some of the examples; it is 0 where all are measured.

    `uds_interval` answers another question: how far the mean would lie from this one for other subjects than those of
    the data. That does not shrink to 0 as the sample grows.
    """

    standard_error: float
    """Standard error of the mean as an estimate of that over all examples; NaN where it cannot be known."""

    interval: Interval
    """Where the mean over all examples lies, by Student's t; NaN where the standard error is."""

    of: int
    """How many examples there are in all."""

    at_most: bool
    """True where both are upper bounds, since too few subjects have two rows to tell their spread apart."""

    @property
    def words(self) -> str:
        """The interval in words: "0.417 to 0.479 for all 367", or that nothing is known of it."""
        low, high = self.interval
        if math.isnan(low):
            return f"unknown for all {self.of}"
        return f"{low:.3f} to {high:.3f} for all {self.of}" + (" (at the widest)" if self.at_most else "")


def sample_error(
    values: Float[Tensor, "example"],
    *,
    of: int,
    drawn: int,
    subjects: Sequence[Hashable | None] = (),
    random: bool = True,
    confidence: float = 0.95,
    bounds: tuple[float, float] = (-math.inf, math.inf),
) -> SampleError:
    """Estimate how far the mean over a sample lies from the mean over all examples that it was drawn from.

    With residuals e_i = x_i - m of the measured examples and 0 for those that are not measurable, se^2 = (1 - n / N) n
    s^2 / n_m^2, where n of N examples were drawn, n_m were measured, and s^2 is the variance of the residuals. Since
    `uds_lens.data.sample_examples` gives each subject its share, s^2 is taken within subjects (pooled); where their
    shares had to be rounded, sum e_g^2 / (6 n_m^2) comes on top, with the mean residual e_g of each subject less its
    own noise. Without subjects s^2 is the variance over all, and so it is where fewer than 5 degrees of freedom are
    left within subjects, as an upper bound.

    Args:
        values: Of the sampled examples; NaN where one is not measurable.
        of: N, how many examples there are.
        drawn: n, how many were drawn; those that could not be scored may be absent from `values`.
        subjects: Subject of each value; empty where there are none.
        random: False for the first rows of a file, whose error nothing in them shows.
        confidence: Coverage of the interval.
        bounds: Smallest and largest possible mean; the interval is cut there.

    Returns:
        The standard error and the interval; 0 and the mean where all were drawn; NaN for first rows, and with fewer
        than two measured examples.

    References:
        Cochran (1977), Sampling Techniques, chapters 2, 5 and 6: finite populations, strata, ratios.

    Example:
        >>> import torch
        >>> values = torch.tensor([0.1, 0.2, 0.8, 0.9])
        >>> few, most = (sample_error(values, of=of, drawn=4).standard_error for of in (400, 5))
        >>> round(few, 3), round(most, 3)
        (0.203, 0.091)
    """
    measured = ~values.isnan()
    scores, count = values.double().numpy(), int(measured.sum())
    if not random or count < 2:
        return SampleError(math.nan, Interval(math.nan, math.nan), of, False)
    mean = float(scores[measured.numpy()].mean())
    residuals = np.where(measured.numpy(), scores - mean, 0.0)
    n, left = len(residuals), max(0.0, 1 - drawn / of)
    free, square, rounding, at_most = n - 1, float((residuals**2).sum()) / (n - 1), 0.0, False
    if any(subject is not None for subject in subjects):
        # Examples without a subject are a stratum too, as in the draw.
        codes = cluster_codes([("",) if subject is None else subject for subject in subjects])
        sizes = np.bincount(codes)
        within = int((sizes - 1).sum())
        at_most = len(sizes) > 1 and within < LEAST_WITHIN
        if within >= LEAST_WITHIN:
            middle = np.bincount(codes, residuals) / sizes
            free, square = within, float(((residuals - middle[codes]) ** 2).sum()) / within
            if np.ptp(sizes) > 0 and left:
                rounding = ROUNDED * float(np.maximum(middle**2 - left * square / sizes, 0.0).sum())
    error = math.sqrt(left * n * square + rounding) / count
    reach = student(confidence, free) * error
    interval = Interval(max(mean - reach, bounds[0]), min(mean + reach, bounds[1]))
    return SampleError(error, interval, of, at_most and bool(left))
