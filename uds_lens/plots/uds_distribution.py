"""How the examples' scores are spread: one number may hide two camps."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from uds_lens.checked_arguments import arguments_checked_but
from uds_lens.plots.frame_columns import require
from uds_lens.plots.palette import Theme, palette
from uds_lens.plots.template import note, style

if TYPE_CHECKING:
    import pandas as pd
    import plotly.graph_objects as go

_BINS = 20


@arguments_checked_but("examples")
def uds_distribution(
    examples: pd.DataFrame, *, theme: Theme = "light", title: str | None = "How deep each example was erased"
) -> go.Figure:
    """Histogram of UDS over examples, with the mean; examples that are not measurable are counted in words.

    Args:
        examples: `audit.examples_frame()`.
        theme: Light or dark.
        title: Heading; None leaves it out.

    Returns:
        The figure: 20 bins from 0 (intact) to 1 (erased).

    Raises:
        DataError: A column is missing.

    Example:
        >>> import pandas as pd
        >>> figure = uds_distribution(pd.DataFrame({"uds": [0.0, 1.0, float("nan")]}))
        >>> figure.data[0].y[0], figure.data[0].y[-1], figure.layout.title.subtitle.text
        (1, 1, '2 measured, 1 not measurable.')
    """
    require(examples, ["uds"], source="audit.examples_frame()")
    import plotly.graph_objects as go

    colours = palette(theme)
    scores = examples["uds"].to_numpy(dtype=float)
    measured = scores[~np.isnan(scores)]
    counts, edges = np.histogram(measured, bins=_BINS, range=(0.0, 1.0))
    spans = [f"{low:.2f} to {high:.2f}" for low, high in pairwise(edges)]
    bars = go.Bar(
        x=(edges[:-1] + edges[1:]) / 2,
        y=[int(count) for count in counts],
        width=0.92 / _BINS,
        marker={"color": colours.erased, "line": {"width": 0}},
        customdata=spans,
        hovertemplate="UDS %{customdata}: %{y} examples<extra></extra>",
    )
    figure = go.Figure(bars)
    if len(measured):
        mean = float(measured.mean())
        figure.add_vline(mean, line={"color": colours.ink, "width": 1.5, "dash": "dot"})
        figure.add_annotation(
            text=f"mean {mean:.2f}",
            x=mean,
            y=1,
            yref="paper",
            xanchor="right" if mean > 0.5 else "left",
            yanchor="top",
            xshift=-6 if mean > 0.5 else 6,
            font={"color": colours.ink},
        )
    else:
        note(figure, "No example is measurable.")
    figure.update_xaxes(
        title_text="UDS of an example, 0 intact to 1 erased",
        range=[-0.01, 1.01],
        dtick=0.25,
        tickformat=".2~f",
    )
    figure.update_yaxes(title_text="examples", rangemode="tozero", tickformat="d")
    subtitle = f"{len(measured)} measured, {len(scores) - len(measured)} not measurable."
    return style(figure, theme=theme, title=title, subtitle=subtitle, height=340, legend=False)
