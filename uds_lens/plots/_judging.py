"""How well each metric tells models that know from models that do not, each with its interval."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import numpy as np

from uds_lens._types import check_choice
from uds_lens.errors import DataError
from uds_lens.plots._style import (
    Palette,
    Theme,
    note,
    number,
    palette,
    require,
    row_labels,
    shown,
    style,
)

if TYPE_CHECKING:
    import pandas as pd
    import plotly.graph_objects as go


def faithfulness_forest(
    faithful: pd.DataFrame, *, theme: Theme = "light", title: str | None = "Faithfulness of the metrics"
) -> go.Figure:
    """A dot and its intervals per metric, highest F on top; metrics without F stand last, in words.

    Args:
        faithful: `uds_lens.meta.faithfulness(...)`: `metric`, `auc`, `low`, `high`, and where they are there
            `cluster_low`, `cluster_high` (runs as clusters), `variants_low`, `variants_high` (one variant left out),
            `new_variants_low`, `new_variants_high` (variants as clusters), `reason`, `label`.
        theme: Light or dark.
        title: Heading; None leaves it out.

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
    import plotly.graph_objects as go

    colours, figure = palette(theme), go.Figure()
    ordered = faithful.sort_values("auc", ascending=False, kind="stable", na_position="last")
    ordered = ordered.reset_index(drop=True)
    names = row_labels(ordered)
    clustered = _known(ordered, "cluster_low")
    _intervals(figure, ordered, "low", "high", "DeLong, models independent", colours.erased, 3)
    if clustered:
        _intervals(figure, ordered, "cluster_low", "cluster_high", "runs as clusters", colours.faint, 1.5)
    if _known(ordered, "new_variants_low"):
        _intervals(
            figure,
            ordered,
            "new_variants_low",
            "new_variants_high",
            "new variants",
            colours.unlearned,
            1,
            0.4,
        )
    if _known(ordered, "variants_low"):
        _ends(figure, ordered, colours)
    _dots(figure, ordered, names, colours)
    if not len(ordered):
        note(figure, "No metrics.")
    least = min([0.5, *_numbers(ordered, ("auc", "low", "cluster_low", "variants_low", "new_variants_low"))])
    figure.update_xaxes(
        title_text="F: chance that a model that knows ranks above one that does not",
        range=[max(-0.02, least - 0.04), 1.015],
        dtick=0.1,
        tickformat=".1f",
        showgrid=True,
    )
    figure.update_yaxes(
        tickvals=list(range(len(ordered))), ticktext=names, range=[len(ordered) - 0.4, -0.6], showgrid=False
    )
    line = {"color": colours.faint, "width": 1, "dash": "dot"}
    figure.add_shape(type="line", x0=0.5, x1=0.5, yref="paper", y0=0, y1=1, line=line)
    return style(
        figure,
        theme=theme,
        title=title,
        subtitle="Dot: area under the ROC curve, ties half; dotted: chance. Intervals: for these variants only"
        + (", but for the lowest line." if _known(ordered, "new_variants_low") else "."),
        height=150 + 26 * max(len(ordered), 3),
        legend=len([trace for trace in figure.data if trace.showlegend]) > 1,
    )


def _known(frame: Any, column: str) -> bool:
    return column in frame.columns and bool(frame[column].notna().any())


def _numbers(frame: Any, columns: tuple[str, ...]) -> list[float]:
    return [float(v) for name in columns if name in frame.columns for v in frame[name].dropna()]


def _intervals(
    figure: Any,
    frame: Any,
    low: str,
    high: str,
    name: str,
    colour: str,
    width: float,
    lift: float | None = None,
) -> None:
    """Lines of all rows as one trace, so that the legend switches them together."""
    import plotly.graph_objects as go

    xs: list[float | None] = []
    ys: list[float | None] = []
    lift = lift if lift is not None else 0.0 if low == "low" else 0.22
    for place, (start, end) in enumerate(zip(frame[low], frame[high], strict=True)):
        if not math.isnan(start):
            xs += [float(start), float(end), None]
            ys += [place + lift, place + lift, None]
    line = {"color": colour, "width": width}
    figure.add_trace(
        go.Scatter(
            x=xs,
            y=ys,
            mode="lines",
            line=line,
            opacity=0.6 if low == "low" else 1,
            name=name,
            hoverinfo="skip",
            showlegend=True,
        )
    )


def _ends(figure: Any, frame: Any, colours: Palette) -> None:
    import plotly.graph_objects as go

    rows = [(place, row) for place, row in enumerate(frame.itertuples()) if not math.isnan(row.variants_low)]
    figure.add_trace(
        go.Scatter(
            x=[end for _, row in rows for end in (row.variants_low, row.variants_high)],
            y=[place for place, _ in rows for _ in range(2)],
            mode="markers",
            marker={"symbol": "line-ns-open", "size": 11, "color": colours.unlearned, "line": {"width": 1.5}},
            name="one variant left out",
            hoverinfo="skip",
            showlegend=True,
        )
    )


def _dots(figure: Any, frame: Any, names: list[str], colours: Palette) -> None:
    import plotly.graph_objects as go

    known = [place for place, auc in enumerate(frame["auc"]) if not math.isnan(auc)]
    for place, auc in enumerate(frame["auc"]):
        if math.isnan(auc):
            figure.add_annotation(text="no F", x=0.5, xanchor="left", y=place, xshift=6)
    figure.add_trace(
        go.Scatter(
            x=[float(frame["auc"][place]) for place in known],
            y=known,
            mode="markers",
            marker={"color": colours.erased, "size": 10, "line": {"color": colours.paper, "width": 1.5}},
            customdata=[_words(frame.iloc[place], names[place]) for place in known],
            hovertemplate="%{customdata}<extra></extra>",
            showlegend=False,
        )
    )


def _words(row: Any, name: str) -> str:
    parts = [f"<b>{name}</b>", f"F {row['auc']:.3f}"]
    told: tuple[tuple[str, str, str], ...] = (
        ("", "low", "high"),
        ("runs as clusters: ", "cluster_low", "cluster_high"),
    )
    told += (
        ("one variant left out: ", "variants_low", "variants_high"),
        ("new variants: ", "new_variants_low", "new_variants_high"),
    )
    for before, low, high in told:
        if low in row.index and not math.isnan(row[low]):
            parts.append(f"{before}{row[low]:.3f} to {row[high]:.3f}")
    if "n_p" in row.index:
        parts.append(f"{row['n_p']:.0f} models that know, {row['n_n']:.0f} that do not")
    return "<br>".join(parts)


# How much a metric's robustness depends on which models are counted.

Robustness: TypeAlias = Literal["q", "r", "rob"]
"""Quantisation, relearning, or the harmonic mean of the two."""

_FILTERS = {
    "none": "all models",
    "utility": "useful",
    "threshold": "unlearned",
    "utility+threshold": "useful and unlearned",
}
_TITLES = {"q": "Q", "r": "R", "rob": "Rob"}


def filter_slopes(
    robust: pd.DataFrame,
    *,
    value: Robustness = "rob",
    highlight: Sequence[str] = ("uds",),
    theme: Theme = "light",
    title: str | None = "Robustness by filter",
) -> go.Figure:
    """One line per metric over the filter settings; crossing lines are places that depend on the filter.

    Args:
        robust: `uds_lens.meta.robustness(...)`: `metric`, `filter`, `n`, the column `value`; rows with `models` other
            than "own" are left out.
        value: What is drawn.
        highlight: Metrics that are drawn in colour; the others step back.
        theme: Light or dark.
        title: Heading; None leaves it out.

    Returns:
        The figure; a gap is undefined.

    Raises:
        DataError: A column is missing, or a filter is unknown.
        ConfigError: No such value.

    Example:
        >>> import pandas as pd
        >>> rows = {"metric": ["x", "x"], "filter": ["none", "utility"], "n": [9, 7], "rob": [0.5, 0.8]}
        >>> filter_slopes(pd.DataFrame(rows), highlight=["x"]).data[0].y
        (0.5, 0.8)
    """
    check_choice("value", value, Robustness)
    require(robust, ["metric", "filter", "n", value], source="uds_lens.meta.robustness(...)")
    import plotly.graph_objects as go

    rows = robust[robust["models"] == "own"] if "models" in robust.columns else robust
    unknown = set(rows["filter"]) - set(_FILTERS)
    if unknown:
        raise DataError(f"filters are {', '.join(_FILTERS)}; the frame has {sorted(unknown)[0]!r}.")
    order = [name for name in _FILTERS if name in set(rows["filter"])]
    colours, figure = palette(theme), go.Figure()
    names = sorted(dict.fromkeys(rows["metric"]), key=lambda name: name in highlight)
    ends: list[tuple[float, str, str]] = []
    for name in names:
        own = rows[rows["metric"] == name].set_index("filter").reindex(order)
        at = list(highlight).index(name) if name in highlight else None
        colour = colours.faint if at is None else colours.series[at % len(colours.series)]
        label = shown(own["label"].dropna().iloc[0] if _has_label(own) else name, limit=22)
        figure.add_trace(_line(own, value, label, colour, faint=at is None))
        last = own[value].dropna()
        if len(last):
            ends.append((float(last.iloc[-1]) if last.index[-1] == order[-1] else math.nan, label, colour))
    _names(figure, ends, len(order) - 1)
    if not names:
        note(figure, "No metrics.")
    figure.update_xaxes(
        tickvals=list(range(len(order))),
        ticktext=[_FILTERS[name] for name in order],
        range=[-0.12, max(len(order) - 1, 1) + 0.06],
        title_text="models that are counted",
    )
    figure.update_yaxes(title_text=_TITLES[value], range=[-0.02, 1.03], dtick=0.2, tickformat=".1f")
    style(
        figure,
        theme=theme,
        title=title,
        subtitle="Point at a mark for the number of models behind it.",
        height=max(420, 120 + 20 * len(names)),
        legend=False,
    )
    return figure.update_layout(margin_r=170)


def _has_label(own: Any) -> bool:
    return "label" in own.columns and bool(own["label"].notna().any())


def _line(own: Any, value: str, label: str, colour: str, *, faint: bool) -> Any:
    import plotly.graph_objects as go

    return go.Scatter(
        x=list(range(len(own))),
        y=[float(number) for number in own[value]],
        mode="lines+markers",
        name=label,
        line={"color": colour, "width": 1.2 if faint else 3},
        marker={"color": colour, "size": 5 if faint else 9},
        opacity=0.55 if faint else 1,
        customdata=["no" if math.isnan(n) else f"{n:.0f}" for n in own["n"].astype(float)],
        hovertemplate=f"<b>{label}</b> %{{y:.3f}}<br>%{{customdata}} models<extra></extra>",
        connectgaps=False,
    )


def _names(figure: Any, ends: list[tuple[float, str, str]], at: int) -> None:
    """Names at the right end, moved apart where lines end at the same height."""
    there = sorted((end for end in ends if not math.isnan(end[0])), reverse=True)
    places = apart([end[0] for end in there], gap=min(0.047, 1 / max(len(there), 1)), top=1.0)
    for place, (_, label, colour) in zip(places, there, strict=True):
        figure.add_annotation(
            text=label, x=at, xshift=12, xanchor="left", y=place, font={"color": colour, "size": 11.5}
        )


def apart(heights: Sequence[float | int], *, gap: float | int, top: float | int = math.inf) -> list[float]:
    """Heights, highest first, moved as little as possible so that neighbours are at least `gap` apart.

    Least squares under an order: neighbours that come too close form a block around their mean; none lies above `top`.

    Example:
        >>> [round(place, 3) for place in apart([0.9, 0.5, 0.5], gap=0.1)]
        [0.9, 0.55, 0.45]
        >>> apart([1.0, 1.0], gap=0.5, top=1.0)
        [1.0, 0.5]
    """
    blocks: list[tuple[float, int]] = []
    for place, height in enumerate(heights):
        total, size = height + place * gap, 1
        while blocks and blocks[-1][0] / blocks[-1][1] < total / size:
            before, n = blocks.pop()
            total, size = total + before, size + n
        blocks.append((total, size))
    means = [total / size for total, size in blocks for _ in range(size)]
    return [min(mean, top) - place * gap for place, mean in enumerate(means)]


# What the depth score changes in a ranking of methods.

_ENDS = {"without": "without depth", "with": "with depth"}


def method_dumbbell(
    ranking: pd.DataFrame, *, theme: Theme = "light", title: str | None = "Methods with and without depth"
) -> go.Figure:
    """The score of each method without (ring) and with (dot) the depth metric, best without it on top.

    Args:
        ranking: `uds_lens.meta.rank(...)`: `method`, `model`, `score_without`, `score_with`, `rank_without`,
            `rank_with`, `n_tied`.
        theme: Light or dark.
        title: Heading; None leaves it out.

    Returns:
        The figure; at the right the two places. Methods without a score stand last, in words.

    Raises:
        DataError: A column is missing.

    Example:
        >>> import pandas as pd
        >>> row = {"method": ["a"], "model": ["a1"], "score_without": [0.8], "score_with": [0.6]}
        >>> figure = method_dumbbell(pd.DataFrame({**row, "rank_without": [1], "rank_with": [1], "n_tied": [1]}))
        >>> [trace.name for trace in figure.data if trace.showlegend]
        ['without depth', 'with depth']
    """
    columns = ["method", "model", "score_without", "score_with", "rank_without", "rank_with", "n_tied"]
    require(ranking, columns, source="uds_lens.meta.rank(...)")
    import plotly.graph_objects as go

    colours, figure = palette(theme), go.Figure()
    ordered = ranking.sort_values("rank_without", kind="stable", na_position="last").reset_index(drop=True)
    names = row_labels(ordered, name="method")
    for place, row in ordered.iterrows():
        _bar(figure, place, row, colours)
    for view, colour in (("without", colours.faint), ("with", colours.erased)):
        figure.add_trace(_marks(ordered, names, view, colour, colours))
    if not len(ordered):
        note(figure, "No methods.")
    figure.update_xaxes(
        title_text="score, 0 to 1", range=[-0.03, 1.03], dtick=0.2, tickformat=".1f", showgrid=True
    )
    figure.update_yaxes(
        tickvals=list(range(len(ordered))), ticktext=names, range=[len(ordered) - 0.4, -0.6], showgrid=False
    )
    style(
        figure,
        theme=theme,
        title=title,
        subtitle="Harmonic mean of forgetting, privacy and utility; at the right the places.",
        height=150 + 32 * max(len(ordered), 3),
    )
    return figure.update_layout(margin_r=86)


def _bar(figure: Any, place: int, row: Any, colours: Palette) -> None:
    if math.isnan(row["score_without"]):
        figure.add_annotation(text="no score", x=0, xanchor="left", y=place)
        return
    line = {"color": colours.grid, "width": 4}
    figure.add_shape(
        type="line",
        x0=row["score_without"],
        x1=row["score_with"],
        y0=place,
        y1=place,
        line=line,
        layer="below",
    )
    before, after = f"{row['rank_without']:.0f}", f"{row['rank_with']:.0f}"
    moved = before != after
    figure.add_annotation(
        text=f"<b>{before} → {after}</b>" if moved else before,
        x=1.04,
        xref="paper",
        xanchor="left",
        y=place,
        font={"color": colours.unlearned if moved else colours.text},
    )


def _marks(ordered: Any, names: list[str], view: str, colour: str, colours: Palette) -> Any:
    import plotly.graph_objects as go

    known = ordered[ordered[f"score_{view}"].notna()]
    ring = view == "without"
    return go.Scatter(
        x=known[f"score_{view}"].astype(float).tolist(),
        y=[int(place) for place in known.index],
        mode="markers",
        name=_ENDS[view],
        showlegend=True,
        marker={
            "size": 12,
            "symbol": "circle-open" if ring else "circle",
            "color": colour,
            "line": {"width": 2.5 if ring else 1.5, "color": colour if ring else colours.paper},
        },
        customdata=[
            [names[place], row_labels(known.loc[[place]], name="model", limit=60)[0], _tied(known.loc[place])]
            for place in known.index
        ],
        hovertemplate=f"<b>%{{customdata[0]}}</b>, {_ENDS[view]}<br>%{{x:.3f}}<br>%{{customdata[1]}}%{{customdata[2]}}"
        "<extra></extra>",
    )


def _tied(row: Any) -> str:
    return f"<br>one of {row['n_tied']:.0f} tied configurations" if row["n_tied"] > 1 else ""


# Every metric by every criterion: faithfulness, both robustnesses, and what they come to.

CRITERIA = {"auc": "F", "q": "Q", "r": "R", "rob": "Rob", "overall": "Overall"}
"""Columns of the table and what stands above them."""


def metric_heatmap(
    summary: pd.DataFrame, *, theme: Theme = "light", title: str | None = "Metrics by criterion"
) -> go.Figure:
    """The numbers themselves, coloured from 0 to 1, highest Overall on top.

    Args:
        summary: `uds_lens.meta.summary(...)`: `metric`, `auc`, `q`, `r`, `rob`, `overall`, perhaps `n` and `label`.
        theme: Light or dark.
        title: Heading; None leaves it out.

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
    import plotly.graph_objects as go

    colours = palette(theme)
    ordered = summary.sort_values("overall", ascending=False, kind="stable", na_position="last")
    values = [[float(row[name]) for name in CRITERIA] for _, row in ordered.iterrows()]
    sizes = list(ordered["n"]) if "n" in ordered.columns else [math.nan] * len(ordered)
    figure = go.Figure(
        go.Heatmap(
            x=list(CRITERIA.values()),
            y=list(range(len(ordered))),
            z=[[None if math.isnan(value) else value for value in line] for line in values],
            text=[["\u2013" if math.isnan(value) else f"{value:.3f}" for value in line] for line in values],
            texttemplate="%{text}",
            textfont={"size": 12},
            customdata=[["" if math.isnan(n) else f"<br>{n:.0f} models behind Q and R"] * 5 for n in sizes],
            colorscale=[[i / (len(colours.scale) - 1), c] for i, c in enumerate(colours.scale)],
            zmin=0,
            zmax=1,
            xgap=2,
            ygap=2,
            showscale=False,
            hovertemplate="%{y}<br>%{x} %{text}%{customdata}<extra></extra>",
            hoverongaps=False,
        )
    )
    if not len(ordered):
        note(figure, "No metrics.")
    labels = row_labels(ordered)
    figure.update_xaxes(side="top", showline=False, ticks="", fixedrange=True, title_text="")
    figure.update_yaxes(
        tickvals=list(range(len(ordered))), ticktext=labels, range=[len(ordered) - 0.5, -0.5], showgrid=False
    )
    style(
        figure,
        theme=theme,
        title=title,
        subtitle="Rob: harmonic mean of Q and R; Overall: of F and Rob.",
        height=130 + 27 * max(len(ordered), 3),
        legend=False,
    )
    return figure.update_layout(plot_bgcolor=colours.missing, margin_t=figure.layout.margin.t + 22)


# A matrix of differences between all pairs, and which of them are real.


def difference_matrix(
    pairs: pd.DataFrame,
    names: Sequence[str],
    *,
    p: str,
    level: float,
    theme: Theme,
    title: str | None,
    subtitle: str,
) -> go.Figure:
    """One cell per pair and one for its mirror image; a star where the p-value lies below the level.

    Args:
        pairs: `one`, `other`, `difference`, `low`, `high`, and the column `p`.
        names: Rows and columns, in order.
        p: Which p-value decides.
        level: Of the star.
        theme: Light or dark.
        title: Heading; None leaves it out.
        subtitle: What a cell shows.
    """
    import plotly.graph_objects as go

    colours = palette(theme)
    cells = {
        (one, other): cell
        for row in pairs.itertuples()
        for one, other, cell in _both(row, getattr(row, p), level, "p" if p == "p" else "adjusted p")
    }
    found = [[cells.get((one, other)) for other in names] for one in names]
    largest = max([0.1, *(abs(cell[0]) for cell in cells.values())])
    labels, places = [shown(name, limit=24) for name in names], list(range(len(names)))
    figure = go.Figure(
        go.Heatmap(
            x=places,
            y=places,
            z=[[None if cell is None else cell[0] for cell in line] for line in found],
            text=[["" if cell is None else cell[1] for cell in line] for line in found],
            customdata=[["" if cell is None else cell[2] for cell in line] for line in found],
            texttemplate="%{text}" if len(names) <= 22 else None,
            textfont={"size": 11 if len(names) <= 14 else 9.5},
            colorscale=[[0, colours.unlearned], [0.5, colours.paper], [1, colours.retain]],
            zmin=-largest,
            zmax=largest,
            xgap=1,
            ygap=1,
            showscale=False,
            hovertemplate="%{customdata}<extra></extra>",
            hoverongaps=False,
        )
    )
    if not names:
        note(figure, "No pairs.")
    ticks = {"tickmode": "array", "tickvals": places, "ticktext": labels, "showgrid": False}
    figure.update_xaxes(side="bottom", tickangle=-45, title_text="minus", showline=False, ticks="", **ticks)
    figure.update_yaxes(autorange="reversed", **ticks)
    return style(
        figure,
        theme=theme,
        title=title,
        subtitle=subtitle,
        height=190 + 27 * max(len(names), 4),
        legend=False,
    )


def by_score(pairs: pd.DataFrame, score: str) -> list[str]:
    """Names as a matrix orders them: by their mean score over the pairs they are in; those without one last.

    Args:
        pairs: `one`, `other`, and the scores of both in `SCORE_one` and `SCORE_other`.
        score: Name of the score: `uds`, or `auc`.
    """
    found: dict[str, list[float]] = {}
    for side in ("one", "other"):
        for name, value in zip(pairs[side], pairs[f"{score}_{side}"], strict=True):
            found.setdefault(str(name), []).extend([] if math.isnan(value) else [float(value)])
    return sorted(found, key=lambda name: -(sum(found[name]) / len(found[name])) if found[name] else math.inf)


def _both(row: Any, p: float, level: float, called: str) -> list[tuple[str, str, tuple[float, str, str]]]:
    """The pair and its mirror image: difference, what is written, what the hover label says."""
    found = []
    if math.isnan(row.difference):
        return []
    withheld = bool(getattr(row, "fatal", ""))
    for one, other, sign in ((row.one, row.other, 1), (row.other, row.one, -1)):
        value = sign * float(row.difference)
        star = "*" if p < level and not withheld else ""
        written = ("+" if round(value, 2) > 0 else "") + number(round(value, 2) + 0.0) + star
        ends = sorted((sign * row.low, sign * row.high))
        interval = "no interval" if math.isnan(row.low) else f"{number(ends[0], 3)} to {number(ends[1], 3)}"
        told = f"{interval}, {'not tested' if math.isnan(p) else f'{called} {p:.2g}'}"
        told += "<br>a reference: its score is known beforehand" if getattr(row, "reference", False) else ""
        told += "<br>withheld: an audit has a fatal warning" if withheld else ""
        names = f"{shown(one, width=48, limit=120)} \u2212 {shown(other, width=48, limit=120)}"
        found.append((str(one), str(other), (value, written, f"{names}: {number(value, 3)}<br>{told}")))
    return found


# Which differences between metrics are real: F of each against each.


def pair_matrix(
    pairs: pd.DataFrame,
    *,
    p: str = "p_holm",
    level: float = 0.05,
    theme: Theme = "light",
    title: str | None = "Pairwise differences (Holm-adjusted)",
) -> go.Figure:
    """F of the row minus F of the column; a star where the adjusted p value lies below the level.

    Args:
        pairs: `uds_lens.meta.compare_all(...)`: `one`, `other`, `auc_one`, `auc_other`, `difference`, `low`, `high`,
            and the column `p`.
        p: Which p value decides: `p_holm`, or `cluster_p_holm` where runs are clusters.
        level: Of the star.
        theme: Light or dark.
        title: Heading; None leaves it out.

    Returns:
        The figure, metrics by F. An empty cell: no test, or the metric itself.

    Raises:
        DataError: A column is missing.

    Example:
        >>> import pandas as pd
        >>> row = {"one": ["x"], "other": ["y"], "auc_one": [0.9], "auc_other": [0.7], "difference": [0.2]}
        >>> figure = pair_matrix(pd.DataFrame({**row, "low": [0.1], "high": [0.3], "p_holm": [0.01]}))
        >>> figure.data[0].text[0][1]
        '+0.20*'
    """
    columns = ["one", "other", "auc_one", "auc_other", "difference", "low", "high", p]
    require(pairs, columns, source="uds_lens.meta.compare_all(...)")
    return difference_matrix(
        pairs,
        by_score(pairs, "auc"),
        p=p,
        level=level,
        theme=theme,
        title=title,
        subtitle=f"F of the row minus F of the column. Star: adjusted p below {level:g}; else the order is open.",
    )


# One metric before and after a perturbation: quantisation, or relearning.

State: TypeAlias = Literal["quantised", "relearned"]
"""What was done to the models."""

_PERTURBATION_SCATTER_TITLES = {
    "quantised": "What quantisation moves",
    "relearned": "What relearning brings back",
}


def perturbation_scatter(
    points: pd.DataFrame,
    metric: str,
    *,
    state: State = "quantised",
    shift: tuple[float, float, float] | None = None,
    retain: tuple[float, float] | None = None,
    theme: Theme = "light",
    title: str | None = "",
) -> go.Figure:
    """M before (across) and after (up) of every model, with the line on which Q or R is 1.

    That line is `y = x` for quantisation and `y = x + Dr` for relearning, Dr being the shift of retain.

    Args:
        points: The points of `uds_lens.meta.robustness(...)`: `model`, `metric`, `before`, `quantised`, `relearned`,
            `kept` (passes the filters).
        metric: Which metric.
        state: Which perturbation.
        shift: Dr and the two ends of its interval (NaN: no interval); None draws `y = x` alone.
        retain: m of retain before and after relearning, drawn as a star.
        theme: Light or dark.
        title: Heading; empty takes the usual one, None leaves it out.

    Returns:
        The figure. Models that the filters leave out are faint; the counts above and below the line are of the others.

    Raises:
        DataError: A column is missing.
        ConfigError: No such state.
    """
    check_choice("state", state, State)
    require(
        points,
        ["model", "metric", "before", state, "kept"],
        source="the points of uds_lens.meta.robustness(...)",
    )
    import plotly.graph_objects as go

    colours, figure = palette(theme), go.Figure()
    own = points[(points["metric"] == metric) & points["before"].notna() & points[state].notna()]
    kept = own["kept"].astype(bool).to_numpy()
    ends = _range(own, state, retain)
    dr = 0.0 if shift is None or state == "quantised" else float(shift[0])
    _guides(figure, ends, dr, None if state == "quantised" else shift, colours)
    figure.add_trace(_perturbation_scatter_marks(own[~kept], state, "left out", colours, faint=True))
    figure.add_trace(_perturbation_scatter_marks(own[kept], state, "kept", colours, faint=False))
    if retain is not None and not any(map(math.isnan, retain)):
        figure.add_trace(_star(retain, colours))
    if not len(own):
        note(figure, "No model has both values.")
    moved = (own[state] - own["before"]).to_numpy(dtype=float)[kept] - dr
    above, below = int((moved > 1e-12).sum()), int((moved < -1e-12).sum())
    counts = f"Of {int(kept.sum())} kept models {above} above the line, {below} below."
    axis = {"range": ends, "showgrid": True, "constrain": "domain"}
    figure.update_xaxes(**axis, title_text=f"m before, {shown(metric, limit=30)}")
    figure.update_yaxes(**axis, title_text=f"m {state}")
    heading = _PERTURBATION_SCATTER_TITLES[state] if title == "" else title
    return style(figure, theme=theme, title=heading, subtitle=counts, height=440)


def _range(own: Any, state: str, retain: tuple[float, float] | None) -> list[float]:
    values = np.concatenate([own["before"].to_numpy(dtype=float), own[state].to_numpy(dtype=float)])
    values = np.append(values, [v for v in retain or () if not math.isnan(v)])
    if not len(values):
        return [0.0, 1.0]
    low, high = float(values.min()), float(values.max())
    pad = max((high - low) * 0.06, 0.01)
    return [low - pad, high + pad]


def _guides(figure: Any, ends: list[float], dr: float, shift: Any, colours: Palette) -> None:
    import plotly.graph_objects as go

    if shift is not None and not math.isnan(shift[1]):
        low, high = float(shift[1]), float(shift[2])
        figure.add_trace(
            go.Scatter(
                x=[*ends, *ends[::-1]],
                y=[ends[0] + low, ends[1] + low, ends[1] + high, ends[0] + high],
                fill="toself",
                fillcolor=colours.retain_band,
                line={"width": 0, "color": colours.retain_band},
                mode="lines",
                hoverinfo="skip",
                name="its interval",
            )
        )
    same = {"color": colours.faint, "width": 1, "dash": "dot"}
    figure.add_shape(type="line", x0=ends[0], x1=ends[1], y0=ends[0], y1=ends[1], line=same, layer="below")
    if shift is not None:
        line = {"color": colours.retain, "width": 1.5}
        figure.add_trace(
            go.Scatter(
                x=ends,
                y=[end + dr for end in ends],
                mode="lines",
                line=line,
                hoverinfo="skip",
                name=f"retain's shift {number(dr, 3)}",
            )
        )


def _perturbation_scatter_marks(own: Any, state: str, name: str, colours: Palette, *, faint: bool) -> Any:
    import plotly.graph_objects as go

    colour = colours.faint if faint else colours.erased
    return go.Scatter(
        x=own["before"].astype(float).tolist(),
        y=own[state].astype(float).tolist(),
        mode="markers",
        name=name,
        marker={
            "size": 6 if faint else 8,
            "color": colour,
            "symbol": "circle-open" if faint else "circle",
            "opacity": 0.5 if faint else 0.8,
        },
        customdata=[shown(model, limit=60) for model in own["model"]],
        hovertemplate="%{customdata}<br>%{x:.4f} → %{y:.4f}<extra></extra>",
    )


def _star(retain: tuple[float, float], colours: Palette) -> Any:
    import plotly.graph_objects as go

    return go.Scatter(
        x=[retain[0]],
        y=[retain[1]],
        mode="markers",
        name="retain",
        marker={
            "symbol": "star",
            "size": 14,
            "color": colours.retain,
            "line": {"color": colours.paper, "width": 1},
        },
        hovertemplate="retain<br>%{x:.4f} → %{y:.4f}<extra></extra>",
    )


# The values of one metric over models that know and models that never saw the data.

_POOLS = ((True, "know (P)"), (False, "never saw it (N)"))


def pool_histogram(
    models: pd.DataFrame,
    metric: str,
    *,
    label: str = "knows",
    thresholds: pd.DataFrame | None = None,
    theme: Theme = "light",
    title: str | None = "Do the two pools come apart?",
) -> go.Figure:
    """Two histograms on the same bins, every model as a tick below, and the cuts between them.

    Args:
        models: One row per model: `metric`, `label`, perhaps `model` for the names.
        metric: Column that is drawn, on its own scale.
        label: Column with the pool: true, false, or missing (not drawn).
        thresholds: `uds_lens.meta.thresholds(...)`: `metric`, `value`, `chosen`; the chosen cut is a dashed line,
            tied ones are dotted.
        theme: Light or dark.
        title: Heading; None leaves it out.

    Returns:
        The figure.

    Raises:
        DataError: A column is missing.

    Example:
        >>> import pandas as pd
        >>> frame = pd.DataFrame({"knows": [True, True, False], "x": [0.9, 0.8, 0.1]})
        >>> [sum(trace.y) for trace in pool_histogram(frame, "x").data if trace.type == "bar"]
        [2, 1]
    """
    require(models, [metric, label], source="the table of models, with the pool of each")
    import plotly.graph_objects as go

    colours, figure = palette(theme), go.Figure()
    known = models[models[metric].notna() & models[label].notna()]
    values = known[metric].to_numpy(dtype=float)
    edges = _edges(values)
    pools = [
        (name, known[known[label].astype(bool) == pool], colour)
        for (pool, name), colour in zip(_POOLS, (colours.unlearned, colours.retain), strict=True)
    ]
    tallest = 1
    for name, own, colour in pools:
        counts, _ = np.histogram(own[metric].to_numpy(dtype=float), edges)
        tallest = max(tallest, int(counts.max(initial=0)))
        figure.add_trace(_bars(edges, counts, name, colour))
    for place, (name, own, colour) in enumerate(pools):
        figure.add_trace(_ticks(own, metric, name, colour, -tallest * (0.05 + 0.07 * place)))
    if not len(values):
        note(figure, "No model of the pools has a value.")
    _cuts(figure, metric, thresholds, colours)
    sizes = " and ".join(f"{len(own)} models that {name}" for name, own, _ in pools)
    figure.update_xaxes(title_text=shown(metric, limit=40), range=[edges[0], edges[-1]])
    step = max(1, -(-tallest // 5))
    figure.update_yaxes(title_text="models", range=[-tallest * 0.17, tallest * 1.06], dtick=step, tick0=0)
    figure.update_layout(barmode="overlay", bargap=0.04)
    return style(figure, theme=theme, title=title, subtitle=sizes + ".", height=340)


def _edges(values: np.ndarray) -> np.ndarray:
    """Twenty bins over 0 to 1, or over what the values need."""
    if not len(values):
        return np.linspace(0.0, 1.0, 21)
    low, high = float(values.min()), float(values.max())
    if low >= 0 and high <= 1 and high - low > 0.25:
        return np.linspace(0.0, 1.0, 26)
    pad = max((high - low) * 0.05, 1e-3)
    return np.linspace(low - pad, high + pad, 22)


def _bars(edges: np.ndarray, counts: np.ndarray, name: str, colour: str) -> Any:
    import plotly.graph_objects as go

    return go.Bar(
        x=((edges[:-1] + edges[1:]) / 2).tolist(),
        y=[int(count) for count in counts],
        width=float(edges[1] - edges[0]),
        name=name,
        legendgroup=name,
        marker={"color": colour, "line": {"width": 0}},
        opacity=0.55,
        customdata=[[f"{low:.3g}", f"{high:.3g}"] for low, high in pairwise(edges)],
        hovertemplate=f"%{{customdata[0]}} to %{{customdata[1]}}: %{{y}} that {name}<extra></extra>",
    )


def _ticks(own: Any, metric: str, name: str, colour: str, height: float) -> Any:
    import plotly.graph_objects as go

    names = own["model"] if "model" in own.columns else own.index
    return go.Scatter(
        x=[float(value) for value in own[metric]],
        y=[height] * len(own),
        mode="markers",
        name=name,
        legendgroup=name,
        showlegend=False,
        marker={"symbol": "line-ns-open", "size": 8, "color": colour, "line": {"width": 1.2}},
        customdata=[shown(value, limit=60) for value in names],
        hovertemplate="%{customdata}<br>%{x:.4f}<extra></extra>",
    )


def _cuts(figure: Any, metric: str, thresholds: Any, colours: Palette) -> None:
    if thresholds is None:
        return
    require(thresholds, ["metric", "value", "chosen"], source="uds_lens.meta.thresholds(...)")
    own = thresholds[(thresholds["metric"] == metric) & thresholds["value"].notna()]
    for row in own.itertuples():
        chosen = bool(row.chosen)
        line = {
            "color": colours.ink if chosen else colours.faint,
            "width": 1.3 if chosen else 1,
            "dash": "dash" if chosen else "dot",
        }
        figure.add_shape(type="line", x0=row.value, x1=row.value, yref="paper", y0=0, y1=1, line=line)
        if chosen:
            figure.add_annotation(
                text=f"cut {row.value:.3g}",
                x=row.value,
                y=1,
                yref="paper",
                yanchor="top",
                xanchor="left",
                xshift=4,
            )


# How sure the places of a ranking are: in how many resamples each method has each place.


def rank_probabilities(
    ranks: pd.DataFrame, *, theme: Theme = "light", title: str | None = "How sure are the places?"
) -> go.Figure:
    """Methods (rows, best expected place on top) by place (columns): share of resamples.

    Args:
        ranks: Rows of `uds_lens.meta.stability(...)` for one kind of resample and one view: `method`, `rank`,
            `probability`.
        theme: Light or dark.
        title: Heading; None leaves it out.

    Returns:
        The figure; ties share the better place, so that a row sums to 1 and a column need not.

    Raises:
        DataError: A column is missing, or a method has a place twice: choose one view.

    Example:
        >>> import pandas as pd
        >>> rows = {"method": ["a", "b"], "rank": [1, 2], "probability": [1.0, 1.0]}
        >>> rank_probabilities(pd.DataFrame(rows)).data[0].text
        (['100', ''], ['', '100'])
    """
    require(ranks, ["method", "rank", "probability"], source="uds_lens.meta.stability(...)")
    if ranks.duplicated(["method", "rank"]).any():
        raise DataError("a method has a place twice: choose the rows of one `resampled` and one `view`.")
    import plotly.graph_objects as go

    colours = palette(theme)
    varying = ranks[ranks["probability"].notna()]
    table = varying.pivot(index="method", columns="rank", values="probability").fillna(0.0)
    places = [float(place) for place in table.columns]
    expected = (table * places).sum(axis=1) / table.sum(axis=1)
    table = table.loc[expected.sort_values(kind="stable").index]
    names = [shown(name, limit=28) for name in table.index]
    figure = go.Figure(
        go.Heatmap(
            x=[f"{place:.0f}" for place in places],
            y=names,
            z=table.to_numpy(dtype=float),
            text=[[_percent(value) for value in line] for line in table.to_numpy(dtype=float)],
            texttemplate="%{text}",
            colorscale=[[0, colours.paper], [1, colours.erased]],
            zmin=0,
            zmax=1,
            xgap=2,
            ygap=2,
            showscale=False,
            hovertemplate="%{y}, place %{x}: %{z:.1%}<extra></extra>",
        )
    )
    if not len(table):
        note(figure, "Nothing can vary: no probabilities." if len(ranks) else "No methods.")
    figure.update_xaxes(type="category", title_text="place", showline=False, ticks="")
    figure.update_yaxes(autorange="reversed", showgrid=False)
    return style(
        figure,
        theme=theme,
        title=title,
        subtitle="Percent of resamples, the configuration chosen anew in each.",
        height=150 + 32 * max(len(table), 3),
        legend=False,
    )


def _percent(share: float) -> str:
    """Whole percent; empty at 0, below 1 in words.

    >>> _percent(0.0), _percent(0.004), _percent(0.5)
    ('', '&lt;1', '50')
    """
    return "" if share == 0 else "&lt;1" if share < 0.01 else f"{100 * share:.0f}"
