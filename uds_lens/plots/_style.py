"""The colours of every figure, light and dark: safe for the colour-blind, and apart from each other in grey."""

from __future__ import annotations

import html
import math
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, Literal, TypeAlias

import numpy as np

from uds_lens._types import check_choice
from uds_lens.errors import DataError

Theme: TypeAlias = Literal["light", "dark"]
"""Colours for light or for dark surroundings."""


@dataclass(frozen=True, kw_only=True)
class Palette:
    """One set of colours, `#rrggbb` or `rgba(...)`. No colour occurs twice: one set can be mapped to another."""

    paper: str
    """Behind the figure."""
    ink: str
    """Titles."""
    text: str
    """Axis titles, ticks and legends."""
    faint: str
    """Notes, and marks that step back."""
    grid: str
    """Grid lines."""
    missing: str
    """Cells without a value."""
    share: str
    """Bars of a share that stands beneath a curve."""
    other: str
    """Models that step back behind the one that is looked at."""
    retain: str
    """Stage 1: what retain's state costs."""
    retain_band: str
    """Its spread."""
    unlearned: str
    """Stage 2: what the unlearned model's state costs."""
    unlearned_band: str
    """Its spread."""
    erased: str
    """Erasure: LER and UDS."""
    erased_band: str
    """Its spread."""
    hover: str
    """Behind hover texts."""
    series: tuple[str, ...]
    """Models, sites: any number of equals."""
    scale: tuple[str, ...]
    """0 (intact) to 1 (erased), evenly spaced, lightness rising."""


LIGHT = Palette(
    paper="#ffffff",
    ink="#16191f",
    text="#454b57",
    faint="#747b88",
    grid="#e5e7eb",
    missing="#e3e4e8",
    share="#d3d8e2",
    other="#a9cdc3",
    retain="#0a6cb0",
    retain_band="rgba(10,108,176,0.15)",
    unlearned="#c9540a",
    unlearned_band="rgba(201,84,10,0.15)",
    erased="#0b7a5c",
    erased_band="rgba(11,122,92,0.16)",
    hover="#fefefe",
    series=("#0072b2", "#d55e00", "#009e73", "#aa4a8c", "#c48a00", "#45a3d9", "#5c6370"),
    scale=("#30407f", "#2f6f9f", "#2f9c95", "#7cc47a", "#f0d94a"),
)

DARK = Palette(
    paper="#14171c",
    ink="#f1f3f6",
    text="#bcc3ce",
    faint="#8b93a1",
    grid="#2a2f38",
    missing="#343943",
    share="#3a4250",
    other="#2f5a4e",
    retain="#5ab0ee",
    retain_band="rgba(90,176,238,0.18)",
    unlearned="#f28f45",
    unlearned_band="rgba(242,143,69,0.18)",
    erased="#41c79e",
    erased_band="rgba(65,199,158,0.18)",
    hover="#1f242c",
    series=("#4aa8e8", "#f0853a", "#2fc296", "#d985bf", "#e3b341", "#8fd0f5", "#a3abb8"),
    scale=("#4255a8", "#3583b5", "#35a9a1", "#84cb80", "#f5df55"),
)


def palette(theme: Theme = "light") -> Palette:
    """The colours of a theme.

    Raises:
        ConfigError: No such theme.

    Example:
        >>> palette("light").paper
        '#ffffff'
    """
    check_choice("theme", theme, Theme)
    return LIGHT if theme == "light" else DARK


def recolouring() -> dict[str, str]:
    """Each colour of the light palette to its dark counterpart.

    >>> recolouring()["#ffffff"]
    '#14171c'
    """
    pairs: dict[str, str] = {}
    for field in fields(Palette):
        light, dark = getattr(LIGHT, field.name), getattr(DARK, field.name)
        pairs.update({light: dark} if isinstance(light, str) else zip(light, dark, strict=True))
    return pairs


# The one look of every figure. It is passed to each figure; plotly's global template stays as it is.

FONT = "Inter, 'Helvetica Neue', Helvetica, Arial, 'Liberation Sans', sans-serif"
"""Font stack; nothing is downloaded."""

LEGEND_ROW = 29
"""Height of one row of a legend in pixels."""

_SUBTITLE_HEIGHT, _TITLE_HEIGHT, _BARE_TOP = 20, 34, 14


def template(theme: Theme = "light") -> Any:
    """The plotly template of a theme (`plotly.graph_objects.layout.Template`), new at each call."""
    import plotly.graph_objects as go

    colours = palette(theme)
    return go.layout.Template(layout=_layout(colours))


def _layout(colours: Palette) -> dict[str, Any]:
    axis = {
        "gridcolor": colours.grid,
        "linecolor": colours.faint,
        "tickcolor": colours.faint,
        "zeroline": False,
        "ticks": "outside",
        "ticklen": 4,
        "automargin": True,
        "title": {"standoff": 10, "font": {"size": 13}},
    }
    return {
        "font": {"family": FONT, "size": 12.5, "color": colours.text},
        "title": {
            "font": {"size": 17, "color": colours.ink, "weight": 600},
            "subtitle": {"font": {"size": 12.5, "color": colours.faint}},
            "x": 0,
            "xref": "container",
            "xanchor": "left",
            "pad": {"l": 16, "t": 16},
            "y": 1,
            "yref": "container",
            "yanchor": "top",
        },
        "paper_bgcolor": colours.paper,
        "plot_bgcolor": colours.paper,
        "colorway": list(colours.series),
        "margin": {"l": 64, "r": 24, "b": 52},
        "xaxis": {**axis, "showgrid": False, "showline": True},
        "yaxis": {**axis, "showline": False, "ticks": "", "ticklabelstandoff": 6},
        "hoverlabel": {
            "bgcolor": colours.hover,
            "bordercolor": colours.grid,
            "font": {"family": FONT, "size": 12.5, "color": colours.ink},
            "align": "left",
        },
        "legend": {
            "orientation": "h",
            "x": 0,
            "xanchor": "left",
            "y": 1,
            "yanchor": "bottom",
            "yref": "paper",
            "bgcolor": "rgba(0,0,0,0)",
            "font": {"size": 12.5},
        },
        "bargap": 0.25,
        "barcornerradius": 2,
        "annotationdefaults": {"font": {"size": 12.5, "color": colours.faint}, "showarrow": False},
        "hoversubplots": "axis",
    }


def style(
    figure: Any,
    *,
    theme: Theme,
    title: str | None,
    subtitle: str | None = None,
    height: int = 380,
    legend: bool = True,
) -> Any:
    """Give a figure the look, room for what stands above the plot, and a height in pixels; returns it.

    Args:
        figure: The figure, changed in place.
        theme: Light or dark.
        title: Heading; None leaves heading and subtitle out.
        subtitle: What the marks show, one line.
        height: Height in pixels of the whole figure with its title.
        legend: Whether a legend is shown above the plot.
    """
    top = _BARE_TOP + (LEGEND_ROW if legend else 0)
    heading: dict[str, Any] = {}
    if title is not None:
        top += _TITLE_HEIGHT + (_SUBTITLE_HEIGHT if subtitle else 0)
        heading = {"text": title, "subtitle": {"text": subtitle or ""}}
    elif height > _TITLE_HEIGHT:
        height -= _TITLE_HEIGHT
    figure.update_layout(
        template=template(theme), title=heading, height=height, margin={"t": top}, showlegend=legend
    )
    _without_arrays(figure)
    return figure


def _without_arrays(figure: Any) -> None:
    """Numbers as lists: plotly writes arrays as base64, which older plotly.js (in VS Code, say) cannot read."""
    for trace in figure.data:
        for name in ("x", "y", "z", "text", "customdata"):
            if name in trace and hasattr(trace[name], "tolist"):
                values = trace[name].tolist()
                trace[name] = None  # an equal value would be taken for the one that is there
                trace[name] = values


def legend_rows(names: Sequence[str], *, width: int = 700) -> int:
    """About how many rows a legend takes in a figure of ordinary width; entries that wrap stand in even columns.

    Args:
        names: The entries.
        width: Room for the legend in pixels.

    Example:
        >>> legend_rows(["npo", "rmu"]), legend_rows(["a name of forty letters, more or less ..."] * 4)
        (1, 2)
    """
    widths = [45 + 6 * len(name) for name in names]
    if sum(widths) <= width:
        return 1
    return -(-len(names) // max(1, width // max(widths)))


def layer_axis(figure: Any, n_layers: int) -> None:
    """Layers on every x axis of the figure: integer ticks, and "layer 3" above a hover label of all curves."""
    n = max(n_layers, 1)
    figure.update_xaxes(
        range=[-0.5, n - 0.5],
        dtick=max(1, -(-n // 16)),
        tick0=0,
        tickformat="d",
        hoverformat="d",
        title_text="layer",
    )
    head(figure, "layer %{x}")


def head(figure: Any, text: str) -> None:
    """First line of the hover label that tells all curves at one x (plotly before 6.3 shows x alone)."""
    if "unifiedhovertitle" in figure.layout.xaxis:
        figure.update_xaxes(unifiedhovertitle_text=text)


def note(figure: Any, text: str) -> None:
    """A sentence in the middle of a figure that has nothing to draw."""
    figure.add_annotation(text=text, x=0.5, y=0.5, xref="paper", yref="paper")


# Text from data, made safe for plotly, which reads a little HTML and (with MathJax) LaTeX in every string.

_ENTITIES = str.maketrans(
    {"&": "&amp;", "<": "&lt;", ">": "&gt;", "$": "&#36;", "{": "&#123;", "\u2028": " ", "\u2029": " "}
)

_OF_OBJECTS = {
    *("__proto__", "constructor", "hasOwnProperty", "isPrototypeOf", "propertyIsEnumerable"),
    *("toLocaleString", "toString", "valueOf"),
    *("__defineGetter__", "__defineSetter__", "__lookupGetter__", "__lookupSetter__"),
}
"""Members of every JavaScript object: plotly keeps the sizes of texts in one, and takes them for sizes it knows."""


def shown(text: object, *, width: int | None = None, limit: int = 300) -> str:
    """`text` as plotly will show it, letter by letter: nothing in it is markup.

    Args:
        text: Any value; None is an empty string.
        width: Break lines at this many letters; None keeps one line.
        limit: Letters after which the text is cut, with an ellipsis.

    Example:
        >>> shown("<b>costs $5</b>")
        '&lt;b&gt;costs &#36;5&lt;/b&gt;'
        >>> shown("one two three", width=8)
        'one two<br>three'
    """
    words = " ".join("" if text is None else str(text).split())
    if len(words) > limit:
        words = words[: limit - 1].rstrip() + "…"
    if words in _OF_OBJECTS:
        words += "\u200b"  # takes no room
    lines = [words] if width is None else textwrap.wrap(words, width) or [""]
    return "<br>".join(line.translate(_ENTITIES) for line in lines)


def number(value: float, digits: int = 2) -> str:
    """A number with a true minus sign; NaN in words.

    >>> number(-0.123), number(float("nan"))
    ('−0.12', 'undefined')
    """
    if math.isnan(value):
        return "undefined"
    return f"{value:.{digits}f}".replace("-", "\u2212")


# A mean with its spread: a line over a shaded band that stops where values are missing.


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


# Panels above each other on one x axis: pointing at a layer tells the values of all of them at once.
#
# `plotly.subplots` gives each panel an x axis of its own, and hover labels then stop at the panel's border.


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


# Names at the ends of lines, moved apart where lines end close to each other.

LABEL_HEIGHT = 16
"""Pixels from one name to the next."""

_LETTERS = 22


def label_room(names: Iterable[str]) -> int:
    """Pixels to the right of the plot that the names take."""
    return 34 + 7 * max((min(len(name), _LETTERS) for name in names), default=0)


def end_labels(
    figure: Any, limits: Sequence[float], *, plot_height: float, colours: Mapping[str, str] | None = None
) -> None:
    """Write each trace's name where its line ends, with a thin line to it where the name had to move.

    Args:
        figure: Lines with `meta["place"]`, which becomes the name of the annotation.
        limits: Range of the y axis.
        plot_height: Its height in pixels.
        colours: Colour of a name whose line is too light for text, by the line's colour.
    """
    ends = []
    for trace in figure.data:
        known = [(x, y) for x, y in zip(trace.x, trace.y, strict=True) if y == y]
        if known:
            ends.append((trace, *known[-1]))
    low, high = limits
    gap = LABEL_HEIGHT * (high - low) / plot_height
    places = apart([y for _, _, y in ends], gap=gap, low=low, high=high)
    right = figure.layout.xaxis.range[1]
    for (trace, x, y), place in zip(ends, places, strict=True):
        figure.add_annotation(
            name=str(trace.meta["place"]),
            text=_cut(trace.name),
            x=x,
            y=y,
            ax=right,
            ay=place,
            axref="x",
            ayref="y",
            xanchor="left",
            showarrow=True,
            arrowhead=0,
            arrowwidth=1,
            arrowcolor=trace.line.color,
            standoff=5,
            borderpad=0,
            font={"color": (colours or {}).get(trace.line.color, trace.line.color), "size": 12.5},
        )


def apart(values: Sequence[float], *, gap: float, low: float, high: float) -> list[float]:
    """Places near `values`, in their order, at least `gap` apart and inside the limits where there is room for all.

    >>> apart([0.5, 0.5, 0.9], gap=0.25, low=0.0, high=1.0)
    [0.375, 0.625, 0.9]
    >>> apart([1.0, 1.0], gap=0.5, low=0.0, high=1.0)
    [0.5, 1.0]
    """
    order = sorted(range(len(values)), key=lambda i: values[i])
    groups: list[
        tuple[float, list[int]]
    ] = []  # centre and members; members stand a gap apart around the centre
    for i in order:
        centre, members = values[i], [i]
        while True:
            centre = _inside(centre, len(members), gap, low, high)
            if not groups or centre - groups[-1][0] >= gap * (len(members) + len(groups[-1][1])) / 2 - 1e-12:
                break
            before, earlier = groups.pop()
            n, m = len(earlier), len(members)
            centre, members = (before * n + centre * m) / (n + m), [*earlier, *members]
        groups.append((centre, members))
    found = [0.0] * len(values)
    for centre, members in groups:
        for rank, i in enumerate(members):
            found[i] = centre + gap * (rank - (len(members) - 1) / 2)
    return found


def _inside(centre: float, n: int, gap: float, low: float, high: float) -> float:
    half = gap * (n - 1) / 2
    return max(min(centre, high - half), low + half)


def _cut(name: str) -> str:
    """A name that is already safe for plotly, cut between letters and not within one."""
    return shown(html.unescape(name).replace("\u200b", ""), limit=_LETTERS)


# What stands beside a row: its label if the frame has one, else its name.


def row_labels(frame: Any, *, name: str = "metric", limit: int = 28) -> list[str]:
    """One text per row, safe for plotly.

    Args:
        frame: A data frame with the column `name`, and perhaps `label`.
        name: Column that is taken where there is no label.
        limit: Letters after which a text is cut.

    Example:
        >>> import pandas as pd
        >>> row_labels(pd.DataFrame({"metric": ["es", "<b>"], "label": ["Extraction Strength", None]}))
        ['Extraction Strength', '&lt;b&gt;']
    """
    labels = list(frame["label"]) if "label" in frame.columns else [None] * len(frame)
    return [
        shown(label if isinstance(label, str) and label else own, limit=limit)
        for own, label in zip(frame[name], labels, strict=True)
    ]


# Checks that a frame has the columns a figure draws.


def require(frame: Any, columns: Iterable[str], *, source: str) -> None:
    """Raise unless `frame` has all `columns`.

    Args:
        frame: A data frame.
        columns: Names it must have.
        source: What makes such a frame, named in the message.

    Raises:
        DataError: A column is missing, or it is no frame.

    Example:
        >>> import pandas as pd
        >>> require(pd.DataFrame({"layer": []}), ["layer", "ler_mean"], source="audit.layers_frame()")
        Traceback (most recent call last):
            ...
        uds_lens.errors.DataError: the frame lacks ler_mean: pass one with the columns of audit.layers_frame().
    """
    found: Sequence[str] | None = getattr(frame, "columns", None)
    if found is None:
        raise DataError(f"expected a data frame with the columns of {source}; got {type(frame).__name__}.")
    missing = [name for name in columns if name not in found]
    if missing:
        raise DataError(f"the frame lacks {', '.join(missing)}: pass one with the columns of {source}.")
