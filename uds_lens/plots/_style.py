"""The look of all figures and their common parts: palettes, template, panels, labels, axes."""

from __future__ import annotations

import functools
import html
import math
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, TypedDict

import numpy as np
import plotly.graph_objects as go

from uds_lens._types import check_choice
from uds_lens.errors import DataError

Theme: TypeAlias = Literal["light", "dark"]
"""Colours for a light or a dark background."""


class Look(TypedDict, total=False):
    """Options that every figure accepts."""

    theme: Theme  # colours for a light background (default) or a dark one
    title: str | None  # replaces the default heading; None leaves it out
    width: int | None  # in pixels; None fills the page (860 in a saved image)
    height: int | None  # in pixels; None adapts to the content


@dataclass(frozen=True, kw_only=True)
class Palette:
    """Colours that colour-blind readers can distinguish, and that differ in greyscale.

    No colour occurs twice, so each colour of one palette maps to one colour of the other.
    """

    paper: str
    ink: str  # titles
    text: str  # axis titles, ticks, legends
    faint: str  # notes and background marks
    grid: str
    missing: str  # cells without a value
    share: str  # bars beneath a curve
    other: str  # models drawn in the background
    retain: str  # stage 1
    retain_band: str
    unlearned: str  # stage 2
    unlearned_band: str
    erased: str  # LER and UDS
    erased_band: str
    below: str  # ends of colour scales around 0, light enough to print numbers on
    above: str
    hover: str  # background of hover labels
    series: tuple[str, ...]  # colours for any number of equivalent items
    scale: tuple[str, ...]  # from 0 (intact) to 1 (erased), evenly spaced, increasing in lightness

    @property
    def around_zero(self) -> list[list[Any]]:
        """A plotly colour scale for negative and positive values, with the paper colour at 0."""
        return [[0, self.below], [0.5, self.paper], [1, self.above]]

    @property
    def erasure(self) -> list[list[Any]]:
        """Return `scale` as a plotly colour scale."""
        return [[i / (len(self.scale) - 1), colour] for i, colour in enumerate(self.scale)]


_COLOURS: dict[str, tuple[Any, Any]] = {  # for a light and a dark background
    "paper": ("#ffffff", "#14171c"),
    "ink": ("#16191f", "#f1f3f6"),
    "text": ("#454b57", "#bcc3ce"),
    "faint": ("#747b88", "#8b93a1"),
    "grid": ("#e5e7eb", "#2a2f38"),
    "missing": ("#e3e4e8", "#343943"),
    "share": ("#d3d8e2", "#3a4250"),
    "other": ("#a9cdc3", "#2f5a4e"),
    "retain": ("#0a6cb0", "#5ab0ee"),
    "retain_band": ("rgba(10,108,176,0.15)", "rgba(90,176,238,0.18)"),
    "unlearned": ("#c9540a", "#f28f45"),
    "unlearned_band": ("rgba(201,84,10,0.15)", "rgba(242,143,69,0.18)"),
    "erased": ("#0b7a5c", "#41c79e"),
    "erased_band": ("rgba(11,122,92,0.16)", "rgba(65,199,158,0.18)"),
    "below": ("#e6a373", "#a66333"),
    "above": ("#86b6dc", "#3d79a5"),
    "hover": ("#fefefe", "#1f242c"),
    "series": (
        ("#0072b2", "#d55e00", "#009e73", "#aa4a8c", "#c48a00", "#45a3d9", "#5c6370"),
        ("#4aa8e8", "#f0853a", "#2fc296", "#d985bf", "#e3b341", "#8fd0f5", "#a3abb8"),
    ),
    "scale": (
        ("#30407f", "#2f6f9f", "#2f9c95", "#7cc47a", "#f0d94a"),
        ("#4255a8", "#3583b5", "#35a9a1", "#84cb80", "#f5df55"),
    ),
}
LIGHT, DARK = (Palette(**{name: pair[side] for name, pair in _COLOURS.items()}) for side in (0, 1))


def palette(theme: Theme = "light") -> Palette:
    """Return the colours of a theme."""
    check_choice("theme", theme, Theme)
    return LIGHT if theme == "light" else DARK


def recolouring() -> dict[str, str]:
    """Map each colour of the light palette to its dark counterpart.

    >>> recolouring()["#ffffff"]
    '#14171c'
    """
    pairs: dict[str, str] = {}
    for light, dark in _COLOURS.values():
        pairs.update({light: dark} if isinstance(light, str) else zip(light, dark, strict=True))
    return pairs


FONT = "Inter, 'Helvetica Neue', Helvetica, Arial, 'Liberation Sans', sans-serif"  # font stack; nothing is downloaded
_TITLE_LINE, _SUBTITLE_LINE, _TITLE_PAD, _BARE_TOP = 22, 18, 13, 14  # in pixels
WIDTH, _NARROW = 860, 520  # default width of an image; figures narrower than the second value wrap their labels


def template(theme: Theme = "light") -> go.layout.Template:
    """Return a new plotly template for a theme; it is set per figure, so plotly's global template is unchanged."""
    colours = palette(theme)
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
    title = {
        "font": {"size": 17, "color": colours.ink, "weight": 600},
        "subtitle": {"font": {"size": 12.5, "color": colours.faint}},
        "x": 0,
        "xref": "container",
        "xanchor": "left",
        "y": 1,
        "yref": "container",
        "yanchor": "top",
        "pad": {"l": 16, "t": 16},
    }
    legend = {"orientation": "h", "x": 0, "xanchor": "left", "y": 1, "yanchor": "bottom", "yref": "paper"}
    hover = {"bgcolor": colours.hover, "bordercolor": colours.grid, "align": "left"}
    layout = {
        "font": {"family": FONT, "size": 12.5, "color": colours.text},
        "title": title,
        "paper_bgcolor": colours.paper,
        "plot_bgcolor": colours.paper,
        "colorway": list(colours.series),
        "margin": {"l": 64, "r": 24, "b": 52},
        "xaxis": {**axis, "showgrid": False, "showline": True},
        "yaxis": {**axis, "showline": False, "ticks": "", "ticklabelstandoff": 6},
        "hoverlabel": {**hover, "font": {"family": FONT, "size": 12.5, "color": colours.ink}},
        "legend": {**legend, "bgcolor": "rgba(0,0,0,0)", "font": {"size": 12.5}},
        "bargap": 0.25,
        "barcornerradius": 2,
        "annotationdefaults": {"font": {"size": 12.5, "color": colours.faint}, "showarrow": False},
        "hoversubplots": "axis",
    }
    # do not clip marks at the edge of the plot
    return go.layout.Template(layout=layout, data={"scatter": [{"cliponaxis": False}]})


_template = functools.cache(template)  # shared, since figures copy their template


def style(
    figure: go.Figure,
    heading: str,
    subtitle: str = "",
    *,
    tall: int = 380,
    legend: bool = True,
    room: int = 0,
    note: str | None = None,
    theme: Theme = "light",
    title: str | None = "",
    width: int | None = None,
    height: int | None = None,
) -> go.Figure:
    """Set a figure's look, heading and size in place, and return it.

    Args:
        figure: The figure.
        heading: What the figure shows, in a few words.
        subtitle: What the marks mean.
        tall: Height in pixels if title, subtitle and legend take one line each; further lines add to it.
        legend: Whether the figure has a legend.
        room: Pixels above the plot for panel names.
        note: Sentence in the middle of an empty plot that says why it is empty; None otherwise.
        theme: See `Look`, as `title`, `width` and `height`.
        title: Replaces the heading; None leaves out heading and subtitle.
        width: Pixels.
        height: Pixels.
    """
    if note is not None:
        figure.add_annotation(text=note, x=0.5, y=0.5, xref="paper", yref="paper")
    across = (width or WIDTH) - 32
    lines = {"text": _lines(title or heading, across / 9), "subtitle": _lines(subtitle, across / 6)}
    rows = legend_height(figure, across - 70) if legend else 0
    top = _BARE_TOP + rows + room
    tall += max(0, rows - _LEGEND_ROW)
    if title is None:
        lines, tall = {"text": [], "subtitle": []}, tall - _TITLE_LINE - _TITLE_PAD
    else:
        top += _TITLE_PAD + _TITLE_LINE * len(lines["text"]) + _SUBTITLE_LINE * len(lines["subtitle"])
        tall += _TITLE_LINE * (len(lines["text"]) - 1) + _SUBTITLE_LINE * max(0, len(lines["subtitle"]) - 1)
    texts = {name: "<br>".join(parts) for name, parts in lines.items()}
    figure.update_layout(template=_template(theme), width=width, margin={"t": top}, showlegend=legend)
    if title is not None:
        more = len(lines["text"]) - 1
        # plotly moves a title up by half a line for each additional line
        figure.update_layout(
            title={"text": texts["text"], "subtitle": {"text": texts["subtitle"]}, "pad": {"t": 16 + 11 * more}}
        )
    if narrow({"width": width}):
        tall += _make_room(figure, across)
    figure.update_layout(height=height or tall)
    for trace in figure.data:
        for name in ("x", "y", "z", "text", "customdata"):
            if name in trace and hasattr(trace[name], "tolist"):
                # plotly writes arrays as base64, which older plotly.js (VS Code) cannot read
                values = trace[name].tolist()
                trace[name] = None  # plotly ignores an assignment of equal values
                trace[name] = values
    return figure


def narrow(look: Look) -> bool:
    """Return whether a figure is narrow, as on a phone."""
    return (look.get("width") or WIDTH) < _NARROW


def _lines(text: str, letters: float) -> list[str]:
    # do not wrap titles with markup, which may contain spaces within tags
    return [text] if "<" in text else textwrap.wrap(text, int(letters), break_long_words=False)


def _make_room(figure: go.Figure, width: int) -> int:
    """Wrap row labels and axis titles, and use fewer ticks; return the extra height in pixels."""
    taller = 0
    for axis in figure.select_yaxes():
        if axis.ticktext and axis.showticklabels is not False:
            axis.ticktext = [shown(html.unescape(text), width=22) for text in axis.ticktext]
            wrapped = any("<br>" in text for text in axis.ticktext)
            taller = max(taller, 8 * len(axis.ticktext) if wrapped else 0)
    for axis in figure.select_xaxes():
        span = axis.range[1] - axis.range[0] if axis.range and axis.dtick else 0
        if span > 12:
            axis.dtick = -(-span // 8)
        if axis.title.text and 7 * len(axis.title.text) > width - 110:
            axis.title.text = shown(html.unescape(axis.title.text), width=(width - 110) // 7)
            taller += _SUBTITLE_LINE
    figure.update_layout(margin={"l": 48, "r": min(figure.layout.margin.r or 12, 110)})
    return taller


_LEGEND_ROW = 29  # pixels


def legend_height(figure: go.Figure, width: int) -> int:
    """Estimate the height of plotly's legend at a given width, in pixels.

    >>> long = [f"a name of forty letters, more or less {i}" for i in range(4)]
    >>> few, many = ([go.Scatter(name=name) for name in names] for names in (["npo", "rmu"], long))
    >>> legend_height(go.Figure(few), 700), legend_height(go.Figure(many), 700)
    (29, 49)
    """
    entries = {trace.name: trace.legendgroup for trace in figure.data if trace.name and trace.showlegend is not False}
    widths = [45 + 6 * len(name) for name in entries]
    if sum(widths) <= width:
        return _LEGEND_ROW
    if not any(entries.values()):  # plotly then uses columns of equal width
        return _LEGEND_ROW + 20 * (-(-len(widths) // max(1, width // max(widths))) - 1)
    rows, used = 1, 0
    for entry in widths:
        rows, used = (rows, used + entry) if used + entry <= width else (rows + 1, entry)
    return _LEGEND_ROW * rows


UDS_AXIS: Mapping[str, Any] = {
    "title_text": "UDS (0 intact, 1 erased)",
    "range": [-0.04, 1.04],
    "dtick": 0.25,
    "tickformat": ".2~f",
    "showgrid": True,
}
"""An axis of scores."""

DELTA = "Δ log-prob<br>(nats/token)"  # axis title for S1 and S2
ONLY_COUNTING = "S2 was measured only where S1 is above tau."  # for audits with stage_2="knowledge"


def layer_axis(figure: go.Figure, n_layers: int) -> None:
    """Label every x axis with layers: integer ticks, and "layer 3" as the head of hover labels."""
    n = max(n_layers, 1)
    figure.update_xaxes(
        range=[-0.5, n - 0.5], dtick=max(1, -(-n // 16)), tick0=0, tickformat="d", hoverformat="d", title_text="layer"
    )
    hover_head(figure, "layer %{x}")


def hover_head(figure: go.Figure, text: str) -> None:
    """Set the first line of hover labels that list all curves at one x (plotly before 6.3 shows only x)."""
    if "unifiedhovertitle" in figure.layout.xaxis:
        figure.update_xaxes(unifiedhovertitle_text=text)


def row_axis(figure: go.Figure, names: Sequence[str]) -> None:
    """Label the rows of a figure, with row 0 at the top."""
    figure.update_yaxes(
        tickvals=list(range(len(names))), ticktext=names, range=[len(names) - 0.4, -0.6], showgrid=False
    )


# Plotly interprets some HTML and (with MathJax) LaTeX in every string.

_ENTITIES = str.maketrans(
    {"&": "&amp;", "<": "&lt;", ">": "&gt;", "$": "&#36;", "{": "&#123;", "\u2028": " ", "\u2029": " "}
)


def shown(text: object, *, width: int | None = None, limit: int = 300) -> str:
    """Escape a text so that plotly shows it literally.

    Example:
        >>> shown("<b>costs $5</b>"), shown("one two three", width=8)
        ('&lt;b&gt;costs &#36;5&lt;/b&gt;', 'one two<br>three')
    """
    words = " ".join("" if text is None else str(text).split())
    if len(words) > limit:
        words = words[: limit - 1].rstrip() + "…"
    lines = [words] if width is None else textwrap.wrap(words, width) or [""]
    return "<br>".join(line.translate(_ENTITIES) for line in lines)


def short(text: object, limit: int = 24) -> str:
    """Shorten a name for a heading, without escaping it."""
    return html.unescape(shown(text, limit=limit))


def number(value: float, digits: int = 2) -> str:
    """Format a number with a true minus sign; NaN becomes "undefined".

    >>> number(-0.123), number(float("nan"))
    ('−0.12', 'undefined')
    """
    return "undefined" if math.isnan(value) else f"{value:.{digits}f}".replace("-", "\u2212")


def count(n: int, thing: str) -> str:
    """Write a count with its noun.

    >>> count(1, "model"), count(3, "model")
    ('1 model', '3 models')
    """
    return f"{n} {thing}{'' if n == 1 else 's'}"


def row_labels(frame: Any, *, name: str = "metric", limit: int = 28) -> list[str]:
    """Name each row by its `label` if the frame has one, else by the column `name`, escaped for plotly.

    >>> import pandas as pd
    >>> row_labels(pd.DataFrame({"metric": ["es", "<b>"], "label": ["Extraction Strength", None]}))
    ['Extraction Strength', '&lt;b&gt;']
    """
    labels = frame["label"] if "label" in frame.columns else [None] * len(frame)
    return [
        shown(label if isinstance(label, str) and label else plain, limit=limit)
        for plain, label in zip(frame[name], labels, strict=True)
    ]


# Marks: means are lines over shaded bands, with gaps where values are missing.


def outline(
    x: Sequence[float | int], low: Sequence[float | int], high: Sequence[float | int]
) -> tuple[list[float | int | None], list[float | int | None]]:
    """Return a closed polygon around each unbroken run of values, separated by None; a single point becomes a box.

    >>> outline([0, 1, 2], [0, 0, float("nan")], [1, 2, 2])
    ([0, 1, 1, 0, None], [0, 0, 2, 1, None])
    """
    xs: list[float | int | None] = []
    ys: list[float | int | None] = []
    defined = ~(np.isnan(np.asarray(low, dtype=float)) | np.isnan(np.asarray(high, dtype=float)))
    for run in np.split(np.arange(len(defined)), np.flatnonzero(np.diff(defined)) + 1):
        if not len(run) or not defined[run[0]]:
            continue
        at, lower, upper = [x[i] for i in run], [low[i] for i in run], [high[i] for i in run]
        if len(run) == 1:
            at, lower, upper = [at[0] - 0.15, at[0] + 0.15], lower * 2, upper * 2
        xs += [*at, *at[::-1], None]
        ys += [*lower, *upper[::-1], None]
    return xs, ys


def band(x: Any, low: Any, high: Any, *, colour: str, group: str) -> go.Scatter:
    """Shade between two curves, without legend or hover."""
    xs, ys = outline(list(x), list(low), list(high))
    look = {"fill": "toself", "fillcolor": colour, "line": {"width": 0, "color": colour}, "mode": "lines"}
    return go.Scatter(x=xs, y=ys, hoverinfo="skip", showlegend=False, legendgroup=group, **look)


def curve(
    x: Any, y: Any, *, name: str, colour: str, hover: str, dash: str = "solid", customdata: Any = None
) -> go.Scatter:
    """Draw a line with markers and with gaps at NaN."""
    return go.Scatter(
        x=x,
        y=y,
        name=name,
        legendgroup=name,
        mode="lines+markers",
        line={"color": colour, "width": 2.25, "dash": dash},
        marker={"color": colour, "size": 6},
        customdata=customdata,
        hovertemplate=hover + "<extra></extra>",
        connectgaps=False,
    )


def hover_interval(frame: Any, name: str) -> tuple[str, list[str] | None]:
    """Return a template and texts that add " (low to high)" to a hover label; nothing if the columns are missing.

    >>> import pandas as pd
    >>> hover_interval(pd.DataFrame({"s1_low": [0.1, float("nan")], "s1_high": [0.2, 0.3]}), "s1")
    ('%{customdata}', [' (0.100 to 0.200)', ''])
    """
    if not {f"{name}_low", f"{name}_high"} <= set(frame.columns):
        return "", None
    ends = zip(frame[f"{name}_low"], frame[f"{name}_high"], strict=True)
    return "%{customdata}", ["" if np.isnan(low) else f" ({low:.3f} to {high:.3f})" for low, high in ends]


# Stacked panels share one x axis, so that hovering shows the values in all of them. With `plotly.subplots`, each panel
# would have its own x axis and its own hover label.


def panels(heights: Sequence[float], *, columns: int = 1, gap: float = 0.08, space: float = 0.06) -> go.Figure:
    """Return an empty figure of panels that share an x axis in each column and a y range in each row.

    Example:
        >>> figure = panels([1, 1], gap=0.2)
        >>> figure.layout.yaxis.domain, figure.layout.yaxis2.domain, figure.layout.xaxis.anchor
        ((0.6, 1.0), (0.0, 0.4), 'y2')
    """
    rows = len(heights)
    width = (1 - space * (columns - 1)) / columns
    unit = (1 - gap * (rows - 1)) / sum(heights)
    layout: dict[str, Any] = {}
    for column in range(1, columns + 1):
        left, top = (column - 1) * (width + space), 1.0
        for row, height in enumerate(heights, start=1):
            x, y = _axes(row, column, rows)
            low = top - height * unit
            axis: dict[str, Any] = {"domain": [max(0.0, round(low, 6)), round(top, 6)], "anchor": x}
            if column > 1:
                axis |= {"matches": _axes(row, 1, rows)[1], "showticklabels": False}
            layout[f"yaxis{y[1:]}"] = axis
            top = low - gap
        layout[f"xaxis{x[1:]}"] = {"domain": [round(left, 6), round(left + width, 6)], "anchor": y}
    return go.Figure(layout=layout)


def _axes(row: int, column: int, rows: int) -> tuple[str, str]:
    place = (column - 1) * rows + row
    return f"x{column}" if column > 1 else "x", f"y{place}" if place > 1 else "y"


def _panel(figure: go.Figure, row: int, column: int) -> tuple[str, str]:
    return _axes(row, column, len(list(figure.select_yaxes())) // len(list(figure.select_xaxes())))


def put(figure: go.Figure, trace: Any, *, row: int, column: int = 1) -> None:
    """Add a trace to a panel; rows and columns count from 1."""
    trace.xaxis, trace.yaxis = _panel(figure, row, column)
    figure.add_trace(trace)


def level(figure: go.Figure, value: float | int, *, row: int, column: int = 1, colour: str) -> None:
    """Draw a dotted line across a panel, at a value of its y axis."""
    x, y = _panel(figure, row, column)
    figure.add_shape(
        type="line",
        xref=f"{x} domain",
        x0=0,
        x1=1,
        yref=y,
        y0=value,
        y1=value,
        line={"color": colour, "width": 1, "dash": "dot"},
    )


def panel_heading(figure: go.Figure, text: str, *, column: int, row: int = 1) -> None:
    """Write a text above a panel, by default the top panel of a column."""
    x, y = _panel(figure, row, column)
    figure.add_annotation(text=text, x=0, xref=f"{x} domain", xanchor="left", y=1, yref=f"{y} domain", yanchor="bottom")


# Names at the ends of lines, moved apart where they would overlap.

LABEL_HEIGHT = 16  # pixels from one name to the next


LEADER = {"xanchor": "left", "showarrow": True, "arrowhead": 0, "arrowwidth": 1}
"""A thin line from the end of a curve to its name."""


def label_room(names: Iterable[str], letters: int) -> int:
    """Return the width in pixels of the names to the right of the plot."""
    return 34 + 7 * max((min(len(name), letters) for name in names), default=0)


def end_labels(
    figure: go.Figure,
    letters: int,
    limits: Sequence[float],
    *,
    plot_height: float,
    colours: Mapping[str, str] | None = None,
) -> None:
    """Write each trace's name at the end of its line; a thin line connects the two if the name had to move."""
    ends = []
    for trace in figure.data:
        defined = [(x, y) for x, y in zip(trace.x, trace.y, strict=True) if y == y]
        if defined:
            ends.append((trace, *defined[-1]))
    low, high = limits
    gap = LABEL_HEIGHT * (high - low) / plot_height
    places = apart([y for _, _, y in ends], gap=gap, low=low, high=high)
    for (trace, x, y), place in zip(ends, places, strict=True):
        colour = trace.line.color
        figure.add_annotation(
            name=str(trace.meta["place"]),
            text=shown(short(html.unescape(trace.name), letters)),
            x=x,
            y=y,
            ax=figure.layout.xaxis.range[1],
            ay=place,
            axref="x",
            ayref="y",
            arrowcolor=colour,
            standoff=5,
            borderpad=0,
            **LEADER,
            font={"color": (colours or {}).get(colour, colour), "size": 12.5},
        )


def apart(values: Sequence[float], *, gap: float, low: float, high: float) -> list[float]:
    """Move values as little as possible (least squares) so that they are in order, `gap` apart and within the limits.

    >>> [round(x, 3) for x in apart([0.5, 0.5, 0.9], gap=0.25, low=0.0, high=1.0)]
    [0.375, 0.625, 0.9]
    >>> apart([1.0, 1.0], gap=0.5, low=0.0, high=1.0)
    [0.5, 1.0]
    """
    from scipy.optimize import isotonic_regression

    if not values:
        return []
    order = np.argsort(values, kind="stable")
    steps = gap * np.arange(len(values))
    bases = isotonic_regression(np.asarray(values, dtype=float)[order] - steps).x
    places = np.empty(len(values))
    places[order] = np.clip(bases, low, max(low, high - steps[-1])) + steps
    return [float(place) for place in places]


def require(frame: Any, columns: Iterable[str], *, source: str) -> None:
    """Raise `DataError` unless `frame` has all `columns`; `source` names the code that makes such a frame.

    >>> import pandas as pd
    >>> require(pd.DataFrame({"layer": []}), ["layer", "ler_mean"], source="audit.layers_frame()")
    Traceback (most recent call last):
        ...
    uds_lens.errors.DataError: the frame lacks ler_mean: pass one with the columns of audit.layers_frame().
    """
    there: Sequence[str] | None = getattr(frame, "columns", None)
    if there is None:
        raise DataError(f"expected a data frame with the columns of {source}; got {type(frame).__name__}.")
    missing = [name for name in columns if name not in there]
    if missing:
        raise DataError(f"the frame lacks {', '.join(missing)}: pass one with the columns of {source}.")
