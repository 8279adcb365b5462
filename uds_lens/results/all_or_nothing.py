"""How far a mean can lie from what was seen where scores are nearly all-or-nothing, so that few subjects may differ."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

_MEANS, _CORRELATIONS = 80, 20
"""Points of the grid over the posterior."""


def widened(
    low: float,
    high: float,
    scores: NDArray[np.float64],
    codes: NDArray[np.int64],
    bounds: tuple[float, float],
    confidence: float,
) -> tuple[float, float]:
    """Return an interval of the mean, widened by what the few subjects asked may have missed.

    A bootstrap knows only the subjects it is given. Where scores are nearly 0 or 1, go together within a subject, and
    one of the two is rare, the subjects asked hold few of the rare kind or none, and the bootstrap interval is too
    short or has no width at all. There the number of scores above the midpoint of the bounds, subject by subject, is
    taken as beta-binomial, with a uniform prior of the share of such scores p and an arcsine prior (Beta(1/2, 1/2)) of
    their correlation within a subject: it gives weight to no correlation and to a whole one, where a uniform prior
    covers too little if the correlation is .97. The quantiles of p's posterior, between the mean of the scores below
    the midpoint and the mean of those above it (the bound where there are none), are the ends that the interval reaches
    at least.

    How nearly all-or-nothing the scores are is d, the mean of 4 |s - a| |b - s| / (b - a)^2 over scores s with bounds a
    and b: 0 where all lie on the bounds, 1 where all lie midway. Up to d = 1/2 the interval is widened all the way,
    from 3/4 on not at all, and in between in proportion.

    Args:
        low: Lower end of the interval so far.
        high: Upper end.
        scores: Mostly within the bounds.
        codes: Subject of each score, as numbers from 0.
        bounds: Smallest and largest possible score.
        confidence: Coverage.

    Returns:
        The ends, never inside those that were given.

    References:
        Williams (1975), The Analysis of Binary Responses from Toxicological Experiments Involving Reproduction and
        Teratogenicity (the beta-binomial for litters).
    """
    a, b = bounds
    share = (scores - a) / (b - a)
    weight = min(1.0, max(0.0, 3.0 - 4.0 * float(np.abs(4 * share * (1 - share)).mean())))
    if not weight:
        return low, high
    above = share > 0.5
    p_low, p_high = share_interval(np.bincount(codes, above).astype(float), np.bincount(codes), confidence)
    bottom = float(scores[~above].mean()) if not above.all() else a
    top = float(scores[above].mean()) if above.any() else b
    mean = float(scores.mean())
    reach_low, reach_high = (weight * (bottom + (top - bottom) * p - mean) for p in (p_low, p_high))
    return min(low, mean + reach_low), max(high, mean + reach_high)


def of_equal_scores(
    score: float, codes: NDArray[np.int64], bounds: tuple[float, float], confidence: float
) -> tuple[float, float]:
    """Return an interval of the mean where all scores are equal, from what the subjects asked may have missed.

    Scores of another kind may make up a share p of all there could be, of which none was drawn; at its upper limit
    (`share_interval`) and with scores on either bound, the mean is the ends.

    Example:
        >>> low, high = of_equal_scores(0.0, np.arange(20), (0.0, 1.0), 0.95)
        >>> round(low, 3), round(high, 3)
        (0.0, 0.161)
    """
    sizes = np.bincount(codes)
    missed = share_interval(np.zeros(len(sizes)), sizes, confidence)[1]
    return score - missed * (score - bounds[0]), score + missed * (bounds[1] - score)


def share_interval(
    count: NDArray[np.float64], size: NDArray[np.int64], confidence: float
) -> tuple[float, float]:
    """Return the posterior interval of the mean of a beta-binomial (priors as in `widened`).

    Args:
        count: Successes of each subject.
        size: Trials of each subject.
        confidence: Share of the posterior between the ends; each tail holds half of the rest.

    Example:
        >>> low, high = share_interval(np.zeros(20), np.ones(20, dtype=int), 0.95)  # one trial each: Beta(1, 21)
        >>> round(low, 4), round(high, 3)
        (0.0012, 0.161)
    """
    from scipy.special import betaincinv, gammaln

    n = len(size)
    whole = n * float(count.sum() / size.sum())
    ends = betaincinv(whole + 0.5, n - whole + 0.5, [1e-6, 1 - 1e-6])  # wide enough for any correlation
    first, last = np.arcsin(np.sqrt(ends)).tolist()
    angles = np.linspace(first, last, _MEANS)
    p = np.sin(angles) ** 2
    rho = (
        np.sin((np.arange(_CORRELATIONS) + 0.5) / _CORRELATIONS * np.pi / 2) ** 2
    )  # equal parts of the prior
    a, b = (share[:, None] * (1 / rho - 1) for share in (p, 1 - p))
    kinds, times = np.unique(np.stack([count, size.astype(float)]), axis=1, return_counts=True)
    successes, trials = kinds[:, :, None, None]
    each = (
        gammaln(a + successes)
        + gammaln(b + trials - successes)
        - gammaln(a + b + trials)
        - (gammaln(a) + gammaln(b) - gammaln(a + b))
    )
    likelihood = np.tensordot(times, each, 1)
    density = np.exp(likelihood - likelihood.max()).sum(1) * np.sin(2 * angles)  # dp by angle
    below = np.cumsum(density)
    below = (below - density / 2) / below[-1]
    tail = (1 - confidence) / 2
    return float(np.interp(tail, below, p)), float(np.interp(1 - tail, below, p))
