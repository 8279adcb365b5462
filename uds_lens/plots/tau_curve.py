"""How much the score owes to the threshold."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from uds_lens.checked_arguments import arguments_checked_but
from uds_lens.plots.band import band, curve
from uds_lens.plots.frame_columns import require
from uds_lens.plots.palette import Palette, Theme, palette
from uds_lens.plots.panels import panels, put
from uds_lens.plots.template import head, style

if TYPE_CHECKING:
    import pandas as pd
    import plotly.graph_objects as go


@arguments_checked_but("sweep")
def tau_curve(
    sweep: pd.DataFrame,
    *,
    tau: float | int | None = None,
    theme: Theme = "light",
    title: str | None = "What the threshold changes",
) -> go.Figure:
    """UDS, KE layers per example (mean, smallest to largest) and measurable examples over tau.

    Args:
        sweep: `audit.tau_sweep()`.
        tau: The audit's own threshold in nats per token, marked by a line; None marks nothing.
        theme: Light or dark.
        title: Heading; None leaves it out.

    Returns:
        The figure. Thresholds are evenly spaced, whatever their values; a gap in UDS: nothing measurable.

    Raises:
        DataError: A column is missing.
    """
    names = ["tau", "uds", "ke_mean", "ke_min", "ke_max", "n_measured", "n_not_measurable"]
    require(sweep, names, source="audit.tau_sweep()")
    colours, places = palette(theme), list(range(len(sweep)))
    figure = panels([0.4, 0.35, 0.25], gap=0.07)
    hover = "tau %{customdata:g}: UDS %{y:.3f}"
    score = curve(
        places, sweep["uds"], name="UDS", colour=colours.erased, hover=hover, customdata=sweep["tau"]
    )
    put(figure, score, row=1)
    _sizes(figure, sweep, places, colours)
    _counts(figure, sweep, places, colours)
    marked = tau in set(sweep["tau"])
    if marked:
        place = sweep["tau"].tolist().index(tau)
        line = {"color": colours.faint, "width": 1, "dash": "dot"}
        figure.add_shape(type="line", x0=place, x1=place, y0=0, y1=1, yref="paper", line=line)
    figure.update_layout(
        xaxis={
            "title": {"text": "tau, nats per token"},
            "range": [-0.4, len(sweep) - 0.6],
            "tickvals": places,
            "ticktext": [f"{value:g}" for value in sweep["tau"]],
        },
        yaxis={"title": {"text": "UDS"}, "range": [-0.04, 1.06], "dtick": 0.5},
        yaxis2={"title": {"text": "KE layers<br>per example"}, "rangemode": "tozero"},
        yaxis3={"title": {"text": "examples"}, "rangemode": "tozero"},
        hovermode="x unified",
        hoverdistance=-1,
        barmode="stack",
    )
    head(figure, "at this threshold")
    subtitle = "KE layers: those where S1 exceeds tau; band: fewest to most of an example." + (
        " Dotted: the tau of this audit." if marked else ""
    )
    return style(figure, theme=theme, title=title, subtitle=subtitle, height=560)


def _sizes(figure: Any, sweep: Any, places: list[int], colours: Palette) -> None:
    name = "KE layers"
    shade = band(places, sweep["ke_min"], sweep["ke_max"], colour=colours.retain_band, group=name)
    line = curve(
        places,
        sweep["ke_mean"],
        name=name,
        colour=colours.retain,
        hover="KE layers %{y:.2f} (%{customdata[0]:.0f} to %{customdata[1]:.0f})",
        customdata=sweep[["ke_min", "ke_max"]].to_numpy(dtype=float),
    )
    put(figure, shade, row=2)
    put(figure, line, row=2)


def _counts(figure: Any, sweep: Any, places: list[int], colours: Palette) -> None:
    import plotly.graph_objects as go

    parts = (
        ("n_measured", "measured", colours.faint),
        ("n_not_measurable", "not measurable", colours.missing),
    )
    for column, name, colour in parts:
        bars = go.Bar(
            x=places,
            y=sweep[column],
            name=name,
            width=0.5,
            marker={"color": colour, "line": {"width": 0}},
            hovertemplate=f"{name} %{{y}}<extra></extra>",
        )
        put(figure, bars, row=3)
