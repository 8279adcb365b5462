"""Several unlearned models, layer by layer, in one figure."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from uds_lens.checked_arguments import arguments_checked
from uds_lens.errors import DataError
from uds_lens.plots.band import curve, hover_interval
from uds_lens.plots.frame_columns import require
from uds_lens.plots.line_ends import end_labels, label_room
from uds_lens.plots.model_panels import Curves, model_panels
from uds_lens.plots.palette import Palette, Theme, palette
from uds_lens.plots.safe_text import shown
from uds_lens.plots.template import layer_axis, style
from uds_lens.types import check_choice

if TYPE_CHECKING:
    import pandas as pd
    import plotly.graph_objects as go

Value: TypeAlias = Literal["ler", "s2"]
"""What is compared: erased share, or lost log-probability."""

LINES = 8
"""Models that share one panel; above it each has a panel of its own."""

_HEIGHT = 400
_WORDS = {
    "ler": ("mean LER, 0 intact to 1 erased", "Mean LER over the examples with knowledge at the layer."),
    "s2": ("mean S2, nats per token", "Mean S2 over all examples, nats per token."),
}


@arguments_checked
def compare_layers(
    models: Mapping[str, pd.DataFrame],
    *,
    value: Value = "ler",
    chosen: str | None = None,
    references: Collection[str] = (),
    theme: Theme = "light",
    title: str | None = "Erasure by layer",
) -> go.Figure:
    """Mean LER (or mean S2) per layer: one curve per model with its name at the end, above 8 models a panel for each.

    Behind the curve of a panel are those of the others, above 24 models the range that all span.

    Args:
        models: Name to `layers_frame()`; with `_low` and `_high` pointing at a mean shows its interval.
        value: `ler` for the erased share, `s2` for nats per token.
        chosen: The model that is looked at: drawn strong, the others light. None draws all alike.
        references: Names of models that are there for comparison (`full`, `retain`): grey and dotted.
        theme: Light or dark.
        title: Heading; None leaves it out.

    Returns:
        The figure; a gap: no example has knowledge at that layer.

    Raises:
        DataError: No model, a column is missing, or `chosen` or a reference is none of the models.
        ConfigError: No such value or theme.
    """
    check_choice("value", value, Value)
    if not models:
        raise DataError("expected at least one model with its layers_frame(); got none.")
    for name in (*references, *([] if chosen is None else [chosen])):
        if name not in models:
            raise DataError(f"{name!r} is none of the models that are compared: {', '.join(models)}.")
    import plotly.graph_objects as go

    for frame in models.values():
        require(frame, ["layer", f"{value}_mean"], source="audit.layers_frame()")
    values = {name: [float(x) for x in frame[f"{value}_mean"]] for name, frame in models.items()}
    layers = {name: [int(x) for x in frame["layer"]] for name, frame in models.items()}
    colours, axis, figure = palette(theme), _axis(value, values), go.Figure()
    axis_title, subtitle = _WORDS[value]
    if len(models) - len(set(references)) > LINES:
        height = model_panels(
            figure, Curves(layers, values), axis, chosen=chosen, references=references, colours=colours
        )
        return style(figure, theme=theme, title=title, subtitle=subtitle, height=height)
    told = {name: hover_interval(frame, value) for name, frame in models.items()}
    _lines(figure, Curves(layers, values), told, chosen, references, colours)
    layer_axis(figure, max(map(len, models.values())))
    figure.update_yaxes(title_text=axis_title, **axis)
    figure.update_layout(hovermode="closest", meta={"kind": "lines"})
    style(figure, theme=theme, title=title, subtitle=subtitle, height=_HEIGHT, legend=False)
    figure.update_layout(margin_r=label_room(models))
    end_labels(figure, axis["range"], plot_height=_HEIGHT - 110, colours={colours.other: colours.text})
    absent = [shown(name, limit=40) for name, own in values.items() if all(x != x for x in own)]
    if absent:
        words = f"nothing measurable: {', '.join(absent)}"
        figure.add_annotation(
            text=words, x=1, xref="paper", xanchor="right", y=0, yref="paper", yanchor="bottom"
        )
    return figure


def _axis(value: Value, values: Mapping[str, list[float]]) -> dict[str, Any]:
    if value == "ler":
        return {"range": [-0.04, 1.04], "dtick": 0.25, "tickformat": ".2~f"}
    known = [x for own in values.values() for x in own if x == x] or [1.0]
    low, high = min(0.0, *known), max(0.0, *known)
    edge = 0.04 * (high - low or 1.0)
    return {"range": [low - edge if low < 0 else 0.0, high + edge]}


def _lines(
    figure: Any,
    curves: Curves,
    told: Mapping[str, tuple[str, list[str] | None]],
    chosen: str | None,
    references: Collection[str],
    colours: Palette,
) -> None:
    """The chosen model above the others; `meta` says which model a curve is, for pages that choose another."""
    hues = 0
    for place, name in enumerate(curves.values):
        dash, width = "solid", 2.25
        if name == chosen:
            colour, width = colours.erased, 3.25
        elif name in references:
            colour, dash, width = colours.faint, "dot", 1.75
        elif chosen is not None:
            colour, width = colours.other, 1.75
        else:
            colour = colours.series[hues % len(colours.series)]
            dash, hues = "dash" if hues >= len(colours.series) else "solid", hues + 1
        label = shown(name, limit=40)
        line = curve(
            curves.layers[name],
            curves.values[name],
            name=label,
            colour=colour,
            dash=dash,
            hover=f"{label}<br>layer %{{x}}: %{{y:.3f}}{told[name][0]}",
            customdata=told[name][1],
        )
        line.line.width, line.marker.size = width, 6 if name == chosen or chosen is None else 4
        line.zorder = int(name == chosen)
        line.meta = {"place": place, "reference": name in references}
        figure.add_trace(line)
