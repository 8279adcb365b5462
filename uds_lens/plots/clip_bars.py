"""What clipping LER to [0, 1] hides, on both sides."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from uds_lens.checked_arguments import arguments_checked_but
from uds_lens.plots.frame_columns import require
from uds_lens.plots.palette import Theme, palette
from uds_lens.plots.template import layer_axis, style

if TYPE_CHECKING:
    import pandas as pd
    import plotly.graph_objects as go


@arguments_checked_but("layers")
def clip_bars(
    layers: pd.DataFrame, *, theme: Theme = "light", title: str | None = "What the clip hides"
) -> go.Figure:
    """Per layer, the share of KE examples with raw LER above 1 (upwards) and below 0 (downwards).

    Above 1 the unlearned state costs more than retain's: over-erasure. Below 0 it helps `full` recall.

    Args:
        layers: `audit.layers_frame()`.
        theme: Light or dark.
        title: Heading; None leaves it out.

    Returns:
        The figure; no bar where no example has knowledge at the layer.

    Raises:
        DataError: A column is missing.
    """
    require(layers, ["layer", "n_ke", "over_share", "negative_share"], source="audit.layers_frame()")
    import plotly.graph_objects as go

    colours = palette(theme)
    sides = (
        ("over_share", 1, "raw LER above 1: over-erased", colours.unlearned),
        ("negative_share", -1, "raw LER below 0: helps recall", colours.retain),
    )
    figure = go.Figure(
        [
            go.Bar(
                x=layers["layer"],
                y=sign * layers[column],
                name=name,
                marker={"color": colour, "line": {"width": 0}},
                customdata=layers[[column, "n_ke"]].to_numpy(dtype=float),
                hovertemplate=f"{name}: %{{customdata[0]:.1%}} of %{{customdata[1]:.0f}}<extra></extra>",
            )
            for column, sign, name, colour in sides
        ]
    )
    ticks = _ticks(*layers[["over_share", "negative_share"]].max().fillna(0.0))
    figure.add_hline(0, line={"color": colours.faint, "width": 1})
    figure.update_yaxes(
        title_text="share of examples<br>with knowledge there",
        range=[1.06 * ticks[0], 1.06 * ticks[-1]],
        tickvals=ticks,
        ticktext=[f"{abs(tick):.0%}" for tick in ticks],
    )
    layer_axis(figure, len(layers))
    figure.update_layout(barmode="relative", hovermode="x unified", hoverdistance=-1)
    subtitle = "Raw LER: S2 / S1 before it is cut to 0 to 1. Share of examples outside, by layer."
    return style(figure, theme=theme, title=title, subtitle=subtitle, height=360)


def _ticks(above: float, below: float) -> list[float]:
    """Round ticks around both largest shares, at least one on each side of zero."""
    largest = max(above, below)
    step = 0.05 if largest <= 0.2 else 0.1 if largest < 0.45 else 0.25
    return [
        round(step * i, 2)
        for i in range(-max(1, math.ceil(below / step)), max(1, math.ceil(above / step)) + 1)
    ]
