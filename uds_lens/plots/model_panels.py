"""A small panel for each of many models, the others behind it: as lines, or as their range."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, NamedTuple

from uds_lens.plots.palette import Palette
from uds_lens.plots.safe_text import shown

COLUMNS, NARROW = 4, 2
"""Panels in a row: in a figure of ordinary width, and where there is little room."""

_TITLE, _PANEL, _GAP, _AXIS = 22, 92, 16, 52
"""Pixels of a row: words above it, plot, space below; and what stands below the last row."""

_BEHIND = 24
"""Above so many models the lines of the others would fill the panel: their range stands there."""


class Curves(NamedTuple):
    """The models of the figure."""

    layers: Mapping[str, list[int]]
    """Layers by model."""
    values: Mapping[str, list[float]]
    """Their values by model; NaN is a gap."""


def model_panels(
    figure: Any,
    curves: Curves,
    axis: Mapping[str, Any],
    *,
    chosen: str | None,
    references: Collection[str],
    colours: Palette,
) -> int:
    """Fill a figure with one panel per model, highest mean first; returns its height in pixels.

    Args:
        figure: An empty figure.
        curves: The models.
        axis: What all y axes share.
        chosen: The model whose panel is marked.
        references: Models that have no panel and stand, dotted, in all of them.
        colours: Of the theme.
    """
    order = list(curves.values)
    own = sorted(
        (name for name in order if name not in references),
        key=lambda name: _mean(curves.values[name]),
        reverse=True,
    )
    across, lowest, highest = _reach(curves, own)
    traces, titles = [], []
    for panel, name in enumerate(own):
        at = dict(zip(("xaxis", "yaxis"), _axes(panel), strict=True))
        if len(own) <= _BEHIND:
            others = [other for other in own if other != name]
            traces += _behind(curves, others, "the other models", {"color": colours.other, "width": 1}, at)
        else:
            traces.append(_range(across, lowest, highest, colours.share, at))
        dotted = {"color": colours.faint, "width": 1.25, "dash": "dot"}
        traces += _behind(curves, references, "references", dotted, at)
        traces.append(_own(curves, name, order.index(name), colours.erased, at))
        titles.append(_title(name, order.index(name), colours.text, at))
    figure.add_traces(traces)
    wide, height = _grid(len(own), COLUMNS)
    narrow, more = _grid(len(own), NARROW)
    longest = max(map(len, curves.layers.values()), default=1)
    figure.update_layout(
        wide,
        annotations=titles,
        shapes=[] if chosen not in own else [_mark(own.index(chosen), colours.erased_band)],
        hovermode="closest",
        legend={"itemclick": False, "itemdoubleclick": False},
        meta={"kind": "panels", "narrow": {**narrow, "height": more}},
    )
    figure.update_xaxes(range=[-0.5, longest - 0.5], dtick=max(1, -(-longest // 5)), tickformat="d")
    figure.update_yaxes({**axis, "dtick": 0.5} if "dtick" in axis else dict(axis))
    return height


def _mean(own: list[float]) -> float:
    known = [x for x in own if x == x]
    return sum(known) / len(known) if known else float("-inf")


def _axes(panel: int) -> tuple[str, str]:
    number = "" if panel == 0 else str(panel + 1)
    return f"x{number}", f"y{number}"


def _grid(n: int, columns: int) -> tuple[dict[str, Any], int]:
    """Axes of `n` panels in rows of `columns`, and the height of the figure without its title."""
    rows = -(-n // columns)
    pitch, space = _TITLE + _PANEL + _GAP, 0.04
    total = rows * pitch - _GAP
    width = (1 - space * (columns - 1)) / columns
    layout: dict[str, Any] = {}
    for panel in range(n):
        row, column = divmod(panel, columns)
        x, y = _axes(panel)
        left, top = column * (width + space), 1 - (row * pitch + _TITLE) / total
        lowest = panel + columns >= n
        layout[f"xaxis{x[1:]}"] = {
            "domain": [round(left, 6), round(min(1.0, left + width), 6)],
            "anchor": y,
            "showticklabels": lowest,
            "title": {"text": "layer" if lowest else ""},
        }
        layout[f"yaxis{y[1:]}"] = {
            "domain": [max(0.0, round(top - _PANEL / total, 6)), round(top, 6)],
            "anchor": x,
            "showticklabels": column == 0,
        }
    return layout, total + _AXIS + 80


def _behind(
    curves: Curves, names: Collection[str], label: str, line: Mapping[str, Any], at: Mapping[str, str]
) -> list[Any]:
    """Several models as one trace; none without any."""
    import plotly.graph_objects as go

    across: list[int | None] = []
    up: list[float | None] = []
    for name in names:
        across += [*curves.layers[name], None]
        up += [*(None if value != value else round(value, 4) for value in curves.values[name]), None]
    trace = go.Scatter(
        x=across,
        y=up,
        mode="lines",
        name=label,
        legendgroup=label,
        showlegend=at["xaxis"] == "x",
        line=dict(line),
        hoverinfo="skip",
        **at,
    )
    return [trace] if names else []


def _reach(curves: Curves, names: Collection[str]) -> tuple[list[int], list[float], list[float]]:
    """The layers at which any model has a value, with the least and the highest value there."""
    values: dict[int, list[float]] = {}
    for name in names:
        for layer, value in zip(curves.layers[name], curves.values[name], strict=True):
            if value == value:
                values.setdefault(layer, []).append(value)
    layers = sorted(values)
    return layers, [min(values[layer]) for layer in layers], [max(values[layer]) for layer in layers]


def _range(
    layers: list[int], lowest: list[float], highest: list[float], colour: str, at: Mapping[str, str]
) -> Any:
    """What the values of all models span."""
    import plotly.graph_objects as go

    return go.Scatter(
        x=[*layers, *reversed(layers)],
        y=[round(value, 4) for value in (*lowest, *reversed(highest))],
        mode="lines",
        fill="toself",
        fillcolor=colour,
        line={"width": 0, "color": colour},
        name="range of all models",
        legendgroup="range",
        showlegend=at["xaxis"] == "x",
        hoverinfo="skip",
        **at,
    )


def _own(curves: Curves, name: str, place: int, colour: str, at: Mapping[str, str]) -> Any:
    """The model of a panel; `meta` says which it is, for pages that let one be chosen."""
    import plotly.graph_objects as go

    return go.Scatter(
        x=curves.layers[name],
        y=curves.values[name],
        mode="lines+markers",
        name="the model",
        legendgroup="the model",
        legendrank=1,
        showlegend=at["xaxis"] == "x",
        line={"color": colour, "width": 2.25},
        marker={"color": colour, "size": 4},
        hovertemplate=f"{shown(name, limit=40)}<br>layer %{{x}}: %{{y:.3f}}<extra></extra>",
        connectgaps=False,
        meta={"place": place},
        **at,
    )


def _title(name: str, place: int, colour: str, at: Mapping[str, str]) -> dict[str, Any]:
    return {
        "name": str(place),
        "text": shown(name, limit=24),
        "x": 0,
        "xref": f"{at['xaxis']} domain",
        "xanchor": "left",
        "y": 1,
        "yref": f"{at['yaxis']} domain",
        "yanchor": "bottom",
        "yshift": 2,
        "font": {"color": colour, "size": 12.5},
    }


def _mark(panel: int, colour: str) -> dict[str, Any]:
    """A tint behind the panel of the chosen model."""
    x, y = _axes(panel)
    corners = {"x0": 0, "x1": 1, "y0": 0, "y1": 1, "xref": f"{x} domain", "yref": f"{y} domain"}
    return {"type": "rect", **corners, "fillcolor": colour, "line": {"width": 0}, "layer": "below"}
