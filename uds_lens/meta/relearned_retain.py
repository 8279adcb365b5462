"""How far relearning moves retain, the yardstick of R, and how well that is known."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from uds_lens.checked_arguments import arguments_checked
from uds_lens.errors import DataError
from uds_lens.meta.declarations import Points
from uds_lens.meta.direction import oriented
from uds_lens.meta.placements import NO_INTERVAL, Interval

if TYPE_CHECKING:
    import pandas as pd


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


@arguments_checked
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
    names = _names(relearned, starts)
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


def _names(relearned: pd.DataFrame, starts: Mapping[str, float]) -> list[str]:
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
