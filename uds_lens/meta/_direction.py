"""Directions of metrics (declared or given), and values oriented so that higher means more knowledge."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Literal, TypeAlias

import numpy as np
import pandas as pd

from uds_lens._types import check_choice
from uds_lens.data._examples import named
from uds_lens.errors import ConfigError, DataError, Setting
from uds_lens.metrics import METRICS

Points: TypeAlias = Literal["knowledge", "erasure"]
"""What a higher value of a metric means."""

JUDGED = ("memorization", "generation", "membership", "representation")
"""Groups of metrics that are judged by default: all except utility and the aggregates."""


def directions(
    frame: pd.DataFrame, metrics: Sequence[str] | None = None, direction: Mapping[str, Points] | None = None
) -> dict[str, Points]:
    """Find the metrics in a table, and what a higher value of each one means.

    A metric's declaration (`uds_lens.metrics.METRICS`) gives its direction; `direction` adds directions of undeclared
    metrics and overrides declared ones. The data never reverse a metric.

    Args:
        frame: One row per model, with metrics as columns.
        metrics: Columns to judge. By default, the metrics in `direction` or, if it is also None, all declared metrics
            of forgetting.
        direction: What a higher value means, by column: `{"my_metric": "knowledge"}` or `"erasure"`.

    Returns:
        Direction of each metric by name, in the order of `metrics` or, if it is None, of the columns.

    Raises:
        ConfigError: A direction is neither "knowledge" nor "erasure", or a requested metric has no direction.
        DataError: A requested metric is not a column or not numeric, or there are no metrics at all.

    Example:
        >>> import pandas as pd
        >>> directions(pd.DataFrame({"model": ["a"], "x": [0.1]}), direction={"x": "erasure"})
        {'x': 'erasure'}
    """
    given = dict(direction or {})
    for name, points in given.items():
        check_choice(f"direction[{name!r}]", points, Points)
    if metrics is None and not given:
        known = declared(JUDGED)
        ways = {str(name): known[name] for name in frame.columns if name in known}
    else:
        wanted = list(given) if metrics is None else [metrics] if isinstance(metrics, str) else list(metrics)
        if missing := [name for name in wanted if name not in frame.columns]:
            shown = ", ".join(str(name)[:30] for name in list(frame.columns)[:20])
            raise DataError(f"the table lacks the column {', '.join(map(repr, missing))}; it has {shown}.")
        known = {**declared(), **given}
        for name in wanted:
            if name not in known:
                raise ConfigError(
                    f"no direction is known for {name!r}: say whether a higher value means knowledge or erasure, with ",
                    Setting("direction"),
                    ".",
                )
        ways = {name: known[name] for name in wanted}
    if not ways:
        shown = named(frame.columns, quote="") or "no column"
        raise DataError(
            f"the table has no metric whose direction is known; its columns: {shown}. Say whether a higher value of "
            "your own metric means knowledge or erasure, with ",
            Setting("direction"),
            ".",
        )
    check_numbers(frame, ways)
    return ways


def declared(groups: Sequence[str] | None = None) -> dict[str, Points]:
    """Return the directions of the declared metrics of forgetting; utility metrics have no such direction."""
    ways: dict[str, Points] = {}
    for name, spec in METRICS.items():
        points = spec.meaning.direction
        if (points == "knowledge" or points == "erasure") and (groups is None or spec.group in groups):
            ways[name] = points
    return ways


def check_numbers(frame: pd.DataFrame, names: Iterable[str]) -> None:
    """Raise `DataError` if a column occurs twice, or holds text or an infinite value."""
    for name in names:
        column = frame[name]
        if isinstance(column, pd.DataFrame):
            raise DataError(f"the table has two columns {name!r}: rename one.")
        numbers = pd.to_numeric(column, errors="coerce")
        wrong = column[numbers.isna() & column.notna()]
        if len(wrong):
            raise DataError(f"the column {name!r} must hold numbers; got {str(wrong.iloc[0])[:60]!r}.")
        if (numbers.abs() == float("inf")).any():
            raise DataError(f"the column {name!r} holds an infinite value: leave it empty where undefined.")


def oriented(values: pd.Series, points: Points) -> pd.Series:
    """Return m as floats: the value for a knowledge metric, `1 - value` for an erasure metric; NaN stays NaN.

    Example:
        >>> import pandas as pd
        >>> oriented(pd.Series([0.25, 1.0]), "erasure").tolist()
        [0.75, 0.0]
    """
    numbers = values.astype(float)
    return numbers if points == "knowledge" else 1.0 - numbers


def oriented_columns(frame: pd.DataFrame, ways: Mapping[str, Points]) -> dict[str, np.ndarray]:
    """Return m of each metric, by name."""
    return {name: oriented(frame[name], points).to_numpy() for name, points in ways.items()}
