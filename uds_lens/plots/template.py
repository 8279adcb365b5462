"""The one look of every figure. It is passed to each figure; plotly's global template stays as it is."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from uds_lens.checked_arguments import arguments_checked
from uds_lens.plots.palette import Palette, Theme, palette

FONT = "Inter, 'Helvetica Neue', Helvetica, Arial, 'Liberation Sans', sans-serif"
"""Font stack; nothing is downloaded."""

LEGEND_ROW = 29
"""Height of one row of a legend in pixels."""

_SUBTITLE_HEIGHT, _TITLE_HEIGHT, _BARE_TOP = 20, 34, 14


@arguments_checked
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
