"""How much a mean over examples depends on which examples, or whose, were asked."""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from typing import TYPE_CHECKING, Literal, NamedTuple

import numpy as np
from jaxtyping import Float
from torch import Tensor

from uds_lens.checked_arguments import arguments_checked
from uds_lens.errors import ConfigError, Setting
from uds_lens.results.all_or_nothing import of_equal_scores, widened

if TYPE_CHECKING:
    from numpy.typing import NDArray

FEW_CLUSTERS = 10
"""Below this many subjects an interval by subject is rough."""

ROUNDING = 1e-12
"""Scores closer than this differ by rounding; a bootstrap of them divides zero by zero."""

FLOOR = 0.3
"""Least standard error of a resample, as a share of that of the data."""

AT_ONCE = 2_000_000
"""Numbers held at once while resampling."""


class Interval(NamedTuple):
    """A confidence interval; NaN on both sides where it is undefined."""

    low: float
    high: float


NO_INTERVAL = Interval(math.nan, math.nan)
"""Nothing can be said."""


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


@arguments_checked
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
    (`uds_lens.results.all_or_nothing.widened`). Equal scores have an interval as well: others of another kind may have
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


@arguments_checked
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


def student(confidence: float, degrees_of_freedom: int) -> float:
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
