"""Filters of unlearned models: those that keep their utility, and those that a metric calls unlearned."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd

from uds_lens.errors import ConfigError, DataError
from uds_lens.meta._direction import Points, check_numbers, directions, oriented_columns

_UTILITY = "utility_rel"  # column of the utility filter


def filter_counts(
    frame: pd.DataFrame,
    thresholds: pd.DataFrame | Mapping[str, float],
    *,
    min_utility: float | None = 0.8,
    decimals: int | None = None,
    metrics: Sequence[str] | None = None,
    direction: Mapping[str, Points] | None = None,
) -> pd.DataFrame:
    """Count the models that pass each filter.

    Args:
        frame: Unlearned models: metrics and `utility_rel`.
        thresholds: Cut on m per metric, as a mapping or a table with `metric` and `threshold`.
        min_utility: Smallest `utility_rel`; None lets all pass.
        decimals: The cuts are known to so many decimals only: `n_low` and `n_high` are the counts for the lowest and
            the highest cut that rounds to them.
        metrics: As in `directions`.
        direction: As in `directions`.

    Returns:
        One row per metric: `metric`, `threshold`, `n_models` (with a value), `n_useful`, `n_forgot` (m <= threshold),
        `n` (both), `n_low`, `n_high`, `reason` (why there is no count).

    Raises:
        DataError: A column is missing or not numeric.
        ConfigError: A metric has no direction.

    Example:
        >>> import pandas as pd
        >>> frame = pd.DataFrame({"x": [0.1, 0.2, 0.7], "utility_rel": [0.9, 0.5, 1.0]})
        >>> counts = filter_counts(frame, {"x": 0.3}, direction={"x": "knowledge"})
        >>> counts[["n_useful", "n_forgot", "n"]].values.tolist()
        [[2, 2, 1]]
    """
    cuts, useful = as_cuts(thresholds), useful_models(frame, min_utility)
    half = 0.0 if decimals is None else 0.5 * 10.0**-decimals
    rows = []
    for name, m in oriented_columns(frame, directions(frame, metrics, direction)).items():
        cut, measured = cuts.get(name, math.nan), ~np.isnan(m)
        rows.append(
            {
                "metric": name,
                "threshold": cut,
                "n_models": int(measured.sum()),
                "n_useful": int((useful & measured).sum()),
                "n_forgot": int((m <= cut).sum()),
                "n": int((useful & (m <= cut)).sum()),
                "n_low": int((useful & (m <= cut - half)).sum()),
                "n_high": int((useful & (m <= cut + half)).sum()),
                "reason": "no threshold" if math.isnan(cut) else None,
            }
        )
    return pd.DataFrame(rows)


def as_cuts(thresholds: pd.DataFrame | Mapping[str, float]) -> dict[str, float]:
    """Return cuts by metric, from a mapping, the result of `thresholds` or any table with `metric` and `threshold`."""
    if not isinstance(thresholds, pd.DataFrame):
        return {str(name): float(cut) for name, cut in thresholds.items()}
    if missing := [name for name in ("metric", "threshold") if name not in thresholds.columns]:
        raise DataError(f"the thresholds lack the column {', '.join(missing)}: pass the result of thresholds(...).")
    rows = thresholds[thresholds["chosen"].astype(bool)] if "chosen" in thresholds.columns else thresholds
    twice = rows["metric"][rows["metric"].duplicated()]
    if len(twice):
        raise DataError(f"there are two thresholds for {twice.iloc[0]!r}: mark one with a column 'chosen'.")
    return {str(name): float(cut) for name, cut in zip(rows["metric"], rows["threshold"], strict=True)}


def useful_models(frame: pd.DataFrame, min_utility: float | None) -> np.ndarray:
    """Mark the models that keep enough utility; all of them without the filter, none without a value."""
    if min_utility is None:
        return np.ones(len(frame), dtype=bool)
    if not min_utility >= 0:
        raise ConfigError(f"min_utility must be >= 0 or None; got {min_utility!r}.")
    if _UTILITY not in frame.columns:
        raise DataError(
            f"the table lacks the column {_UTILITY!r} (utility relative to full): add it, or pass min_utility=None."
        )
    check_numbers(frame, [_UTILITY])
    return np.asarray(pd.to_numeric(frame[_UTILITY]).to_numpy(dtype=float) >= min_utility)
