"""Q and R of every model, and retain's shift under relearning, which R is measured against."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import pandas as pd
from jaxtyping import Float

from uds_lens.errors import ConfigError, DataError, Setting
from uds_lens.meta._direction import Points, oriented
from uds_lens.results._statistics import NO_INTERVAL, Interval, student

EPSILON = 1e-10
"""Epsilon in the denominators of the symmetric forms, as published. It turns 0 / 0 into Q = R = 1 (unchanged)."""


def symmetric_quantisation(
    before: Float[np.ndarray, "model"], after: Float[np.ndarray, "model"]
) -> Float[np.ndarray, "model"]:
    """Compute Q of each model from m before and m' after quantisation: `1 - |m' - m| / (|m'| + |m| + 1e-10)`.

    Returns:
        1 if nothing changes, 0 if m changes from or to 0 or changes sign; NaN if a value is missing.

    Example:
        >>> symmetric_quantisation(np.array([0.2, 0.0]), np.array([0.6, 0.0])).round(3).tolist()
        [0.5, 1.0]
    """
    return 1 - np.abs(after - before) / (np.abs(after) + np.abs(before) + EPSILON)


def one_directional_quantisation(
    before: Float[np.ndarray, "model"], after: Float[np.ndarray, "model"]
) -> Float[np.ndarray, "model"]:
    """Compute Q so that only knowledge that comes back lowers it: `min(m / m', 1)`, and 1 where `m' <= m`.

    Returns:
        1 if m does not rise, 0 if it rises from 0; NaN if a value is missing or negative, since ratios of such values
        are meaningless.

    Example:
        >>> one_directional_quantisation(np.array([0.2, 0.4, 0.0]), np.array([0.4, 0.2, 0.0])).tolist()
        [0.5, 1.0, 1.0]
    """
    ratio = np.divide(before, after, out=np.ones_like(before, dtype=float), where=after > before)
    return np.where(np.isnan(before) | np.isnan(after) | (before < 0) | (after < 0), np.nan, ratio)


def symmetric_relearning(change: Float[np.ndarray, "model"], shift: float) -> Float[np.ndarray, "model"]:
    """Compute R of each model: `1 - |Du - Dr| / (|Du| + |Dr| + 1e-10)`.

    Args:
        change: Du, the change in each model's m under relearning.
        shift: Dr, the change in retain's m.

    Returns:
        1 if both change equally, 0 if they change in opposite directions or only one changes; NaN if a value is
        missing.

    Example:
        >>> symmetric_relearning(np.array([0.3, 0.1, -0.1]), 0.1).round(3).tolist()
        [0.5, 1.0, 0.0]
    """
    return relearning_over_shifts(change, np.array([shift]), symmetric=True)[0]


def one_directional_relearning(change: Float[np.ndarray, "model"], shift: float) -> Float[np.ndarray, "model"]:
    """Compute R so that only a larger rise than retain's lowers it: 1 if `Du <= max(Dr, 0)`, else `max(Dr, 0) / Du`.

    Arguments are those of `symmetric_relearning`.

    Returns:
        1 if a model's rise is at most retain's, 0 if it rises and retain does not; NaN if a value is missing.

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
    """Compute R of each model for each of several shifts of retain; NaN if the change or the shift is NaN."""
    if np.isinf(shifts).any():
        raise ConfigError(Setting("shift"), f" must be a finite number, or NaN; got {shifts[np.isinf(shifts)][0]}.")
    moves, retain = np.broadcast_arrays(change[None, :], shifts[:, None])
    if symmetric:
        return 1 - np.abs(moves - retain) / (np.abs(moves) + np.abs(retain) + EPSILON)
    reference = np.maximum(retain, 0.0)
    ratio = np.divide(reference, moves, out=np.ones(moves.shape), where=moves > reference)
    return np.where(np.isnan(moves) | np.isnan(retain), np.nan, ratio)


@dataclass(frozen=True)
class RetainShift:
    """Dr of one metric."""

    mean: float = math.nan
    """Mean of m after relearning minus m before, taken first over the relearnings of each retain model, then over
    models."""

    low: float = math.nan
    """Lower end of its interval; NaN with a single relearning."""

    high: float = math.nan
    """Upper end."""

    n: int = 0
    """Number of relearnings."""

    reason: str | None = None
    """Why there is no mean or no interval."""

    shifts: tuple[float, ...] = ()
    """The shifts that are averaged: one per relearning or, with several retain models, one per model."""

    @property
    def contains_zero(self) -> bool:
        """Whether the shift may be 0, so that R has no reference."""
        return self.mean == 0 if math.isnan(self.low) else self.low <= 0 <= self.high


def retain_shift(
    before: pd.DataFrame, relearned: pd.DataFrame, metric: str, *, direction: Points, confidence: float = 0.95
) -> RetainShift:
    """Estimate Dr with a t interval over the relearnings of retain.

    With several retain models, the interval is computed from the means of the models, because the seeds of one model
    say nothing about another model.

    Args:
        before: One row per retain model, with the column `metric` and, if there are several rows, `model`.
        relearned: One row per relearning, with the column `metric` and, if there are several retain models, `model`:
            the name of the model that was relearned.
        metric: Name of the metric.
        direction: What a higher value means.
        confidence: Confidence level of the interval.

    Returns:
        The shift; NaN with a reason if a value is missing.

    Raises:
        DataError: `before` has no rows, or `model` does not identify the retain models.

    Example:
        >>> import pandas as pd
        >>> before, after = pd.DataFrame({"x": [0.1]}), pd.DataFrame({"x": [0.30, 0.34, 0.32]})
        >>> shift = retain_shift(before, after, "x", direction="knowledge")
        >>> f"{shift.mean:.3f} {shift.low:.3f} {shift.high:.3f} {shift.n}"
        '0.220 0.170 0.270 3'
    """
    if not len(before):
        raise DataError("retain_before is empty: it needs the values of retain before relearning.")
    if metric not in before.columns or metric not in relearned.columns or not len(relearned):
        return RetainShift(reason=f"no relearned retain model has a value for {metric!r}")
    models, starts = (pd.Series("", range(len(frame))) for frame in (relearned, before))
    if len(before) > 1:
        if "model" not in before.columns or "model" not in relearned.columns:
            raise DataError("with several retain models, retain_before and retain_relearned need a column 'model'.")
        models, starts = (frame["model"].astype(str).reset_index(drop=True) for frame in (relearned, before))
    start = dict(zip(starts, oriented(before[metric], direction), strict=True))
    if len(start) < len(before) or not models.isin(list(start)).all():
        raise DataError(
            "each row of retain_before needs a unique name in the column 'model', and each row of retain_relearned one "
            f"of these names; got {', '.join(starts[:6])} and {', '.join(models.unique()[:6])}."
        )
    moved = (oriented(relearned[metric], direction).reset_index(drop=True) - models.map(start)).dropna()
    if moved.empty:
        return RetainShift(reason=f"retain has no value for {metric!r} before or after relearning")
    groups = moved.groupby(models, sort=False)
    units = moved.tolist() if groups.ngroups == 1 else groups.mean().tolist()
    low, high = _t_interval(units, confidence)
    reason = "retain was relearned only once, so its shift has no interval" if math.isnan(low) else None
    return RetainShift(float(np.mean(units)), low, high, len(moved), reason, tuple(units))


def _t_interval(values: list[float], confidence: float) -> Interval:
    if len(values) < 2:
        return NO_INTERVAL
    error = float(np.std(values, ddof=1)) / math.sqrt(len(values))
    reach = student(confidence, len(values) - 1) * error
    centre = float(np.mean(values))
    return Interval(centre - reach, centre + reach)
