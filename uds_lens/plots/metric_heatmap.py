"""Every metric by every criterion: faithfulness, both robustnesses, and what they come to."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from uds_lens.checked_arguments import arguments_checked_but
from uds_lens.plots.frame_columns import require
from uds_lens.plots.palette import Theme, palette
from uds_lens.plots.row_labels import row_labels
from uds_lens.plots.template import note, style

if TYPE_CHECKING:
    import pandas as pd
    import plotly.graph_objects as go

CRITERIA = {"auc": "F", "q": "Q", "r": "R", "rob": "Rob", "overall": "Overall"}
"""Columns of the table and what stands above them."""


@arguments_checked_but("summary")
def metric_heatmap(
    summary: pd.DataFrame, *, theme: Theme = "light", title: str | None = "Metrics by criterion"
) -> go.Figure:
    """The numbers themselves, coloured from 0 to 1, highest Overall on top.

    Args:
        summary: `uds_lens.meta.summary(...)`: `metric`, `auc`, `q`, `r`, `rob`, `overall`, perhaps `n` and `label`.
        theme: Light or dark.
        title: Heading; None leaves it out.

    Returns:
        The figure; a grey cell is undefined.

    Raises:
        DataError: A column is missing.

    Example:
        >>> import pandas as pd
        >>> row = {"metric": ["x"], "auc": [0.9], "q": [0.9], "r": [0.6], "rob": [0.72], "overall": [0.8]}
        >>> metric_heatmap(pd.DataFrame(row)).data[0].text[0][0]
        '0.900'
    """
    require(summary, ["metric", *CRITERIA], source="uds_lens.meta.summary(...)")
    import plotly.graph_objects as go

    colours = palette(theme)
    ordered = summary.sort_values("overall", ascending=False, kind="stable", na_position="last")
    values = [[float(row[name]) for name in CRITERIA] for _, row in ordered.iterrows()]
    sizes = list(ordered["n"]) if "n" in ordered.columns else [math.nan] * len(ordered)
    figure = go.Figure(
        go.Heatmap(
            x=list(CRITERIA.values()),
            y=list(range(len(ordered))),
            z=[[None if math.isnan(value) else value for value in line] for line in values],
            text=[["\u2013" if math.isnan(value) else f"{value:.3f}" for value in line] for line in values],
            texttemplate="%{text}",
            textfont={"size": 12},
            customdata=[["" if math.isnan(n) else f"<br>{n:.0f} models behind Q and R"] * 5 for n in sizes],
            colorscale=[[i / (len(colours.scale) - 1), c] for i, c in enumerate(colours.scale)],
            zmin=0,
            zmax=1,
            xgap=2,
            ygap=2,
            showscale=False,
            hovertemplate="%{y}<br>%{x} %{text}%{customdata}<extra></extra>",
            hoverongaps=False,
        )
    )
    if not len(ordered):
        note(figure, "No metrics.")
    labels = row_labels(ordered)
    figure.update_xaxes(side="top", showline=False, ticks="", fixedrange=True, title_text="")
    figure.update_yaxes(
        tickvals=list(range(len(ordered))), ticktext=labels, range=[len(ordered) - 0.5, -0.5], showgrid=False
    )
    style(
        figure,
        theme=theme,
        title=title,
        subtitle="Rob: harmonic mean of Q and R; Overall: of F and Rob.",
        height=130 + 27 * max(len(ordered), 3),
        legend=False,
    )
    return figure.update_layout(plot_bgcolor=colours.missing, margin_t=figure.layout.margin.t + 22)
