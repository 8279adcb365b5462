"""Figures of example scores: heat map, histogram, means by entity type and length, clipping, thresholds."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import numpy as np
import plotly.graph_objects as go

from uds_lens._types import check_choice
from uds_lens.errors import DataError
from uds_lens.plots._style import (
    ONLY_COUNTING,
    UDS_AXIS,
    Look,
    band,
    count,
    curve,
    hover_head,
    layer_axis,
    narrow,
    number,
    palette,
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

Order: TypeAlias = Literal["input", "uds", "cluster"]
"""Order of the rows: as in the data, by score (unmeasurable examples last), or clustered by similarity."""

_ORDER_WORDS = {"input": "in input order", "uds": "by UDS, lowest on top", "cluster": "clustered by similarity"}
_HEATMAP = "LER by example and layer"
_NAMED_ROWS = 50
_GROUPS = 1000
"""Maximum number of rows that are clustered individually. If there are more rows, half this number are clustered, and
each remaining row joins the most similar clustered row; all pairs of 20,000 rows would take 3 GB."""

MOST_POINTS = 2000  # in a scatter plot; if there are more examples, a random sample is drawn


def ler_heatmap(long: pd.DataFrame, examples: pd.DataFrame, *, order: Order = "uds", **look: Unpack[Look]) -> go.Figure:
    """Plot the LER of each example (row) at each layer (column).

    Args:
        long: `audit.to_frame()`.
        examples: `audit.examples_frame()`, in the same order.
        order: Order of the rows.
        **look: Theme, title, width, height (`Look`).

    Returns:
        The figure; an LER of 0 means that knowledge is as in full, and 1 as in retain. NaN cells (no knowledge encoded
            at that layer) are grey, which
        is not on the colour scale. Hovering shows entity, question and deltas.

    Raises:
        DataError: A column is missing, or the two frames are not from the same audit.
        ConfigError: `order` or `theme` is not a valid choice.
    """
    require(long, ["layer", "s1_delta", "s2_delta", "ler"], source="audit.to_frame()")
    require(examples, ["example_id", "question", "entity", "uds"], source="audit.examples_frame()")
    check_choice("order", order, Order)
    colours, figure, n = palette(look.get("theme", "light")), go.Figure(), len(examples)
    if not n:
        return style(figure, _HEATMAP, legend=False, note="No example could be scored.", **look)
    layers = sorted(long["layer"].unique())
    if len(long) != n * len(layers):
        raise DataError(
            f"expected a row for each of {n} examples and {len(layers)} layers; got {len(long)} rows: pass two frames "
            "of one audit."
        )
    matrix = {name: long[name].to_numpy(dtype=float).reshape(n, -1) for name in ("ler", "s1_delta", "s2_delta")}
    scores = examples["uds"].to_numpy(dtype=float)
    rows = row_order(matrix["ler"], scores, order)
    ler, shown_examples = matrix["ler"][rows], examples.iloc[rows]
    figure.add_heatmap(
        z=ler.round(4),
        x=layers,
        customdata=np.stack([matrix["s1_delta"][rows], matrix["s2_delta"][rows]], axis=-1).round(4),
        text=[["no knowledge, LER undefined" if x != x else f"LER {x:.2f}" for x in row] for row in ler],
        zmin=0,
        zmax=1,
        colorscale=colours.erasure,
        hoverongaps=True,
        hovertemplate="%{y}<br>layer %{x}: %{text}<br>S1 %{customdata[0]:.3f}, S2 %{customdata[1]:.3f} nats/token"
        "<extra></extra>",
        xgap=1,
        ygap=1 if n <= 120 else 0,
        colorbar={
            "title": {"text": "LER<br>"},
            "tickvals": [0, 0.25, 0.5, 0.75, 1],
            "thickness": 12,
            "outlinewidth": 0,
            "len": 0.9,
            "ticks": "",
        },
    )
    figure.add_scatter(
        x=[None],
        y=[None],
        yaxis="y2",
        mode="markers",
        name="no knowledge at this layer (NaN)",
        showlegend=bool(np.isnan(ler).any()),
        marker={"symbol": "square", "size": 11, "color": colours.missing},
    )
    hover = [
        f"<b>{shown(row.entity, limit=60)}</b><br>{shown(row.question, width=64)}<br>"
        f"UDS {'not measurable' if row.uds != row.uds else f'{row.uds:.2f}'}"
        for row in shown_examples.itertuples()
    ]
    # hidden tick labels serve the hover labels; if there is room, a second axis names the rows
    side, places = {"range": [n - 0.5, -0.5], "showgrid": False}, list(range(n))
    named = n <= _NAMED_ROWS and not narrow(look)
    figure.update_layout(
        plot_bgcolor=colours.missing,
        yaxis={**side, "tickvals": places, "ticktext": hover, "showticklabels": False},
        yaxis2={
            **side,
            "overlaying": "y",
            "matches": "y",
            "side": "left",
            "tickvals": places if named else [],
            "ticktext": row_names(shown_examples) if named else [],
            "showticklabels": named,
            "title": {"text": "" if named else f"{n} examples"},
        },
    )
    figure.update_xaxes(
        title_text="layer", dtick=max(1, -(-len(layers) // 16)), tickformat="d", showline=False, ticks=""
    )
    subtitle = f"LER: 0 as in full, 1 as in retain; grey: no knowledge encoded there. Rows {_ORDER_WORDS[order]}."
    if np.isnan(matrix["s2_delta"]).any() and not np.isnan(matrix["s1_delta"]).any():
        subtitle += f" {ONLY_COUNTING}"
    return style(
        figure,
        _HEATMAP,
        subtitle,
        tall=max(320, 190 + 18 * n) if n <= _NAMED_ROWS else 900,
        legend=bool(figure.data[1].showlegend),
        **look,
    )


def row_order(ler: np.ndarray, uds: np.ndarray, order: Order) -> np.ndarray:
    """Return the row indices in order from top to bottom.

    >>> row_order(np.zeros((3, 1)), np.array([0.5, np.nan, 0.1]), "uds")
    array([2, 0, 1])
    """
    n = len(uds)
    if order == "input" or (n < 3 and order == "cluster"):
        return np.arange(n)
    if order == "uds":
        return np.argsort(uds, kind="stable")
    from scipy.cluster.hierarchy import leaves_list, linkage

    features = np.where(np.isnan(ler), -0.5, ler)
    if n <= _GROUPS:
        return leaves_list(linkage(features, method="average", optimal_ordering=n <= 500))
    from scipy.spatial import cKDTree

    sample = np.argsort(uds, kind="stable")[np.linspace(0, n - 1, _GROUPS // 2).astype(int)]
    place = np.argsort(leaves_list(linkage(features[sample], method="average", optimal_ordering=True)))
    nearest = cKDTree(features[sample]).query(features)[1]
    return np.lexsort((uds, place[nearest]))


def row_names(examples: pd.DataFrame) -> list[str]:
    """Name each example by subject and entity or, without a subject, by its question.

    >>> import pandas as pd
    >>> columns = {"question": ["Where was she born?"] * 2, "entity": ["Quince"] * 2, "subject": ["Ada Vey", None]}
    >>> row_names(pd.DataFrame(columns))
    ['Ada Vey: Quince', 'Where was she born?']
    """
    subjects = examples["subject"] if "subject" in examples.columns else [None] * len(examples)
    return [
        shown(f"{subject}: {entity}" if isinstance(subject, str) and subject else question, limit=40)
        for question, entity, subject in zip(examples["question"], examples["entity"], subjects, strict=True)
    ]


def uds_distribution(examples: pd.DataFrame, **look: Unpack[Look]) -> go.Figure:
    """Plot a histogram of UDS over measurable examples, with the mean, to show clusters that the mean hides.

    Args:
        examples: `audit.examples_frame()`.
        **look: Theme, title, width, height (`Look`).

    Returns:
        The figure, with 20 bins from 0 (intact) to 1 (erased).

    Raises:
        DataError: A column is missing.

    Example:
        >>> import pandas as pd
        >>> figure = uds_distribution(pd.DataFrame({"uds": [0.0, 1.0, float("nan")]}))
        >>> figure.data[0].y[0], figure.data[0].y[-1], figure.layout.title.subtitle.text
        (1, 1, '2 measured, 1 not measurable.')
    """
    require(examples, ["uds"], source="audit.examples_frame()")
    colours, figure = palette(look.get("theme", "light")), go.Figure()
    scores = examples["uds"].to_numpy(dtype=float)
    measured = scores[~np.isnan(scores)]
    counts, edges = np.histogram(measured, bins=20, range=(0.0, 1.0))
    figure.add_bar(
        x=(edges[:-1] + edges[1:]) / 2,
        y=[int(n) for n in counts],
        width=0.92 / len(counts),
        marker={"color": colours.erased, "line": {"width": 0}},
        customdata=[f"{low:.2f} to {high:.2f}" for low, high in pairwise(edges)],
        hovertemplate="UDS %{customdata}: %{y} examples<extra></extra>",
    )
    if len(measured):
        mean = float(measured.mean())
        side, shift = ("right", -6) if mean > 0.5 else ("left", 6)
        figure.add_vline(mean, line={"color": colours.ink, "width": 1.5, "dash": "dot"})
        figure.add_annotation(
            text=f"mean {mean:.2f}",
            x=mean,
            y=1,
            yref="paper",
            xanchor=side,
            yanchor="top",
            xshift=shift,
            font={"color": colours.ink},
        )
    axis = {**UDS_AXIS, "range": [-0.01, 1.01], "showgrid": False}
    figure.update_xaxes(**axis | {"title_text": "UDS of an example (0 intact, 1 erased)"})
    figure.update_yaxes(title_text="examples", rangemode="tozero", tickformat="d")
    return style(
        figure,
        "UDS by example",
        f"{len(measured)} measured, {len(scores) - len(measured)} not measurable.",
        tall=340,
        legend=False,
        note=None if len(measured) else "No example is measurable.",
        **look,
    )


def type_bars(types: pd.DataFrame, **look: Unpack[Look]) -> go.Figure:
    """Plot mean UDS per entity type, with bootstrap interval and number of measured examples.

    Args:
        types: `audit.types_frame()`.
        **look: Theme, title, width, height (`Look`).

    Returns:
        The figure, lowest UDS on top. A type without a bar has no measurable example; a bar without an interval has
        only one.

    Raises:
        DataError: A column is missing.
    """
    require(types, ["type", "n", "n_measured", "uds", "uds_low", "uds_high"], source="audit.types_frame()")
    colours, figure = palette(look.get("theme", "light")), go.Figure()
    hover = []
    for place, row in enumerate(types.itertuples()):
        figure.add_annotation(
            text=f"{row.n_measured}" if row.n_measured == row.n else f"{row.n_measured} of {row.n}",
            x=1.03,
            xref="paper",
            xanchor="left",
            y=place,
            font={"color": colours.text},
        )
        lines = [f"<b>{shown(row.type)}</b>", f"{row.n_measured} of {row.n} measurable"]
        if math.isnan(row.uds):
            figure.add_annotation(text="not measurable", x=0.01, xanchor="left", y=place)
        else:
            interval = "" if math.isnan(row.uds_low) else f" ({row.uds_low:.2f} to {row.uds_high:.2f})"
            lines.insert(1, f"UDS {row.uds:.2f}{interval}")
        hover.append("<br>".join(lines))
    figure.add_bar(
        x=types["uds"],
        y=list(range(len(types))),
        orientation="h",
        width=0.62,
        marker={"color": colours.erased, "opacity": 0.85, "line": {"width": 0}},
        error_x={
            "type": "data",
            "array": (types["uds_high"] - types["uds"]).fillna(0.0).clip(lower=0).tolist(),
            "arrayminus": (types["uds"] - types["uds_low"]).fillna(0.0).clip(lower=0).tolist(),
            "color": colours.ink,
            "thickness": 1.3,
            "width": 4,
        },
        customdata=hover,
        hovertemplate="%{customdata}<extra></extra>",
    )
    if len(types):
        figure.add_annotation(text="N", x=1.03, xref="paper", xanchor="left", y=1, yref="paper", yanchor="bottom")
    figure.update_xaxes(**{**UDS_AXIS, "range": [0, 1.03]})
    row_axis(figure, [shown(name, limit=32) for name in types["type"]])
    style(
        figure,
        "UDS by entity type",
        "Mean over measurable examples; bootstrap interval, clustered by subject if examples share subjects.",
        tall=140 + 34 * max(len(types), 2),
        legend=False,
        note=None if len(types) else "No example could be scored.",
        **look,
    )
    return figure.update_layout(margin={"t": figure.layout.margin.t + 16, "r": 96})


def length_scatter(examples: pd.DataFrame, **look: Unpack[Look]) -> go.Figure:
    """Plot each measurable example's UDS against its entity's length, with the mean per length and Spearman's rho.

    Args:
        examples: `audit.examples_frame()`.
        **look: Theme, title, width, height (`Look`).

    Returns:
        The figure; points are jittered with a fixed seed. If there are more than 2,000 points, a random sample is
        drawn. The mean is drawn for lengths with at least 3 examples.

    Raises:
        DataError: A column is missing.
    """
    require(examples, ["n_tokens", "uds", "entity", "question"], source="audit.examples_frame()")
    colours, figure = palette(look.get("theme", "light")), go.Figure()
    measured = examples[examples["uds"].notna()]
    rng = np.random.default_rng(0)
    points = measured
    if len(measured) > MOST_POINTS:
        points = measured.iloc[np.sort(rng.choice(len(measured), MOST_POINTS, replace=False))]
    jitter = rng.uniform(-0.28, 0.28, len(points))
    figure.add_scatter(
        x=(points["n_tokens"].to_numpy(dtype=float) + jitter).round(3),
        y=points["uds"].round(4),
        mode="markers",
        name="example",
        marker={"color": colours.retain, "size": 6, "opacity": 0.45, "line": {"width": 0}},
        customdata=[
            f"<b>{shown(row.entity, limit=60)}</b><br>{shown(row.question, width=64, limit=140)}<br>"
            f"{row.n_tokens} tokens, UDS {row.uds:.2f}"
            for row in points.itertuples()
        ],
        hovertemplate="%{customdata}<extra></extra>",
    )
    means = measured.groupby("n_tokens")["uds"].agg(["mean", "size"])
    means = means[means["size"] >= 3]
    figure.add_scatter(
        x=means.index,
        y=means["mean"],
        mode="lines+markers",
        name="mean per length (3 examples or more)",
        line={"color": colours.unlearned, "width": 2},
        marker={"color": colours.unlearned, "size": (4 + 2 * np.sqrt(means["size"])).clip(upper=16).tolist()},
        customdata=means["size"],
        hovertemplate="%{x} tokens: mean UDS %{y:.2f} (%{customdata} examples)<extra></extra>",
    )
    step = 1
    if len(measured):
        step = max(1, -(-int(np.ptp(measured["n_tokens"]) + 1) // 14))
    figure.update_xaxes(title_text="entity length (tokens)", tickformat="d", dtick=step)
    figure.update_yaxes(**UDS_AXIS)
    rho = rank_correlation(examples)
    subtitle = f"Spearman's rho {number(rho)} over {count(len(measured), 'measurable example')}."
    if len(points) < len(measured):
        subtitle += f" Points: a sample of {MOST_POINTS:,}."
    return style(
        figure, "UDS by entity length", subtitle, note=None if len(measured) else "No example is measurable.", **look
    )


def rank_correlation(examples: pd.DataFrame) -> float:
    """Return Spearman's rho between entity length and UDS; NaN with fewer than 3 measurable examples or no variation.

    >>> import pandas as pd
    >>> round(rank_correlation(pd.DataFrame({"n_tokens": [1, 2, 5], "uds": [0.9, 0.5, 0.1]})), 6)
    -1.0
    """
    measured = examples[examples["uds"].notna()]
    return float(measured["n_tokens"].rank().corr(measured["uds"].rank(), min_periods=3))


def clip_bars(layers: pd.DataFrame, **look: Unpack[Look]) -> go.Figure:
    """Plot, for each layer, the share of KE examples whose LER is clipped to [0, 1].

    Where raw LER is above 1 (bars upwards), the unlearned state costs more than retain's (over-erasure). Where it is
    below 0 (bars downwards), the unlearned state helps `full` to recall the answer.

    Args:
        layers: `audit.layers_frame()`.
        **look: Theme, title, width, height (`Look`).

    Returns:
        The figure; layers where no example has knowledge have no bars.

    Raises:
        DataError: A column is missing.
    """
    require(layers, ["layer", "n_ke", "over_share", "negative_share"], source="audit.layers_frame()")
    colours, figure = palette(look.get("theme", "light")), go.Figure()
    sides = (
        ("over_share", 1, "raw LER above 1: over-erased", colours.unlearned),
        ("negative_share", -1, "raw LER below 0: helps recall", colours.retain),
    )
    for column, sign, name, colour in sides:
        figure.add_bar(
            x=layers["layer"],
            y=sign * layers[column],
            name=name,
            showlegend=bool((layers[column] > 0).any()),
            marker={"color": colour, "line": {"width": 0}},
            customdata=layers[[column, "n_ke"]].to_numpy(dtype=float),
            hovertemplate=f"{name}: %{{customdata[0]:.1%}} of %{{customdata[1]:.0f}}<extra></extra>",
        )
    above, below = layers[["over_share", "negative_share"]].max().fillna(0.0)
    largest = max(above, below)
    step = 0.05 if largest <= 0.2 else 0.1 if largest < 0.45 else 0.25
    first, last = -max(1, math.ceil(below / step)), max(1, math.ceil(above / step))
    ticks = [round(step * i, 2) for i in range(first, last + 1)]
    figure.add_hline(0, line={"color": colours.faint, "width": 1})
    figure.update_yaxes(
        title_text="share of the answers<br>encoded at the layer",
        range=[1.06 * ticks[0], 1.06 * ticks[-1]],
        tickvals=ticks,
        ticktext=[f"{abs(tick):.0%}" for tick in ticks],
    )
    layer_axis(figure, len(layers))
    figure.update_layout(barmode="relative", hovermode="x unified", hoverdistance=-1)
    return style(
        figure,
        "Raw LER outside [0, 1] by layer",
        "Raw LER: S2 / S1 before clipping to [0, 1]. Share of examples outside this range, by layer.",
        tall=360,
        **look,
    )


def tau_curve(sweep: pd.DataFrame, *, tau: float | int | None = None, **look: Unpack[Look]) -> go.Figure:
    """Plot UDS, KE layers per example (mean and range) and number of measurable examples against the threshold.

    Args:
        sweep: `audit.tau_sweep()`.
        tau: The audit's threshold in nats per token, drawn as a line; None draws no line.
        **look: Theme, title, width, height (`Look`).

    Returns:
        The figure, with evenly spaced thresholds; a gap in UDS means that nothing is measurable at that threshold, or
        that stage 2 was not measured at every layer that counts at that threshold.

    Raises:
        DataError: A column is missing.
    """
    require(
        sweep,
        ["tau", "uds", "ke_mean", "ke_min", "ke_max", "n_measured", "n_not_measurable"],
        source="audit.tau_sweep()",
    )
    colours, places, values = palette(look.get("theme", "light")), list(range(len(sweep))), sweep["tau"].tolist()
    figure = panels([0.4, 0.35, 0.25], gap=0.07)
    put(
        figure,
        curve(
            places,
            sweep["uds"],
            name="UDS",
            colour=colours.erased,
            hover="tau %{customdata:g}: UDS %{y:.3f}",
            customdata=values,
        ),
        row=1,
    )
    put(figure, band(places, sweep["ke_min"], sweep["ke_max"], colour=colours.retain_band, group="KE layers"), row=2)
    sizes = curve(
        places,
        sweep["ke_mean"],
        name="KE layers",
        colour=colours.retain,
        hover="KE layers %{y:.2f} (%{customdata[0]:.0f} to %{customdata[1]:.0f})",
        customdata=sweep[["ke_min", "ke_max"]].to_numpy(dtype=float),
    )
    put(figure, sizes, row=2)
    for column, name, colour in (
        ("n_measured", "measured", colours.faint),
        ("n_not_measurable", "not measurable", colours.missing),
    ):
        bars: dict[str, Any] = {"width": 0.5, "marker": {"color": colour, "line": {"width": 0}}}
        hover = f"{name} %{{y}}<extra></extra>"
        bars["showlegend"] = bool((sweep[column] > 0).any())
        put(figure, go.Bar(x=places, y=sweep[column], name=name, hovertemplate=hover, **bars), row=3)
    if tau in values:
        at, line = values.index(tau), {"color": colours.faint, "width": 1, "dash": "dot"}
        figure.add_shape(type="line", x0=at, x1=at, y0=0, y1=1, yref="paper", line=line)
    figure.update_layout(
        xaxis={
            "title": {"text": "tau (nats/token)"},
            "range": [-0.4, len(sweep) - 0.6],
            "tickvals": places,
            "ticktext": [f"{value:g}" for value in values],
        },
        yaxis={"title": {"text": "UDS"}, "range": [-0.04, 1.06], "dtick": 0.5},
        yaxis2={"title": {"text": "KE layers<br>per example"}, "rangemode": "tozero"},
        yaxis3={"title": {"text": "examples"}, "rangemode": "tozero"},
        hovermode="x unified",
        hoverdistance=-1,
        barmode="stack",
    )
    hover_head(figure, "at this threshold")
    subtitle = "KE layers: S1 above tau; band: smallest to largest number per example."
    if (sweep["uds"].isna() & (sweep["n_measured"] > 0)).any():
        subtitle += " A gap in UDS: stage 2 was not measured at every layer that counts at that tau."
    subtitle += " Dotted: the tau of this audit." if tau in values else ""
    return style(figure, "UDS and KE layers by threshold", subtitle, tall=560, **look)
