"""Several unlearned models by score, each with its interval."""

from __future__ import annotations

import math
from collections.abc import Collection
from typing import TYPE_CHECKING, Any

from uds_lens.checked_arguments import arguments_checked_but
from uds_lens.plots.frame_columns import require
from uds_lens.plots.palette import Palette, Theme, palette
from uds_lens.plots.safe_text import shown
from uds_lens.plots.template import note, style

if TYPE_CHECKING:
    import pandas as pd
    import plotly.graph_objects as go


@arguments_checked_but("models")
def ranking(
    models: pd.DataFrame,
    *,
    references: Collection[str] = (),
    theme: Theme = "light",
    title: str | None = "Unlearning depth",
) -> go.Figure:
    """A dot and an interval per model, highest UDS on top; models without a score stand last, in words.

    Args:
        models: `uds_lens.results.models_frame(audits)`: `model`, `uds`, `uds_low`, `uds_high`, `n_measured`. Where
            `reading` is there and says "withheld", the dot is hollow.
        references: Models that are there for comparison: grey.
        theme: Light or dark.
        title: Heading; None leaves it out.

    Returns:
        The figure, from 0 (intact, as in full) to 1 (erased, as in retain).

    Raises:
        DataError: A column is missing.

    Example:
        >>> import pandas as pd
        >>> columns = {"model": ["npo", "rmu"], "uds": [0.2, 0.6], "uds_low": [0.1, 0.5], "uds_high": [0.3, 0.7]}
        >>> ranking(pd.DataFrame({**columns, "n_measured": [40, 40]})).layout.yaxis.ticktext
        ('rmu', 'npo')
    """
    columns = ["model", "uds", "uds_low", "uds_high", "n_measured"]
    require(models, columns, source="uds_lens.results.models_frame(audits)")
    import plotly.graph_objects as go

    colours = palette(theme)
    ordered = models.sort_values("uds", ascending=False, kind="stable", na_position="last")
    figure = go.Figure()
    for place, row in enumerate(ordered.itertuples()):
        _row(figure, place, row, colours, colours.faint if row.model in references else colours.erased)
    if not len(ordered):
        note(figure, "No models.")
    figure.update_xaxes(
        title_text="UDS, 0 intact to 1 erased",
        range=[-0.03, 1.03],
        dtick=0.25,
        tickformat=".2~f",
        showgrid=True,
    )
    figure.update_yaxes(
        tickvals=list(range(len(ordered))),
        ticktext=[shown(name, limit=36) for name in ordered["model"]],
        range=[len(ordered) - 0.4, -0.6],
        showgrid=False,
    )
    return style(
        figure,
        theme=theme,
        title=title,
        subtitle="Dot: mean over measurable examples; line: bootstrap interval, by subject where examples share one.",
        height=140 + 32 * max(len(ordered), 3),
        legend=False,
    )


def _row(figure: Any, place: int, row: Any, colours: Palette, colour: str) -> None:
    import plotly.graph_objects as go

    name = shown(row.model)
    if math.isnan(row.uds):
        figure.add_annotation(text="not measurable", x=0, xanchor="left", y=place)
        return
    interval = "" if math.isnan(row.uds_low) else f" ({row.uds_low:.3f} to {row.uds_high:.3f})"
    withheld = getattr(row, "reading", None) == "withheld"
    warned = "<br>reading withheld: a warning is fatal" if withheld else ""
    hover = f"<b>{name}</b><br>UDS {row.uds:.3f}{interval}<br>{row.n_measured} examples measured{warned}<extra></extra>"
    line = go.Scatter(
        x=[row.uds_low, row.uds_high],
        y=[place, place],
        mode="lines",
        line={"color": colour, "width": 3},
        opacity=0.55,
        hoverinfo="skip",
    )
    dot = go.Scatter(
        x=[row.uds],
        y=[place],
        mode="markers",
        marker={
            "color": colours.paper if withheld else colour,
            "size": 11,
            "line": {"color": colour if withheld else colours.paper, "width": 1.5},
        },
        hovertemplate=hover,
    )
    figure.add_traces([line, dot])
