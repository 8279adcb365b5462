"""Panels above each other on one x axis: pointing at a layer tells the values of all of them at once.

`plotly.subplots` gives each panel an x axis of its own, and hover labels then stop at the panel's border.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


def panels(heights: Sequence[float], *, columns: int = 1, gap: float = 0.08, space: float = 0.06) -> Any:
    """An empty figure of panels; each column has one x axis, and panels in one row share the range of their y axis.

    Args:
        heights: Height of each row, in any unit, from top to bottom.
        columns: Number of columns, of equal width.
        gap: Free height between rows, as a share of the figure's.
        space: Free width between columns, as a share of the figure's.

    Returns:
        The figure. Row `r` of a single column has the y axis `yaxis`, `yaxis2`, ... from top to bottom.

    Example:
        >>> figure = panels([1, 1], gap=0.2)
        >>> figure.layout.yaxis.domain, figure.layout.yaxis2.domain, figure.layout.xaxis.anchor
        ((0.6, 1.0), (0.0, 0.4), 'y2')
    """
    import plotly.graph_objects as go

    rows = len(heights)
    width = (1 - space * (columns - 1)) / columns
    unit = (1 - gap * (rows - 1)) / sum(heights)
    layout: dict[str, Any] = {}
    for column in range(1, columns + 1):
        left, top = (column - 1) * (width + space), 1.0
        for row, height in enumerate(heights, start=1):
            x, y = _axes(row, column, rows)
            low = top - height * unit
            layout[_key(y)] = {"domain": [max(0.0, round(low, 6)), round(top, 6)], "anchor": x}
            if column > 1:
                layout[_key(y)] |= {"matches": _axes(row, 1, rows)[1], "showticklabels": False}
            top = low - gap
        layout[_key(x)] = {"domain": [round(left, 6), round(left + width, 6)], "anchor": y}
    return go.Figure(layout=layout)


def put(figure: Any, trace: Any, *, row: int, column: int = 1) -> None:
    """Add a trace to a panel; rows and columns count from 1."""
    trace.xaxis, trace.yaxis = _axes(row, column, _rows(figure))
    figure.add_trace(trace)


def level(figure: Any, value: float | int, *, row: int, column: int = 1, colour: str) -> None:
    """A dotted line across a panel, at a value of its y axis."""
    x, y = _axes(row, column, _rows(figure))
    line = {"color": colour, "width": 1, "dash": "dot"}
    figure.add_shape(type="line", xref=f"{x} domain", x0=0, x1=1, yref=y, y0=value, y1=value, line=line)


def heading(figure: Any, text: str, *, column: int, row: int = 1) -> None:
    """Words above a panel, by default the top one of a column."""
    x, y = _axes(row, column, _rows(figure))
    figure.add_annotation(
        text=text, x=0, xref=f"{x} domain", xanchor="left", y=1, yref=f"{y} domain", yanchor="bottom"
    )


def _rows(figure: Any) -> int:
    return len(list(figure.select_yaxes())) // len(list(figure.select_xaxes()))


def _axes(row: int, column: int, rows: int) -> tuple[str, str]:
    place = (column - 1) * rows + row
    return f"x{column}" if column > 1 else "x", f"y{place}" if place > 1 else "y"


def _key(axis: str) -> str:
    return f"{axis[0]}axis{axis[1:]}"
