"""Q and R of every model, and how far relearning moves retain: the yardstick of R."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import Float

from uds_lens.errors import ConfigError, DataError, Setting
from uds_lens.meta._direction import Points, oriented
from uds_lens.results._statistics import NO_INTERVAL, Interval

if TYPE_CHECKING:
    import pandas as pd

EPSILON = 1e-10
"""In the denominators of the symmetric forms, as published. It makes 0 / 0 count as "did not move": Q = R = 1."""


def symmetric_quantisation(
    before: Float[np.ndarray, "model"], after: Float[np.ndarray, "model"]
) -> Float[np.ndarray, "model"]:
    """Compute Q of each model: `1 - |m' - m| / (|m'| + |m| + 1e-10)`.

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
    """Compute R of each model: `1 - |Du - Dr| / (|Du| + |Dr| + 1e-10)`.

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
    """Compute Q where only knowledge that comes back counts: `min(m / m', 1)`, and 1 where `m' <= m`.

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
    """Compute R where only models that learn more than retain count: 1 if `Du <= max(Dr, 0)`, else `max(Dr, 0) / Du`.

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
    """Compute R of each model for each of several shifts of retain, symmetric or one-directional.

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
    """The averaged shifts: one number per relearning, or per retain model where there are several."""

    @property
    def contains_zero(self) -> bool:
        """Whether retain may not move at all: R then has no reference."""
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
    """Estimate Dr with an interval from several relearnings of retain.

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
