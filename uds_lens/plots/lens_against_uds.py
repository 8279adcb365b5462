"""One example seen twice: by patching (UDS) and by Logit Lens."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from uds_lens.checked_arguments import arguments_checked_but
from uds_lens.plots.band import curve
from uds_lens.plots.frame_columns import require
from uds_lens.plots.palette import Palette, Theme, palette
from uds_lens.plots.panels import heading, level, panels, put
from uds_lens.plots.safe_text import number, shown
from uds_lens.plots.template import layer_axis, style

if TYPE_CHECKING:
    import pandas as pd
    import plotly.graph_objects as go

_VIEWS = (("uds", "UDS {}: states patched in"), ("lens", "Logit Lens {}: states read out at once"))


@arguments_checked_but("layers")
def lens_against_uds(
    layers: pd.DataFrame,
    *,
    tau: float | int | None = None,
    question: str | None = None,
    theme: Theme = "light",
    title: str | None = "Patching against Logit Lens, one example",
) -> go.Figure:
    """S1 and S2 per layer (above) and LER (below), from patching on the left and from Logit Lens on the right.

    Logit Lens reads what a layer's state says when decoded at once; patching reads what the rest of the model makes
    of it. Where they differ, knowledge is there but not yet in words.

    Args:
        layers: `metrics.compare_logit_lens(audit, example).to_frame()`: one row per layer, deltas in nats per token,
            NaN in LER where the layer holds nothing.
        tau: Threshold in nats per token, drawn as a line; None draws none.
        question: Shown under the heading.
        theme: Light or dark.
        title: Heading; None leaves heading and question out.

    Returns:
        The figure.

    Raises:
        DataError: A column is missing.
    """
    names = [f"{view}_{part}" for view, _ in _VIEWS for part in ("s1_delta", "s2_delta", "ler")]
    require(layers, ["layer", *names], source="metrics.compare_logit_lens(audit, example).to_frame()")
    colours, figure = palette(theme), panels([0.58, 0.42], columns=2, gap=0.09)
    for column, (view, name) in enumerate(_VIEWS, start=1):
        _view(figure, layers, view, column, colours)
        heading(figure, name.format(number(_score(layers, view))), column=column)
        if tau is not None:
            level(figure, tau, row=1, column=column, colour=colours.faint)
    layer_axis(figure, len(layers))
    share = {"range": [-0.06, 1.06], "dtick": 0.5}
    figure.update_layout(
        yaxis={"title": {"text": "lost log-probability<br>nats per token"}, "rangemode": "tozero"},
        yaxis2={"title": {"text": "LER, 0 to 1"}, **share},
        yaxis3={"rangemode": "tozero"},
        yaxis4=share,
        hovermode="x unified",
        hoverdistance=-1,
    )
    subtitle = (
        "A gap in LER: the layer holds nothing to erase." if question is None else shown(question, limit=110)
    )
    style(figure, theme=theme, title=title, subtitle=subtitle, height=500)
    figure.update_annotations(font={"size": 13, "color": colours.text}, yshift=4)
    return figure.update_layout(margin_t=figure.layout.margin.t + 32, legend_y=1.09)


def _score(layers: pd.DataFrame, view: str) -> float:
    """The example's score: mean of LER over its KE layers, weighted by S1; NaN without one."""
    weights = layers[f"{view}_s1_delta"].where(layers[f"{view}_ler"].notna())
    return float((weights * layers[f"{view}_ler"]).sum(min_count=1) / weights.sum(min_count=1))


def _view(figure: Any, layers: Any, view: str, column: int, colours: Palette) -> None:
    parts = (
        ("s1_delta", "S1: retain's state", colours.retain, 1),
        ("s2_delta", "S2: unlearned state", colours.unlearned, 1),
        ("ler", "LER: erased share", colours.erased, 2),
    )
    for part, name, colour, row in parts:
        hover = f"{part.removesuffix('_delta').upper()} %{{y:.3f}}" + (" nats per token" if row == 1 else "")
        line = curve(layers["layer"], layers[f"{view}_{part}"], name=name, colour=colour, hover=hover)
        line.showlegend = column == 1
        put(figure, line, row=row, column=column)
