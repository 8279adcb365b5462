"""Figures for judging metrics and ranking methods: faithfulness, robustness, filters, pools, ranks."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import TYPE_CHECKING, Literal, TypeAlias

import numpy as np
import plotly.graph_objects as go

from uds_lens._types import check_choice
from uds_lens.errors import DataError
from uds_lens.plots._models import difference_matrix
from uds_lens.plots._style import Look, band, count, number, palette, require, row_axis, row_labels, shown, style

if TYPE_CHECKING:
    import pandas as pd
    from typing_extensions import Unpack

_SHARE = {"range": [-0.03, 1.03], "dtick": 0.2, "tickformat": ".1f"}


_INTERVALS = (  # columns, legend, colour, width, offset from the row, opacity
    ("", "DeLong, models independent", "erased", 3, 0.0, 0.6),
    ("cluster_", "runs as clusters", "faint", 1.5, 0.22, 1.0),
    ("new_variants_", "new variants", "unlearned", 1, 0.4, 1.0),
)
_HOVER = ("", "cluster_", "variants_", "new_variants_")
_HOVER_WORDS = ("", "runs as clusters: ", "one variant left out: ", "new variants: ")


def faithfulness_forest(faithful: pd.DataFrame, **look: Unpack[Look]) -> go.Figure:
    """Plot the faithfulness F of each metric with its intervals, highest on top; metrics without F come last.

    Args:
        faithful: `uds_lens.meta.faithfulness(...)`: `metric`, `auc`, `low`, `high`, and, where present, `cluster_low`,
            `cluster_high` (runs as clusters), `variants_low`, `variants_high` (one variant left out),
            `new_variants_low`, `new_variants_high` (variants as clusters), `n_p`, `n_n`, `label`.
        **look: Theme, title, width, height (`Look`).

    Returns:
        The figure, with a line at 0.5 (chance).

    Raises:
        DataError: A column is missing.

    Example:
        >>> import pandas as pd
        >>> columns = {"metric": ["x", "y"], "auc": [0.7, 0.9], "low": [0.5, 0.8], "high": [0.8, 0.95]}
        >>> faithfulness_forest(pd.DataFrame(columns)).layout.yaxis.ticktext
        ('y', 'x')
    """
    require(faithful, ["metric", "auc", "low", "high"], source="uds_lens.meta.faithfulness(...)")
    colours, figure = palette(look.get("theme", "light")), go.Figure()
    ordered = faithful.sort_values("auc", ascending=False, kind="stable", na_position="last")
    ordered = ordered.reset_index(drop=True)
    names = row_labels(ordered)
    there = {before for before in _HOVER if f"{before}low" in ordered and ordered[f"{before}low"].notna().any()}
    for before, name, colour, width, lift, opacity in _INTERVALS:
        if before and before not in there:
            continue
        ends = zip(ordered[f"{before}low"], ordered[f"{before}high"], strict=True)
        rows = [(place + lift, *pair) for place, pair in enumerate(ends) if not math.isnan(pair[0])]
        figure.add_scatter(  # a single trace, so that the legend toggles all rows together
            x=[x for _, low, high in rows for x in (low, high, None)],
            y=[y for place, *_ in rows for y in (place, place, None)],
            mode="lines",
            line={"color": getattr(colours, colour), "width": width},
            opacity=opacity,
            name=name,
            hoverinfo="skip",
            showlegend=True,
        )
    if "variants_" in there:
        rows = ordered[ordered["variants_low"].notna()]
        figure.add_scatter(
            x=rows[["variants_low", "variants_high"]].to_numpy(dtype=float).ravel(),
            y=[place for place in rows.index for _ in range(2)],
            mode="markers",
            marker={"symbol": "line-ns-open", "size": 11, "color": colours.unlearned, "line": {"width": 1.5}},
            name="one variant left out",
            hoverinfo="skip",
            showlegend=True,
        )
    judged, hover = ordered[ordered["auc"].notna()], []
    for place, row in judged.iterrows():
        lines = [f"<b>{names[place]}</b>", f"F {row['auc']:.3f}"]
        for before, words in zip(_HOVER, _HOVER_WORDS, strict=True):
            if before in there and not math.isnan(row[f"{before}low"]):
                lines.append(f"{words}{row[f'{before}low']:.3f} to {row[f'{before}high']:.3f}")
        if "n_p" in row.index:
            lines.append(f"{row['n_p']:.0f} models with the knowledge, {row['n_n']:.0f} without")
        hover.append("<br>".join(lines))
    for place in ordered.index[ordered["auc"].isna()]:
        figure.add_annotation(text="no F", x=0.5, xanchor="left", y=place, xshift=6)
    figure.add_scatter(
        x=judged["auc"].astype(float),
        y=judged.index.tolist(),
        mode="markers",
        marker={"color": colours.erased, "size": 10, "line": {"color": colours.paper, "width": 1.5}},
        customdata=hover,
        hovertemplate="%{customdata}<extra></extra>",
        showlegend=False,
    )
    drawn = ordered[["auc", *(f"{before}low" for before in _HOVER if before in there)]]
    least = min([0.5, *drawn.to_numpy(dtype=float)[drawn.notna().to_numpy()]])
    figure.update_xaxes(
        title_text="F: probability that a model with the knowledge ranks above one without",
        range=[max(-0.02, least - 0.04), 1.015],
        dtick=0.1,
        tickformat=".1f",
        showgrid=True,
    )
    row_axis(figure, names)
    figure.add_shape(
        type="line", x0=0.5, x1=0.5, yref="paper", y0=0, y1=1, line={"color": colours.faint, "width": 1, "dash": "dot"}
    )
    subtitle = "Dot: area under the ROC curve; dotted line: chance. Intervals cover only these variants"
    return style(
        figure,
        "Faithfulness (F) by metric",
        subtitle + ("; the lowest line is for new variants." if "new_variants_" in there else "."),
        tall=150 + 26 * max(len(ordered), 3),
        legend=sum(bool(trace.showlegend) for trace in figure.data) > 1,
        note=None if len(ordered) else "No metrics.",
        **look,
    )


Robustness: TypeAlias = Literal["q", "r", "rob"]
"""Robustness to quantisation (Q), to relearning (R), or their harmonic mean."""

_FILTERS = {
    "none": "all models",
    "utility": "enough utility",
    "threshold": "unlearned",
    "utility+threshold": "enough utility, unlearned",
}
_ROBUSTNESS = {"q": "Q", "r": "R", "rob": "Rob"}
_ROBUSTNESS_AXIS = {"q": "Q (quantisation)", "r": "R (relearning)", "rob": "Rob (harmonic mean of Q and R)"}


def filter_dots(robust: pd.DataFrame, *, value: Robustness = "rob", **look: Unpack[Look]) -> go.Figure:
    """Plot robustness under every filter, one metric per row; a long line shows that the choice of models matters.

    Args:
        robust: `uds_lens.meta.robustness(...)`: `metric`, `filter`, `n`, and the column named by `value`; rows with
            `models` other than "own" are left out.
        value: Which robustness to draw.
        **look: Theme, title, width, height (`Look`).

    Returns:
        The figure, sorted by the last filter, highest on top; undefined values have no mark.

    Raises:
        DataError: A column is missing, or a filter is unknown.
        ConfigError: `value` is not a valid choice.

    Example:
        >>> import pandas as pd
        >>> rows = {"metric": ["x", "x"], "filter": ["none", "utility"], "n": [9, 7], "rob": [0.5, 0.8]}
        >>> [(trace.name, trace.x) for trace in filter_dots(pd.DataFrame(rows)).data[1:]]
        [('all models', (0.5,)), ('enough utility', (0.8,))]
    """
    check_choice("value", value, Robustness)
    require(robust, ["metric", "filter", "n", value], source="uds_lens.meta.robustness(...)")
    rows = robust[robust["models"] == "own"] if "models" in robust.columns else robust
    unknown = set(rows["filter"]) - set(_FILTERS)
    if unknown:
        raise DataError(f"the filter must be one of {', '.join(_FILTERS)}; the frame has {sorted(unknown)[0]!r}.")
    order = [name for name in _FILTERS if name in set(rows["filter"])]
    colours, figure = palette(look.get("theme", "light")), go.Figure()
    values = rows.pivot(index="metric", columns="filter", values=value).astype(float)
    values = values.sort_values(order[::-1], ascending=False, kind="stable") if order else values
    places = {metric: place for place, metric in enumerate(values.index)}
    named = rows.drop_duplicates("metric").set_index("metric", drop=False).loc[values.index]
    ends = zip(values.min(axis=1), values.max(axis=1), strict=True)
    figure.add_scatter(
        x=[x for low, high in ends for x in (low, high, None)],
        y=[y for place in places.values() for y in (place, place, None)],
        mode="lines",
        line={"color": colours.grid, "width": 4},
        hoverinfo="skip",
        showlegend=False,
    )
    symbols = ("circle-open", "diamond-open", "square-open", "circle")
    for name, colour, symbol in zip(order, colours.series, symbols[-len(order) :], strict=False):
        there = rows[(rows["filter"] == name) & rows[value].notna()]
        figure.add_scatter(
            x=there[value].astype(float).tolist(),
            y=[places[metric] for metric in there["metric"]],
            mode="markers",
            name=_FILTERS[name],
            showlegend=True,
            marker={"color": colour, "symbol": symbol, "size": 10, "line": {"color": colour, "width": 2}},
            customdata=[
                [label, f"{n:.0f}"] for label, n in zip(row_labels(there), there["n"].astype(float), strict=True)
            ],
            hovertemplate=f"<b>%{{customdata[0]}}</b> %{{x:.3f}}<br>%{{customdata[1]}} models: {_FILTERS[name]}"
            "<extra></extra>",
        )
    figure.update_xaxes(title_text=_ROBUSTNESS_AXIS[value], showgrid=True, **_SHARE)
    row_axis(figure, row_labels(named))
    return style(
        figure,
        f"{_ROBUSTNESS[value]} of each metric by filter",
        "Each mark is one filter, which decides which models count.",
        tall=150 + 24 * max(len(places), 3),
        note=None if places else "No metrics.",
        **look,
    )


def method_dumbbell(ranking: pd.DataFrame, **look: Unpack[Look]) -> go.Figure:
    """Plot each method's score without (ring) and with (dot) the depth metric, and its rank in each case.

    Args:
        ranking: `uds_lens.meta.rank(...)`: `method`, `model`, `score_without`, `score_with`, `rank_without`,
            `rank_with`, `n_tied`.
        **look: Theme, title, width, height (`Look`).

    Returns:
        The figure, sorted by the score without depth, best on top; methods without a score come last.

    Raises:
        DataError: A column is missing.

    Example:
        >>> import pandas as pd
        >>> row = {"method": ["a"], "model": ["a1"], "score_without": [0.8], "score_with": [0.6]}
        >>> figure = method_dumbbell(pd.DataFrame({**row, "rank_without": [1], "rank_with": [1], "n_tied": [1]}))
        >>> [trace.name for trace in figure.data if trace.showlegend]
        ['without depth', 'with depth']
    """
    require(
        ranking,
        ["method", "model", "score_without", "score_with", "rank_without", "rank_with", "n_tied"],
        source="uds_lens.meta.rank(...)",
    )
    colours, figure = palette(look.get("theme", "light")), go.Figure()
    ordered = ranking.sort_values("rank_without", kind="stable", na_position="last").reset_index(drop=True)
    names, models = row_labels(ordered, name="method"), row_labels(ordered, name="model", limit=60)
    for place, row in ordered.iterrows():
        if math.isnan(row["score_without"]):
            figure.add_annotation(text="no score", x=0, xanchor="left", y=place)
            continue
        ends, line = ({"x0": row["score_without"], "x1": row["score_with"]}, {"color": colours.grid, "width": 4})
        figure.add_shape(type="line", **ends, y0=place, y1=place, line=line, layer="below")
        before, after = f"{row['rank_without']:.0f}", f"{row['rank_with']:.0f}"
        figure.add_annotation(
            text=f"<b>{before} → {after}</b>" if before != after else before,
            x=1.04,
            xref="paper",
            xanchor="left",
            y=place,
            font={"color": colours.text if before == after else colours.unlearned},
        )
    for view, colour, ring in (("without", colours.faint, True), ("with", colours.erased, False)):
        scored = ordered[ordered[f"score_{view}"].notna()]
        tied = ["" if n <= 1 else f"<br>one of {n:.0f} tied configurations" for n in scored["n_tied"]]
        edge = {"width": 2.5 if ring else 1.5, "color": colour if ring else colours.paper}
        figure.add_scatter(
            x=scored[f"score_{view}"].astype(float).tolist(),
            y=scored.index.tolist(),
            mode="markers",
            name=f"{view} depth",
            showlegend=True,
            marker={"size": 12, "symbol": "circle-open" if ring else "circle", "color": colour, "line": edge},
            customdata=[[names[place], models[place], words] for place, words in zip(scored.index, tied, strict=True)],
            hovertemplate=f"<b>%{{customdata[0]}}</b>, {view} depth<br>%{{x:.3f}}<br>%{{customdata[1]}}"
            "%{customdata[2]}<extra></extra>",
        )
    figure.update_xaxes(title_text="score (0 to 1)", showgrid=True, **_SHARE)
    row_axis(figure, names)
    style(
        figure,
        "Score of each method, with and without depth",
        "Harmonic mean of forgetting, privacy and utility; ranks on the right.",
        tall=150 + 32 * max(len(ordered), 3),
        note=None if len(ordered) else "No methods.",
        **look,
    )
    return figure.update_layout(margin_r=86)


CRITERIA = {"auc": "F", "q": "Q", "r": "R", "rob": "Rob", "overall": "Overall"}
"""Columns of the table and their headings."""


def metric_heatmap(summary: pd.DataFrame, **look: Unpack[Look]) -> go.Figure:
    """Plot every metric under every criterion, as numbers coloured from 0 to 1, highest Overall on top.

    Args:
        summary: `uds_lens.meta.summary(...)`: `metric`, `auc`, `q`, `r`, `rob`, `overall`, perhaps `n` and `label`.
        **look: Theme, title, width, height (`Look`).

    Returns:
        The figure; a grey cell is undefined.

    Raises:
        DataError: A column is missing.

    Example:
        >>> import pandas as pd
        >>> row = {"metric": ["x"], "auc": [0.9], "q": [0.9], "r": [0.6], "rob": [0.72], "overall": [0.8]}
        >>> metric_heatmap(pd.DataFrame(row)).data[0].text[0][0]
        '0.900'
    """
    require(summary, ["metric", *CRITERIA], source="uds_lens.meta.summary(...)")
    colours, figure = palette(look.get("theme", "light")), go.Figure()
    ordered = summary.sort_values("overall", ascending=False, kind="stable", na_position="last")
    values = ordered[list(CRITERIA)].to_numpy(dtype=float).tolist()
    sizes = ordered["n"] if "n" in ordered.columns else [math.nan] * len(ordered)
    figure.add_heatmap(
        x=list(CRITERIA.values()),
        y=list(range(len(ordered))),
        z=[[None if math.isnan(value) else value for value in line] for line in values],
        text=[["\u2013" if math.isnan(value) else f"{value:.3f}" for value in line] for line in values],
        customdata=[["" if math.isnan(n) else f"<br>{n:.0f} models behind Q and R"] * 5 for n in sizes],
        colorscale=colours.erasure,
        zmin=0,
        zmax=1,
        xgap=2,
        ygap=2,
        showscale=False,
        texttemplate="%{text}",
        hovertemplate="%{y}<br>%{x} %{text}%{customdata}<extra></extra>",
        hoverongaps=False,
    )
    figure.update_xaxes(side="top", showline=False, ticks="", fixedrange=True, title_text="")
    row_axis(figure, row_labels(ordered))
    figure.update_yaxes(range=[len(ordered) - 0.5, -0.5])
    subtitle = (
        "F: faithfulness; Q, R: robustness to quantisation and relearning; Rob: harmonic mean of Q and R; "
        "Overall: harmonic mean of F and Rob."
    )
    figure.update_layout(plot_bgcolor=colours.missing, margin_b=16)
    return style(
        figure,
        "Metrics by criterion",
        subtitle,
        tall=94 + 27 * max(len(ordered), 4),
        legend=False,
        room=22,
        note=None if len(ordered) else "No metrics.",
        **look,
    )


def pair_matrix(pairs: pd.DataFrame, *, p: str = "p_holm", level: float = 0.05, **look: Unpack[Look]) -> go.Figure:
    """Plot the row's F minus the column's F, with a star where the adjusted p-value is below the level.

    Args:
        pairs: `uds_lens.meta.compare_all(...)`: `one`, `other`, `auc_one`, `auc_other`, `difference`, `low`, `high`,
            and the column `p`.
        p: Column of the p-value to compare with `level`: `p_holm`, or `cluster_p_holm` where runs are clusters.
        level: Significance level.
        **look: Theme, title, width, height (`Look`).

    Returns:
        The figure, with the metrics in order of F. A cell is empty on the diagonal and where there was no test.

    Raises:
        DataError: A column is missing.

    Example:
        >>> import pandas as pd
        >>> row = {"one": ["x"], "other": ["y"], "auc_one": [0.9], "auc_other": [0.7], "difference": [0.2]}
        >>> figure = pair_matrix(pd.DataFrame({**row, "low": [0.1], "high": [0.3], "p_holm": [0.01]}))
        >>> figure.data[0].text[0][1]
        '+0.20*'
    """
    require(
        pairs,
        ["one", "other", "auc_one", "auc_other", "difference", "low", "high", p],
        source="uds_lens.meta.compare_all(...)",
    )
    return difference_matrix(pairs, "auc", p=p, level=level, **look)


State: TypeAlias = Literal["quantised", "relearned"]  # perturbation of the models


def perturbation_scatter(
    points: pd.DataFrame,
    metric: str,
    *,
    state: State = "quantised",
    shift: tuple[float, float, float] | None = None,
    retain: tuple[float, float] | None = None,
    **look: Unpack[Look],
) -> go.Figure:
    """Plot a metric before (across) and after (up) a perturbation, with the line on which Q or R is 1.

    That line is `y = x` for quantisation and `y = x + Dr` for relearning, where Dr is the shift of retain.

    Args:
        points: The points of `uds_lens.meta.robustness(...)`: `model`, `metric`, `before`, `quantised`, `relearned`,
            `kept` (passes the filters).
        metric: Which metric.
        state: Which perturbation.
        shift: Dr and the two ends of its interval (NaN if there is none); None draws only `y = x`.
        retain: Retain's value before and after relearning, drawn as a star.
        **look: Theme, title, width, height (`Look`).

    Returns:
        The figure. Models that fail the filters are faint, and are not counted above or below the line.

    Raises:
        DataError: A column is missing.
        ConfigError: `state` is not a valid choice.
    """
    check_choice("state", state, State)
    require(points, ["model", "metric", "before", state, "kept"], source="the points of uds_lens.meta.robustness(...)")
    colours, figure = palette(look.get("theme", "light")), go.Figure()
    rows = points[(points["metric"] == metric) & points["before"].notna() & points[state].notna()]
    is_kept = rows["kept"].astype(bool).to_numpy()
    star = retain if retain is not None and not any(map(math.isnan, retain)) else None
    values = np.append(rows[["before", state]].to_numpy(dtype=float).ravel(), star or ())
    ends = [0.0, 1.0]
    if len(values):
        pad = max((values.max() - values.min()) * 0.06, 0.01)
        ends = [float(values.min() - pad), float(values.max() + pad)]
    if state == "quantised":
        shift = None
    dr = 0.0 if shift is None else float(shift[0])
    figure.add_shape(
        type="line",
        x0=ends[0],
        x1=ends[1],
        y0=ends[0],
        y1=ends[1],
        line={"color": colours.faint, "width": 1, "dash": "dot"},
        layer="below",
    )
    if shift is not None:
        if not math.isnan(shift[1]):
            low, high = ([end + float(edge) for end in ends] for edge in shift[1:])
            region = band(ends, low, high, colour=colours.retain_band, group="interval")
            figure.add_trace(region.update(name="its interval", showlegend=True))
        line, name = {"color": colours.retain, "width": 1.5}, f"retain's shift {number(dr, 3)}"
        figure.add_scatter(x=ends, y=[end + dr for end in ends], mode="lines", line=line, hoverinfo="skip", name=name)
    looks = (
        (~is_kept, "left out", {"size": 6, "color": colours.faint, "symbol": "circle-open", "opacity": 0.5}),
        (is_kept, "kept", {"size": 8, "color": colours.erased, "symbol": "circle", "opacity": 0.8}),
    )
    for mask, name, marker in looks:
        figure.add_scatter(
            x=rows["before"][mask].astype(float),
            y=rows[state][mask].astype(float),
            mode="markers",
            name=name,
            showlegend=bool(mask.any()),
            marker=marker,
            customdata=[shown(model, limit=60) for model in rows["model"][mask]],
            hovertemplate="%{customdata}<br>%{x:.4f} → %{y:.4f}<extra></extra>",
        )
    if star is not None:
        edge = {"color": colours.paper, "width": 1}
        figure.add_scatter(
            x=[star[0]],
            y=[star[1]],
            mode="markers",
            name="retain",
            marker={"symbol": "star", "size": 14, "color": colours.retain, "line": edge},
            hovertemplate="retain<br>%{x:.4f} → %{y:.4f}<extra></extra>",
        )
    moved = (rows[state] - rows["before"]).to_numpy(dtype=float)[is_kept] - dr
    above, below = int((moved > 1e-12).sum()), int((moved < -1e-12).sum())
    axis = {"range": ends, "showgrid": True, "constrain": "domain"}
    figure.update_xaxes(**axis, title_text="before (m, higher: known)")
    figure.update_yaxes(**axis, title_text=f"m {state}")
    for n, word, at, side in ((above, "above", 0, "top"), (below, "below", 1, "bottom")):
        corner = {"x": at, "xanchor": "right" if at else "left", "y": 1 - at, "yanchor": side}
        figure.add_annotation(text=f"{n} {word}", **corner, xref="paper", yref="paper")
    return style(
        figure,
        f"{shown(metric, limit=40)} before and after {'quantisation' if state == 'quantised' else 'relearning'}",
        f"{count(int(is_kept.sum()), 'model')} after filtering; the corners count those above and below the line.",
        tall=440,
        note=None if len(rows) else "No model has both values.",
        **look,
    )


def pool_histogram(
    models: pd.DataFrame,
    metric: str,
    *,
    label: str = "knows",
    thresholds: pd.DataFrame | None = None,
    **look: Unpack[Look],
) -> go.Figure:
    """Plot a metric's histogram for models that know the data and models that never saw it, with the thresholds.

    Args:
        models: One row per model: the columns named by `metric` and `label` and, optionally, `model`.
        metric: Column to draw, on its own scale.
        label: Column that says whether a model knows the data; rows without a value are not drawn.
        thresholds: `uds_lens.meta.thresholds(...)`: `metric`, `value`, `chosen`; the chosen threshold is a dashed line,
            equally good thresholds are dotted lines.
        **look: Theme, title, width, height (`Look`).

    Returns:
        The figure; ticks below the histograms show single models.

    Raises:
        DataError: A column is missing.

    Example:
        >>> import pandas as pd
        >>> frame = pd.DataFrame({"knows": [True, True, False], "x": [0.9, 0.8, 0.1]})
        >>> [sum(trace.y) for trace in pool_histogram(frame, "x").data if trace.type == "bar"]
        [2, 1]
    """
    require(models, [metric, label], source="the table of models and their pools")
    colours, figure = palette(look.get("theme", "light")), go.Figure()
    complete = models[models[metric].notna() & models[label].notna()]
    values = complete[metric].to_numpy(dtype=float)
    edges = _bin_edges(values)
    knows = complete[label].astype(bool)
    pools = (("know (P)", complete[knows], colours.unlearned), ("never saw it (N)", complete[~knows], colours.retain))
    counts = [np.histogram(rows[metric].to_numpy(dtype=float), edges)[0] for _, rows, _ in pools]
    tallest = max(1, *(int(c.max(initial=0)) for c in counts))
    for (name, _, colour), heights in zip(pools, counts, strict=True):
        figure.add_bar(
            x=((edges[:-1] + edges[1:]) / 2).tolist(),
            y=[int(n) for n in heights],
            width=float(edges[1] - edges[0]),
            name=name,
            legendgroup=name,
            marker={"color": colour, "line": {"width": 0}},
            opacity=0.55,
            customdata=[[f"{low:.3g}", f"{high:.3g}"] for low, high in pairwise(edges)],
            hovertemplate=f"%{{customdata[0]}} to %{{customdata[1]}}: %{{y}} that {name}<extra></extra>",
        )
    for place, (name, rows, colour) in enumerate(pools):
        figure.add_scatter(
            x=rows[metric].astype(float),
            y=[-tallest * (0.05 + 0.07 * place)] * len(rows),
            mode="markers",
            name=name,
            legendgroup=name,
            showlegend=False,
            marker={"symbol": "line-ns-open", "size": 8, "color": colour, "line": {"width": 1.2}},
            customdata=[shown(model, limit=60) for model in rows.get("model", rows.index)],
            hovertemplate="%{customdata}<br>%{x:.4f}<extra></extra>",
        )
    if thresholds is not None:
        require(thresholds, ["metric", "value", "chosen"], source="uds_lens.meta.thresholds(...)")
        for cut in thresholds[(thresholds["metric"] == metric) & thresholds["value"].notna()].itertuples():
            line = {"color": colours.faint, "width": 1, "dash": "dot"}
            if cut.chosen:
                line = {"color": colours.ink, "width": 1.3, "dash": "dash"}
                at = {"x": cut.value, "y": 1, "yref": "paper", "yanchor": "top", "xanchor": "left", "xshift": 4}
                figure.add_annotation(text=f"cut {cut.value:.3g}", **at)
            figure.add_shape(type="line", x0=cut.value, x1=cut.value, yref="paper", y0=0, y1=1, line=line)
    figure.update_xaxes(title_text=shown(metric, limit=40), range=[edges[0], edges[-1]])
    figure.update_yaxes(
        title_text="models", range=[-tallest * 0.17, tallest * 1.06], dtick=max(1, -(-tallest // 5)), tick0=0
    )
    figure.update_layout(barmode="overlay", bargap=0.04)
    return style(
        figure,
        f"{shown(metric, limit=40)} of models with and without the knowledge",
        " and ".join(f"{len(rows)} models that {name}" for name, rows, _ in pools) + ".",
        tall=340,
        note=None if len(values) else "No model in the pools has a value.",
        **look,
    )


def _bin_edges(values: np.ndarray) -> np.ndarray:
    """Return the edges of bins from 0 to 1 or, if the values are narrow or outside [0, 1], over their range."""
    if not len(values):
        return np.linspace(0.0, 1.0, 21)
    low, high = float(values.min()), float(values.max())
    if low >= 0 and high <= 1 and high - low > 0.25:
        return np.linspace(0.0, 1.0, 26)
    pad = max((high - low) * 0.05, 1e-3)
    return np.linspace(low - pad, high + pad, 22)


def rank_probabilities(ranks: pd.DataFrame, **look: Unpack[Look]) -> go.Figure:
    """Plot the share of resamples in which each method (row) has each rank (column).

    Args:
        ranks: Rows of `uds_lens.meta.stability(...)` for one kind of resample and one view: `method`, `rank`,
            `probability`.
        **look: Theme, title, width, height (`Look`).

    Returns:
        The figure, best expected rank on top. Tied methods share the better rank, so rows sum to 1 but columns may not.

    Raises:
        DataError: A column is missing, or a method has the same rank twice (because the rows belong to several views).

    Example:
        >>> import pandas as pd
        >>> rows = {"method": ["a", "b"], "rank": [1, 2], "probability": [1.0, 1.0]}
        >>> rank_probabilities(pd.DataFrame(rows)).data[0].text
        (['100', ''], ['', '100'])
    """
    require(ranks, ["method", "rank", "probability"], source="uds_lens.meta.stability(...)")
    if ranks.duplicated(["method", "rank"]).any():
        raise DataError(
            "a method has the same rank twice: select the rows with one value of `resampled` and one of `view`."
        )
    colours, figure = palette(look.get("theme", "light")), go.Figure()
    varying = ranks[ranks["probability"].notna()]
    table = varying.pivot(index="method", columns="rank", values="probability").fillna(0.0)
    expected = (table * [float(place) for place in table.columns]).sum(axis=1) / table.sum(axis=1)
    table = table.loc[expected.sort_values(kind="stable").index]
    shares = table.to_numpy(dtype=float)
    figure.add_heatmap(
        x=[f"{place:.0f}" for place in table.columns],
        y=[shown(name, limit=28) for name in table.index],
        z=shares,
        text=[["" if x == 0 else "&lt;1" if x < 0.01 else f"{100 * x:.0f}" for x in line] for line in shares],
        texttemplate="%{text}",
        colorscale=[[0, colours.paper], [1, colours.erased]],
        zmin=0,
        zmax=1,
        xgap=2,
        ygap=2,
        showscale=False,
        hovertemplate="%{y}, place %{x}: %{z:.1%}<extra></extra>",
    )
    empty = "No probabilities: every method has only one configuration." if len(ranks) else "No methods."
    figure.update_xaxes(type="category", title_text="rank", showline=False, ticks="")
    figure.update_yaxes(autorange="reversed", showgrid=False)
    return style(
        figure,
        "Rank of each method over resamples",
        "Percentage of resamples; each method's configuration is chosen anew in each resample.",
        tall=150 + 32 * max(len(table), 3),
        legend=False,
        note=None if len(table) else empty,
        **look,
    )
