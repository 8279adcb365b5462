"""Confidence intervals of means over examples by resampling subjects, and the error of a random sample."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterator, Sequence
from functools import cache, lru_cache
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np
from jaxtyping import Float
from numpy.typing import NDArray
from threadpoolctl import ThreadpoolController
from torch import Tensor

from uds_lens.errors import ConfigError, Setting
from uds_lens.results._statistics import NO_INTERVAL, Interval, student

Floats: TypeAlias = NDArray[np.float64]
Codes: TypeAlias = NDArray[np.int64]

FEW_CLUSTERS = 10  # number of subjects below which a subject-level interval is rough
ROUNDING = 1e-12  # smaller differences between scores are rounding (bootstrapping them would divide zero by zero)
FLOOR = 0.3  # minimum standard error of a resample, relative to that of the data
AT_ONCE = 2_000_000  # maximum number of values in memory while resampling
MANY = 2000  # number of clusters above which resamples are drawn in linear time, not by numpy's multinomial


class IntervalBasis(NamedTuple):
    """The unit that an interval resamples."""

    by: Literal["subject", "example"]
    """Subjects if any two examples share one, otherwise examples."""
    n: int
    """Number of units among the measurable examples."""
    effective: float
    """Equivalent number of equally large units, `(sum n_g)^2 / sum n_g^2`: 3.6 if one unit in ten has half of the
    rows."""

    @property
    def few(self) -> bool:
        """Whether there are too few subjects for a reliable interval."""
        return self.by == "subject" and self.effective < FEW_CLUSTERS

    @property
    def counted(self) -> str:
        """In words: "6 subjects" or "12 subjects, which count as 3.6 since some have more examples than others"."""
        if self.n < FEW_CLUSTERS:
            return str(self)
        return f"{self}, which count as {self.effective:.1f} since some have more examples than others"

    @property
    def degrees_of_freedom(self) -> int:
        """Number of units minus one; 0 without units."""
        return max(0, self.n - 1)

    def __str__(self) -> str:
        """Show as "20 subjects" or "48 examples"."""
        return f"{self.n} {self.by}{'s' * (self.n != 1)}"


def interval_basis(values: Float[Tensor, "example"], clusters: Sequence[Hashable | None]) -> IntervalBasis:
    """Return the unit that `bootstrap_interval` resamples.

    >>> import torch
    >>> interval_basis(torch.tensor([0.1, 0.2, torch.nan]), ["Ada", "Ada", "Bo"])
    IntervalBasis(by='subject', n=1, effective=1.0)
    """
    kept = [name for name, missing in zip(clusters, values.isnan().tolist(), strict=True) if not missing]
    sizes = np.bincount(cluster_codes(kept))
    effective = float(sizes.sum() ** 2 / (sizes**2).sum()) if kept else 0.0
    return IntervalBasis("example" if len(sizes) == len(kept) else "subject", len(sizes), effective)


def cluster_codes(clusters: Sequence[Hashable | None]) -> Codes:
    """Number clusters from 0 in order of appearance; each None is a cluster of its own.

    >>> cluster_codes(["Ada", None, "Ada", None]).tolist()
    [0, 1, 0, 2]
    """
    codes: dict[Hashable, int] = {}
    keys = ((place,) if name is None else name for place, name in enumerate(clusters))
    return np.array([codes.setdefault(key, len(codes)) for key in keys], dtype=np.int64)


def bootstrap_interval(
    values: Float[Tensor, "example"],
    *,
    clusters: Sequence[Hashable | None] | None = None,
    confidence: float = 0.95,
    n_resamples: int = 9999,
    seed: int = 0,
    bounds: tuple[float, float] | None = None,
) -> Interval:
    """Bootstrap the mean over measurable examples.

    Examples about one subject are not independent, so whole `clusters` are resampled. With S_g the sum and n_g the
    number of values in cluster g of G, m = sum S_g / sum n_g and se^2 = G / (G - 1) sum (S_g - n_g m)^2 / (sum n_g)^2,
    the interval is `m +- q se`, where q is the quantile of |m* - m| / max(se*, 0.3 se) over resamples, but at least
    that of Student's t with G - 1 degrees of freedom. This is the symmetric studentised bootstrap; the floor under se*
    limits the effect of resamples that miss the few clusters that differ. Without clusters, or if each cluster has one
    value or all have the same mean, examples are resampled with bias correction and acceleration (BCa).

    With `bounds`, the interval for scores near them is at least as wide as under a beta-binomial model of the clusters
    (`widened`), and equal scores also have an interval. The interval reflects the choice of subjects or examples, not
    the training seed.

    Args:
        values: Scores; NaN values are left out.
        clusters: The cluster of each value, for example its subject; None is a cluster of its own.
        confidence: Coverage.
        n_resamples: Number of resamples.
        seed: Seed of the resampling.
        bounds: Smallest and largest possible score; the interval lies between them.

    Returns:
        The interval; NaN with fewer than two measurable examples, if all belong to one cluster, and if all scores are
        equal and there are no bounds.

    Raises:
        ConfigError: `confidence` is not between 0 and 1, or `clusters` and `values` differ in length.

    References:
        Efron (1987), Better Bootstrap Confidence Intervals, as in `scipy.stats.bootstrap`. Hall (1988), On
        Symmetric Bootstrap Confidence Intervals. Cameron, Gelbach & Miller (2008), Bootstrap-Based Improvements for
        Inference with Clustered Errors. Williams (1975), as in `widened`.

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
    check_confidence(confidence)
    if clusters is not None and len(clusters) != len(values):
        raise ConfigError(f"clusters must have one entry per value: {len(values)} values, {len(clusters)} clusters.")
    measured = ~values.isnan()
    scores = values[measured].double().numpy()
    names = range(len(values)) if clusters is None else clusters
    codes = cluster_codes([name for name, kept in zip(names, measured.tolist(), strict=True) if kept])
    if len(scores) < 2 or codes.max() == 0:
        return NO_INTERVAL
    if np.ptp(scores) < ROUNDING:
        return of_equal_scores(float(scores[0]), codes, bounds, confidence) if bounds else NO_INTERVAL
    ends = None
    if codes.max() + 1 < len(codes):
        total, size = np.bincount(codes, scores).astype(float), np.bincount(codes).astype(float)
        ends = studentised(total, size, confidence, n_resamples, seed)
    if ends is None:
        ends = _bca(scores, confidence, n_resamples, seed)
    if bounds is None:
        return ends
    low, high = widened(*ends, scores, codes, bounds, confidence)
    return Interval(max(low, bounds[0]), min(high, bounds[1]))


def check_confidence(confidence: float) -> None:
    """Raise ConfigError unless `confidence` lies between 0 and 1."""
    if not 0 < confidence < 1:
        raise ConfigError(Setting("confidence"), f" must lie between 0 and 1; got {confidence!r}.")


def _bca(scores: Floats, confidence: float, n_resamples: int, seed: int) -> Interval:
    # Same draws and results as scipy.stats.bootstrap, which jackknifes in n^2 steps and takes a second to import.
    from scipy.special import ndtr, ndtri

    n, chance = len(scores), np.random.default_rng(seed)
    means = np.array([scores.take(places).sum() for places in _drawn(chance, n, n_resamples)]) / n
    left = scores - scores.mean()
    bias = ndtri(np.mean(means < scores.mean()) + np.mean(means == scores.mean()) / 2)
    acceleration = (left**3).sum() / (6 * (left**2).sum() ** 1.5)
    reach = bias + ndtri([(1 - confidence) / 2, (1 + confidence) / 2])
    ends = np.quantile(means, ndtr(bias + reach / (1 - acceleration * reach)))
    return Interval(float(ends[0]), float(ends[1]))


# The studentised bootstrap over clusters. Each row of `times` is a resample: how often each cluster was drawn.


def _resamples(n_resamples: int, seed: int, *n_clusters: int) -> Iterator[list[Floats]]:
    """Draw clusters in chunks that fit into memory: one array per set of clusters, with one row per resample."""
    if len(n_clusters) == 1 and n_resamples * n_clusters[0] <= 10 * AT_ONCE:
        (n,) = n_clusters
        step, kept = max(1, AT_ONCE // n), _kept(n_resamples, seed, n)
        yield from ([kept[start : start + step].astype(float)] for start in range(0, n_resamples, step))
    else:
        yield from _chunks(n_resamples, seed, *n_clusters)


@lru_cache(maxsize=1)
def _kept(n_resamples: int, seed: int, n: int) -> NDArray[np.int16]:
    """Reuse one draw for all scores with the same number of clusters: overall, by type and by layer."""
    return np.concatenate([times.astype(np.int16) for (times,) in _chunks(n_resamples, seed, n)])


def _chunks(n_resamples: int, seed: int, *n_clusters: int) -> Iterator[list[Floats]]:
    chance, step = np.random.default_rng(seed), max(1, AT_ONCE // max(n_clusters))
    for start in range(0, n_resamples, step):
        yield [_times(chance, n, min(step, n_resamples - start)) for n in n_clusters]


def _times(chance: np.random.Generator, n: int, rows: int) -> Floats:
    if n <= MANY:
        return chance.multinomial(n, np.full(n, 1 / n), size=rows).astype(float)
    times = np.empty((rows, n))
    for row, places in zip(times, _drawn(chance, n, rows), strict=True):  # six times as fast as multinomial
        row[:] = np.bincount(places, minlength=n)
    return times


def _drawn(chance: np.random.Generator, n: int, rows: int) -> Iterator[NDArray[np.int32]]:
    """Draw n of n units `rows` times, a few rows at a time so that these stay in the CPU cache."""
    for start in range(0, rows, 8):  # 32-bit integers give the same draws as 64-bit integers in half the time
        yield from chance.integers(0, n, (min(8, rows - start), n), dtype=np.int32)


@cache
def _blas() -> ThreadpoolController:
    return ThreadpoolController()


def _means(total: Floats, size: Floats, n: int | Codes) -> Callable[[Floats], tuple[Floats, Floats]]:
    """Return a function from resamples to means and cluster-robust standard errors (NaN unless the size is above 0)."""
    shape, (total, size) = total.shape[1:], (part.reshape(len(part), -1) for part in (total, size))
    single = bool(((size == 0) | (size == 1)).all())  # then products with size repeat other terms
    varying = (size != 1).any(0)  # otherwise, a resample has one value per cluster
    terms = [total, total**2, size[:, varying], *([] if single else [total * size, size**2])]
    summed = np.concatenate(terms, axis=1)  # one matrix product reads the resamples only once
    ends = np.cumsum([term.shape[1] for term in terms])[:-1]

    def of(times: Floats) -> tuple[Floats, Floats]:
        with _blas().limit(limits=1, user_api="blas"):  # more threads would mostly wait for the draws
            totals, squares, counted, *others = np.split(times @ summed, ends, axis=1)
        counts = np.full(totals.shape, float(len(size)))
        counts[:, varying] = counted
        mixes, square_sizes = others or (totals, counts)
        with np.errstate(invalid="ignore", divide="ignore"):
            drawn = np.where(counts > 0, counts, math.nan)
            mean = totals / drawn
            error = squares - 2 * mean * mixes + mean**2 * square_sizes
            error = np.sqrt(np.maximum(error, 0.0) * n / (n - 1)) / drawn
        return mean.reshape(-1, *shape), error.reshape(-1, *shape)

    return of


def studentised(total: Floats, size: Floats, confidence: float, n_resamples: int, seed: int) -> Interval | None:
    """Bootstrap sum(total) / sum(size) over clusters (symmetric, studentised; see `bootstrap_interval`).

    Returns: The interval; NaN if the quantile is undefined because too many resamples have a denominator that is not
    positive. None if the ratio is the same in all clusters.
    """
    n = len(size)
    ratio = total.sum() / size.sum()
    error = math.sqrt(n / (n - 1) * float(((total - size * ratio) ** 2).sum())) / size.sum()
    if error < ROUNDING:
        return None
    means_of, parts = _means(total, size, n), []
    for (times,) in _resamples(n_resamples, seed, n):
        ratios, errors = means_of(times)
        parts.append(np.abs(ratios - ratio) / np.maximum(errors, FLOOR * error))
    distances = np.nan_to_num(np.concatenate(parts), nan=math.inf)
    # infinite distances cannot be interpolated
    method: Any = "higher" if np.isinf(distances).any() else "linear"
    reach = max(float(np.quantile(distances, confidence, method=method)), student(confidence, n - 1)) * error
    return Interval(float(ratio - reach), float(ratio + reach)) if math.isfinite(reach) else NO_INTERVAL


def column_intervals(
    values: Float[Tensor, "example column"],
    *,
    clusters: Sequence[Hashable | None],
    confidence: float = 0.95,
    n_resamples: int = 9999,
    seed: int = 0,
    bounds: Sequence[tuple[float, float] | None] | None = None,
) -> tuple[list[float], list[float]]:
    """Bootstrap each column's mean (studentised), with the same resampled clusters for all columns.

    For a column without NaN, the ends are those of `bootstrap_interval`, except that the studentised bootstrap is also
    used for examples without clusters. NaN values are left out of their column; `bounds` has one pair per column.

    Returns: The lower and the upper ends; NaN with fewer than two clusters, and for equal values without bounds.

    Example:
        >>> import torch
        >>> values = torch.tensor([[0.4, 1.0], [0.5, 1.0], [0.6, 1.0], [0.7, torch.nan]])
        >>> low, high = column_intervals(values, clusters=[None] * 4, bounds=[(0.0, 1.0)] * 2)
        >>> 0 < low[0] < 0.55 < high[0] < 1, 0.3 < low[1] < high[1] == 1
        (True, True)
    """
    if not len(values):
        return [math.nan] * values.shape[1], [math.nan] * values.shape[1]
    data, codes = values.double().numpy(), cluster_codes(clusters)
    there = ~np.isnan(data)
    total = np.zeros((int(codes.max()) + 1, data.shape[1]))
    size = np.zeros_like(total)
    np.add.at(total, codes, np.where(there, data, 0.0))
    np.add.at(size, codes, there.astype(float))
    n = (size > 0).sum(0)
    with np.errstate(invalid="ignore", divide="ignore"):
        mean = total.sum(0) / size.sum(0)
        error = np.sqrt(((total - size * mean) ** 2).sum(0) * n / (n - 1)) / size.sum(0)
        error = np.where(error < ROUNDING, 0.0, error)  # all clusters have the same mean
        means_of, parts = _means(total, size, n), []
        for (times,) in _resamples(n_resamples, seed, len(total)):
            means, errors = means_of(times)
            parts.append(np.nan_to_num(np.abs(means - mean) / np.maximum(errors, FLOOR * error), posinf=0.0))
    least = np.array([student(confidence, int(k) - 1) if k > 1 else math.nan for k in n])
    reach = np.maximum(np.quantile(np.concatenate(parts), confidence, axis=0), least) * error
    ends = np.stack([mean - reach, mean + reach])
    for column in np.flatnonzero(n > 1).tolist():
        limits = None if bounds is None else bounds[column]
        scores = data[there[:, column], column]
        _, present = np.unique(codes[there[:, column]], return_inverse=True)
        if np.ptp(scores) < ROUNDING:
            equal = of_equal_scores(float(scores[0]), present, limits, confidence) if limits else NO_INTERVAL
            ends[:, column] = equal
            continue
        if error[column] == 0:  # clusters have equal means but examples differ: resample examples
            how: Any = {"confidence": confidence, "n_resamples": n_resamples, "seed": seed}
            ends[:, [column]] = column_intervals(values[:, [column]], clusters=[None] * len(values), **how)
        if limits:
            reached = widened(float(ends[0, column]), float(ends[1, column]), scores, present, limits, confidence)
            ends[:, column] = np.clip(reached, *limits)
    low, high = ends.tolist()
    return low, high


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
    """Bootstrap mean(top) / mean(bottom), resampling the two sets of values independently by cluster.

    With m_t, m_b the means, r = m_t / m_b, and se_t, se_b their standard errors over clusters (as in
    `bootstrap_interval`), se^2 = (se_t^2 + r^2 se_b^2) / m_b^2. The interval is `r +- q se`, where q is the quantile of
    |r* - r| / max(se*, 0.3 se) over resamples, but at least that of Student's t with one degree of freedom fewer than
    the smaller number of clusters.

    Returns: The interval; NaN with fewer than two clusters on either side, if the clusters on each side are all alike,
    and if mean(bottom) is not positive in the data or in too many resamples.

    References:
        Hall (1988), On Symmetric Bootstrap Confidence Intervals; the standard error is that of the delta method.

    Example:
        >>> import torch
        >>> top, bottom = torch.tensor([0.1, 0.2, 0.3, 0.2]), torch.tensor([1.0, 2.0, 1.5, 1.2, 1.8])
        >>> interval = ratio_interval(top, bottom, top_clusters=[None] * 4, bottom_clusters=[None] * 5)
        >>> 0 < interval.low < float(top.mean() / bottom.mean()) < interval.high < 1
        True
    """
    check_confidence(confidence)
    if len(top_clusters) != len(top) or len(bottom_clusters) != len(bottom):
        raise ConfigError("top_clusters and bottom_clusters must have one entry per value.")
    sides = []
    for values, clusters in ((top, top_clusters), (bottom, bottom_clusters)):
        codes = cluster_codes(clusters)
        total = np.bincount(codes, values.double().numpy()).astype(float)
        sides.append((total, np.bincount(codes).astype(float)))
    n_clusters = [len(total) for total, _ in sides]
    means_of = [_means(total, size, len(size)) for total, size in sides]
    if min(n_clusters) < 2:
        return NO_INTERVAL

    def ratios_of(times: Sequence[Floats]) -> tuple[Floats, Floats]:
        """Return the ratio and its standard error for each resample; NaN where the denominator is not positive."""
        (above, above_error), (below, below_error) = (of(drawn) for of, drawn in zip(means_of, times, strict=True))
        below = np.where(below > 0, below, np.nan)
        ratio = above / below
        return ratio, np.sqrt(above_error**2 + (ratio * below_error) ** 2) / below

    ratio, error = (float(part[0]) for part in ratios_of([np.ones((1, n)) for n in n_clusters]))
    if math.isnan(ratio) or error < ROUNDING:
        return NO_INTERVAL
    parts = [ratios_of(times) for times in _resamples(n_resamples, seed, *n_clusters)]
    ratios, errors = (np.concatenate(part) for part in zip(*parts, strict=True))
    distances = np.nan_to_num(np.abs(ratios - ratio) / np.maximum(errors, FLOOR * error), nan=math.inf)
    quantile = float(np.quantile(distances, confidence, method="higher"))
    reach = max(quantile, student(confidence, min(n_clusters) - 1)) * error
    return Interval(ratio - reach, ratio + reach) if math.isfinite(reach) else NO_INTERVAL


# Scores that are nearly all-or-nothing: a bootstrap draws only from the subjects in the data, which may lack a rare
# kind.

_MEANS, _CORRELATIONS = 80, 20  # grid points over the posterior


def widened(
    low: float, high: float, scores: Floats, codes: Codes, bounds: tuple[float, float], confidence: float
) -> tuple[float, float]:
    """Widen an interval of the mean if the few subjects in the data may not include a rare kind.

    If scores are nearly 0 or 1, agree within each subject, and one of the two values is rare, the data include few or
    no subjects of the rare kind, and the bootstrap interval is too short or has no width at all. The number of scores
    above the midpoint of the bounds in each subject is then modelled as beta-binomial, with a uniform prior for the
    share p of such scores and an arcsine prior (Beta(1/2, 1/2)) for their correlation within a subject. The arcsine
    prior gives weight to both no correlation and perfect correlation; with a uniform prior, coverage is too low at a
    correlation of .97. The quantiles of the posterior of p are mapped to the range from the mean of the scores below
    the midpoint to the mean of the scores above it (a bound if there are none). The interval is extended to these
    values.

    The distance of scores s with bounds a and b from all-or-nothing is measured by d, the mean of 4 |s - a| |b - s| /
    (b - a)^2, which is 0 if all lie on the bounds and 1 if all lie midway. Up to d = 1/2, the interval is widened
    fully; from d = 3/4, it is not widened; in between, it is widened in proportion.

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


def left_by_one(interval: Interval, mean: float, n: int) -> bool:
    """Return whether the mean would leave its interval if one of n units scored as far from the mean as [0, 1] allows.

    >>> left_by_one(Interval(0.49, 0.51), 0.5, 20), left_by_one(Interval(0.4, 0.6), 0.5, 20)
    (True, False)
    """
    return interval.high - interval.low < 2 * max(mean, 1 - mean) / n


def of_equal_scores(score: float, codes: Codes, bounds: tuple[float, float], confidence: float) -> Interval:
    """Return an interval of the mean of equal scores.

    Other scores may exist even though none was drawn. The ends are the means that would result if the share of such
    scores were at its upper limit (`share_interval`) and all of them lay on one of the bounds.

    Example:
        >>> low, high = of_equal_scores(0.0, np.arange(20), (0.0, 1.0), 0.95)
        >>> round(low, 3), round(high, 3)
        (0.0, 0.161)
    """
    sizes = np.bincount(codes)
    missed = share_interval(np.zeros(len(sizes)), sizes, confidence)[1]
    return Interval(score - missed * (score - bounds[0]), score + missed * (bounds[1] - score))


def share_interval(count: Floats, size: Codes, confidence: float) -> tuple[float, float]:
    """Return the central posterior interval of a beta-binomial's mean, given each subject's successes and trials.

    The priors are those of `widened`.

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
    p, rest = np.sin(angles) ** 2, np.cos(angles) ** 2  # cos^2 is positive even where 1 - p rounds to 0
    steps = (np.arange(_CORRELATIONS) + 0.5) / _CORRELATIONS * np.pi / 2
    rho = np.sin(steps) ** 2  # midpoints of equal parts of the prior
    a, b = (share[:, None] * (1 / rho - 1) for share in (p, rest))
    kinds, times = np.unique(np.stack([count, size.astype(float)]), axis=1, return_counts=True)
    successes, trials = kinds[:, :, None, None]
    log_probability = (
        gammaln(a + successes)
        + gammaln(b + (trials - successes))  # do not reorder: b may be tiny
        - gammaln(a + b + trials)
        - (gammaln(a) + gammaln(b) - gammaln(a + b))
    )
    likelihood = np.tensordot(times, log_probability, 1)
    density = np.exp(likelihood - likelihood.max()).sum(1) * np.sin(2 * angles)  # dp by angle
    below = np.cumsum(density)
    below = (below - density / 2) / below[-1]
    tail = (1 - confidence) / 2
    return float(np.interp(tail, below, p)), float(np.interp(1 - tail, below, p))


# The error of a random sample of the examples.

LEAST_WITHIN = 5  # degrees of freedom within subjects below which the spread within subjects is not estimated

ROUNDED = 1 / 6
"""Variance of a subject's number of rows around its exact share: the mean of p (1 - p) over fractional parts p."""


class SampleError(NamedTuple):
    """The error from measuring only some of the examples; 0 if all are measured.

    By contrast, `uds_interval` is about subjects beyond the data, and does not shrink to 0 as the sample grows.
    """

    standard_error: float
    """Standard error of the mean as an estimate of the mean over all examples; NaN if it cannot be estimated."""

    interval: Interval
    """Interval for the mean over all examples from Student's t; NaN if the standard error is NaN."""

    of: int
    """Total number of examples."""

    at_most: bool
    """Whether these are upper bounds, because too few subjects have two rows to estimate the spread within subjects."""

    @property
    def words(self) -> str:
        """The interval in words: "0.417 to 0.479 for all 367 examples", or "unknown for all 367 examples"."""
        low, high = self.interval
        if math.isnan(low):
            return f"unknown for all {self.of} examples"
        return f"{low:.3f} to {high:.3f}{' at most' if self.at_most else ''} for all {self.of} examples"


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
    """Estimate how far a sample's mean lies from the mean over all examples that it was drawn from.

    With residuals e_i = x_i - m for measured examples and 0 for unmeasurable ones, se^2 = (1 - n / N) n s^2 / n_m^2,
    where n of N examples were drawn, n_m were measured, and s^2 is the variance of the residuals. Since
    `uds_lens.data.sample_examples` gives each subject its share, s^2 is pooled within subjects. If the shares had to be
    rounded, sum e_g^2 / (6 n_m^2) is added, where e_g is the mean residual of subject g, less its own noise. Without
    subjects, s^2 is the variance over all examples, which also serves as an upper bound if there are fewer than 5
    degrees of freedom within subjects. If all scores are equal, examples that were not drawn may differ: as many as
    `of_equal_scores` allows are assumed to have scores on the farther of the `bounds`.

    References:
        Cochran (1977), Sampling Techniques, chapters 2, 5 and 6: finite populations, strata, ratios.

    Example:
        >>> import torch
        >>> values = torch.tensor([0.1, 0.2, 0.8, 0.9])
        >>> few, most = (sample_error(values, of=of, drawn=4).standard_error for of in (400, 5))
        >>> round(few, 3), round(most, 3)
        (0.203, 0.091)
    """
    scores = values.double().numpy()
    measured = ~np.isnan(scores)
    count = int(measured.sum())
    if not random or count < 2:
        return SampleError(math.nan, NO_INTERVAL, of, False)
    mean = float(scores[measured].mean())
    residuals = np.where(measured, scores - mean, 0.0)
    n, left = len(residuals), max(0.0, 1 - drawn / of)
    free, square, rounding, at_most = n - 1, float((residuals**2).sum()) / (n - 1), 0.0, False
    if any(subject is not None for subject in subjects):
        # Examples without a subject are one stratum, as in the draw.
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
    if np.ptp(scores[measured]) < ROUNDING and left and all(map(math.isfinite, bounds)):
        # As in the interval of the mean, other examples may differ, but here only the examples that were not drawn.
        ends = of_equal_scores(mean, np.arange(count), bounds, confidence)
        reach = left * max(mean - ends.low, ends.high - mean)
        error = reach / student(confidence, free)
    interval = Interval(max(mean - reach, bounds[0]), min(mean + reach, bounds[1]))
    return SampleError(error, interval, of, at_most and bool(left))
