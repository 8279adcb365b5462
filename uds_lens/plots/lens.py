"""One example seen twice: by patching (UDS) and by Logit Lens."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from uds_lens.plots.band import curve
from uds_lens.plots.columns import require
from uds_lens.plots.palette import Palette, Theme, palette
from uds_lens.plots.template import layer_axis, style

if TYPE_CHECKING:
    import pandas as pd
    import plotly.graph_objects as go

_VIEWS = (("uds", "UDS: patched states"), ("lens", "Logit Lens: decoded states"))


def lens_against_uds(
    layers: pd.DataFrame,
    *,
    theme: Theme = "light",
    title: str | None = "Patching against Logit Lens, one example",
) -> go.Figure:
    """S1 and S2 per layer (above) and LER (below), from patching on the left and from Logit Lens on the right.

    Logit Lens reads what a layer's state says when decoded at once; patching reads what the rest of the model makes
    of it. Where they differ, knowledge is there but not yet in words.

    Args:
        layers: One row per layer: `layer`, `uds_s1`, `uds_s2`, `uds_ler`, `lens_s1`, `lens_s2`, `lens_ler`; deltas in
            nats per token, NaN in LER where the layer holds nothing.
        theme: Light or dark.
        title: Heading; None leaves it out.

    Returns:
        The figure.

    Raises:
        DataError: A column is missing.
    """
    names = [f"{view}_{part}" for view, _ in _VIEWS for part in ("s1", "s2", "ler")]
    require(layers, ["layer", *names], source="a side-by-side layer table")
    from plotly.subplots import make_subplots

    colours = palette(theme)
    figure = make_subplots(
        rows=2,
        cols=2,
        shared_xaxes=True,
        shared_yaxes="rows",
        row_heights=[0.58, 0.42],
        vertical_spacing=0.09,
        horizontal_spacing=0.06,
        subplot_titles=[name for _, name in _VIEWS],
    )
    for column, (view, _) in enumerate(_VIEWS, start=1):
        _view(figure, layers, view, column, colours)
    layer_axis(figure, len(layers))
    figure.update_yaxes(title_text="lost log-probability<br>nats per token", row=1, col=1)
    figure.update_yaxes(title_text="LER", range=[-0.06, 1.06], dtick=0.5, row=2)
    figure.update_yaxes(title_text="LER, 0 to 1", row=2, col=1)
    figure.update_layout(hovermode="x unified", hoverdistance=-1)
    style(
        figure,
        theme=theme,
        title=title,
        subtitle="A gap in LER: the layer holds nothing to erase.",
        height=500,
    )
    figure.update_annotations(font={"size": 13, "color": colours.text}, yshift=2)
    figure.update_layout(margin_t=figure.layout.margin.t + 26, legend_y=1.09)
    return figure.update_yaxes(title_text="", col=2)


def _view(figure: Any, layers: Any, view: str, column: int, colours: Palette) -> None:
    parts = (
        ("s1", "S1: retain", colours.retain, 1),
        ("s2", "S2: unlearned", colours.unlearned, 1),
        ("ler", "LER: erased share", colours.erased, 2),
    )
    for part, name, colour, row in parts:
        hover = f"{part.upper()} %{{y:.3f}}"
        line = curve(layers["layer"], layers[f"{view}_{part}"], name=name, colour=colour, hover=hover)
        line.showlegend = column == 1
        figure.add_trace(line, row=row, col=column)
