"""The layer profile: where the knowledge sits, and how much of it is gone."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias

from uds_lens._types import check_choice
from uds_lens.errors import DataError
from uds_lens.plots._style import (
    Palette,
    Theme,
    band,
    curve,
    end_labels,
    heading,
    hover_interval,
    label_room,
    layer_axis,
    level,
    number,
    palette,
    panels,
    put,
    require,
    shown,
    style,
)

if TYPE_CHECKING:
    import pandas as pd
    import plotly.graph_objects as go


_STATISTICS = [f"{name}_{part}" for name in ("s1", "s2", "ler") for part in ("mean", "q25", "q75")]


def layer_profile(
    layers: pd.DataFrame,
    *,
    theme: Theme = "light",
    title: str | None = "Knowledge and erasure by layer",
) -> go.Figure:
    """S1 and S2 above, LER below, per layer; bands are the interquartile range over examples.

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
        'Δ log-prob<br>(nats/token)'
    """
    require(layers, ["layer", "ke_share", "n_ke", *_STATISTICS], source="audit.layers_frame()")
    colours, figure = palette(theme), panels([0.53, 0.38, 0.09], gap=0.075)
    _deltas(figure, layers, colours)
    _erasure(figure, layers, colours)
    _strip(figure, layers, colours)
    layer_axis(figure, len(layers))
    figure.update_layout(
        yaxis={"title": {"text": "Δ log-prob<br>(nats/token)"}, "rangemode": "tozero"},
        yaxis2={
            "title": {"text": "LER"},
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
        subtitle="Mean and interquartile range over examples. LER = S2/S1 clipped to [0, 1], on knowledge-encoding "
        "layers.",
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
    name, layer = "LER", layers["layer"]
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


# One example, layer by layer.


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
        name="LER",
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


# Which part of a block carries the knowledge: audits at several patch sites, compared.


def component_profile(
    sites: Mapping[str, pd.DataFrame],
    *,
    theme: Theme = "light",
    title: str | None = "Which component carries the knowledge",
) -> go.Figure:
    """S1 by layer for each patch site, and its mean over layers.

    Args:
        sites: Patch site (`resid_post`, `attn_out` ...) to the `layers_frame()` of an audit at that site.
        theme: Light or dark.
        title: Heading; None leaves it out.

    Returns:
        The figure, in nats per token.

    Raises:
        DataError: No site, or a column is missing.
    """
    if not sites:
        raise DataError("expected at least one patch site with its layers_frame(); got none.")
    for frame in sites.values():
        require(frame, ["layer", "s1_mean"], source="audit.layers_frame()")
    from plotly.subplots import make_subplots

    colours = palette(theme).series
    figure = make_subplots(rows=1, cols=2, column_widths=[0.64, 0.36], horizontal_spacing=0.16)
    for place, (site, frame) in enumerate(sites.items()):
        colour, name = colours[place % len(colours)], shown(site)
        line = curve(frame["layer"], frame["s1_mean"], name=name, colour=colour, hover=f"{name} %{{y:.3f}}")
        figure.add_trace(line, row=1, col=1)
        figure.add_trace(_mean_bar(name, float(frame["s1_mean"].mean()), colour), row=1, col=2)
    layer_axis(figure, max(map(len, sites.values())))
    figure.update_yaxes(title_text="S1, nats per token", rangemode="tozero", row=1, col=1)
    _mean_axes(figure, [shown(site) for site in sites])
    figure.update_layout(hovermode="x unified", hoverdistance=-1)
    subtitle = "Log-probability lost with retain's state at each site: by layer, and the mean over layers."
    return style(figure, theme=theme, title=title, subtitle=subtitle, height=390)


def _mean_bar(name: str, mean: float, colour: str) -> Any:
    import plotly.graph_objects as go

    return go.Bar(
        x=[mean],
        y=[name],
        orientation="h",
        name=name,
        legendgroup=name,
        showlegend=False,
        width=0.6,
        marker={"color": colour, "line": {"width": 0}},
        text=[f"{mean:.3f}"],
        textposition="outside",
        cliponaxis=False,
        hovertemplate=f"{name}: mean over layers %{{x:.3f}} nats per token<extra></extra>",
    )


def _mean_axes(figure: Any, names: list[str]) -> None:
    """The bars' own range (the layer axis set one on all), with room for the numbers at their ends."""
    means = [trace.x[0] for trace in figure.data if trace.type == "bar"]
    low, high = min(0.0, *means), max(0.0, *means)
    room = 0.25 * ((high - low) or 1.0)
    figure.update_xaxes(
        title_text="mean S1, nats per token", range=[low - (room if low < 0 else 0), high + room],
        dtick=None, tickformat=None, nticks=5, row=1, col=2,
    )  # fmt: skip
    figure.update_yaxes(
        autorange="reversed", categoryorder="array", categoryarray=names, showgrid=False, row=1, col=2
    )


# Loss on forget facts against loss on facts that were to be kept, by layer: erasure beside damage.

_COLUMNS = [f"{name}_{part}" for name in ("forget", "control") for part in ("mean", "low", "high")]


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
        yaxis={"title": {"text": "Δ log-prob<br>(nats/token)"}, "rangemode": "tozero"},
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


# One example seen twice: by patching (UDS) and by Logit Lens.

_VIEWS = (("uds", "UDS {}: states patched in"), ("lens", "Logit Lens {}: states read out at once"))


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
        yaxis={"title": {"text": "Δ log-prob<br>(nats/token)"}, "rangemode": "tozero"},
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
        ("ler", "LER", colours.erased, 2),
    )
    for part, name, colour, row in parts:
        hover = f"{part.removesuffix('_delta').upper()} %{{y:.3f}}" + (" nats per token" if row == 1 else "")
        line = curve(layers["layer"], layers[f"{view}_{part}"], name=name, colour=colour, hover=hover)
        line.showlegend = column == 1
        put(figure, line, row=row, column=column)


# A small panel for each of many models, the others behind it: as lines, or as their range.

COLUMNS, NARROW = 4, 2
"""Panels in a row: in a figure of ordinary width, and where there is little room."""

_TITLE, _PANEL, _GAP, _AXIS = 22, 92, 16, 52
"""Pixels of a row: words above it, plot, space below; and what stands below the last row."""

_BEHIND = 24
"""Above so many models the lines of the others would fill the panel: their range stands there."""


class Curves(NamedTuple):
    """The models of the figure."""

    layers: Mapping[str, list[int]]
    """Layers by model."""
    values: Mapping[str, list[float]]
    """Their values by model; NaN is a gap."""


def model_panels(
    figure: Any,
    curves: Curves,
    axis: Mapping[str, Any],
    *,
    chosen: str | None,
    references: Collection[str],
    colours: Palette,
) -> int:
    """Fill a figure with one panel per model, highest mean first; returns its height in pixels.

    Args:
        figure: An empty figure.
        curves: The models.
        axis: What all y axes share.
        chosen: The model whose panel is marked.
        references: Models that have no panel and stand, dotted, in all of them.
        colours: Of the theme.
    """
    order = list(curves.values)
    own = sorted(
        (name for name in order if name not in references),
        key=lambda name: _mean(curves.values[name]),
        reverse=True,
    )
    across, lowest, highest = _reach(curves, own)
    traces, titles = [], []
    for panel, name in enumerate(own):
        at = dict(zip(("xaxis", "yaxis"), _axes(panel), strict=True))
        if len(own) <= _BEHIND:
            others = [other for other in own if other != name]
            traces += _behind(curves, others, "the other models", {"color": colours.other, "width": 1}, at)
        else:
            traces.append(_range(across, lowest, highest, colours.share, at))
        dotted = {"color": colours.faint, "width": 1.25, "dash": "dot"}
        traces += _behind(curves, references, "references", dotted, at)
        traces.append(_own(curves, name, order.index(name), colours.erased, at))
        titles.append(_title(name, order.index(name), colours.text, at))
    figure.add_traces(traces)
    wide, height = _grid(len(own), COLUMNS)
    narrow, more = _grid(len(own), NARROW)
    longest = max(map(len, curves.layers.values()), default=1)
    figure.update_layout(
        wide,
        annotations=titles,
        shapes=[] if chosen not in own else [_mark(own.index(chosen), colours.erased_band)],
        hovermode="closest",
        legend={"itemclick": False, "itemdoubleclick": False},
        meta={"kind": "panels", "narrow": {**narrow, "height": more}},
    )
    figure.update_xaxes(range=[-0.5, longest - 0.5], dtick=max(1, -(-longest // 5)), tickformat="d")
    figure.update_yaxes({**axis, "dtick": 0.5} if "dtick" in axis else dict(axis))
    return height


def _mean(own: list[float]) -> float:
    known = [x for x in own if x == x]
    return sum(known) / len(known) if known else float("-inf")


def _axes(panel: int) -> tuple[str, str]:
    number = "" if panel == 0 else str(panel + 1)
    return f"x{number}", f"y{number}"


def _grid(n: int, columns: int) -> tuple[dict[str, Any], int]:
    """Axes of `n` panels in rows of `columns`, and the height of the figure without its title."""
    rows = -(-n // columns)
    pitch, space = _TITLE + _PANEL + _GAP, 0.04
    total = rows * pitch - _GAP
    width = (1 - space * (columns - 1)) / columns
    layout: dict[str, Any] = {}
    for panel in range(n):
        row, column = divmod(panel, columns)
        x, y = _axes(panel)
        left, top = column * (width + space), 1 - (row * pitch + _TITLE) / total
        lowest = panel + columns >= n
        layout[f"xaxis{x[1:]}"] = {
            "domain": [round(left, 6), round(min(1.0, left + width), 6)],
            "anchor": y,
            "showticklabels": lowest,
            "title": {"text": "layer" if lowest else ""},
        }
        layout[f"yaxis{y[1:]}"] = {
            "domain": [max(0.0, round(top - _PANEL / total, 6)), round(top, 6)],
            "anchor": x,
            "showticklabels": column == 0,
        }
    return layout, total + _AXIS + 80


def _behind(
    curves: Curves, names: Collection[str], label: str, line: Mapping[str, Any], at: Mapping[str, str]
) -> list[Any]:
    """Several models as one trace; none without any."""
    import plotly.graph_objects as go

    across: list[int | None] = []
    up: list[float | None] = []
    for name in names:
        across += [*curves.layers[name], None]
        up += [*(None if value != value else round(value, 4) for value in curves.values[name]), None]
    trace = go.Scatter(
        x=across,
        y=up,
        mode="lines",
        name=label,
        legendgroup=label,
        showlegend=at["xaxis"] == "x",
        line=dict(line),
        hoverinfo="skip",
        **at,
    )
    return [trace] if names else []


def _reach(curves: Curves, names: Collection[str]) -> tuple[list[int], list[float], list[float]]:
    """The layers at which any model has a value, with the least and the highest value there."""
    values: dict[int, list[float]] = {}
    for name in names:
        for layer, value in zip(curves.layers[name], curves.values[name], strict=True):
            if value == value:
                values.setdefault(layer, []).append(value)
    layers = sorted(values)
    return layers, [min(values[layer]) for layer in layers], [max(values[layer]) for layer in layers]


def _range(
    layers: list[int], lowest: list[float], highest: list[float], colour: str, at: Mapping[str, str]
) -> Any:
    """What the values of all models span."""
    import plotly.graph_objects as go

    return go.Scatter(
        x=[*layers, *reversed(layers)],
        y=[round(value, 4) for value in (*lowest, *reversed(highest))],
        mode="lines",
        fill="toself",
        fillcolor=colour,
        line={"width": 0, "color": colour},
        name="range of all models",
        legendgroup="range",
        showlegend=at["xaxis"] == "x",
        hoverinfo="skip",
        **at,
    )


def _own(curves: Curves, name: str, place: int, colour: str, at: Mapping[str, str]) -> Any:
    """The model of a panel; `meta` says which it is, for pages that let one be chosen."""
    import plotly.graph_objects as go

    return go.Scatter(
        x=curves.layers[name],
        y=curves.values[name],
        mode="lines+markers",
        name="the model",
        legendgroup="the model",
        legendrank=1,
        showlegend=at["xaxis"] == "x",
        line={"color": colour, "width": 2.25},
        marker={"color": colour, "size": 4},
        hovertemplate=f"{shown(name, limit=40)}<br>layer %{{x}}: %{{y:.3f}}<extra></extra>",
        connectgaps=False,
        meta={"place": place},
        **at,
    )


def _title(name: str, place: int, colour: str, at: Mapping[str, str]) -> dict[str, Any]:
    return {
        "name": str(place),
        "text": shown(name, limit=24),
        "x": 0,
        "xref": f"{at['xaxis']} domain",
        "xanchor": "left",
        "y": 1,
        "yref": f"{at['yaxis']} domain",
        "yanchor": "bottom",
        "yshift": 2,
        "font": {"color": colour, "size": 12.5},
    }


def _mark(panel: int, colour: str) -> dict[str, Any]:
    """A tint behind the panel of the chosen model."""
    x, y = _axes(panel)
    corners = {"x0": 0, "x1": 1, "y0": 0, "y1": 1, "xref": f"{x} domain", "yref": f"{y} domain"}
    return {"type": "rect", **corners, "fillcolor": colour, "line": {"width": 0}, "layer": "below"}


# Several unlearned models, layer by layer, in one figure.

Value: TypeAlias = Literal["ler", "s2"]
"""What is compared: erased share, or lost log-probability."""

LINES = 8
"""Models that share one panel; above it each has a panel of its own."""

_HEIGHT = 400
_WORDS = {
    "ler": ("mean LER, 0 intact to 1 erased", "Mean LER over the examples with knowledge at the layer."),
    "s2": ("mean S2, nats per token", "Mean S2 over all examples, nats per token."),
}


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
