"""How much a mean over examples depends on which examples, or whose, were asked."""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from typing import TYPE_CHECKING, Literal, NamedTuple

import numpy as np
from jaxtyping import Float
from torch import Tensor

from uds_lens.errors import ConfigError, Setting
from uds_lens.results._statistics import NO_INTERVAL, Interval

if TYPE_CHECKING:
    from numpy.typing import NDArray


# How far a mean can lie from what was seen where scores are nearly all-or-nothing, so that few subjects may
# differ.

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
    p, rest = np.sin(angles) ** 2, np.cos(angles) ** 2  # the rest is above 0 where 1 - p rounds to 0
    steps = (np.arange(_CORRELATIONS) + 0.5) / _CORRELATIONS * np.pi / 2
    rho = np.sin(steps) ** 2  # equal parts of the prior
    a, b = (share[:, None] * (1 / rho - 1) for share in (p, rest))
    kinds, times = np.unique(np.stack([count, size.astype(float)]), axis=1, return_counts=True)
    successes, trials = kinds[:, :, None, None]
    each = (
        gammaln(a + successes)
        + gammaln(b + (trials - successes))  # in this order: b may be tiny
        - gammaln(a + b + trials)
        - (gammaln(a) + gammaln(b) - gammaln(a + b))
    )
    likelihood = np.tensordot(times, each, 1)
    density = np.exp(likelihood - likelihood.max()).sum(1) * np.sin(2 * angles)  # dp by angle
    below = np.cumsum(density)
    below = (below - density / 2) / below[-1]
    tail = (1 - confidence) / 2
    return float(np.interp(tail, below, p)), float(np.interp(1 - tail, below, p))


FEW_CLUSTERS = 10
"""Below this many subjects an interval by subject is rough."""

ROUNDING = 1e-12
"""Scores closer than this differ by rounding; a bootstrap of them divides zero by zero."""

FLOOR = 0.3
"""Least standard error of a resample, as a share of that of the data."""

AT_ONCE = 2_000_000
"""Numbers held at once while resampling."""


class IntervalBasis(NamedTuple):
    """What an interval takes for independent draws."""

    by: Literal["subject", "example"]
    """Subjects, where two examples share one; examples otherwise."""
    n: int
    """How many there are among the measurable examples."""

    @property
    def degrees_of_freedom(self) -> int:
        """One less than the draws; 0 where nothing was drawn."""
        return max(0, self.n - 1)

    def __str__(self) -> str:
        """For a table: "20 subjects" or "48 examples"."""
        return f"{self.n} {self.by}{'s' * (self.n != 1)}"


def bootstrap_interval(
    values: Float[Tensor, "example"],
    *,
    clusters: Sequence[Hashable | None] | None = None,
    confidence: float = 0.95,
    n_resamples: int = 9999,
    seed: int = 0,
    bounds: tuple[float, float] | None = None,
) -> Interval:
    """Bootstrap interval of the mean over measurable examples.

    Examples about one subject are no independent draws: a model that forgot a person forgot most facts about them.
    Where `clusters` says which belong together, whole clusters are resampled. With S_g the sum and n_g the number of
    values of cluster g of G, m = sum S_g / sum n_g and se^2 = G / (G - 1) sum (S_g - n_g m)^2 / (sum n_g)^2, the
    interval is `m +- q se`, q the quantile of |m* - m| / max(se*, 0.3 se) over resamples, and at least that of
    Student's t with G - 1 degrees of freedom (symmetric studentised bootstrap; the floor under se* keeps resamples that
    miss the few clusters that differ from making it endless).
    Without clusters, or where each has one value, examples are resampled, bias-corrected and accelerated (BCa); so they
    are where all clusters have the same mean, which says nothing about others.

    With `bounds` given and scores that lie near them, few clusters may be unlike the rest, and a bootstrap knows only
    those it was given. The interval then reaches at least as far as a beta-binomial model of the clusters says
    (`uds_lens.results._intervals.widened`). Equal scores have an interval as well: others of another kind may have
    been missed.

    It says how much the mean depends on which subjects or examples were asked, not on the seed of a training.

    Args:
        values: Scores; NaN are left out.
        clusters: What each value belongs to, for example its subject; None is a cluster of its own.
        confidence: Coverage.
        n_resamples: Number of resamples.
        seed: Seed of the resampling.
        bounds: Smallest and largest possible score; the interval lies within.

    Returns:
        The interval. NaN with fewer than two measurable examples, where all belong to one cluster, and where all scores
        are equal and there are no bounds: nothing is known then about how much others differ.

    Raises:
        ConfigError: `confidence` is outside 0 and 1, or `clusters` has another length than the values.

    References:
        Efron (1987), Better Bootstrap Confidence Intervals; computed by `scipy.stats.bootstrap`. Hall (1988), On
        Symmetric Bootstrap Confidence Intervals. Cameron, Gelbach & Miller (2008), Bootstrap-Based Improvements for
        Inference with Clustered Errors. Williams (1975), as in `all_or_nothing.widened`.

    Example:
        >>> import torch
        >>> low, high = bootstrap_interval(torch.ones(20), bounds=(0.0, 1.0))
        >>> round(low, 2), high
        (0.84, 1.0)
        >>> values = torch.tensor([0.1, 0.2, 0.8, 0.9, 0.4, 0.6, 0.5, 0.3])
        >>> wide = bootstrap_interval(values, clusters=list("aabbccdd"))
        >>> narrow = bootstrap_interval(values)
        >>> wide.low < narrow.low < narrow.high < wide.high
        True
    """
    if not 0 < confidence < 1:
        raise ConfigError(Setting("confidence"), f" must lie between 0 and 1; got {confidence!r}.")
    if clusters is not None and len(clusters) != len(values):
        raise ConfigError(
            f"clusters must name one cluster per value: {len(values)} values, {len(clusters)} clusters."
        )
    measured = ~values.isnan()
    scores = values[measured].double().numpy()
    names = range(len(values)) if clusters is None else clusters
    codes = cluster_codes([c for c, kept in zip(names, measured.tolist(), strict=True) if kept])
    if len(scores) < 2 or codes.max() == 0:
        return NO_INTERVAL
    if np.ptp(scores) < ROUNDING:
        if bounds is None:
            return NO_INTERVAL
        return Interval(*of_equal_scores(float(scores[0]), codes, bounds, confidence))
    ends = None
    if codes.max() + 1 < len(codes):
        ends = _by_cluster(scores, codes, confidence, n_resamples, seed)
    if ends is None:
        ends = _by_example(scores, confidence, n_resamples, seed)
    if bounds is None:
        return Interval(*ends)
    low, high = widened(*ends, scores, codes, bounds, confidence)
    return Interval(max(low, bounds[0]), min(high, bounds[1]))


def interval_basis(values: Float[Tensor, "example"], clusters: Sequence[Hashable | None]) -> IntervalBasis:
    """What `bootstrap_interval` takes for independent draws.

    >>> import torch
    >>> interval_basis(torch.tensor([0.1, 0.2, torch.nan]), ["Ada", "Ada", "Bo"])
    IntervalBasis(by='subject', n=1)
    """
    kept = [
        cluster for cluster, missing in zip(clusters, values.isnan().tolist(), strict=True) if not missing
    ]
    n = len(set(cluster_codes(kept).tolist()))
    return IntervalBasis("example" if n == len(kept) else "subject", n)


def cluster_codes(clusters: Sequence[Hashable | None]) -> NDArray[np.int64]:
    """Clusters as numbers from 0; None is a cluster of its own."""
    known: dict[Hashable, int] = {}
    return np.array(
        [
            known.setdefault((place,) if cluster is None else cluster, len(known))
            for place, cluster in enumerate(clusters)
        ],
        dtype=np.int64,
    )


def _by_example(scores: NDArray[np.float64], confidence: float, n_resamples: int, seed: int) -> Interval:
    from scipy.stats import bootstrap

    result = bootstrap(
        (scores,),
        np.mean,
        n_resamples=n_resamples,
        batch=max(1, AT_ONCE // len(scores)),
        confidence_level=confidence,
        method="BCa",
        rng=np.random.default_rng(seed),
    )
    low, high = result.confidence_interval
    return Interval(float(low), float(high))


def _by_cluster(
    scores: NDArray[np.float64], codes: NDArray[np.int64], confidence: float, n_resamples: int, seed: int
) -> Interval | None:
    sums, counts = np.bincount(codes, scores).astype(float), np.bincount(codes).astype(float)
    return studentised(sums, counts, confidence, n_resamples, seed)


def studentised(
    total: NDArray[np.float64],
    size: NDArray[np.float64],
    confidence: float,
    n_resamples: int,
    seed: int,
) -> Interval | None:
    """Return the symmetric studentised bootstrap interval of sum(total) / sum(size) over clusters drawn together.

    Args:
        total: Numerator of each cluster, for example the sum of its scores.
        size: Denominator of each cluster, for example their number; the sum is above 0.
        confidence: Coverage.
        n_resamples: Number of resamples.
        seed: Seed of the resampling.

    Returns:
        The interval; NaN where so many resamples have a denominator that is not above 0 that there is no quantile. None
        where the ratio is the same in all clusters, so that nothing varies.
    """
    n = len(size)
    ratio = total.sum() / size.sum()
    error = math.sqrt(n / (n - 1) * float(((total - size * ratio) ** 2).sum())) / size.sum()
    if error < ROUNDING:
        return None
    distances = _distances(total, size, ratio, error, n_resamples, seed)
    if np.isinf(distances).any():  # between two of which nothing can be interpolated
        quantile = float(np.quantile(distances, confidence, method="higher"))
    else:
        quantile = float(np.quantile(distances, confidence))
    reach = max(quantile, student(confidence, n - 1)) * error
    return Interval(float(ratio - reach), float(ratio + reach)) if math.isfinite(reach) else NO_INTERVAL


def student(confidence: float, degrees_of_freedom: float) -> float:
    """The quantile of Student's t that a two-sided interval reaches to."""
    from scipy.stats import t

    return float(t.ppf((1 + confidence) / 2, degrees_of_freedom))


def _distances(
    total: NDArray[np.float64],
    size: NDArray[np.float64],
    ratio: float,
    error: float,
    n_resamples: int,
    seed: int,
) -> NDArray[np.float64]:
    """Return |r* - r| / se* of resampled clusters, with a floor under se*; inf where r* is undefined."""
    n, chance = len(size), np.random.default_rng(seed)
    found = []
    for start in range(0, n_resamples, step := max(1, AT_ONCE // n)):
        times = chance.multinomial(n, np.full(n, 1 / n), size=min(step, n_resamples - start)).astype(float)
        sizes = times @ size
        sizes = np.where(sizes > 0, sizes, math.nan)
        ratios = times @ total / sizes
        squares = times @ total**2 - 2 * ratios * (times @ (total * size)) + ratios**2 * (times @ size**2)
        errors = np.sqrt(np.maximum(squares, 0.0) * n / (n - 1)) / sizes
        found.append(np.abs(ratios - ratio) / np.maximum(errors, FLOOR * error))
    return np.nan_to_num(np.concatenate(found), nan=math.inf)


# Intervals of many means over the same examples at once: one for each layer.


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
    distances = _column_intervals_distances(sums, n, mean, error, n_resamples, np.random.default_rng(seed))
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


def _column_intervals_distances(
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


# How much the ratio of two means depends on whom was asked, where each mean is over other subjects.


class _RatioIntervalsSums(NamedTuple):
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
    above, below = _ratio_intervals_sums(top, top_clusters), _ratio_intervals_sums(bottom, bottom_clusters)
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


def _ratio_intervals_sums(values: Tensor, clusters: Sequence[Hashable | None]) -> _RatioIntervalsSums:
    codes = cluster_codes(clusters)
    return _RatioIntervalsSums(
        np.bincount(codes, values.double().numpy()).astype(float), np.bincount(codes).astype(float)
    )


def _once(*sides: _RatioIntervalsSums) -> list[NDArray[np.float64]]:
    """Every cluster once: the data themselves as a resample."""
    return [np.ones((1, len(side.total))) for side in sides]


def _resampled(
    above: _RatioIntervalsSums, below: _RatioIntervalsSums, n_resamples: int, chance: np.random.Generator
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
    above: _RatioIntervalsSums,
    below: _RatioIntervalsSums,
    times_above: NDArray[np.float64],
    times_below: NDArray[np.float64],
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Ratio of each resample with its standard error; NaN where the mean below is not above 0."""
    (top, top_error), (bottom, bottom_error) = _mean(above, times_above), _mean(below, times_below)
    bottom = np.where(bottom > 0, bottom, np.nan)
    ratio = top / bottom
    return ratio, np.sqrt(top_error**2 + (ratio * bottom_error) ** 2) / bottom


def _mean(
    side: _RatioIntervalsSums, times: NDArray[np.float64]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    n, size = len(side.total), times @ side.size
    mean = times @ side.total / size
    squares = (
        times @ side.total**2
        - 2 * mean * (times @ (side.total * side.size))
        + mean**2 * (times @ side.size**2)
    )
    return mean, np.sqrt(np.maximum(squares, 0.0) * n / (n - 1)) / size


# How far a mean over a random sample of the examples lies from the mean over all of them.

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
