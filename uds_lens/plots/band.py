"""A mean with its spread: a line over a shaded band that stops where values are missing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np


def outline(
    x: Sequence[float | int], low: Sequence[float | int], high: Sequence[float | int]
) -> tuple[list[float | int | None], list[float | int | None]]:
    """Closed polygons around each unbroken run of values, separated by None.

    A run of a single point becomes a narrow box.

    Example:
        >>> outline([0, 1, 2], [0, 0, float("nan")], [1, 2, 2])
        ([0, 1, 1, 0, None], [0, 0, 2, 1, None])
    """
    xs: list[float | int | None] = []
    ys: list[float | int | None] = []
    known = ~(np.isnan(np.asarray(low, dtype=float)) | np.isnan(np.asarray(high, dtype=float)))
    for run in np.split(np.arange(len(known)), np.flatnonzero(np.diff(known)) + 1):
        if not len(run) or not known[run[0]]:
            continue
        at, lower, upper = [x[i] for i in run], [low[i] for i in run], [high[i] for i in run]
        if len(run) == 1:
            at, lower, upper = [at[0] - 0.15, at[0] + 0.15], lower * 2, upper * 2
        xs += [*at, *at[::-1], None]
        ys += [*lower, *upper[::-1], None]
    return xs, ys


def band(x: Any, low: Any, high: Any, *, colour: str, group: str) -> Any:
    """The shaded band as a trace without legend or hover."""
    import plotly.graph_objects as go

    xs, ys = outline(list(x), list(low), list(high))
    return go.Scatter(
        x=xs,
        y=ys,
        fill="toself",
        fillcolor=colour,
        line={"width": 0, "color": colour},
        mode="lines",
        hoverinfo="skip",
        showlegend=False,
        legendgroup=group,
    )


def curve(
    x: Any,
    y: Any,
    *,
    name: str,
    colour: str,
    hover: str,
    dash: str = "solid",
    customdata: Any = None,
    marker: int = 6,
) -> Any:
    """The line of the means; gaps stay gaps."""
    import plotly.graph_objects as go

    return go.Scatter(
        x=x,
        y=y,
        name=name,
        legendgroup=name,
        mode="lines+markers",
        line={"color": colour, "width": 2.25, "dash": dash},
        marker={"color": colour, "size": marker},
        customdata=customdata,
        hovertemplate=hover + "<extra></extra>",
        connectgaps=False,
    )


def hover_interval(frame: Any, name: str) -> tuple[str, list[str] | None]:
    """What pointing at a mean adds, " (low to high)", and the values for it; nothing where the columns are missing.

    >>> import pandas as pd
    >>> hover_interval(pd.DataFrame({"s1_low": [0.1, float("nan")], "s1_high": [0.2, 0.3]}), "s1")
    ('%{customdata}', [' (0.100 to 0.200)', ''])
    """
    if not {f"{name}_low", f"{name}_high"} <= set(frame.columns):
        return "", None
    ends = zip(frame[f"{name}_low"], frame[f"{name}_high"], strict=True)
    return "%{customdata}", ["" if np.isnan(low) else f" ({low:.3f} to {high:.3f})" for low, high in ends]
