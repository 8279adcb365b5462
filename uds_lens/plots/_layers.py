"""Figures by layer: knowledge and erasure, one example, patch sites, retained facts, Logit Lens, several models.

There are also heat maps of patching grids: the loss by layer and position, or by layer and head.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import numpy as np
import plotly.graph_objects as go

from uds_lens._types import check_choice
from uds_lens.errors import DataError
from uds_lens.plots._style import (
    DELTA,
    ONLY_COUNTING,
    Look,
    Palette,
    band,
    curve,
    end_labels,
    hover_interval,
    label_room,
    layer_axis,
    level,
    narrow,
    number,
    palette,
    panel_heading,
    panels,
    put,
    require,
    row_axis,
    shown,
    style,
)

if TYPE_CHECKING:
    import pandas as pd
    from typing_extensions import Unpack


_DELTA_AXIS = {"title": {"text": DELTA}, "rangemode": "tozero"}
_UNIFIED = {"hovermode": "x unified", "hoverdistance": -1}
_S1, _S2 = "S1: retain's state", "S2: unlearned state"


def layer_profile(layers: pd.DataFrame, **look: Unpack[Look]) -> go.Figure:
    """Plot S1 and S2 (top), LER (middle) and the share of answers encoded at each layer (bottom).

    Args:
        layers: `audit.layers_frame()`.
        **look: Theme, title, width, height (`Look`).

    Returns:
        The figure, with deltas in nats per token. Bands are intervals of the means, clustered by subject if examples
        share subjects. A gap in LER means that no example has knowledge at that layer.

    Raises:
        DataError: A column is missing.

    Example:
        >>> import pandas as pd
        >>> values = {f"{name}_{part}": [0.5] for name in ("s1", "s2", "ler") for part in ("mean", "low", "high")}
        >>> figure = layer_profile(pd.DataFrame({"layer": [0], "ke_share": [1.0], "n_ke": [9], **values}))
        >>> figure.layout.yaxis.title.text
        'Δ log-prob<br>(nats/token)'
    """
    statistics = [f"{name}_{part}" for name in ("s1", "s2", "ler") for part in ("mean", "low", "high")]
    require(layers, ["layer", "ke_share", "n_ke", *statistics], source="audit.layers_frame()")
    colours, figure = palette(look.get("theme", "light")), panels([0.53, 0.38, 0.09], gap=0.075)
    parts = (
        ("s1", _S1, colours.retain, colours.retain_band, 1),
        ("s2", _S2, colours.unlearned, colours.unlearned_band, 1),
        ("ler", "LER", colours.erased, colours.erased_band, 2),
    )
    for key, name, _, shade, row in parts:
        spread = layers[f"{key}_low"], layers[f"{key}_high"]
        put(figure, band(layers["layer"], *spread, colour=shade, group=name), row=row)
    for key, name, colour, _, row in parts:
        interval, ends = hover_interval(layers, key)
        put(
            figure,
            curve(
                layers["layer"],
                layers[f"{key}_mean"],
                name=name,
                colour=colour,
                hover=f"{key.upper()} %{{y:.3f}}{' nats/token' if row == 1 else ''}{interval}",
                customdata=ends,
            ),
            row=row,
        )
    put(
        figure,
        go.Bar(
            x=layers["layer"],
            y=layers["ke_share"],
            customdata=layers["n_ke"],
            name="answers encoded",
            showlegend=False,
            marker={"color": colours.share, "line": {"width": 0}, "cornerradius": 0},
            texttemplate="%{y:.0%}",
            textposition="inside",
            insidetextanchor="middle",
            insidetextfont={"color": colours.ink, "size": 11},
            textangle=0,
            hovertemplate="answer encoded: %{customdata} examples (%{y:.0%})<extra></extra>",
        ),
        row=3,
    )
    panel_heading(figure, "share of answers encoded at the layer", column=1, row=3)
    layer_axis(figure, len(layers))
    figure.update_layout(
        yaxis=_DELTA_AXIS,
        yaxis2={"title": {"text": "LER"}, "range": [-0.02, 1.04], "dtick": 0.25, "tickformat": ".2~f"},
        yaxis3={"range": [0, 1], "tickvals": [], "showgrid": False},
        bargap=0.06,
        uniformtext={"minsize": 9, "mode": "hide"},
        **_UNIFIED,
    )
    subtitle = "Means over examples with intervals. LER = S2/S1 clipped to [0, 1], on knowledge-encoding layers."
    if layers["s2_mean"].isna().any() and layers["s1_mean"].notna().any():
        subtitle += f" {_PARTLY}"
    return style(figure, "S1, S2 and LER by layer", subtitle, tall=580, **look)


def example_profile(
    layers: pd.DataFrame, *, tau: float | int | None = None, question: str | None = None, **look: Unpack[Look]
) -> go.Figure:
    """Plot S1 and S2 (top) and LER (bottom) of one example.

    Args:
        layers: The rows of `audit.to_frame()` for one example.
        tau: Threshold in nats per token, drawn as a line; None draws no line.
        question: Text to show under the heading.
        **look: Theme, title, width, height (`Look`).

    Returns:
        The figure; layers that encode nothing (S1 at most tau) have no LER bar.

    Raises:
        DataError: A column is missing.
    """
    require(layers, ["layer", "s1_delta", "s2_delta", "ler"], source="audit.to_frame()")
    colours, figure = palette(look.get("theme", "light")), panels([0.62, 0.38], gap=0.1)
    for key, name, colour in (("s1", _S1, colours.retain), ("s2", _S2, colours.unlearned)):
        put(
            figure,
            curve(
                layers["layer"],
                layers[f"{key}_delta"],
                name=name,
                colour=colour,
                hover=f"{key.upper()} %{{y:.3f}} nats/token",
            ),
            row=1,
        )
    put(
        figure,
        go.Bar(
            x=layers["layer"],
            y=layers["ler"],
            name="LER",
            marker={"color": colours.erased, "line": {"width": 0}},
            hovertemplate="LER %{y:.3f}<extra></extra>",
        ),
        row=2,
    )
    if tau is not None:
        level(figure, tau, row=1, colour=colours.faint)
    layer_axis(figure, len(layers))
    figure.update_layout(
        yaxis=_DELTA_AXIS, yaxis2={"title": {"text": "LER"}, "range": [0, 1.05], "dtick": 0.5}, **_UNIFIED
    )
    words = [f"UDS {number(_score(layers))}."] + ([] if question is None else [shown(question, limit=110)])
    if layers["s2_delta"].isna().any() and layers["s1_delta"].notna().any():
        words.append(ONLY_COUNTING)
    return style(figure, "S1, S2 and LER of one example by layer", " ".join(words), tall=430, **look)


def _score(layers: pd.DataFrame, prefix: str = "") -> float:
    """Return the mean LER over KE layers, weighted by S1; NaN without a KE layer."""
    ler = layers[f"{prefix}ler"]
    weights = layers[f"{prefix}s1_delta"].where(ler.notna())
    total = weights.sum()
    return float((weights * ler).sum() / total) if total else np.nan


def component_profile(sites: Mapping[str, pd.DataFrame], **look: Unpack[Look]) -> go.Figure:
    """Plot S1 by layer for each patch site, and its mean over layers.

    Args:
        sites: A mapping from patch site (`resid_post`, `attn_out` ...) to the `layers_frame()` of an audit at that
            site.
        **look: Theme, title, width, height (`Look`).

    Returns:
        The figure, in nats per token.

    Raises:
        DataError: There is no site, or a column is missing.
    """
    if not sites:
        raise DataError("expected at least one patch site with its layers_frame(); got none.")
    for frame in sites.values():
        require(frame, ["layer", "s1_mean"], source="audit.layers_frame()")
    from plotly.subplots import make_subplots

    colours = palette(look.get("theme", "light")).series
    figure = make_subplots(rows=1, cols=2, column_widths=[0.64, 0.36], horizontal_spacing=0.16)
    second: dict[str, Any] = {"row": 1, "col": 2}
    if narrow(look):
        figure = make_subplots(rows=2, cols=1, row_heights=[0.6, 0.4], vertical_spacing=0.2)
        second = {"row": 2, "col": 1}
    means = {site: float(frame["s1_mean"].mean()) for site, frame in sites.items()}
    for place, (site, frame) in enumerate(sites.items()):
        colour, name = colours[place % len(colours)], shown(site)
        if "s1_std" in frame:
            spread = frame["s1_mean"] - frame["s1_std"], frame["s1_mean"] + frame["s1_std"]
            shade = band(frame["layer"], *spread, colour=colour, group=name)
            figure.add_trace(shade.update(opacity=0.15), row=1, col=1)
        line = curve(frame["layer"], frame["s1_mean"], name=name, colour=colour, hover=f"{name} %{{y:.3f}}")
        bar = go.Bar(
            x=[means[site]],
            y=[name],
            orientation="h",
            name=name,
            legendgroup=name,
            showlegend=False,
            width=0.6,
            marker={"color": colour, "line": {"width": 0}},
            text=[f"{means[site]:.3f}"],
            textposition="outside",
            cliponaxis=False,
            hovertemplate=f"{name}: mean over layers %{{x:.3f}} nats/token<extra></extra>",
        )
        figure.add_trace(line, row=1, col=1)
        figure.add_trace(bar, **second)
    layer_axis(figure, max(map(len, sites.values())))
    figure.update_yaxes(title_text="S1 (nats/token)", rangemode="tozero", row=1, col=1)
    # unlike the other x axes, which show layers, the bars need a range with room for the numbers at their ends
    low, high = min(0.0, *means.values()), max(0.0, *means.values())
    room = 0.25 * ((high - low) or 1.0)
    ends = [low - (room if low < 0 else 0), high + room]
    free = {"dtick": None, "tickformat": None, "nticks": 5}
    figure.update_xaxes(title_text="mean S1 (nats/token)", range=ends, **free, **second)
    names = [shown(site) for site in sites]
    order = {"autorange": "reversed", "categoryorder": "array", "categoryarray": names, "showgrid": False}
    figure.update_yaxes(**order, **second)
    figure.update_layout(**_UNIFIED)
    return style(
        figure,
        "S1 by layer and patch site",
        "Log-probability lost with retain's state patched in; band: ±1 SD over examples. Bars: means over layers.",
        tall=570 if narrow(look) else 390,
        **look,
    )


def forget_and_kept(layers: pd.DataFrame, **look: Unpack[Look]) -> go.Figure:
    """Plot S2 by layer on forget facts (erasure) and on retained facts (damage).

    Args:
        layers: `audit.control_layers_frame()`.
        **look: Theme, title, width, height (`Look`).

    Returns:
        The figure, in nats per token with intervals. Without damage, the curve for retained facts coincides with the
        curve for retain's states, near 0.

    Raises:
        DataError: A column is missing.

    Example:
        >>> import pandas as pd
        >>> values = {f"{name}_{part}": [0.5] for name in ("forget", "control") for part in ("mean", "low", "high")}
        >>> figure = forget_and_kept(pd.DataFrame({"layer": [0], "control_retain_mean": [0.1], **values}))
        >>> [trace.name for trace in figure.data if trace.showlegend is not False]
        ['forget facts', 'retained facts', "retained facts, retain's states"]
    """
    columns = [f"{name}_{part}" for name in ("forget", "control") for part in ("mean", "low", "high")]
    require(layers, ["layer", "control_retain_mean", *columns], source="audit.control_layers_frame()")
    colours, figure, layer = palette(look.get("theme", "light")), go.Figure(), layers["layer"]
    parts = (
        ("forget", "forget facts", colours.erased, colours.erased_band, "solid"),
        ("control", "retained facts", colours.unlearned, colours.unlearned_band, "solid"),
        ("control_retain", "retained facts, retain's states", colours.retain, None, "dot"),
    )
    for key, name, _, shade, _ in parts:
        if shade:
            ends = layers[f"{key}_low"], layers[f"{key}_high"]
            figure.add_trace(band(layer, *ends, colour=shade, group=name))
    for key, name, colour, _, dash in parts:
        figure.add_trace(
            curve(
                layer, layers[f"{key}_mean"], name=name, colour=colour, hover=f"{name} %{{y:.3f}} nats/token", dash=dash
            )
        )
    layer_axis(figure, len(layers))
    figure.update_layout(yaxis=_DELTA_AXIS, **_UNIFIED)
    return style(
        figure,
        "Loss on forget facts and on retained facts by layer",
        "S2: loss with the unlearned model's states patched in. Bands: intervals clustered by subject.",
        tall=420,
        **look,
    )


_VIEWS = (("uds", "UDS {}: states patched in"), ("lens", "Logit Lens {}: states decoded directly"))


def lens_against_uds(
    layers: pd.DataFrame, *, tau: float | int | None = None, question: str | None = None, **look: Unpack[Look]
) -> go.Figure:
    """Plot S1 and S2 (top) and LER (bottom) of one example, by patching (left) and by Logit Lens (right).

    Logit Lens shows what a layer's state yields when decoded directly; patching shows what the later layers make of it.
    Where the two differ, knowledge is encoded but cannot yet be decoded.

    Args:
        layers: `metrics.compare_logit_lens(audit, example).to_frame()`: one row per layer, with deltas in
            nats per token, and NaN in LER where the layer encodes nothing.
        tau: Threshold in nats per token, drawn as a line; None draws no line.
        question: Text to show under the heading.
        **look: Theme, title, width, height (`Look`).

    Returns:
        The figure.

    Raises:
        DataError: A column is missing.
    """
    names = [f"{view}_{part}" for view, _ in _VIEWS for part in ("s1_delta", "s2_delta", "ler")]
    require(layers, ["layer", *names], source="metrics.compare_logit_lens(audit, example).to_frame()")
    colours, figure = palette(look.get("theme", "light")), panels([0.58, 0.42], columns=2, gap=0.09)
    parts = (
        ("s1_delta", _S1, colours.retain, 1, "S1 %{y:.3f} nats/token"),
        ("s2_delta", _S2, colours.unlearned, 1, "S2 %{y:.3f} nats/token"),
        ("ler", "LER", colours.erased, 2, "LER %{y:.3f}"),
    )
    scores = [number(_score(layers, f"{view}_")) for view, _ in _VIEWS]
    for column, ((view, heading), score) in enumerate(zip(_VIEWS, scores, strict=True), start=1):
        for part, name, colour, row, hover in parts:
            line = curve(layers["layer"], layers[f"{view}_{part}"], name=name, colour=colour, hover=hover)
            line.showlegend = column == 1
            put(figure, line, row=row, column=column)
        words = heading.format(score)
        panel_heading(figure, words.split(":")[0] if narrow(look) else words, column=column)
        if tau is not None:
            level(figure, tau, row=1, column=column, colour=colours.faint)
    layer_axis(figure, len(layers))
    share = {"range": [-0.06, 1.06], "dtick": 0.5}
    figure.update_layout(
        yaxis=_DELTA_AXIS,
        yaxis2={"title": {"text": "LER"}, **share},
        yaxis3={"rangemode": "tozero"},
        yaxis4=share,
        **_UNIFIED,
    )
    gap = "Gap in LER: S1 ≤ tau, so there is nothing to erase."
    subtitle = gap if question is None else shown(question, limit=110)
    figure.update_annotations(font={"size": 13, "color": colours.text}, yshift=4)
    figure.update_layout(legend_y=1.09)
    return style(figure, "One example by patching and by Logit Lens", subtitle, tall=500, room=32, **look)


Value: TypeAlias = Literal["ler", "s2"]  # what is compared: LER, or S2 in nats per token

_PARTLY = "Gap in S2: some examples were not measured at that layer, because it does not count in their score."

_VALUE_WORDS = {
    "ler": ("mean LER", "Mean LER over the examples whose answer is encoded at the layer; 0 intact, 1 erased."),
    "s2": ("mean S2 (nats/token)", "Mean S2 over all examples."),
}
_LINES, _BEHIND = 8, 24
"""Maximum number of models in one panel, and maximum number whose lines are drawn behind the curve in a panel (beyond
that, only their range is drawn)."""


def compare_layers(
    models: Mapping[str, pd.DataFrame],
    *,
    value: Value = "ler",
    chosen: str | None = None,
    references: Collection[str] = (),
    **look: Unpack[Look],
) -> go.Figure:
    """Plot mean LER (or mean S2) by layer: a labelled curve per model or, with more than 8 models, a panel per model.

    In each panel, the curves of the other models (above 24 models, their range) are drawn in the background.

    Args:
        models: A mapping from name to `layers_frame()`; with `_low` and `_high` columns, hovering shows the interval of
            the mean.
        value: `ler`, or `s2` in nats per token.
        chosen: Model to emphasise; None draws all models alike.
        references: Models drawn in grey and dotted, for comparison (`full`, `retain`).
        **look: Theme, title, width, height (`Look`).

    Returns:
        The figure; a gap means that no example has knowledge at that layer, or that S2 was not measured for all
        examples.

    Raises:
        DataError: There is no model, a column is missing, or `chosen` or a reference is not one of the models.
        ConfigError: `value` or `theme` is not a valid choice.
    """
    check_choice("value", value, Value)
    if not models:
        raise DataError("expected at least one model with its layers_frame(); got none.")
    for name in (*references, *([] if chosen is None else [chosen])):
        if name not in models:
            raise DataError(f"{name!r} is not one of the models compared: {', '.join(models)}.")
    for frame in models.values():
        require(frame, ["layer", f"{value}_mean"], source="audit.layers_frame()")
    values = {name: [float(x) for x in frame[f"{value}_mean"]] for name, frame in models.items()}
    layers = {name: [int(x) for x in frame["layer"]] for name, frame in models.items()}
    means = {name: _mean(curve) for name, curve in values.items()}
    ranked = sorted((name for name in models if name not in references), key=means.__getitem__, reverse=True)
    colours, figure = palette(look.get("theme", "light")), go.Figure()
    axis_title, subtitle = _VALUE_WORDS[value]
    if value == "s2" and any(x != x for curve in values.values() for x in curve):
        subtitle += f" {_PARTLY}"
    axis: dict[str, Any] = {"range": [-0.04, 1.04], "dtick": 0.25, "tickformat": ".2~f"}
    if value == "s2":
        defined = [x for curve in values.values() for x in curve if x == x] or [1.0]
        low, high = min(0.0, *defined), max(0.0, *defined)
        edge = 0.04 * (high - low or 1.0)
        axis = {"range": [low - edge if low < 0 else 0.0, high + edge]}
    heading = f"{axis_title.split(' (')[0].removeprefix('mean ')} by layer"
    if len(ranked) > _LINES:
        height = _fill_panels(figure, layers, values, ranked, chosen, references, colours, axis_title, narrow(look))
        figure.update_yaxes({**axis, "dtick": 0.5} if "dtick" in axis else axis)
        return style(figure, heading, subtitle, tall=height, **look)
    hues = 0
    for place, name in enumerate(models):
        colour, dash, width, size = colours.other, "solid", 1.75, 4
        if name == chosen:
            colour, width, size = colours.erased, 3.25, 6
        elif name in references:
            colour, dash = colours.faint, "dot"
        elif chosen is None:
            colour, width = colours.series[hues % len(colours.series)], 2.25
            dash, hues = "dash" if hues >= len(colours.series) else "solid", hues + 1
        interval, ends = hover_interval(models[name], value)
        label = shown(name, limit=40)
        line = curve(
            layers[name],
            values[name],
            name=label,
            colour=colour,
            dash=dash,
            hover=f"{label}<br>layer %{{x}}: %{{y:.3f}}{interval}",
            customdata=ends,
        )
        line.line.width, line.marker.size = width, 6 if chosen is None else size
        line.zorder = int(name == chosen)
        # identifies the curve's model, so that a page can highlight it
        line.meta = {"place": place, "reference": name in references}
        figure.add_trace(line)
    layer_axis(figure, max(map(len, models.values())))
    figure.update_yaxes(title_text=axis_title, **axis)
    figure.update_layout(hovermode="closest", meta={"kind": "lines"})
    style(figure, heading, subtitle, tall=400, legend=False, **look)
    letters = 11 if narrow(look) else 22  # maximum length of a name
    figure.update_layout(margin_r=label_room(models, letters))
    end_labels(figure, letters, axis["range"], plot_height=290, colours={colours.other: colours.text})
    absent = [shown(name, limit=40) for name in models if means[name] == -np.inf]
    if absent:
        words, corner = f"nothing measurable: {', '.join(absent)}", {"x": 1, "y": 0, "yanchor": "bottom"}
        figure.add_annotation(text=words, xref="paper", yref="paper", xanchor="right", **corner)
    return figure


def _mean(values: list[float]) -> float:
    defined = [x for x in values if x == x]
    return sum(defined) / len(defined) if defined else -np.inf


_COLUMNS, _FEW_COLUMNS = 4, 2  # panels per row in a figure of ordinary width, and in a narrow one

_TITLE, _PANEL, _GAP, _BELOW = 22, 92, 26, 52
"""Heights in pixels: the name above a row, its plot, the ticks below it, and the axis title below the last row."""


def _fill_panels(
    figure: go.Figure,
    layers: Mapping[str, list[int]],
    values: Mapping[str, list[float]],
    ranked: list[str],
    chosen: str | None,
    references: Collection[str],
    colours: Palette,
    axis_title: str,
    small: bool,
) -> int:
    """Fill a figure with one panel per model, in the order of `ranked`; return its height in pixels."""
    places = {name: place for place, name in enumerate(values)}

    def behind(names: Collection[str], label: str, line: dict[str, Any], at: dict[str, Any]) -> None:
        xs: list[int | None] = []
        ys: list[float | None] = []
        for name in names:
            xs += [*layers[name], None]
            ys += [*(None if y != y else round(y, 4) for y in values[name]), None]
        if names:
            first = {"showlegend": at["xaxis"] == "x", "legendgroup": label, "name": label}
            traces.append(go.Scatter(x=xs, y=ys, mode="lines", line=line, hoverinfo="skip", **first, **at))

    reach = {
        layer: [y for name in ranked for x, y in zip(layers[name], values[name], strict=True) if x == layer and y == y]
        for layer in range(max((max(layers[name], default=0) for name in ranked), default=0) + 1)
    }
    spanned = [layer for layer, ys in reach.items() if ys]
    low, high = ([round(end(reach[layer]), 4) for layer in spanned] for end in (min, max))
    traces: list[go.Scatter] = []
    for panel, name in enumerate(ranked):
        x, y = _panel_axes(panel)
        at = {"xaxis": x, "yaxis": y}
        if len(ranked) <= _BEHIND:
            others = [other for other in ranked if other != name]
            behind(others, "other models", {"color": colours.other, "width": 1}, at)
        else:
            span = band(spanned, low, high, colour=colours.share, group="range")
            traces.append(span.update(name="range of all models", showlegend=panel == 0, **at))
        behind(references, "references", {"color": colours.faint, "width": 1.25, "dash": "dot"}, at)
        line = curve(
            layers[name],
            values[name],
            name="this model",
            colour=colours.erased,
            hover=f"{shown(name, limit=40)}<br>layer %{{x}}: %{{y:.3f}}",
        )
        line.marker.size = 4
        line.update(legendrank=1, showlegend=panel == 0, meta={"place": places[name]}, **at)
        traces.append(line)
        figure.add_annotation(
            name=str(places[name]),
            text=shown(name, limit=24),
            x=0,
            xref=f"{x} domain",
            xanchor="left",
            y=1,
            yref=f"{y} domain",
            yanchor="bottom",
            yshift=2,
            font={"color": colours.text, "size": 12.5},
        )
        if name == chosen:
            corners = {"x0": 0, "x1": 1, "y0": 0, "y1": 1, "xref": f"{x} domain", "yref": f"{y} domain"}
            tint = {"fillcolor": colours.erased_band, "line": {"width": 0}, "layer": "below"}
            figure.add_shape(type="rect", **corners, **tint)
    figure.add_traces(traces)
    grid, height = _grid(len(ranked), _FEW_COLUMNS if small else _COLUMNS, axis_title)
    few, few_height = _grid(len(ranked), _FEW_COLUMNS, axis_title)
    figure.update_layout(
        grid,
        hovermode="closest",
        legend={"itemclick": False, "itemdoubleclick": False},
        meta={"kind": "panels", "narrow": {**few, "height": few_height}},
    )
    longest = max(map(len, layers.values()), default=1)
    figure.update_xaxes(range=[-0.5, longest - 0.5], dtick=max(1, -(-longest // 5)), tickformat="d")
    return height


def _panel_axes(panel: int) -> tuple[str, str]:
    number = "" if panel == 0 else str(panel + 1)
    return f"x{number}", f"y{number}"


def _grid(n: int, columns: int, axis_title: str) -> tuple[dict[str, Any], int]:
    """Return the axes of `n` panels in rows of `columns`, and the height of the figure without its title."""
    rows, pitch, space = -(-n // columns), _TITLE + _PANEL + _GAP, 0.04
    total = rows * pitch - _GAP
    width = (1 - space * (columns - 1)) / columns
    layout: dict[str, Any] = {}
    for panel in range(n):
        row, column = divmod(panel, columns)
        x, y = _panel_axes(panel)
        left, top = column * (width + space), 1 - (row * pitch + _TITLE) / total
        layout[f"xaxis{x[1:]}"] = {
            "domain": [round(left, 6), round(min(1.0, left + width), 6)],
            "anchor": y,
            "title": {"text": "layer" if panel + columns >= n else ""},
        }
        layout[f"yaxis{y[1:]}"] = {
            "domain": [max(0.0, round(top - _PANEL / total, 6)), round(top, 6)],
            "anchor": x,
            "showticklabels": column == 0,
            "title": {"text": "" if column else axis_title},
        }
    return layout, total + _BELOW + 80


def weight_profile(weights: pd.DataFrame, layers: pd.DataFrame | None = None, **look: Unpack[Look]) -> go.Figure:
    """Plot LER (top) and the relative change in each layer's weights (bottom).

    Args:
        weights: `difference.layers_frame()` of a `uds_lens.weights.WeightDifference`.
        layers: `audit.layers_frame()` of an audit of the same model; None draws no LER.
        **look: Theme, title, width, height (`Look`).

    Returns:
        The figure; a gap in LER means that no example has knowledge at that layer.

    Raises:
        DataError: A column is missing.

    Example:
        >>> import pandas as pd
        >>> names = ("relative_norm", "attention_relative_norm", "mlp_relative_norm")
        >>> figure = weight_profile(pd.DataFrame({"layer": [0, 1], **dict.fromkeys(names, [0.0, 0.2])}))
        >>> figure.layout.title.text
        'Change in the weights by layer'
    """
    parts = (("mlp_relative_norm", "MLP"), ("attention_relative_norm", "attention"), ("relative_norm", "whole layer"))
    require(weights, ["layer", *(key for key, _ in parts)], source="difference.layers_frame()")
    colours, figure = palette(look.get("theme", "light")), panels([1] if layers is None else [1, 1], gap=0.1)
    row = 1
    if layers is not None:
        require(layers, ["layer", "ler_mean"], source="audit.layers_frame()")
        put(
            figure,
            curve(layers["layer"], layers["ler_mean"], name="LER", colour=colours.erased, hover="LER %{y:.3f}"),
            row=1,
        )
        figure.update_layout(yaxis={"title": {"text": "LER"}, "range": [-0.04, 1.04], "dtick": 0.25})
        row = 2
    for (key, name), colour in zip(parts, (colours.unlearned, colours.retain, colours.faint), strict=True):
        put(
            figure,
            curve(
                weights["layer"],
                weights[key],
                name=name,
                colour=colour,
                hover=f"{name} %{{y:.2%}}",
                dash="dot" if key == "relative_norm" else "solid",
            ),
            row=row,
        )
    layer_axis(figure, len(weights))
    axis = {"title": {"text": "change<br>(share of norm)"}, "rangemode": "tozero", "tickformat": "~%"}
    figure.update_layout({"yaxis" if row == 1 else "yaxis2": axis}, **_UNIFIED)
    return style(
        figure,
        "Change in the weights by layer",
        "Norm of the difference from full, divided by the norm of full's weights.",
        tall=320 if row == 1 else 460,
        **look,
    )


def patch_heatmap(
    grid: pd.DataFrame, *, tokens: Sequence[str] | None = None, unit: str = "nats/token", **look: Unpack[Look]
) -> go.Figure:
    """Draw a patching grid: layers from left to right; positions, heads or cells from top to bottom.

    Args:
        grid: `uds_lens.patching.patch_grid(...)`: a grid of heads (the mean over its rows is drawn), or of the
            positions of one row. Alternatively, a text column `cell` names the rows and gives their order
            (`DepthMap.plot_map`).
        tokens: Text of every token in that row, to label positions.
        unit: Unit of `lost` (and of the grid's score).
        **look: Theme, title, width, height (`Look`).

    Returns:
        A heat map of the loss, white where it is 0. Grey cells were not patched; skipped positions form one grey row.

    Raises:
        DataError: A column is missing, there is nothing to draw, or positions belong to several texts.

    Example:
        >>> import pandas as pd
        >>> grid = pd.DataFrame({"row": 0, "layer": [0, 1], "head": [0, 0], "lost": [0.5, -0.1]})
        >>> [list(line) for line in patch_heatmap(grid).data[0].z], patch_heatmap(grid).data[0].zmin
        ([[0.5, -0.1]], -0.5)
    """
    require(grid, ["layer", "lost"], source="uds_lens.patching.patch_grid(...)")
    down = next((name for name in ("position", "head", "cell") if name in grid.columns), None)
    if down is None or not len(grid):
        raise DataError("the grid has neither positions nor heads: make it with by='position' or by='head'.")
    one_text = "row" not in grid.columns or grid["row"].nunique() == 1
    if down == "position" and (not one_text or grid.duplicated(["layer", "position"]).any()):
        raise DataError(
            "the grid has positions from several texts, in which the same position holds different words: pass the "
            "positions of one row, "
            'grid[grid["row"] == 0], or replace `position` by a column `cell` that holds names of your own.'
        )
    table = grid.pivot_table(index=down, columns="layer", values="lost", aggfunc="mean", sort=down != "cell")
    table = table.reindex(columns=range(int(table.columns.min()), int(table.columns.max()) + 1))
    names = [shown(name) for name in table.index]
    if down == "position":
        gaps = [i - 0.5 for before, i in pairwise(table.index) if i > before + 1]
        table = table.reindex(sorted([*table.index, *gaps]))
        texts = [""] * (int(table.index.max()) + 1) if tokens is None else [shown(text, limit=20) for text in tokens]
        names = ["\u22ee" if i % 1 else f"{i:.0f} {texts[int(i)]}".strip() for i in table.index]
    colours, kind = palette(look.get("theme", "light")), "" if down == "cell" else down
    largest = float(np.nanmax(np.abs(table.to_numpy(dtype=float)), initial=1e-3))
    figure = go.Figure(
        go.Heatmap(
            x=list(table.columns),
            y=list(range(len(names))),
            z=[[None if math.isnan(x) else x for x in line] for line in table.to_numpy(dtype=float).tolist()],
            customdata=[[name] * table.shape[1] for name in names],
            colorscale=colours.around_zero,
            zmin=-largest,
            zmax=largest,
            colorbar={"title": {"text": f"lost<br>({shown(unit, limit=30)})", "side": "top"}, "thickness": 12},
            hovertemplate=f"layer %{{x}}, {kind} %{{customdata}}<br>lost %{{z:.3f}}<extra></extra>",
            hoverongaps=False,
        )
    )
    figure.update_layout(plot_bgcolor=colours.missing)
    figure.update_xaxes(title_text="layer", dtick=max(1, table.shape[1] // (6 if narrow(look) else 12)))
    row_axis(figure, names)
    figure.update_yaxes(title_text=kind, range=[len(names) - 0.5, -0.5])
    return style(
        figure,
        f"Loss by layer and {kind}" if kind else "Loss by layer",
        "Blue: probability lost; orange: answer more probable than before; grey: not patched.",
        tall=158 + 22 * max(8, len(names)),
        legend=False,
        **look,
    )
