"""Loss on forget facts against loss on facts that were to be kept, by layer: erasure beside damage."""

from __future__ import annotations

from typing import TYPE_CHECKING

from uds_lens.checked_arguments import arguments_checked_but
from uds_lens.plots.band import band, curve
from uds_lens.plots.frame_columns import require
from uds_lens.plots.palette import Theme, palette
from uds_lens.plots.template import layer_axis, style

if TYPE_CHECKING:
    import pandas as pd
    import plotly.graph_objects as go

_COLUMNS = [f"{name}_{part}" for name in ("forget", "control") for part in ("mean", "low", "high")]


@arguments_checked_but("layers")
def forget_and_kept(
    layers: pd.DataFrame,
    *,
    theme: Theme = "light",
    title: str | None = "What was to go, and what was to stay",
) -> go.Figure:
    """What the unlearned model's states cost on forget facts and on retained facts, per layer, with intervals.

    Args:
        layers: `audit.control_layers_frame()`.
        theme: Light or dark.
        title: Heading; None leaves it out.

    Returns:
        The figure, in nats per token. Without damage the lower curve lies on that of retain's states, near 0.

    Raises:
        DataError: A column is missing.

    Example:
        >>> import pandas as pd
        >>> values = {name: [0.5] for name in _COLUMNS}
        >>> figure = forget_and_kept(pd.DataFrame({"layer": [0], "control_retain_mean": [0.1], **values}))
        >>> [trace.name for trace in figure.data if trace.showlegend is not False]
        ['forget facts', 'retained facts', 'retained facts, states of retain']
    """
    require(layers, ["layer", "control_retain_mean", *_COLUMNS], source="audit.control_layers_frame()")
    import plotly.graph_objects as go

    colours, figure, layer = palette(theme), go.Figure(), layers["layer"]
    parts = (
        ("forget", "forget facts", colours.erased, colours.erased_band),
        ("control", "retained facts", colours.unlearned, colours.unlearned_band),
    )
    for key, name, _, shade in parts:
        figure.add_trace(band(layer, layers[f"{key}_low"], layers[f"{key}_high"], colour=shade, group=name))
    for key, name, colour, _ in parts:
        hover = f"{name} %{{y:.3f}} nats per token"
        figure.add_trace(curve(layer, layers[f"{key}_mean"], name=name, colour=colour, hover=hover))
    name = "retained facts, states of retain"
    hover = f"{name} %{{y:.3f}} nats per token"
    yardstick = layers["control_retain_mean"]
    figure.add_trace(curve(layer, yardstick, name=name, colour=colours.retain, hover=hover, dash="dot"))
    layer_axis(figure, len(layers))
    figure.update_layout(
        yaxis={"title": {"text": "lost log-probability<br>nats per token"}, "rangemode": "tozero"},
        hovermode="x unified",
        hoverdistance=-1,
    )
    return style(
        figure,
        theme=theme,
        title=title,
        subtitle="S2, the loss with the unlearned model's states put in; bands: intervals by subject.",
        height=420,
    )
