"""The layer profile: where the knowledge sits, and how much of it is gone."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from uds_lens.checked_arguments import arguments_checked_but
from uds_lens.plots.band import band, curve, hover_interval
from uds_lens.plots.frame_columns import require
from uds_lens.plots.palette import Palette, Theme, palette
from uds_lens.plots.panels import heading, panels, put
from uds_lens.plots.template import layer_axis, style

if TYPE_CHECKING:
    import pandas as pd
    import plotly.graph_objects as go

_STATISTICS = [f"{name}_{part}" for name in ("s1", "s2", "ler") for part in ("mean", "q25", "q75")]


@arguments_checked_but("layers")
def layer_profile(
    layers: pd.DataFrame,
    *,
    theme: Theme = "light",
    title: str | None = "Where the knowledge sits, and what is gone",
) -> go.Figure:
    """S1 and S2 above, LER below, per layer; bands are the middle half of the examples.

    A strip at the bottom holds the share of examples with knowledge at the layer: LER is a mean over those.

    Args:
        layers: `audit.layers_frame()`; with the columns `_low` and `_high` pointing at a mean shows its interval.
        theme: Light or dark.
        title: Heading; None leaves it out.

    Returns:
        The figure; deltas in nats per token. A gap in LER: no example has knowledge at that layer.

    Raises:
        DataError: A column is missing.

    Example:
        >>> import pandas as pd
        >>> values = {f"{name}_{part}": [0.5] for name in ("s1", "s2", "ler") for part in ("mean", "q25", "q75")}
        >>> figure = layer_profile(pd.DataFrame({"layer": [0], "ke_share": [1.0], "n_ke": [9], **values}))
        >>> figure.layout.yaxis.title.text
        'lost log-probability<br>nats per token'
    """
    require(layers, ["layer", "ke_share", "n_ke", *_STATISTICS], source="audit.layers_frame()")
    colours, figure = palette(theme), panels([0.53, 0.38, 0.09], gap=0.075)
    _deltas(figure, layers, colours)
    _erasure(figure, layers, colours)
    _strip(figure, layers, colours)
    layer_axis(figure, len(layers))
    figure.update_layout(
        yaxis={"title": {"text": "lost log-probability<br>nats per token"}, "rangemode": "tozero"},
        yaxis2={
            "title": {"text": "erased share<br>0 to 1"},
            "range": [-0.02, 1.04],
            "dtick": 0.25,
            "tickformat": ".2~f",
        },
        yaxis3={"range": [0, 1], "tickvals": [], "showgrid": False},
        hovermode="x unified",
        hoverdistance=-1,
        bargap=0.06,
        uniformtext={"minsize": 9, "mode": "hide"},
    )
    return style(
        figure,
        theme=theme,
        title=title,
        subtitle="Means and the middle half of the examples. LER: S2 / S1, cut to 0 to 1, where there is knowledge.",
        height=580,
    )


def _deltas(figure: Any, layers: Any, colours: Palette) -> None:
    parts = {
        "s1": ("S1: retain's state", colours.retain, colours.retain_band),
        "s2": ("S2: unlearned state", colours.unlearned, colours.unlearned_band),
    }
    layer = layers["layer"]
    for key, (name, _, shade) in parts.items():
        spread = band(layer, layers[f"{key}_q25"], layers[f"{key}_q75"], colour=shade, group=name)
        put(figure, spread, row=1)
    for key, (name, colour, _) in parts.items():
        told, ends = hover_interval(layers, key)
        hover = f"{key.upper()} %{{y:.3f}} nats per token{told}"
        mean = curve(layer, layers[f"{key}_mean"], name=name, colour=colour, hover=hover, customdata=ends)
        put(figure, mean, row=1)


def _erasure(figure: Any, layers: Any, colours: Palette) -> None:
    name, layer = "LER: erased share", layers["layer"]
    shade = band(layer, layers["ler_q25"], layers["ler_q75"], colour=colours.erased_band, group=name)
    put(figure, shade, row=2)
    told, ends = hover_interval(layers, "ler")
    hover = f"LER %{{y:.3f}}{told}"
    mean = curve(layer, layers["ler_mean"], name=name, colour=colours.erased, hover=hover, customdata=ends)
    put(figure, mean, row=2)


def _strip(figure: Any, layers: Any, colours: Palette) -> None:
    """How many of the examples LER speaks of, as columns with a number where it fits."""
    import plotly.graph_objects as go

    shares = go.Bar(
        x=layers["layer"],
        y=layers["ke_share"],
        customdata=layers["n_ke"],
        name="with knowledge",
        showlegend=False,
        marker={"color": colours.share, "line": {"width": 0}, "cornerradius": 0},
        texttemplate="%{y:.0%}",
        textposition="inside",
        insidetextanchor="middle",
        insidetextfont={"color": colours.ink, "size": 11},
        textangle=0,
        hovertemplate="knowledge here: %{customdata} examples (%{y:.0%})<extra></extra>",
    )
    put(figure, shares, row=3)
    heading(figure, "examples with knowledge at the layer", column=1, row=3)
