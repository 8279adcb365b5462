"""The one look of every figure. It is passed to each figure; plotly's global template stays as it is."""

from __future__ import annotations

from typing import Any

from uds_lens.plots.palette import Palette, Theme, palette

FONT = "Inter, 'Helvetica Neue', Helvetica, Arial, 'Liberation Sans', sans-serif"
"""Font stack; nothing is downloaded."""

_SUBTITLE_HEIGHT, _TITLE_HEIGHT, _LEGEND_HEIGHT, _BARE_TOP = 20, 34, 30, 14


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
    top = _BARE_TOP + (_LEGEND_HEIGHT if legend else 0)
    heading: dict[str, Any] = {}
    if title is not None:
        top += _TITLE_HEIGHT + (_SUBTITLE_HEIGHT if subtitle else 0)
        heading = {"text": title, "subtitle": {"text": subtitle or ""}}
    elif height > _TITLE_HEIGHT:
        height -= _TITLE_HEIGHT
    figure.update_layout(
        template=template(theme), title=heading, height=height, margin={"t": top}, showlegend=legend
    )
    return figure


def layer_axis(figure: Any, n_layers: int, *, title: str = "layer") -> None:
    """Integer ticks for a layer axis on the lowest row of a figure with shared x, the same range on all rows."""
    n = max(n_layers, 1)
    figure.update_xaxes(
        range=[-0.5, n - 0.5], dtick=max(1, -(-n // 16)), tick0=0, tickformat="d", hoverformat="d"
    )
    rows = len(figure._get_subplot_rows_columns()[0]) if figure._has_subplots() else None
    figure.update_xaxes(title_text=title, row=rows) if rows else figure.update_xaxes(title_text=title)


def note(figure: Any, text: str) -> None:
    """A sentence in the middle of a figure that has nothing to draw."""
    figure.add_annotation(text=text, x=0.5, y=0.5, xref="paper", yref="paper")
