"""Directions of metrics: declared or given, and values oriented so that more means more knowledge."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Literal, TypeAlias

from uds_lens._types import check_choice
from uds_lens.errors import ConfigError, DataError

if TYPE_CHECKING:
    import pandas as pd


Points: TypeAlias = Literal["knowledge", "erasure"]
"""Meaning of a higher value of a metric."""

COMPARED = ("memorization", "generation", "membership", "representation")
"""Groups of metrics that are judged when none is named: not utility, and not the aggregates."""


def declared_directions() -> dict[str, tuple[Points, str]]:
    """Return direction and group of the declared metrics of forgetting; those of utility are left out.

    >>> declared_directions()["uds"]
    ('erasure', 'representation')
    """
    from uds_lens.metrics import METRICS

    found: dict[str, tuple[Points, str]] = {}
    for name, spec in METRICS.items():
        if spec.meaning.direction == "knowledge" or spec.meaning.direction == "erasure":
            found[name] = (spec.meaning.direction, spec.group)
    return found


def declared_base(name: str) -> str | None:
    """Return the one metric that another is computed from; None for all others.

    >>> declared_base("s_mia_loss"), declared_base("uds")
    ('mia_loss', None)
    """
    from uds_lens.metrics import METRICS

    return METRICS[name].uses[0] if name in METRICS and len(METRICS[name].uses) == 1 else None


def directions(
    frame: pd.DataFrame,
    metrics: Sequence[str] | None = None,
    direction: Mapping[str, Points] | None = None,
) -> dict[str, Points]:
    """Find the metrics of a table and what a higher value of each means.

    A metric's own declaration (`uds_lens.metrics.METRICS`) says which way it points; `direction` adds metrics that
    are not declared, and overrides those that are. Nothing is ever turned round by looking at the data.

    Args:
        frame: One row per model, metrics as columns.
        metrics: Which columns; None takes those that `direction` names, or without it every declared metric of
            forgetting that is a column.
        direction: `{"my_metric": "knowledge"}` or `"erasure"`.

    Returns:
        Name to direction, in the order of `metrics`, else of the columns.

    Raises:
        ConfigError: A direction is neither "knowledge" nor "erasure", or none is known for a metric that was asked
            for.
        DataError: A metric that was asked for is no column, holds no numbers, or there is no metric at all.

    Example:
        >>> import pandas as pd
        >>> directions(pd.DataFrame({"model": ["a"], "x": [0.1]}), direction={"x": "erasure"})
        {'x': 'erasure'}
    """
    metrics = [metrics] if isinstance(metrics, str) else metrics
    given = dict(direction or {})
    for name, points in given.items():
        check_choice(f"direction[{name!r}]", points, Points)
    if metrics is not None or given:
        asked = list(given if metrics is None else metrics)
        _check_columns(frame, asked)
        declared = {} if set(asked) <= set(given) else declared_directions()
        found = {name: _known(name, given, declared) for name in asked}
    else:
        declared = {name: way for name, way in declared_directions().items() if way[1] in COMPARED}
        found = {str(name): declared[name][0] for name in frame.columns if name in declared}
    if not found:
        shown = ", ".join(map(str, list(frame.columns)[:12])) or "no column"
        raise DataError(
            f"the table has no metric whose direction is known; its columns: {shown}. "
            'Name yours with direction={"my_metric": "knowledge"} or "erasure".'
        )
    _check_numbers(frame, found)
    return found


def oriented(values: pd.Series, points: Points) -> pd.Series:
    """Return m: the value of a metric of knowledge, `1 - value` of one of erasure.

    Args:
        values: One number per model.
        points: What a higher value means.

    Returns:
        m, as floats; NaN stays NaN.

    Example:
        >>> import pandas as pd
        >>> oriented(pd.Series([0.25, 1.0]), "erasure").tolist()
        [0.75, 0.0]
    """
    numbers = values.astype(float)
    return numbers if points == "knowledge" else 1.0 - numbers


def _known(name: str, given: Mapping[str, Points], declared: Mapping[str, tuple[Points, str]]) -> Points:
    if name in given:
        return given[name]
    if name in declared:
        return declared[name][0]
    raise ConfigError(
        f"no direction is known for {name!r}: say what a higher value means with "
        f'direction={{{name!r}: "knowledge"}} or "erasure".'
    )


def _check_columns(frame: pd.DataFrame, names: Sequence[str]) -> None:
    missing = [name for name in names if name not in frame.columns]
    if missing:
        shown = ", ".join(map(str, list(frame.columns)[:20]))
        raise DataError(f"the table lacks the column {', '.join(map(repr, missing))}; it has {shown}.")


def _check_numbers(frame: pd.DataFrame, names: Mapping[str, Points]) -> None:
    import pandas as pd

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
