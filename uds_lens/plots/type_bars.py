"""Depth by type of the entity: names, awards, places ..."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from uds_lens.checked_arguments import arguments_checked_but
from uds_lens.plots.frame_columns import require
from uds_lens.plots.palette import Theme, palette
from uds_lens.plots.safe_text import shown
from uds_lens.plots.template import note, style

if TYPE_CHECKING:
    import pandas as pd
    import plotly.graph_objects as go


@arguments_checked_but("types")
def type_bars(
    types: pd.DataFrame, *, theme: Theme = "light", title: str | None = "Depth by entity type"
) -> go.Figure:
    """Mean UDS per entity type with its bootstrap interval, and how many examples stand behind it.

    Args:
        types: `audit.types_frame()`.
        theme: Light or dark.
        title: Heading; None leaves it out.

    Returns:
        The figure: one bar per type in the frame's order, lowest UDS on top. No bar: not measurable. No interval:
        fewer than two measurable examples.

    Raises:
        DataError: A column is missing.
    """
    require(types, ["type", "n", "n_measured", "uds", "uds_low", "uds_high"], source="audit.types_frame()")
    import plotly.graph_objects as go

    colours = palette(theme)
    names = [shown(name, limit=32) for name in types["type"]]
    above, below = _whiskers(types)
    bars = go.Bar(
        x=types["uds"],
        y=list(range(len(types))),
        orientation="h",
        width=0.62,
        marker={"color": colours.erased, "opacity": 0.85, "line": {"width": 0}},
        error_x={
            "type": "data",
            "array": above,
            "arrayminus": below,
            "color": colours.ink,
            "thickness": 1.3,
            "width": 4,
        },
        customdata=[_words(row) for row in types.itertuples()],
        hovertemplate="%{customdata}<extra></extra>",
    )
    figure = go.Figure(bars)
    for place, row in enumerate(types.itertuples()):
        counts = f"{row.n_measured}" if row.n_measured == row.n else f"{row.n_measured} of {row.n}"
        figure.add_annotation(
            text=counts, x=1.03, xref="paper", xanchor="left", y=place, font={"color": colours.text}
        )
        if math.isnan(row.uds):
            figure.add_annotation(text="not measurable", x=0.01, xanchor="left", y=place)
    if len(types):
        figure.add_annotation(
            text="N", x=1.03, xref="paper", xanchor="left", y=1, yref="paper", yanchor="bottom"
        )
    else:
        note(figure, "No example could be scored.")
    figure.update_xaxes(
        title_text="UDS, 0 intact to 1 erased", range=[0, 1.03], dtick=0.25, tickformat=".2~f", showgrid=True
    )
    figure.update_yaxes(
        tickvals=list(range(len(types))), ticktext=names, range=[len(types) - 0.4, -0.6], showgrid=False
    )
    style(
        figure,
        theme=theme,
        title=title,
        subtitle="Mean over measurable examples with bootstrap interval, by subject where examples share one.",
        height=140 + 34 * max(len(types), 2),
        legend=False,
    )
    return figure.update_layout(margin={"t": figure.layout.margin.t + 16, "r": 96})


def _whiskers(types: Any) -> tuple[list[float], list[float]]:
    above = (types["uds_high"] - types["uds"]).fillna(0.0).clip(lower=0)
    below = (types["uds"] - types["uds_low"]).fillna(0.0).clip(lower=0)
    return above.tolist(), below.tolist()


def _words(row: Any) -> str:
    counts = f"{row.n_measured} of {row.n} measurable"
    if math.isnan(row.uds):
        return f"<b>{shown(row.type)}</b><br>{counts}"
    interval = "" if math.isnan(row.uds_low) else f" ({row.uds_low:.2f} to {row.uds_high:.2f})"
    return f"<b>{shown(row.type)}</b><br>UDS {row.uds:.2f}{interval}<br>{counts}"
