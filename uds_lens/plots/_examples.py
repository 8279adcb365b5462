"""Every example at every layer: the map of erasure."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import numpy as np

from uds_lens._types import check_choice
from uds_lens.errors import DataError
from uds_lens.plots._style import (
    Palette,
    Theme,
    band,
    curve,
    head,
    layer_axis,
    note,
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


Order: TypeAlias = Literal["input", "uds", "cluster"]
"""Rows as in the data, by score (not measurable ones last), or similar ones together."""

_NAMED_ROWS, _LETTERS = 50, 40
_HOVER = "%{y}<br>layer %{x}: %{text}<br>S1 %{customdata[0]:.3f}, S2 %{customdata[1]:.3f} nats per token"


def ler_heatmap(
    long: pd.DataFrame,
    examples: pd.DataFrame,
    *,
    order: Order = "uds",
    theme: Theme = "light",
    title: str | None = "Erasure of every example at every layer",
) -> go.Figure:
    """LER of each example (row) at each layer (column): 0 as in full, 1 as in retain, grey where nothing was there.

    Args:
        long: `audit.to_frame()`.
        examples: `audit.examples_frame()`, in the same order.
        order: Order of the rows.
        theme: Light or dark.
        title: Heading; None leaves it out.

    Returns:
        The figure. NaN cells (no knowledge at that layer) are in a grey that the scale does not contain; pointing at
        a cell shows entity, question and deltas.

    Raises:
        DataError: A column is missing, or the two frames do not belong together.
        ConfigError: No such order or theme.
    """
    require(long, ["layer", "s1_delta", "s2_delta", "ler"], source="audit.to_frame()")
    require(examples, ["example_id", "question", "entity", "uds"], source="audit.examples_frame()")
    check_choice("order", order, Order)
    import plotly.graph_objects as go

    colours = palette(theme)
    if not len(examples):
        figure = go.Figure()
        note(figure, "No example could be scored.")
        return style(figure, theme=theme, title=title, legend=False)
    n, layers = len(examples), sorted(long["layer"].unique())
    if len(long) != n * len(layers):
        raise DataError(
            f"{len(long)} rows do not make {n} examples x {len(layers)} layers: pass frames of one audit."
        )
    matrices = {
        name: long[name].to_numpy(dtype=float).reshape(n, -1) for name in ("ler", "s1_delta", "s2_delta")
    }
    rows = row_order(matrices["ler"], examples["uds"].to_numpy(dtype=float), order)
    figure = go.Figure(_cells(matrices, rows, layers, colours))
    _row_labels(figure, examples.iloc[rows], colours)
    figure.update_xaxes(
        title_text="layer", dtick=max(1, -(-len(layers) // 16)), tickformat="d", showline=False, ticks=""
    )
    subtitle = "0: as in full; 1: as in retain; grey: no knowledge at that layer." + _ORDERS[order]
    height = max(320, 190 + 18 * n if n <= _NAMED_ROWS else 900)
    return style(figure, theme=theme, title=title, subtitle=subtitle, height=height)


_ORDERS = {
    "input": " Rows in input order.",
    "uds": " Rows by UDS, lowest on top.",
    "cluster": " Similar rows together.",
}


def row_order(ler: np.ndarray, uds: np.ndarray, order: Order) -> np.ndarray:
    """Indices of the rows from top to bottom.

    >>> row_order(np.zeros((3, 1)), np.array([0.5, np.nan, 0.1]), "uds")
    array([2, 0, 1])
    """
    if order == "input" or (len(uds) < 3 and order == "cluster"):
        return np.arange(len(uds))
    if order == "uds":
        return np.argsort(uds, kind="stable")
    from scipy.cluster.hierarchy import leaves_list, linkage

    absent = -0.5
    features = np.where(np.isnan(ler), absent, ler)
    return leaves_list(linkage(features, method="average", optimal_ordering=len(uds) <= 500))


def _cells(matrices: Any, rows: np.ndarray, layers: Any, colours: Palette) -> Any:
    import plotly.graph_objects as go

    deltas = np.stack([matrices["s1_delta"][rows], matrices["s2_delta"][rows]], axis=-1)
    stops = np.linspace(0, 1, len(colours.scale))
    return go.Heatmap(
        z=matrices["ler"][rows].round(4),
        x=layers,
        customdata=deltas.round(4),
        text=[
            ["no knowledge, LER undefined" if x != x else f"LER {x:.2f}" for x in row]
            for row in matrices["ler"][rows]
        ],
        zmin=0,
        zmax=1,
        colorscale=[[float(stop), colour] for stop, colour in zip(stops, colours.scale, strict=True)],
        hoverongaps=True,
        hovertemplate=_HOVER + "<extra></extra>",
        xgap=1,
        ygap=1 if len(rows) <= 120 else 0,
        colorbar={
            "title": {"text": "LER<br>"},
            "tickvals": [0, 0.25, 0.5, 0.75, 1],
            "thickness": 12,
            "outlinewidth": 0,
            "len": 0.9,
            "ticks": "",
        },
    )


def row_names(examples: Any) -> list[str]:
    """What an example is about: its subject and entity where it has a subject, else its question.

    >>> import pandas as pd
    >>> columns = {"question": ["Where was she born?"] * 2, "entity": ["Quince"] * 2, "subject": ["Ada Vey", None]}
    >>> row_names(pd.DataFrame(columns))
    ['Ada Vey: Quince', 'Where was she born?']
    """
    subjects = list(examples["subject"]) if "subject" in examples.columns else [None] * len(examples)
    return [
        shown(f"{subject}: {entity}" if isinstance(subject, str) and subject else question, limit=_LETTERS)
        for question, entity, subject in zip(examples["question"], examples["entity"], subjects, strict=True)
    ]


def _row_labels(figure: Any, examples: Any, colours: Palette) -> None:
    """Hidden tick texts feed the hover; a second axis names the rows where there is room."""
    import plotly.graph_objects as go

    n = len(examples)
    entities = [shown(entity, limit=60) for entity in examples["entity"]]
    hover = [
        f"<b>{entity}</b><br>{shown(question, width=64)}<br>UDS {'not measurable' if uds != uds else f'{uds:.2f}'}"
        for entity, question, uds in zip(entities, examples["question"], examples["uds"], strict=True)
    ]
    legend = go.Scatter(
        x=[None],
        y=[None],
        yaxis="y2",
        mode="markers",
        name="no knowledge at this layer (NaN)",
        marker={"symbol": "square", "size": 11, "color": colours.missing},
    )
    figure.add_trace(legend)
    side = {"range": [n - 0.5, -0.5], "showgrid": False}
    named = n <= _NAMED_ROWS
    figure.update_layout(
        plot_bgcolor=colours.missing,
        yaxis={**side, "tickvals": list(range(n)), "ticktext": hover, "showticklabels": False},
        yaxis2={
            **side,
            "overlaying": "y",
            "matches": "y",
            "side": "left",
            "tickvals": list(range(n)) if named else [],
            "ticktext": row_names(examples) if named else [],
            "showticklabels": named,
            "title": {"text": "" if named else f"{n} examples"},
        },
    )


# How the examples' scores are spread: one number may hide two camps.

_BINS = 20


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


# Depth by type of the entity: names, awards, places ...


def type_bars(
    types: pd.DataFrame, *, theme: Theme = "light", title: str | None = "Depth by entity type"
) -> go.Figure:
    """Mean UDS per entity type with its bootstrap interval, and how many examples stand behind it.

    Args:
        types: `audit.types_frame()`.
        theme: Light or dark.
        title: Heading; None leaves it out.

    Returns:
        The figure: one bar per type in the frame's order, lowest UDS on top. No bar: not measurable. No interval:
        fewer than two measurable examples.

    Raises:
        DataError: A column is missing.
    """
    require(types, ["type", "n", "n_measured", "uds", "uds_low", "uds_high"], source="audit.types_frame()")
    import plotly.graph_objects as go

    colours = palette(theme)
    names = [shown(name, limit=32) for name in types["type"]]
    above, below = _whiskers(types)
    bars = go.Bar(
        x=types["uds"],
        y=list(range(len(types))),
        orientation="h",
        width=0.62,
        marker={"color": colours.erased, "opacity": 0.85, "line": {"width": 0}},
        error_x={
            "type": "data",
            "array": above,
            "arrayminus": below,
            "color": colours.ink,
            "thickness": 1.3,
            "width": 4,
        },
        customdata=[_words(row) for row in types.itertuples()],
        hovertemplate="%{customdata}<extra></extra>",
    )
    figure = go.Figure(bars)
    for place, row in enumerate(types.itertuples()):
        counts = f"{row.n_measured}" if row.n_measured == row.n else f"{row.n_measured} of {row.n}"
        figure.add_annotation(
            text=counts, x=1.03, xref="paper", xanchor="left", y=place, font={"color": colours.text}
        )
        if math.isnan(row.uds):
            figure.add_annotation(text="not measurable", x=0.01, xanchor="left", y=place)
    if len(types):
        figure.add_annotation(
            text="N", x=1.03, xref="paper", xanchor="left", y=1, yref="paper", yanchor="bottom"
        )
    else:
        note(figure, "No example could be scored.")
    figure.update_xaxes(
        title_text="UDS, 0 intact to 1 erased", range=[0, 1.03], dtick=0.25, tickformat=".2~f", showgrid=True
    )
    figure.update_yaxes(
        tickvals=list(range(len(types))), ticktext=names, range=[len(types) - 0.4, -0.6], showgrid=False
    )
    style(
        figure,
        theme=theme,
        title=title,
        subtitle="Mean over measurable examples with bootstrap interval, by subject where examples share one.",
        height=140 + 34 * max(len(types), 2),
        legend=False,
    )
    return figure.update_layout(margin={"t": figure.layout.margin.t + 16, "r": 96})


def _whiskers(types: Any) -> tuple[list[float], list[float]]:
    above = (types["uds_high"] - types["uds"]).fillna(0.0).clip(lower=0)
    below = (types["uds"] - types["uds_low"]).fillna(0.0).clip(lower=0)
    return above.tolist(), below.tolist()


def _words(row: Any) -> str:
    counts = f"{row.n_measured} of {row.n} measurable"
    if math.isnan(row.uds):
        return f"<b>{shown(row.type)}</b><br>{counts}"
    interval = "" if math.isnan(row.uds_low) else f" ({row.uds_low:.2f} to {row.uds_high:.2f})"
    return f"<b>{shown(row.type)}</b><br>UDS {row.uds:.2f}{interval}<br>{counts}"


# Does the score depend on how long the entity is?

_ENOUGH = 3
"""Examples of one length from which on their mean is drawn."""


def length_scatter(
    examples: pd.DataFrame, *, theme: Theme = "light", title: str | None = "Depth and length of the entity"
) -> go.Figure:
    """UDS of each measurable example against the tokens of its entity, the mean per length, and Spearman's rho.

    Args:
        examples: `audit.examples_frame()`.
        theme: Light or dark.
        title: Heading; None leaves it out.

    Returns:
        The figure. Points are moved sideways a little (seeded) so that they do not hide each other.

    Raises:
        DataError: A column is missing.
    """
    require(examples, ["n_tokens", "uds", "entity", "question"], source="audit.examples_frame()")
    import plotly.graph_objects as go

    colours = palette(theme)
    measured = examples[examples["uds"].notna()]
    aside = np.random.default_rng(0).uniform(-0.28, 0.28, len(measured))
    points = go.Scatter(
        x=(measured["n_tokens"].to_numpy(dtype=float) + aside).round(3),
        y=measured["uds"].round(4),
        mode="markers",
        name="example",
        marker={"color": colours.retain, "size": 6, "opacity": 0.45, "line": {"width": 0}},
        customdata=[
            f"<b>{shown(row.entity, limit=60)}</b><br>{shown(row.question, width=64, limit=140)}<br>"
            f"{row.n_tokens} tokens, UDS {row.uds:.2f}"
            for row in measured.itertuples()
        ],
        hovertemplate="%{customdata}<extra></extra>",
    )
    means = measured.groupby("n_tokens")["uds"].agg(["mean", "size"])
    means = means[means["size"] >= _ENOUGH]
    line = go.Scatter(
        x=means.index,
        y=means["mean"],
        mode="lines+markers",
        name=f"mean per length ({_ENOUGH} examples or more)",
        line={"color": colours.unlearned, "width": 2},
        marker={"color": colours.unlearned, "size": (4 + 2 * np.sqrt(means["size"])).clip(upper=16).tolist()},
        customdata=means["size"],
        hovertemplate="%{x} tokens: mean UDS %{y:.2f} (%{customdata} examples)<extra></extra>",
    )
    figure = go.Figure([points, line])
    if not len(measured):
        note(figure, "No example is measurable.")
    figure.update_xaxes(title_text="entity length, tokens", tickformat="d", dtick=_step(measured["n_tokens"]))
    figure.update_yaxes(
        title_text="UDS, 0 intact to 1 erased", range=[-0.04, 1.04], dtick=0.25, tickformat=".2~f"
    )
    return style(figure, theme=theme, title=title, subtitle=_correlation_words(measured), height=380)


def rank_correlation(examples: pd.DataFrame) -> float:
    """Spearman's rho between entity length and UDS over measurable examples; NaN with fewer than three or no variation.

    Example:
        >>> import pandas as pd
        >>> round(rank_correlation(pd.DataFrame({"n_tokens": [1, 2, 5], "uds": [0.9, 0.5, 0.1]})), 6)
        -1.0
    """
    measured = examples[examples["uds"].notna()]
    if len(measured) < 3 or min(measured["n_tokens"].nunique(), measured["uds"].nunique()) < 2:
        return math.nan
    return float(measured["n_tokens"].rank().corr(measured["uds"].rank()))


def _correlation_words(measured: Any) -> str:
    return f"Spearman's rho {number(rank_correlation(measured))} over {len(measured)} measurable examples."


def _step(tokens: Any) -> int:
    return max(1, -(-int(tokens.max() - tokens.min() + 1) // 14)) if len(tokens) else 1


# What clipping LER to [0, 1] hides, on both sides.


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


# How much the score owes to the threshold.


def tau_curve(
    sweep: pd.DataFrame,
    *,
    tau: float | int | None = None,
    theme: Theme = "light",
    title: str | None = "What the threshold changes",
) -> go.Figure:
    """UDS, KE layers per example (mean, smallest to largest) and measurable examples over tau.

    Args:
        sweep: `audit.tau_sweep()`.
        tau: The audit's own threshold in nats per token, marked by a line; None marks nothing.
        theme: Light or dark.
        title: Heading; None leaves it out.

    Returns:
        The figure. Thresholds are evenly spaced, whatever their values; a gap in UDS: nothing measurable.

    Raises:
        DataError: A column is missing.
    """
    names = ["tau", "uds", "ke_mean", "ke_min", "ke_max", "n_measured", "n_not_measurable"]
    require(sweep, names, source="audit.tau_sweep()")
    colours, places = palette(theme), list(range(len(sweep)))
    figure = panels([0.4, 0.35, 0.25], gap=0.07)
    hover = "tau %{customdata:g}: UDS %{y:.3f}"
    score = curve(
        places, sweep["uds"], name="UDS", colour=colours.erased, hover=hover, customdata=sweep["tau"]
    )
    put(figure, score, row=1)
    _sizes(figure, sweep, places, colours)
    _counts(figure, sweep, places, colours)
    marked = tau in set(sweep["tau"])
    if marked:
        place = sweep["tau"].tolist().index(tau)
        line = {"color": colours.faint, "width": 1, "dash": "dot"}
        figure.add_shape(type="line", x0=place, x1=place, y0=0, y1=1, yref="paper", line=line)
    figure.update_layout(
        xaxis={
            "title": {"text": "tau, nats per token"},
            "range": [-0.4, len(sweep) - 0.6],
            "tickvals": places,
            "ticktext": [f"{value:g}" for value in sweep["tau"]],
        },
        yaxis={"title": {"text": "UDS"}, "range": [-0.04, 1.06], "dtick": 0.5},
        yaxis2={"title": {"text": "KE layers<br>per example"}, "rangemode": "tozero"},
        yaxis3={"title": {"text": "examples"}, "rangemode": "tozero"},
        hovermode="x unified",
        hoverdistance=-1,
        barmode="stack",
    )
    head(figure, "at this threshold")
    subtitle = "KE layers: those where S1 exceeds tau; band: fewest to most of an example." + (
        " Dotted: the tau of this audit." if marked else ""
    )
    return style(figure, theme=theme, title=title, subtitle=subtitle, height=560)


def _sizes(figure: Any, sweep: Any, places: list[int], colours: Palette) -> None:
    name = "KE layers"
    shade = band(places, sweep["ke_min"], sweep["ke_max"], colour=colours.retain_band, group=name)
    line = curve(
        places,
        sweep["ke_mean"],
        name=name,
        colour=colours.retain,
        hover="KE layers %{y:.2f} (%{customdata[0]:.0f} to %{customdata[1]:.0f})",
        customdata=sweep[["ke_min", "ke_max"]].to_numpy(dtype=float),
    )
    put(figure, shade, row=2)
    put(figure, line, row=2)


def _counts(figure: Any, sweep: Any, places: list[int], colours: Palette) -> None:
    import plotly.graph_objects as go

    parts = (
        ("n_measured", "measured", colours.faint),
        ("n_not_measurable", "not measurable", colours.missing),
    )
    for column, name, colour in parts:
        bars = go.Bar(
            x=places,
            y=sweep[column],
            name=name,
            width=0.5,
            marker={"color": colour, "line": {"width": 0}},
            hovertemplate=f"{name} %{{y}}<extra></extra>",
        )
        put(figure, bars, row=3)
