"""Which part of a block carries the knowledge: audits at several patch sites, compared."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from uds_lens.checked_arguments import arguments_checked
from uds_lens.errors import DataError
from uds_lens.plots.band import curve
from uds_lens.plots.frame_columns import require
from uds_lens.plots.palette import Theme, palette
from uds_lens.plots.safe_text import shown
from uds_lens.plots.template import layer_axis, style

if TYPE_CHECKING:
    import pandas as pd
    import plotly.graph_objects as go


@arguments_checked
def component_profile(
    sites: Mapping[str, pd.DataFrame],
    *,
    theme: Theme = "light",
    title: str | None = "Which component carries the knowledge",
) -> go.Figure:
    """S1 by layer for each patch site, and its mean over layers.

    Args:
        sites: Patch site (`resid_post`, `attn_out` ...) to the `layers_frame()` of an audit at that site.
        theme: Light or dark.
        title: Heading; None leaves it out.

    Returns:
        The figure, in nats per token.

    Raises:
        DataError: No site, or a column is missing.
    """
    if not sites:
        raise DataError("expected at least one patch site with its layers_frame(); got none.")
    for frame in sites.values():
        require(frame, ["layer", "s1_mean"], source="audit.layers_frame()")
    from plotly.subplots import make_subplots

    colours = palette(theme).series
    figure = make_subplots(rows=1, cols=2, column_widths=[0.64, 0.36], horizontal_spacing=0.16)
    for place, (site, frame) in enumerate(sites.items()):
        colour, name = colours[place % len(colours)], shown(site)
        line = curve(frame["layer"], frame["s1_mean"], name=name, colour=colour, hover=f"{name} %{{y:.3f}}")
        figure.add_trace(line, row=1, col=1)
        figure.add_trace(_mean_bar(name, float(frame["s1_mean"].mean()), colour), row=1, col=2)
    layer_axis(figure, max(map(len, sites.values())))
    figure.update_yaxes(title_text="S1, nats per token", rangemode="tozero", row=1, col=1)
    _mean_axes(figure, [shown(site) for site in sites])
    figure.update_layout(hovermode="x unified", hoverdistance=-1)
    subtitle = "Log-probability lost with retain's state at each site: by layer, and the mean over layers."
    return style(figure, theme=theme, title=title, subtitle=subtitle, height=390)


def _mean_bar(name: str, mean: float, colour: str) -> Any:
    import plotly.graph_objects as go

    return go.Bar(
        x=[mean],
        y=[name],
        orientation="h",
        name=name,
        legendgroup=name,
        showlegend=False,
        width=0.6,
        marker={"color": colour, "line": {"width": 0}},
        text=[f"{mean:.3f}"],
        textposition="outside",
        cliponaxis=False,
        hovertemplate=f"{name}: mean over layers %{{x:.3f}} nats per token<extra></extra>",
    )


def _mean_axes(figure: Any, names: list[str]) -> None:
    """The bars' own range (the layer axis set one on all), with room for the numbers at their ends."""
    means = [trace.x[0] for trace in figure.data if trace.type == "bar"]
    low, high = min(0.0, *means), max(0.0, *means)
    room = 0.25 * ((high - low) or 1.0)
    figure.update_xaxes(
        title_text="mean S1, nats per token", range=[low - (room if low < 0 else 0), high + room],
        dtick=None, tickformat=None, nticks=5, row=1, col=2,
    )  # fmt: skip
    figure.update_yaxes(
        autorange="reversed", categoryorder="array", categoryarray=names, showgrid=False, row=1, col=2
    )
