"""How much a perturbation moves a metric: the formulas of Q (quantisation) and R (relearning), model by model."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Float

from uds_lens.errors import ConfigError, DataError, Setting
from uds_lens.meta._columns import POINTS, ROBUSTNESS
from uds_lens.meta._direction import Points, directions, oriented
from uds_lens.meta._pools import (
    NO_INTERVAL,
    Interval,
    PoolBootstrap,
    check_resampling,
    logit_interval,
    pair_kernel,
    split_pools,
)
from uds_lens.meta._tables import harmonic_means

if TYPE_CHECKING:
    import pandas as pd


EPSILON = 1e-10
"""In the denominators of the symmetric forms, as published. It makes 0 / 0 count as "did not move": Q = R = 1."""


def symmetric_quantisation(
    before: Float[np.ndarray, "model"], after: Float[np.ndarray, "model"]
) -> Float[np.ndarray, "model"]:
    """Q of each model: `1 - |m' - m| / (|m'| + |m| + 1e-10)`.

    Args:
        before: m, before quantisation.
        after: m', after it.

    Returns:
        1 where nothing moves, 0 where m comes from or goes to 0 or changes sign; NaN where a value is missing.

    Example:
        >>> symmetric_quantisation(np.array([0.2, 0.0]), np.array([0.6, 0.0])).round(3).tolist()
        [0.5, 1.0]
    """
    return 1 - np.abs(after - before) / (np.abs(after) + np.abs(before) + EPSILON)


def symmetric_relearning(change: Float[np.ndarray, "model"], shift: float) -> Float[np.ndarray, "model"]:
    """R of each model: `1 - |Du - Dr| / (|Du| + |Dr| + 1e-10)`.

    Args:
        change: Du, how far relearning moves m of each model.
        shift: Dr, how far it moves m of retain.

    Returns:
        1 where both move alike, 0 where they move in opposite directions or only one moves; NaN where a value is
        missing.

    Example:
        >>> symmetric_relearning(np.array([0.3, 0.1, -0.1]), 0.1).round(3).tolist()
        [0.5, 1.0, 0.0]
    """
    return relearning_over_shifts(change, np.array([shift]), symmetric=True)[0]


def one_directional_quantisation(
    before: Float[np.ndarray, "model"], after: Float[np.ndarray, "model"]
) -> Float[np.ndarray, "model"]:
    """Q where only knowledge that comes back counts: `min(m / m', 1)`, and 1 where `m' <= m`.

    Args:
        before: m, before quantisation, >= 0.
        after: m', after it, >= 0.

    Returns:
        1 where m does not rise, 0 where it rises from 0; NaN where a value is missing or negative: a ratio of such
        values has no meaning.

    Example:
        >>> one_directional_quantisation(np.array([0.2, 0.4, 0.0]), np.array([0.4, 0.2, 0.0])).tolist()
        [0.5, 1.0, 1.0]
    """
    rises = after > before
    found = np.divide(before, after, out=np.ones_like(before, dtype=float), where=rises)
    return np.where(np.isnan(before) | np.isnan(after) | (before < 0) | (after < 0), np.nan, found)


def one_directional_relearning(
    change: Float[np.ndarray, "model"], shift: float
) -> Float[np.ndarray, "model"]:
    """R where only models that learn more than retain count: 1 if `Du <= max(Dr, 0)`, else `max(Dr, 0) / Du`.

    Args:
        change: Du, how far relearning moves m of each model.
        shift: Dr, how far it moves m of retain.

    Returns:
        1 where a model does not rise above retain's shift, 0 where it rises and retain does not; NaN where a value is
        missing.

    Example:
        >>> one_directional_relearning(np.array([0.4, 0.1, -0.3]), 0.2).tolist()
        [0.5, 1.0, 1.0]
        >>> one_directional_relearning(np.array([0.4, -0.1]), -0.2).tolist()
        [0.0, 1.0]
    """
    return relearning_over_shifts(change, np.array([shift]), symmetric=False)[0]


def relearning_over_shifts(
    change: Float[np.ndarray, "model"], shifts: Float[np.ndarray, "shift"], *, symmetric: bool
) -> Float[np.ndarray, "shift model"]:
    """R of each model for each of several shifts of retain, as `symmetric_relearning` or `one_directional_relearning`.

    Args:
        change: Du, how far relearning moves m of each model.
        shifts: Dr; a mean of differences: a number, or NaN where it was not measured.
        symmetric: Which of the two.
    """
    if np.isinf(shifts).any():
        raise ConfigError(
            Setting("shift"), f" must be a finite number, or NaN; got {shifts[np.isinf(shifts)][0]}."
        )
    moves, retain = change[None, :], shifts[:, None]
    if symmetric:
        return 1 - np.abs(moves - retain) / (np.abs(moves) + np.abs(retain) + EPSILON)
    reference = np.maximum(retain, 0.0)
    rises = moves > reference
    ones = np.ones(rises.shape)
    found = np.divide(
        np.broadcast_to(reference, ones.shape), np.broadcast_to(moves, ones.shape), out=ones, where=rises
    )
    return np.where(np.isnan(moves) | np.isnan(retain), np.nan, found)


# How far relearning moves retain, the yardstick of R, and how well that is known.


@dataclass(frozen=True)
class RetainShift:
    """Dr of one metric."""

    mean: float
    """Mean of m after relearning minus m before, first over the relearnings of a retain model, then over models."""

    low: float
    """Lower end of its interval; NaN with a single relearning."""

    high: float
    """Upper end."""

    n: int
    """Relearnings."""

    n_models: int
    """Retain models."""

    reason: str | None = None
    """Why there is no mean, or no interval."""

    shifts: tuple[float, ...] = ()
    """What the mean is of: one number per relearning, or per retain model where there are several."""

    @property
    def contains_zero(self) -> bool:
        """Whether retain may not move at all: R then compares with nothing."""
        if math.isnan(self.low):
            return self.mean == 0
        return self.low <= 0 <= self.high


def retain_shift(
    before: pd.DataFrame,
    relearned: pd.DataFrame,
    metric: str,
    *,
    direction: Points,
    confidence: float = 0.95,
) -> RetainShift:
    """Dr with an interval from several relearnings of retain.

    A t interval over the relearnings; with several retain models, over the means of the models, because the seeds
    of one model say nothing about another.

    Args:
        before: One row per retain model: `metric`, and with several rows `model`.
        relearned: One row per relearning: `metric`, and with several retain models `model`, the one it started from.
        metric: Which metric.
        direction: What a higher value of it means.
        confidence: Of the interval.

    Returns:
        The shift; NaN with a reason where a value is missing.

    Raises:
        DataError: No row; several retain models that `model` does not tell apart.

    Example:
        >>> import pandas as pd
        >>> before, after = pd.DataFrame({"x": [0.1]}), pd.DataFrame({"x": [0.30, 0.34, 0.32]})
        >>> shift = retain_shift(before, after, "x", direction="knowledge")
        >>> f"{shift.mean:.3f} {shift.low:.3f} {shift.high:.3f} {shift.n}"
        '0.220 0.170 0.270 3'
    """
    starts = _starts(before, metric, direction)
    if metric not in relearned.columns or not len(relearned):
        return RetainShift(
            math.nan, math.nan, math.nan, 0, 0, f"no relearned retain has a value of {metric!r}"
        )
    names = _relearned_retain_names(relearned, starts)
    ends = oriented(relearned[metric], direction).to_numpy()
    moved: dict[str, list[float]] = {}
    for name, end in zip(names, ends, strict=True):
        if not math.isnan(end - starts[name]):
            moved.setdefault(name, []).append(float(end - starts[name]))
    count = sum(map(len, moved.values()))
    if not count:
        return RetainShift(
            math.nan, math.nan, math.nan, 0, 0, f"retain has no value of {metric!r} before or after"
        )
    units = (
        [float(np.mean(values)) for values in moved.values()]
        if len(moved) > 1
        else next(iter(moved.values()))
    )
    low, high = _t_interval(units, confidence)
    reason = "a single relearning of retain: its shift has no interval" if math.isnan(low) else None
    return RetainShift(float(np.mean(units)), low, high, count, len(moved), reason, tuple(units))


def _starts(before: pd.DataFrame, metric: str, points: Points) -> Mapping[str, float]:
    if not len(before):
        raise DataError("retain_before has no row: it needs the values of retain before relearning.")
    if metric not in before.columns:
        return dict.fromkeys(_labels(before), math.nan)
    labels = _labels(before)
    if len(set(labels)) < len(labels):
        raise DataError(
            "retain_before has several rows: its column 'model' must tell the retain models apart."
        )
    return dict(zip(labels, oriented(before[metric], points).to_numpy(), strict=True))


def _labels(frame: pd.DataFrame) -> list[str]:
    return (
        frame["model"].astype(str).tolist()
        if "model" in frame.columns and len(frame) > 1
        else [""] * len(frame)
    )


def _relearned_retain_names(relearned: pd.DataFrame, starts: Mapping[str, float]) -> list[str]:
    """The retain model that each relearning started from."""
    if len(starts) == 1:
        return [next(iter(starts))] * len(relearned)
    names = relearned["model"].astype(str).tolist() if "model" in relearned.columns else []
    unknown = [name for name in names if name not in starts]
    if not names or unknown:
        raise DataError(
            f"retain_relearned needs a column 'model' with one of {', '.join(list(starts)[:6])}; got "
            f"{', '.join(unknown[:3]) or 'no such column'}."
        )
    return names


def _t_interval(values: list[float], confidence: float) -> Interval:
    if len(values) < 2:
        return NO_INTERVAL
    from scipy.stats import t

    error = float(np.std(values, ddof=1)) / math.sqrt(len(values))
    reach = float(t.ppf(0.5 + confidence / 2, len(values) - 1)) * error
    centre = float(np.mean(values))
    return Interval(centre - reach, centre + reach)


# Which unlearned models count: those that are still useful, and those that a metric calls unlearned.

UTILITY = "utility_rel"
"""Column of the utility filter."""


def filter_counts(
    frame: pd.DataFrame,
    thresholds: pd.DataFrame | Mapping[str, float],
    *,
    min_utility: float | None = 0.8,
    decimals: int | None = None,
    metrics: Sequence[str] | None = None,
    direction: Mapping[str, Points] | None = None,
) -> pd.DataFrame:
    """How many models each filter leaves.

    Args:
        frame: Unlearned models: metrics and `utility_rel`.
        thresholds: Cut on m per metric, as a mapping or a table with `metric` and `threshold`.
        min_utility: Smallest `utility_rel`; None lets all pass.
        decimals: The cuts are known to so many decimals only: `n_low` and `n_high` are the counts for the lowest and
            the highest cut that rounds to them.
        metrics: Which columns; None takes the declared metrics, or those of `direction`.
        direction: What a higher value means, for metrics that are not declared.

    Returns:
        One row per metric: `metric`, `threshold`, `n_models` (with a value), `n_useful`, `n_forgot` (m <= threshold),
        `n` (both), `n_low`, `n_high`, `reason` (why there is no count).

    Raises:
        DataError: A column is missing or holds no numbers.
        ConfigError: A direction is not known.

    Example:
        >>> import pandas as pd
        >>> frame = pd.DataFrame({"x": [0.1, 0.2, 0.7], "utility_rel": [0.9, 0.5, 1.0]})
        >>> counts = filter_counts(frame, {"x": 0.3}, direction={"x": "knowledge"})
        >>> counts[["n_useful", "n_forgot", "n"]].values.tolist()
        [[2, 2, 1]]
    """
    import pandas as pd

    cuts = as_cuts(thresholds)
    useful = useful_models(frame, min_utility)
    rows = []
    for name, points in directions(frame, metrics, direction).items():
        m, cut = oriented(frame[name], points).to_numpy(), cuts.get(name, math.nan)
        forgot = forgotten(m, cut)
        half = 0.0 if decimals is None else 0.5 * 10.0**-decimals
        rows.append(
            {
                "metric": name,
                "threshold": cut,
                "n_models": int((~np.isnan(m)).sum()),
                "n_useful": int((useful & ~np.isnan(m)).sum()),
                "n_forgot": int(forgot.sum()),
                "n": int((useful & forgot).sum()),
                "n_low": int((useful & forgotten(m, cut - half)).sum()),
                "n_high": int((useful & forgotten(m, cut + half)).sum()),
                "reason": "no threshold" if math.isnan(cut) else None,
            }
        )
    return pd.DataFrame(rows)


def as_cuts(thresholds: pd.DataFrame | Mapping[str, float]) -> dict[str, float]:
    """Cuts by metric, from a mapping, the result of `thresholds` or any table with `metric` and `threshold`.

    >>> as_cuts({"uds": 0.23})
    {'uds': 0.23}
    """
    import pandas as pd

    if not isinstance(thresholds, pd.DataFrame):
        return {str(name): float(cut) for name, cut in thresholds.items()}
    missing = [name for name in ("metric", "threshold") if name not in thresholds.columns]
    if missing:
        raise DataError(
            f"the thresholds lack the column {', '.join(missing)}: pass the result of thresholds(...)."
        )
    rows = thresholds
    if "chosen" in rows.columns:
        rows = rows[rows["chosen"].astype(bool)]
    twice = rows["metric"][rows["metric"].duplicated()]
    if len(twice):
        raise DataError(f"there are two thresholds for {twice.iloc[0]!r}: mark one with a column 'chosen'.")
    return {str(name): float(cut) for name, cut in zip(rows["metric"], rows["threshold"], strict=True)}


def useful_models(frame: pd.DataFrame, min_utility: float | None) -> np.ndarray:
    """Which models keep enough utility; all of them without the filter, none without a value."""
    import pandas as pd

    if min_utility is None:
        return np.ones(len(frame), dtype=bool)
    if not min_utility >= 0:
        raise ConfigError(f"min_utility must be >= 0 or None; got {min_utility!r}.")
    if UTILITY not in frame.columns:
        raise DataError(
            f"the table lacks the column {UTILITY!r} (utility over that of full): add it, or pass min_utility=None."
        )
    return np.asarray(pd.to_numeric(frame[UTILITY], errors="coerce").to_numpy(dtype=float) >= min_utility)


def forgotten(m: np.ndarray, cut: float) -> np.ndarray:
    """Which models a metric calls unlearned: `m <= cut`; none where either is NaN."""
    with np.errstate(invalid="ignore"):
        return np.asarray(m <= cut)


# The interval of a mean over models that belong together: epochs of a run, runs of a method.

FEWEST = 5
"""Clusters below which a mean has no interval: a variance from fewer is hardly known, and t says little of values that
are not normal."""

_SAME = 1e-6
"""Values nearer than this are the same: the epsilon of Q and R leaves 1e-8 where they are 0."""


def clustered_mean(
    values: np.ndarray, clusters: Sequence[str] | np.ndarray, confidence: float
) -> tuple[Interval, str | None]:
    """Return the interval of a mean of values between 0 and 1, and why there is none.

    The variance is that of the sums of clusters, each corrected for its own weight `h` (`1 / (1 - h)`), and the
    quantile is that of a t distribution with Satterthwaite's degrees of freedom for that estimator: the smaller of
    those under independent models and under models alike within clusters. With clusters of equal size this is the t
    interval of the cluster means. It is symmetric on the logit scale. Where all values are 0, or all 1, no cluster
    differs and the bound is exact as for a share: `1 - (alpha / 2)^(1 / G)` away.

    Args:
        values: One number per model.
        clusters: The cluster of each.
        confidence: Of the interval.

    Returns:
        Both ends, NaN with a reason for fewer than `FEWEST` clusters or where nothing varies.

    References:
        Bell and McCaffrey (2002), Survey Methodology 28, 169-181.

    Example:
        >>> interval, _ = clustered_mean(np.array([0.5, 0.6, 0.7, 0.8, 0.9]), list("abcde"), 0.95)
        >>> round(interval.low, 3), round(interval.high, 3)
        (0.478, 0.856)
        >>> clustered_mean(np.ones(3), ["a", "b", "c"], 0.95)[1]
        '3 clusters; an interval needs 5'
    """
    from scipy.stats import t

    names, place = np.unique(np.asarray(clusters, dtype=str), return_inverse=True)
    count, n = len(names), len(values)
    if count < FEWEST:
        return NO_INTERVAL, f"{count} cluster{'' if count == 1 else 's'}; an interval needs {FEWEST}"
    mean, size = float(values.mean()), np.bincount(place)
    nearest = 0.0 if mean < 0.5 else 1.0
    if np.abs(values - nearest).max() <= _SAME:
        reach = 1 - (0.5 - confidence / 2) ** (1 / count)
        return (Interval(0.0, reach) if nearest == 0 else Interval(1 - reach, 1.0)), None
    weight = size / n
    sums = np.bincount(place, values - mean) / n
    error = math.sqrt(float((sums**2 / (1 - weight)).sum()))
    if error <= 1e-9:
        return NO_INTERVAL, "all clusters have the same mean"
    scale = np.sqrt(np.outer(1 - weight, 1 - weight))
    independent = (np.diag(size) - np.outer(size, size) / n) / scale
    effects = (size / np.sqrt(1 - weight))[:, None] * (np.eye(count) - weight)
    freedom = min(float(np.trace(m) ** 2 / (m**2).sum()) for m in (independent, effects @ effects.T))
    return logit_interval(mean, error, float(t.ppf(0.5 + confidence / 2, freedom))), None


def dominated_by(values: np.ndarray, clusters: Sequence[str] | np.ndarray) -> str | None:
    """Return the cluster behind more than half of how far a mean lies from the nearer of 0 and 1; None without one.

    Such a mean says mostly what that cluster is like, and other samples may hold no such cluster, or two: where most
    models were at 0, in simulations, intervals from five to eight clusters held the truth in 80 to 90 % of cases
    (`benchmarks/coverage_faithfulness.py`).

    >>> dominated_by(np.array([0.0, 0.0, 0.02, 0.4]), list("abcd"))
    'd'
    """
    names, place = np.unique(np.asarray(clusters, dtype=str), return_inverse=True)
    away = np.bincount(place, np.abs(values - (0.0 if values.mean() < 0.5 else 1.0)))
    return str(names[away.argmax()]) if len(names) > 1 and 2 * away.max() > max(away.sum(), _SAME) else None


def cluster_levels(before: pd.DataFrame, columns: Sequence[str]) -> dict[str, np.ndarray]:
    """Return the clusters of each model by column, outermost first; columns that tell nothing are left out.

    A column that is missing or has gaps tells nothing, nor does an outer one with a single value. Runs with the same
    name in two methods are two runs.

    >>> import pandas as pd
    >>> {name: list(of) for name, of in cluster_levels(pd.DataFrame({"method": ["a", "b"]}), ["method", "run"]).items()}
    {'method': ['a', 'b']}
    """
    there = [name for name in columns if name in before.columns and before[name].notna().all()]
    found: dict[str, np.ndarray] = {}
    label = np.full(len(before), "", dtype=object)
    for name in there:
        label = np.array(
            [f"{outer} {own}".strip() for outer, own in zip(label, before[name].astype(str), strict=True)],
            dtype=object,
        )
        if name == there[-1] or len(set(label)) > 1:
            found[name] = label
    return found


def outer_and_inner(
    levels: Mapping[str, np.ndarray], models: Sequence[str]
) -> tuple[str, np.ndarray, np.ndarray]:
    """Return the name of the outermost clusters, these, and the innermost; every model by itself without any."""
    if not levels:
        alone = np.array(models, dtype=object)
        return "model", alone, alone
    name, outer = next(iter(levels.items()))
    return name, outer, list(levels.values())[-1]


# One metric before and after the perturbations, model by model, in one place.


@dataclass(frozen=True, eq=False, kw_only=True)
class Perturbed:
    """A metric of all models in three states, and who passes the filters."""

    metric: str
    models: tuple[str, ...]
    before: np.ndarray
    quantised: np.ndarray | None
    relearned: np.ndarray | None
    shift: RetainShift | None
    threshold: float
    useful: np.ndarray
    forgot: np.ndarray
    symmetric: bool
    clusters: Mapping[str, np.ndarray]
    """Cluster of each model by column (method, run), outermost first; empty where the table tells none."""
    tied: tuple[float, ...]
    """All cuts that separate the pools as well as `threshold`, itself among them; empty if it is the only one."""

    @property
    def kept(self) -> np.ndarray:
        """Models that pass both filters and have a value."""
        return self.useful & self.forgot & ~np.isnan(self.before)

    def only(self, mask: np.ndarray) -> Perturbed:
        """The same for some of the models."""
        return replace(
            self,
            models=tuple(name for name, there in zip(self.models, mask, strict=True) if there),
            before=self.before[mask],
            quantised=None if self.quantised is None else self.quantised[mask],
            relearned=None if self.relearned is None else self.relearned[mask],
            useful=self.useful[mask],
            forgot=self.forgot[mask],
            clusters={name: labels[mask] for name, labels in self.clusters.items()},
        )

    @property
    def change(self) -> np.ndarray | None:
        """Du."""
        return None if self.relearned is None else self.relearned - self.before

    def q(self) -> np.ndarray | None:
        """Q of each model."""
        if self.quantised is None:
            return None
        form = symmetric_quantisation if self.symmetric else one_directional_quantisation
        return form(self.before, self.quantised)

    def r(self, shift: float) -> np.ndarray | None:
        """R of each model for a shift of retain."""
        if self.change is None:
            return None
        form = symmetric_relearning if self.symmetric else one_directional_relearning
        return form(self.change, shift)


def align(
    before: pd.DataFrame,
    quantised: pd.DataFrame | None,
    relearned: pd.DataFrame | None,
    retain_before: pd.DataFrame | None,
    retain_relearned: pd.DataFrame | None,
    *,
    thresholds: pd.DataFrame | Mapping[str, float] | None,
    min_utility: float | None,
    symmetric: bool,
    metrics: Sequence[str] | None,
    direction: Mapping[str, Points] | None,
    confidence: float,
    cluster: Sequence[str] = (),
) -> list[Perturbed]:
    """Bring the tables together by the column `model`; several perturbed rows of one model are averaged."""
    names = _names(before, "before")
    if len(set(names)) < len(names):
        raise DataError("the table before has a model twice: its column 'model' must be unique.")
    cuts = None if thresholds is None else as_cuts(thresholds)
    useful = useful_models(before, min_utility)
    levels = cluster_levels(before, cluster)
    found = []
    for name, points in directions(before, metrics, direction).items():
        m = oriented(before[name], points).to_numpy()
        cut = math.nan if cuts is None else cuts.get(name, math.nan)
        shift = None
        if retain_before is not None and retain_relearned is not None:
            shift = retain_shift(
                retain_before, retain_relearned, name, direction=points, confidence=confidence
            )
        found.append(
            Perturbed(
                metric=name,
                models=tuple(names),
                before=m,
                quantised=_after(quantised, name, points, names, "quantised"),
                relearned=_after(relearned, name, points, names, "relearned"),
                shift=shift,
                threshold=cut,
                useful=useful,
                forgot=np.ones(len(names), dtype=bool) if cuts is None else forgotten(m, cut),
                symmetric=symmetric,
                clusters=levels,
                tied=_tied(thresholds, name),
            )
        )
    return found


def _tied(thresholds: pd.DataFrame | Mapping[str, float] | None, metric: str) -> tuple[float, ...]:
    if thresholds is None or isinstance(thresholds, Mapping):
        return ()
    cuts = thresholds.loc[thresholds["metric"] == metric, "threshold"]
    return tuple(float(cut) for cut in cuts) if len(cuts) > 1 else ()


def _names(frame: pd.DataFrame, role: str) -> list[str]:
    if "model" not in frame.columns:
        raise DataError(f"the table {role} lacks the column 'model': it says which rows are the same model.")
    return [str(name) for name in frame["model"]]


def _after(
    frame: pd.DataFrame | None, metric: str, points: Points, models: Sequence[str], role: str
) -> np.ndarray | None:
    if frame is None:
        return None
    names = _names(frame, role)
    unknown = sorted(set(names) - set(models))
    if unknown:
        raise DataError(f"the table {role} has the model {unknown[0]!r}, which is not in the table before.")
    if metric not in frame.columns:
        return np.full(len(models), math.nan)
    means = oriented(frame[metric], points).groupby(names).mean()
    return means.reindex(list(models)).to_numpy(dtype=float)


# The judgement of one metric under one filter setting.

_FEW = 10
"""Models below which a mean is quoted with a caution."""

_GRID = 101
"""Shifts at which mean R is taken across the interval of the shift, besides those where it may turn."""


def judge(
    found: Perturbed,
    setting: str,
    with_threshold: bool,
    distance: float,
    confidence: float,
) -> dict[str, Any]:
    """One row as in `uds_lens.meta.ROBUSTNESS`, without `p_first`.

    Args:
        found: The metric in its states.
        setting: Name of the filter setting.
        with_threshold: Whether a threshold was asked for.
        distance: |mean_P - mean_N|; NaN if unknown.
        confidence: Of the intervals.
    """
    kept = found.only(found.kept)
    n = len(kept.models)
    row: dict[str, Any] = {**dict.fromkeys(ROBUSTNESS, math.nan), "metric": found.metric, "filter": setting}
    row |= {"models": "own", "n": n, "threshold": found.threshold, "n_q": 0, "n_r": 0, "n_shift": 0}
    row |= dict.fromkeys(("unmoved_q", "unmoved_r", "above_q", "above_r"), 0)
    name, outer, _ = outer_and_inner(kept.clusters, kept.models)
    row |= {"clusters": name, "n_clusters": len(set(outer)), "interval_reason": None}
    row |= {"q_reason": None, "r_reason": None, "caution": None}
    why = None
    if with_threshold and math.isnan(found.threshold):
        why = "there is no threshold for it"
    elif not n:
        why = "no model passes the filters" if len(found.models) else "there is no model"
    if why is not None:
        return row | {"q_reason": why, "r_reason": why}
    row |= _quantisation(kept, distance, confidence)
    row |= _relearning(kept, confidence)
    row["rob"] = float(harmonic_means(np.array([[row["q"], row["r"]]]))[0])
    return row | {"caution": _caution(row, kept)}


def _quantisation(kept: Perturbed, distance: float, confidence: float) -> dict[str, Any]:
    values = kept.q()
    if values is None or kept.quantised is None:
        return {"q_reason": "no quantised models were given"}
    there = ~np.isnan(values)
    if not there.any():
        return {"q_reason": "no model has a value after quantisation"}
    before, after = kept.before[there], kept.quantised[there]
    moves = np.abs(after - before)
    found: dict[str, Any] = {
        "n_q": int(there.sum()),
        "unmoved_q": int((moves <= EPSILON).sum()),
        "above_q": int((after > before + EPSILON).sum()),
        "spearman_q": _spearman(before, after),
        "relative_move": float(moves.mean()) / distance if distance > 0 else math.nan,
    }
    if _constant(before, after):
        return found | {"q_reason": "constant: all models have the same value before and after"}
    return (
        found
        | {"q": float(values[there].mean())}
        | _intervals("q", kept.only(there), values[there], confidence)
    )


def _relearning(kept: Perturbed, confidence: float) -> dict[str, Any]:
    if kept.relearned is None or kept.change is None:
        return {"r_reason": "no relearned models were given"}
    if kept.shift is None:
        return {"r_reason": "R needs retain before and after relearning"}
    shift = kept.shift
    found: dict[str, Any] = {"shift": shift.mean, "shift_low": shift.low, "shift_high": shift.high}
    found["n_shift"] = shift.n
    if math.isnan(shift.mean):
        return found | {"r_reason": shift.reason}
    there = ~np.isnan(kept.change)
    if not there.any():
        return found | {"r_reason": "no model has a value after relearning"}
    kept = kept.only(there)
    change, values = kept.change, kept.r(shift.mean)
    if change is None or values is None or kept.relearned is None:
        return found
    found |= {
        "n_r": len(change),
        "unmoved_r": int((np.abs(change) <= EPSILON).sum()),
        "above_r": int((change > shift.mean + EPSILON).sum()),
        "spearman_r": _spearman(kept.before, kept.relearned),
        "r_at_shift": float(values.mean()),
    }
    found |= _intervals("r", kept, values, confidence)
    if not math.isnan(shift.low):
        found["r_shift_low"], found["r_shift_high"] = _over_shift(kept, shift)
    if _constant(kept.before, kept.relearned):
        return found | {"r_reason": "constant: all models have the same value before and after"}
    if shift.contains_zero:
        return found | {"r_reason": f"retain may not move at all: {_interval_text(shift)}"}
    return found | {"r": found["r_at_shift"]}


def _interval_text(shift: RetainShift) -> str:
    if math.isnan(shift.low):
        return f"its shift is {shift.mean:.3g} in a single relearning"
    return f"the interval of its shift, {shift.low:.3g} to {shift.high:.3g}, contains 0"


def _over_shift(kept: Perturbed, shift: RetainShift) -> tuple[float, float]:
    """Extremes of mean R over the interval of the shift: on a grid, and where one model's R turns."""
    change = kept.change
    if change is None:
        return NO_INTERVAL.low, NO_INTERVAL.high
    turns = np.append(change, 0.0)
    inside = turns[(turns > shift.low) & (turns < shift.high)]
    shifts = np.concatenate([np.linspace(shift.low, shift.high, _GRID), inside])
    means = relearning_over_shifts(change, shifts, symmetric=kept.symmetric).mean(1)
    return float(means.min()), float(means.max())


def _intervals(prefix: str, kept: Perturbed, values: np.ndarray, confidence: float) -> dict[str, Any]:
    """Return the interval of a mean over models, with the outer clusters and with runs."""
    name, outer, inner = outer_and_inner(kept.clusters, kept.models)
    (low, high), reason = clustered_mean(values, outer, confidence)
    (runs_low, runs_high), _ = clustered_mean(values, inner, confidence)
    found: dict[str, Any] = {f"{prefix}_low": low, f"{prefix}_high": high}
    found |= {f"{prefix}_runs_low": runs_low, f"{prefix}_runs_high": runs_high}
    if reason is not None:
        return found | {"interval_reason": reason.replace("cluster", name, 1)}
    if (most := dominated_by(values, outer)) is not None:
        found[f"_{prefix}_dominated"] = f"{name} {most}"
    return found


def _constant(before: np.ndarray, after: np.ndarray) -> bool:
    both = np.concatenate([before, after])
    return len(before) > 1 and float(np.ptp(both)) <= EPSILON


def _spearman(before: np.ndarray, after: np.ndarray) -> float:
    """Rank correlation; NaN with fewer than three models, or where one side is constant."""
    if len(before) < 3 or np.ptp(before) == 0 or np.ptp(after) == 0:
        return math.nan
    from scipy.stats import spearmanr

    return float(spearmanr(before, after).statistic)


def _caution(row: dict[str, Any], kept: Perturbed) -> str | None:
    found = []
    if kept.tied:
        low, high = min(kept.tied), max(kept.tied)
        found.append(
            f"{len(kept.tied)} cuts separate the pools equally well ({low:.3g} to {high:.3g}, the lowest is used): "
            "the models, and so the numbers, hang on which is taken"
        )
    for name, mean in (("q", "q"), ("r", "r_at_shift")):
        most = row.pop(f"_{name}_dominated", None)
        if most is not None:
            found.append(
                f"more than half of how far {name.upper()} lies from {row[mean]:.0f} comes from {most}: its interval "
                "may be too short"
            )
    if row["n"] < _FEW:
        found.append(f"only {row['n']} models pass the filters")
    if row["n_q"] and 10 * row["unmoved_q"] >= row["n_q"]:
        found.append(
            f"quantisation does not move {row['unmoved_q']} of {row['n_q']} models, which earn Q = 1"
        )
    if row["n_r"] and 10 * row["unmoved_r"] >= row["n_r"]:
        found.append(f"relearning does not move {row['unmoved_r']} of {row['n_r']} models")
    if row["n_shift"] == 1:
        found.append("the shift of retain comes from a single relearning: R has no interval for it")
    for name, there in (("quantised", row["n_q"]), ("relearned", row["n_r"])):
        if there and there < row["n"]:
            found.append(f"{row['n'] - there} models have no {name} value")
    return "; ".join(found) or None


# Which models all metrics can be judged on, and why there may be none.


def common_models(found: Sequence[Perturbed]) -> np.ndarray:
    """Models that pass for all metrics that take part, with all values that were measured."""
    shared = np.ones(len(found[0].models), dtype=bool)
    for each in found:
        if takes_part(each):
            shared &= _complete(each)
    return shared


def takes_part(each: Perturbed) -> bool:
    """Whether a metric has values and, where thresholds are used, one of its own."""
    without_cut = np.isnan(each.threshold) and not each.forgot.any()
    return not without_cut and not np.isnan(each.before).all()


def why_none(found: Sequence[Perturbed]) -> str:
    """Why no model is common: the metrics that let none pass, or that each passes others."""
    if not found[0].useful.any():
        return "no model passes the filters"
    blocking = [each.metric for each in found if takes_part(each) and not _complete(each).any()]
    if not blocking:
        return "no model is common to all metrics: each lets others pass"
    named = ", ".join(blocking[:3]) + (f" and {len(blocking) - 3} more" if len(blocking) > 3 else "")
    return f"no model is common to all metrics: none passes for {named}"


def _complete(each: Perturbed) -> np.ndarray:
    complete = each.kept.copy()
    for after in (each.quantised, each.relearned):
        if after is not None and not np.isnan(after).all():
            complete &= ~np.isnan(after)
    return complete


# How sure it is that a metric is first by Overall: in which share of resamples it is.


class FirstByOverall:
    """Resamples of pools, of clusters of unlearned models, and of relearnings of retain; the same for all metrics."""

    def __init__(
        self,
        pools: pd.DataFrame,
        before: pd.DataFrame,
        metrics: Sequence[str] | None,
        direction: Mapping[str, Points] | None,
        n_resamples: int,
        seed: int,
    ) -> None:
        """Draw the pools.

        Args:
            pools: Models with `knows`; `variant` and `run` where they are known.
            before: Unlearned models: they say which metrics there are.
            metrics: Which columns.
            direction: As in `uds_lens.meta.robustness`.
            n_resamples: How many.
            seed: Of all of them.
        """
        self.n_resamples, self.seed = n_resamples, seed
        self._faithful: dict[str, np.ndarray] = {}
        split = split_pools(pools, "knows", ("variant", "run"))
        bootstrap = PoolBootstrap(split, n_resamples, seed)
        for name, points in directions(before, metrics, direction).items():
            if name in split.frame.columns:
                self._faithful[name] = _aucs(oriented(split.frame[name], points).to_numpy(), bootstrap)

    def shares(self, found: Sequence[Perturbed], rows: Sequence[Mapping[str, Any]]) -> list[float]:
        """Return the share of resamples in which each metric has the highest Overall; ties are split.

        Args:
            found: The metrics at one filter setting.
            rows: Their rows as in `uds_lens.meta.ROBUSTNESS`: a metric without Q or R takes no part.

        Returns:
            One share per metric; NaN for one that takes no part, and for all where one alone does.
        """
        part = [
            not math.isnan(row["rob"]) and each.metric in self._faithful
            for each, row in zip(found, rows, strict=True)
        ]
        if sum(part) < 2:
            return [math.nan] * len(rows)
        overall = np.stack([self._overall(each) for each, there in zip(found, part, strict=True) if there])
        best = overall.max(0)
        first = (overall == best) & (best >= 0)
        shares = iter((first / np.maximum(first.sum(0), 1)).mean(1))
        return [float(next(shares)) if there else math.nan for there in part]

    def _overall(self, each: Perturbed) -> np.ndarray:
        """Overall in every resample; -1 where no model that passes was drawn."""
        kept = each.kept
        rng = np.random.default_rng(self.seed)
        _, outer, _ = outer_and_inner(each.clusters, each.models)
        names, place = np.unique(outer.astype(str), return_inverse=True)
        drawn = rng.multinomial(len(names), [1 / len(names)] * len(names), size=self.n_resamples)
        weights = drawn[:, place] * kept
        q, change, shift = each.q(), each.change, each.shift
        if q is None or change is None or shift is None:
            raise AssertionError("a metric with Q and R has both perturbations")
        moved = np.array(shift.shifts)
        means = moved[rng.integers(len(moved), size=(self.n_resamples, len(moved)))].mean(1)
        r = relearning_over_shifts(change, means, symmetric=each.symmetric)
        parts = np.stack([_weighted(np.broadcast_to(q, r.shape), weights), _weighted(r, weights)], axis=1)
        rob = harmonic_means(parts)
        overall = harmonic_means(np.stack([np.clip(self._faithful[each.metric], 0, 1), rob], axis=1))
        return np.where(np.isnan(overall), -1.0, overall)


def _weighted(values: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Mean of each row over the models that have a value; NaN where none was drawn."""
    weights = weights * ~np.isnan(values)
    total = weights.sum(1)
    sums = (np.nan_to_num(values) * weights).sum(1)
    return np.divide(sums, total, out=np.full(len(total), np.nan), where=total > 0)


def _aucs(m: np.ndarray, bootstrap: PoolBootstrap) -> np.ndarray:
    """F in every resample: whole runs within pool and variant, models by themselves where these are not known."""
    there = ~np.isnan(m)
    kernel = pair_kernel(m[bootstrap.pools.knows & there], m[~bootstrap.pools.knows & there])
    if not kernel.size:
        return np.full(bootstrap.n_resamples, np.nan)
    draws = bootstrap.clustered(there)
    if draws is None or draws.problem is not None:
        draws = bootstrap.independent(there)
    return draws.aucs(kernel)


# Robustness: does a metric hold when a model is quantised, or relearns as a model that never knew would?

_SETTINGS = {
    "none": (False, False),
    "utility": (True, False),
    "threshold": (False, True),
    "utility+threshold": (True, True),
}


def robustness(
    before: pd.DataFrame,
    *,
    quantised: pd.DataFrame | None = None,
    relearned: pd.DataFrame | None = None,
    retain_before: pd.DataFrame | None = None,
    retain_relearned: pd.DataFrame | None = None,
    thresholds: pd.DataFrame | Mapping[str, float] | None = None,
    min_utility: float | None = 0.8,
    symmetric: bool = True,
    faithful: pd.DataFrame | None = None,
    pools: pd.DataFrame | None = None,
    metrics: Sequence[str] | None = None,
    direction: Mapping[str, Points] | None = None,
    cluster: Sequence[str] = ("method", "run"),
    confidence: float = 0.95,
    n_resamples: int = 2000,
    seed: int = 0,
) -> pd.DataFrame:
    """Q, R and robustness of every metric over the models that pass the filters.

    Symmetric: `Q = 1 - |m' - m| / (|m'| + |m| + 1e-10)` and `R = 1 - |Du - Dr| / (|Du| + |Dr| + 1e-10)`, with D
    the change of m by relearning, u the model and r retain. One-directional: `Q = min(m / m', 1)`, 1 where `m' <=
    m`; `R = 1` where `Du <= max(Dr, 0)`, else `max(Dr, 0) / Du`. Both are averaged over models; `Rob = HM(mean Q,
    mean R)`.

    Dr comes from few relearnings of one or few models and is shared by all models, so its interval is carried into R:
    `r_shift_low` and `r_shift_high` are the extremes of mean R over it. Where it contains 0 retain may not move at
    all and R is undefined; `r_at_shift` still tells the number at the mean. A metric with one value for all models
    before and after would earn Q = 1 by the 1e-10; its Q and R are undefined too, and models that do not move are
    counted.

    Models of a run, and runs of a method, are alike, so the intervals of Q and R take whole methods as clusters: they
    speak of other methods. `q_runs_low` and its like take runs: they speak of more runs of these methods. Both are t
    intervals with Satterthwaite's degrees of freedom on the logit scale; with fewer than five clusters there is none.
    They take the shift of retain as it is: read them beside `r_shift_low` and `r_shift_high`.

    Args:
        before: Unlearned models: `model`, metrics, and `utility_rel` for its filter.
        quantised: The same models quantised, by the names in `model`.
        relearned: The same models after relearning; several rows of a model (seeds) are averaged.
        retain_before: One row per retain model.
        retain_relearned: One row per relearning of retain; with several retain models `model` names its start.
        thresholds: Cut on m per metric (mapping, or the result of `thresholds`): only models with `m <= threshold`
            count. None turns the filter off.
        min_utility: Only models with `utility_rel` of at least this count. None turns the filter off.
        symmetric: Penalise both directions, as the UDS paper; False: only knowledge that comes back.
        faithful: Result of `faithfulness`: gives `relative_move` its unit.
        pools: Models that know and models that do not, as in `faithfulness`: adds `p_first`. Whole runs of the pools,
            whole clusters of the unlearned models and relearnings of retain are drawn anew; filters stay as they are.
        metrics: Which columns; None takes the declared metrics, or those of `direction`.
        direction: What a higher value means, for metrics that are not declared.
        cluster: Columns of `before` that say which models belong together, outermost first; those that it lacks are
            passed over. Empty if all models are independent.
        confidence: Of the intervals.
        n_resamples: Resamples behind `p_first`.
        seed: Of these.

    Returns:
        One row per metric, columns as in `uds_lens.meta.ROBUSTNESS`.

    Raises:
        DataError: A column is missing or holds no numbers; a perturbed model is not in `before`.
        ConfigError: A direction is not known.

    Example:
        >>> import pandas as pd
        >>> before = pd.DataFrame({"model": ["a", "b"], "x": [0.2, 0.1], "utility_rel": [0.9, 0.5]})
        >>> after = pd.DataFrame({"model": ["a", "b"], "x": [0.3, 0.4]})
        >>> retain = pd.DataFrame({"x": [0.1]})
        >>> again = pd.DataFrame({"x": [0.3, 0.31, 0.29]})
        >>> row = robustness(before, quantised=after, relearned=after, retain_before=retain, retain_relearned=again,
        ...                  direction={"x": "knowledge"}).iloc[0]
        >>> f"{row['n']} {row['q']:.3f} {row['r']:.3f} {row['rob']:.3f}"
        '1 0.800 0.667 0.727'

    References:
        Lee, Kim and Jo (2026), arXiv 2605.24614; Dorna et al. (2025), OpenUnlearning.
    """
    import pandas as pd

    check_resampling(confidence, n_resamples)
    found = align(
        before,
        quantised,
        relearned,
        retain_before,
        retain_relearned,
        thresholds=thresholds,
        min_utility=min_utility,
        symmetric=symmetric,
        metrics=metrics,
        direction=direction,
        confidence=confidence,
        cluster=cluster,
    )
    setting = next(
        name for name, on in _SETTINGS.items() if on == (min_utility is not None, thresholds is not None)
    )
    rows = [
        judge(
            each,
            setting,
            thresholds is not None,
            _distance(faithful, each.metric),
            confidence,
        )
        for each in found
    ]
    if pools is not None:
        shares = FirstByOverall(pools, before, metrics, direction, n_resamples, seed).shares(found, rows)
        rows = [row | {"p_first": share} for row, share in zip(rows, shares, strict=True)]
    return pd.DataFrame(rows, columns=list(ROBUSTNESS))


def robustness_by_filter(
    before: pd.DataFrame,
    *,
    quantised: pd.DataFrame | None = None,
    relearned: pd.DataFrame | None = None,
    retain_before: pd.DataFrame | None = None,
    retain_relearned: pd.DataFrame | None = None,
    thresholds: pd.DataFrame | Mapping[str, float] | None = None,
    min_utility: float | None = 0.8,
    symmetric: bool = True,
    faithful: pd.DataFrame | None = None,
    pools: pd.DataFrame | None = None,
    metrics: Sequence[str] | None = None,
    direction: Mapping[str, Points] | None = None,
    cluster: Sequence[str] = ("method", "run"),
    confidence: float = 0.95,
    n_resamples: int = 2000,
    seed: int = 0,
) -> pd.DataFrame:
    """The same under every setting of the filters, side by side, on each metric's own models and on common ones.

    Under a threshold every metric is judged on other models; the common ones are those that pass for all metrics and
    have all values. A metric without a threshold, or without any value, does not take part in finding them; one that
    lets no model pass leaves no common model, and the reason names it.

    Args:
        before: As in `robustness`.
        quantised: As in `robustness`.
        relearned: As in `robustness`.
        retain_before: As in `robustness`.
        retain_relearned: As in `robustness`.
        thresholds: As in `robustness`; None leaves the settings with a threshold out.
        min_utility: As in `robustness`; None leaves the settings with utility out.
        symmetric: As in `robustness`.
        faithful: As in `robustness`.
        pools: As in `robustness`.
        metrics: As in `robustness`.
        direction: As in `robustness`.
        cluster: As in `robustness`.
        confidence: As in `robustness`.
        n_resamples: As in `robustness`.
        seed: As in `robustness`.

    Returns:
        One row per filter setting, kind of models (own, common) and metric; columns as in `uds_lens.meta.ROBUSTNESS`.

    Raises:
        DataError: A column is missing or holds no numbers; a perturbed model is not in `before`.
        ConfigError: A direction is not known.

    Example:
        >>> import pandas as pd
        >>> before = pd.DataFrame({"model": ["a", "b"], "x": [0.2, 0.6], "utility_rel": [0.9, 0.9]})
        >>> after = pd.DataFrame({"model": ["a", "b"], "x": [0.2, 0.6]})
        >>> table = robustness_by_filter(before, quantised=after, thresholds={"x": 0.5}, direction={"x": "knowledge"})
        >>> table[table["models"] == "own"].set_index("filter")["n"].to_dict()
        {'none': 2, 'utility': 2, 'threshold': 1, 'utility+threshold': 1}
    """
    import pandas as pd

    check_resampling(confidence, n_resamples)
    drawn = None if pools is None else FirstByOverall(pools, before, metrics, direction, n_resamples, seed)
    rows = []
    for setting, (by_utility, by_threshold) in _SETTINGS.items():
        if (by_utility and min_utility is None) or (by_threshold and thresholds is None):
            continue
        found = align(
            before,
            quantised,
            relearned,
            retain_before,
            retain_relearned,
            thresholds=thresholds if by_threshold else None,
            min_utility=min_utility if by_utility else None,
            symmetric=symmetric,
            metrics=metrics,
            direction=direction,
            confidence=confidence,
            cluster=cluster,
        )
        shared = common_models(found)
        for models in ("own", "common"):
            chosen = found if models == "own" else [each.only(shared) for each in found]
            judged = []
            for whole, each in zip(found, chosen, strict=True):
                distance = _distance(faithful, each.metric)
                row = judge(each, setting, by_threshold, distance, confidence) | {"models": models}
                if models == "common" and not shared.any() and takes_part(whole):
                    row |= dict.fromkeys(("q_reason", "r_reason"), why_none(found))
                judged.append(row)
            if drawn is not None:
                shares = drawn.shares(chosen, judged)
                judged = [row | {"p_first": share} for row, share in zip(judged, shares, strict=True)]
            rows += judged
    return pd.DataFrame(rows, columns=list(ROBUSTNESS))


def perturbation_points(
    before: pd.DataFrame,
    *,
    quantised: pd.DataFrame | None = None,
    relearned: pd.DataFrame | None = None,
    retain_before: pd.DataFrame | None = None,
    retain_relearned: pd.DataFrame | None = None,
    thresholds: pd.DataFrame | Mapping[str, float] | None = None,
    min_utility: float | None = 0.8,
    symmetric: bool = True,
    metrics: Sequence[str] | None = None,
    direction: Mapping[str, Points] | None = None,
) -> pd.DataFrame:
    """Every model of every metric before and after: what Q and R are averages of.

    Args:
        before: As in `robustness`.
        quantised: As in `robustness`.
        relearned: As in `robustness`.
        retain_before: As in `robustness`.
        retain_relearned: As in `robustness`.
        thresholds: As in `robustness`.
        min_utility: As in `robustness`.
        symmetric: As in `robustness`.
        metrics: As in `robustness`.
        direction: As in `robustness`.

    Returns:
        One row per metric and model, columns as in `uds_lens.meta.POINTS`; NaN where a state was not measured.

    Raises:
        DataError: A column is missing or holds no numbers; a perturbed model is not in `before`.
        ConfigError: A direction is not known.

    Example:
        >>> import pandas as pd
        >>> before = pd.DataFrame({"model": ["a"], "x": [0.75]})
        >>> after = pd.DataFrame({"model": ["a"], "x": [0.25]})
        >>> points = perturbation_points(before, quantised=after, min_utility=None, direction={"x": "erasure"})
        >>> points[["before", "quantised", "q"]].round(2).values.tolist()
        [[0.25, 0.75, 0.5]]
    """
    import pandas as pd

    found = align(
        before,
        quantised,
        relearned,
        retain_before,
        retain_relearned,
        thresholds=thresholds,
        min_utility=min_utility,
        symmetric=symmetric,
        metrics=metrics,
        direction=direction,
        confidence=0.95,
    )
    tables = [_points(each) for each in found]
    return pd.concat(tables, ignore_index=True)[list(POINTS)]


def _points(each: Perturbed) -> pd.DataFrame:
    import pandas as pd

    shift = np.nan if each.shift is None else each.shift.mean
    return pd.DataFrame(
        {
            "model": list(each.models),
            "metric": each.metric,
            "before": each.before,
            "quantised": np.nan if each.quantised is None else each.quantised,
            "relearned": np.nan if each.relearned is None else each.relearned,
            "change": np.nan if each.change is None else each.change,
            "shift": shift,
            "q": np.nan if each.quantised is None else each.q(),
            "r": np.nan if each.relearned is None else each.r(shift),
            "useful": each.useful,
            "forgot": each.forgot,
            "kept": each.kept,
        }
    )


def _distance(faithful: pd.DataFrame | None, metric: str) -> float:
    """|mean_P - mean_N| of a metric."""
    if faithful is None:
        return float("nan")
    missing = [name for name in ("metric", "mean_p", "mean_n") if name not in faithful.columns]
    if missing:
        raise DataError(f"faithful lacks {', '.join(missing)}: pass the result of faithfulness(...).")
    row = faithful[faithful["metric"] == metric]
    return abs(float(row["mean_p"].iloc[0]) - float(row["mean_n"].iloc[0])) if len(row) else float("nan")
