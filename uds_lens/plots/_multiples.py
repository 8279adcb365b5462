"""Combine several figures of one kind into one figure."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import plotly.graph_objects as go

from uds_lens.errors import DataError
from uds_lens.plots._style import Look, narrow, palette, shown, style

if TYPE_CHECKING:
    from typing_extensions import Unpack

_PANEL, _HEAD, _FOOT = 130, 24, 34  # heights in pixels: a panel's plot, the name above it, the ticks below it


def small_multiples(figures: Mapping[str, go.Figure], *, columns: int = 4, **look: Unpack[Look]) -> go.Figure:
    """Draw several figures as panels of one figure with a shared legend, for example all metrics or all models.

    Args:
        figures: A mapping from the name of a panel to its figure; each has one pair of axes, no colour bar and the same
            theme.
        columns: Panels per row; at most two if the figure is narrow.
        **look: Theme, title, width, height (`Look`).

    Returns:
        The figure. Axis titles shared by all panels are written at the left and bottom; other titles are left out.
        Every panel keeps its own range.

    Raises:
        DataError: There is no figure, or a figure has several pairs of axes or a colour bar.

    Example:
        >>> import pandas as pd
        >>> from uds_lens.plots import pool_histogram
        >>> frame = pd.DataFrame({"knows": [True, True, False], "x": [0.9, 0.8, 0.1], "y": [0.5, 0.4, 0.6]})
        >>> figure = small_multiples({name: pool_histogram(frame, name) for name in ("x", "y")})
        >>> [note.text for note in figure.layout.annotations], figure.layout.yaxis.title.text
        (['x', 'y'], 'models')
    """
    from plotly.subplots import make_subplots

    if not figures:
        raise DataError("expected at least one figure to draw as a panel; got none.")
    for name, one in figures.items():
        several = len(list(one.select_xaxes())) > 1 or len(list(one.select_yaxes())) > 1
        if several or any(trace.type == "heatmap" and trace.showscale is not False for trace in one.data):
            raise DataError(f"the figure {name!r} has several pairs of axes or a colour bar, and cannot be a panel.")
    columns = min(columns, len(figures), 2 if narrow(look) else columns)
    rows = -(-len(figures) // columns)
    pitch = _HEAD + _PANEL + _FOOT
    figure = make_subplots(
        rows,
        columns,
        horizontal_spacing=0.16 / columns,
        vertical_spacing=(_HEAD + _FOOT) / (rows * pitch) if rows > 1 else 0,
        subplot_titles=[shown(name, limit=34) for name in figures],
    )
    colour = palette(look.get("theme", "light")).text
    figure.update_annotations(x=0, xanchor="left", font={"size": 12.5, "color": colour})
    for place, head in enumerate(figure.layout.annotations):
        head.update(xref=f"x{place + 1 if place else ''} domain")
    titles = {side: _shared_title(figures, side) for side in ("x", "y")}
    named: set[str] = set()
    for place, one in enumerate(figures.values()):
        row, column = divmod(place, columns)
        at, number = {"row": row + 1, "col": column + 1}, str(place + 1) if place else ""
        for trace in map(copy.deepcopy, one.data):
            if trace.name:
                trace.legendgroup = trace.legendgroup or trace.name
                trace.showlegend = trace.showlegend is not False and trace.name not in named
                named.add(trace.name)
            figure.add_trace(trace, **at)
        figure.update_xaxes(**_axis(one.layout.xaxis, titles["x"] if place + columns >= len(figures) else ""), **at)
        figure.update_yaxes(**_axis(one.layout.yaxis, titles["y"] if column == 0 else ""), **at)
        for add, parts in ((figure.add_shape, one.layout.shapes), (figure.add_annotation, one.layout.annotations)):
            for part in parts:
                add(_moved(part.to_plotly_json(), number))
    first = next(iter(figures.values())).layout
    figure.update_layout({name: first[name] for name in ("barmode", "bargap", "hovermode", "plot_bgcolor")})
    figure.update_layout(legend_y=1 + _HEAD / (rows * pitch - _HEAD - _FOOT))  # above the names of the first row
    legend = any(trace.showlegend for trace in figure.data)
    whole: Look = {"title": None, **look}
    return style(figure, "", tall=70 + rows * pitch, legend=legend, room=_HEAD, **whole)


def _shared_title(figures: Mapping[str, go.Figure], side: str) -> str:
    titles = {one.layout[f"{side}axis"].title.text for one in figures.values()}
    return (titles.pop() or "") if len(titles) == 1 else ""


def _axis(axis: Any, title: str) -> dict[str, Any]:
    left_out = ("domain", "anchor", "title", "dtick")
    kept = {name: value for name, value in axis.to_plotly_json().items() if name not in left_out}
    return {**kept, "nticks": 5, "title": {"text": title}}


def _moved(part: dict[str, Any], number: str) -> dict[str, Any]:
    """Move a shape or annotation to its panel, mapping paper coordinates to the panel's domain."""
    for side in ("x", "y"):
        ref = part.get(f"{side}ref", side)
        part[f"{side}ref"] = f"{side}{number}" if ref == side else f"{side}{number} domain"
    return part
