"""One example, layer by layer."""

from __future__ import annotations

from typing import TYPE_CHECKING

from uds_lens.checked_arguments import arguments_checked_but
from uds_lens.plots.band import curve
from uds_lens.plots.frame_columns import require
from uds_lens.plots.palette import Theme, palette
from uds_lens.plots.panels import level, panels, put
from uds_lens.plots.safe_text import shown
from uds_lens.plots.template import layer_axis, style

if TYPE_CHECKING:
    import pandas as pd
    import plotly.graph_objects as go


@arguments_checked_but("layers")
def example_profile(
    layers: pd.DataFrame,
    *,
    tau: float | int | None = None,
    question: str | None = None,
    theme: Theme = "light",
    title: str | None = "One example, layer by layer",
) -> go.Figure:
    """S1 and S2 of one example above, its LER below.

    Args:
        layers: The rows of `audit.to_frame()` that belong to one example.
        tau: Threshold in nats per token, drawn as a line; None draws none.
        question: Shown under the heading.
        theme: Light or dark.
        title: Heading; None leaves heading and question out.

    Returns:
        The figure; no LER bar where the layer holds nothing (S1 at most tau).

    Raises:
        DataError: A column is missing.
    """
    require(layers, ["layer", "s1_delta", "s2_delta", "ler"], source="audit.to_frame()")
    import plotly.graph_objects as go

    colours, figure = palette(theme), panels([0.62, 0.38], gap=0.1)
    parts = (("s1", "S1: retain's state", colours.retain), ("s2", "S2: unlearned state", colours.unlearned))
    for key, name, colour in parts:
        hover = f"{key.upper()} %{{y:.3f}} nats per token"
        line = curve(layers["layer"], layers[f"{key}_delta"], name=name, colour=colour, hover=hover)
        put(figure, line, row=1)
    bars = go.Bar(
        x=layers["layer"],
        y=layers["ler"],
        name="LER: erased share",
        marker={"color": colours.erased, "line": {"width": 0}},
        hovertemplate="LER %{y:.3f}<extra></extra>",
    )
    put(figure, bars, row=2)
    if tau is not None:
        level(figure, tau, row=1, colour=colours.faint)
    layer_axis(figure, len(layers))
    figure.update_layout(
        yaxis={"title": {"text": "nats per token"}, "rangemode": "tozero"},
        yaxis2={"title": {"text": "LER, 0 to 1"}, "range": [0, 1.05], "dtick": 0.5},
        hovermode="x unified",
        hoverdistance=-1,
    )
    subtitle = None if question is None else shown(question, limit=110)
    return style(figure, theme=theme, title=title, subtitle=subtitle, height=430)
