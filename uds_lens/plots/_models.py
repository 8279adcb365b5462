"""Several unlearned models: scores with intervals, pairwise differences, depth against utility.

There are also curves for the checkpoints of a training run: depth, damage and utility by step.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import plotly.graph_objects as go

from uds_lens.plots._style import (
    UDS_AXIS,
    WIDTH,
    Look,
    curve,
    hover_head,
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


def ranking(models: pd.DataFrame, *, references: Collection[str] = (), **look: Unpack[Look]) -> go.Figure:
    """Plot each model's UDS with its interval, highest on top.

    Args:
        models: `uds_lens.results.models_frame(audits)`: `model`, `uds`, `uds_low`, `uds_high`, `n_measured`. The dot is
            hollow where an optional column `reading` says "withheld".
        references: Models drawn in grey, for comparison.
        **look: Theme, title, width, height (`Look`).

    Returns:
        The figure, from 0 (intact, as in full) to 1 (erased, as in retain); models without a score come last.

    Raises:
        DataError: A column is missing.

    Example:
        >>> import pandas as pd
        >>> columns = {"model": ["npo", "rmu"], "uds": [0.2, 0.6], "uds_low": [0.1, 0.5], "uds_high": [0.3, 0.7]}
        >>> ranking(pd.DataFrame({**columns, "n_measured": [40, 40]})).layout.yaxis.ticktext
        ('rmu', 'npo')
    """
    require(
        models, ["model", "uds", "uds_low", "uds_high", "n_measured"], source="uds_lens.results.models_frame(audits)"
    )
    colours, figure = palette(look.get("theme", "light")), go.Figure()
    ordered = models.sort_values("uds", ascending=False, kind="stable", na_position="last")
    for place, row in enumerate(ordered.itertuples()):
        if math.isnan(row.uds):
            figure.add_annotation(text="not measurable", x=0, xanchor="left", y=place)
            continue
        colour = colours.faint if row.model in references else colours.erased
        withheld = getattr(row, "reading", None) == "withheld"
        line = {"color": colour, "width": 3}
        ends = [row.uds_low, row.uds_high]
        figure.add_scatter(x=ends, y=[place, place], mode="lines", line=line, opacity=0.55, hoverinfo="skip")
        interval = "" if math.isnan(row.uds_low) else f" ({row.uds_low:.3f} to {row.uds_high:.3f})"
        warned = "<br>verdict withheld: fatal warning" if withheld else ""
        fill, edge = (colours.paper, colour) if withheld else (colour, colours.paper)
        figure.add_scatter(
            x=[row.uds],
            y=[place],
            mode="markers",
            marker={"color": fill, "size": 11, "line": {"color": edge, "width": 1.5}},
            hovertemplate=f"<b>{shown(row.model)}</b><br>UDS {row.uds:.3f}{interval}<br>{row.n_measured} examples "
            f"measured{warned}<extra></extra>",
        )
    figure.update_xaxes(**UDS_AXIS)
    row_axis(figure, [shown(name, limit=36) for name in ordered["model"]])
    return style(
        figure,
        "UDS by model",
        "Mean over measurable examples; bootstrap interval, clustered by subject if examples share subjects.",
        tall=140 + 32 * max(len(ordered), 3),
        legend=False,
        note=None if len(ordered) else "No models.",
        **look,
    )


def audit_differences(
    differences: pd.DataFrame, *, p: str = "p_holm", level: float = 0.05, **look: Unpack[Look]
) -> go.Figure:
    """Plot the row's UDS minus the column's UDS, with a star where the p-value is below the level.

    Args:
        differences: `uds_lens.results.compare_all(...)`: `one`, `other`, `uds_one`, `uds_other`, `difference`, `low`,
            `high`, and the column `p`.
        p: Column of the p-value to compare with `level`: `p_holm`, or `p` (unadjusted).
        level: Significance level.
        **look: Theme, title, width, height (`Look`).

    Returns:
        The figure, highest UDS first. A cell is empty on the diagonal and where a pair is not comparable. Pairs
            for which the optional column `fatal` names a fatal warning get no star.

    Raises:
        DataError: A column is missing.

    Example:
        >>> import pandas as pd
        >>> row = {"one": ["npo"], "other": ["rmu"], "uds_one": [0.7], "uds_other": [0.4], "difference": [0.3]}
        >>> figure = audit_differences(pd.DataFrame({**row, "low": [0.1], "high": [0.5], "p_holm": [0.01]}))
        >>> figure.data[0].text[0][1]
        '+0.30*'
    """
    require(
        differences,
        ["one", "other", "uds_one", "uds_other", "difference", "low", "high", p],
        source="uds_lens.results.compare_all(...)",
    )
    return difference_matrix(differences, "uds", p=p, level=level, **look)


def difference_matrix(pairs: pd.DataFrame, score: str, *, p: str, level: float, **look: Unpack[Look]) -> go.Figure:
    """Plot each pair and its mirror image as cells, for `audit_differences` and `pair_matrix`."""
    colours, names = palette(look.get("theme", "light")), by_score(pairs, score)
    adjusted = "p" if p == "p" else "adjusted p"
    cells: dict[tuple[str, str], tuple[float, str, str]] = {}
    for row in pairs.itertuples():
        p_value, withheld = getattr(row, p), bool(getattr(row, "fatal", ""))
        if math.isnan(row.difference):
            continue
        for one, other, sign in ((row.one, row.other, 1), (row.other, row.one, -1)):
            value = sign * float(row.difference)
            star = "*" if p_value < level and not withheld else ""
            text = ("+" if round(value, 2) > 0 else "") + number(round(value, 2) + 0.0) + star
            low, high = sorted((sign * row.low, sign * row.high))
            lines = [
                f"{shown(one, width=48, limit=120)} \u2212 {shown(other, width=48, limit=120)}: {number(value, 3)}",
                ("no interval" if math.isnan(row.low) else f"{number(low, 3)} to {number(high, 3)}")
                + (", not tested" if math.isnan(p_value) else f", {adjusted} {p_value:.2g}"),
                *(["not tested: a reference model"] if getattr(row, "reference", False) else []),
                *(["withheld: an audit has a fatal warning"] if withheld else []),
            ]
            cells[str(one), str(other)] = value, text, "<br>".join(lines)
    table = [[cells.get((one, other), (None, "", "")) for other in names] for one in names]
    largest = max([0.1, *(abs(cell[0]) for cell in cells.values())])
    roomy = 30 * len(names) <= (look.get("width") or WIDTH) - 200  # otherwise there is room only for stars
    places, labels = list(range(len(names))), [shown(name, limit=24) for name in names]
    figure = go.Figure()
    figure.add_heatmap(
        x=places,
        y=places,
        z=[[cell[0] for cell in line] for line in table],
        text=[[cell[1] if roomy else "*" * cell[1].endswith("*") for cell in line] for line in table],
        customdata=[[cell[2] for cell in line] for line in table],
        texttemplate="%{text}",
        textfont={"size": 11 if len(names) <= 14 else 9.5},
        colorscale=colours.around_zero,
        zmin=-largest,
        zmax=largest,
        xgap=1,
        ygap=1,
        showscale=False,
        hovertemplate="%{customdata}<extra></extra>",
        hoverongaps=False,
    )
    ticks = {"tickmode": "array", "tickvals": places, "ticktext": labels, "showgrid": False}
    figure.update_xaxes(side="bottom", tickangle=-45, title_text="minus", showline=False, ticks="", **ticks)
    figure.update_yaxes(autorange="reversed", **ticks)
    label = "UDS" if score == "uds" else "F"
    return style(
        figure,
        f"Differences in {label} by pair",
        f"{label} of the row minus {label} of the column. Star: {adjusted} below {level:g}; "
        "without a star, the order is uncertain.",
        tall=190 + 27 * max(len(names), 4),
        legend=False,
        note=None if names else "No pairs.",
        **look,
    )


def by_score(pairs: pd.DataFrame, score: str) -> list[str]:
    """Sort names by mean score over their pairs (`SCORE_one`, `SCORE_other`); names without a score come last."""
    scores: dict[str, list[float]] = {}
    for side in ("one", "other"):
        for name, value in zip(pairs[side], pairs[f"{score}_{side}"], strict=True):
            scores.setdefault(str(name), []).extend([] if math.isnan(value) else [float(value)])
    return sorted(scores, key=lambda name: -np.mean(scores[name]) if scores[name] else math.inf)


_SYMBOLS = ("circle", "diamond", "square", "triangle-up")


def utility_frontier(
    models: pd.DataFrame,
    *,
    depth: str = "uds",
    utility: str = "utility_rel",
    references: pd.DataFrame | None = None,
    min_utility: float | None = None,
    **look: Unpack[Look],
) -> go.Figure:
    """Plot every model by utility (across) and depth (up), coloured by method, with the Pareto frontier.

    Args:
        models: One row per model: `model`, `method`, and the columns named by `depth` and `utility`.
        depth: Column with the depth of erasure; higher means deeper.
        utility: Column with utility relative to full (1 is the utility of full itself).
        references: Rows for `full` and `retain`, with the same columns except `method`; drawn as stars and not part of
            the frontier.
        min_utility: Minimum utility, drawn as a dotted line.
        **look: Theme, title, width, height (`Look`).

    Returns:
        The figure.

    Raises:
        DataError: A column is missing.

    Example:
        >>> import pandas as pd
        >>> frame = pd.DataFrame({"model": list("abc"), "method": list("xxy"), "uds": [0.2, 0.9, 0.1]})
        >>> figure = utility_frontier(frame.assign(utility_rel=[1.0, 0.5, 0.8]))
        >>> figure.data[0].name, list(figure.data[0].customdata)
        ('frontier', ['b', 'a'])
    """
    require(models, ["model", "method", depth, utility], source="the table of models")
    colours, figure = palette(look.get("theme", "light")), go.Figure()
    complete = models[models[depth].notna() & models[utility].notna()].reset_index(drop=True)
    on = frontier(complete[utility].to_numpy(dtype=float), complete[depth].to_numpy(dtype=float))

    def add(rows: pd.DataFrame, name: str, **look: Any) -> None:
        figure.add_scatter(
            x=rows[utility].astype(float).tolist(),
            y=rows[depth].astype(float).tolist(),
            name=name,
            customdata=[shown(model, limit=60) for model in rows["model"]],
            **look,
        )

    # the Pareto frontier as a step line
    add(
        complete.loc[on],
        "frontier",
        mode="lines",
        line={"color": colours.ink, "width": 1.2, "shape": "vh"},
        opacity=0.6,
        hoverinfo="skip",
    )
    hover = "%{customdata}<br>utility %{x:.3f}, depth %{y:.3f}<extra></extra>"
    for place, (method, rows) in enumerate(complete.groupby("method", sort=True)):
        add(
            rows,
            shown(method, limit=24),
            mode="markers",
            marker={
                "color": colours.series[place % len(colours.series)],
                "symbol": _SYMBOLS[place // len(colours.series) % len(_SYMBOLS)],
                "size": 8,
                "opacity": 0.85,
            },
            hovertemplate=hover,
        )
    if references is not None and len(references):
        require(references, ["model", depth, utility], source="the table of models")
        add(
            references,
            "references",
            mode="markers",
            marker={"symbol": "star", "size": 14, "color": colours.ink},
            hovertemplate=hover,
        )
    if min_utility is not None:
        figure.add_shape(
            type="line",
            x0=min_utility,
            x1=min_utility,
            yref="paper",
            y0=0,
            y1=1,
            line={"color": colours.faint, "width": 1, "dash": "dot"},
        )
    highest = max([1.0, *complete[utility].astype(float)])
    figure.update_xaxes(title_text="utility (1 = full)", range=[-0.03, highest + 0.05], tickformat=".1f", showgrid=True)
    label = "UDS" if depth in ("uds", "depth") else shown(depth, limit=24)
    figure.update_yaxes(title_text=f"{label} (0 intact, 1 erased)", range=[-0.04, 1.05], dtick=0.2, tickformat=".1f")
    return style(
        figure,
        "Depth against utility",
        "Line: Pareto frontier, the models that no other model beats on both.",
        tall=440,
        note=None if len(complete) else "No model has both values.",
        **look,
    )


def frontier(across: np.ndarray, up: np.ndarray) -> list[int]:
    """Return the indices of the points on the Pareto frontier, sorted by `across`; equal points are all kept.

    >>> frontier(np.array([1.0, 0.5, 0.8, 1.0]), np.array([0.2, 0.9, 0.1, 0.2]))
    [1, 0, 3]
    """
    at_least = (across >= across[:, None]) & (up >= up[:, None])
    more = (across > across[:, None]) | (up > up[:, None])
    kept = np.flatnonzero(~(at_least & more).any(axis=1))
    return [int(i) for i in kept[np.lexsort((kept, -up[kept], across[kept]))]]


def depth_utility(
    models: pd.DataFrame,
    *,
    label: str = "utility (1 = full)",
    chosen: str | None = None,
    references: Collection[str] = (),
    **look: Unpack[Look],
) -> go.Figure:
    """Plot each model by utility (across) and UDS (up), with its name and the Pareto frontier.

    Args:
        models: One row per model: `model`, `utility`, `uds`, and, if there are intervals, `uds_low`, `uds_high`.
        label: Title of the utility axis.
        chosen: Model to emphasise; None draws all models alike.
        references: Models drawn as grey stars; they are not part of the frontier.
        **look: Theme, title, width, height (`Look`).

    Returns:
        The figure; the subtitle counts models that lack a value.

    Raises:
        DataError: A column is missing.

    Example:
        >>> import pandas as pd
        >>> frame = pd.DataFrame({"model": ["npo", "rmu"], "uds": [0.8, 0.4], "utility": [0.9, 0.5]})
        >>> depth_utility(frame).data[0].name
        'frontier'
    """
    require(models, ["model", "utility", "uds"], source="a table of models with depth and utility")
    colours, figure = palette(look.get("theme", "light")), go.Figure()
    complete = models[models["utility"].notna() & models["uds"].notna()].reset_index(drop=True)
    judged = complete[~complete["model"].isin(list(references))]
    best = judged.iloc[frontier(judged["utility"].to_numpy(dtype=float), judged["uds"].to_numpy(dtype=float))]
    figure.add_scatter(
        x=best["utility"].tolist(),
        y=best["uds"].tolist(),
        mode="lines",
        name="frontier",
        line={"color": colours.faint, "width": 1, "shape": "vh"},
        hoverinfo="skip",
    )
    low, high = _limits(complete["utility"].astype(float).tolist())
    sides = _name_sides(
        [(x - low) / (high - low) for x in complete["utility"]],
        complete["uds"].tolist(),
        complete["model"].tolist(),
        min(640, (look.get("width") or WIDTH) - 110),
    )
    for side, row in zip(sides, complete.itertuples(), strict=True):
        reference, strong = row.model in references, row.model == chosen
        behind = colours.erased if chosen in (None, row.model) else colours.other
        colour = colours.faint if reference else behind
        name = shown(row.model, limit=60)
        ends = getattr(row, "uds_low", math.nan), getattr(row, "uds_high", math.nan)
        known_ends = not math.isnan(ends[0])
        interval = f" ({ends[0]:.3f} to {ends[1]:.3f})" if known_ends else ""
        figure.add_scatter(
            x=[float(row.utility)],
            y=[float(row.uds)],
            mode="markers+text",
            name=name,
            text=[shown(row.model, limit=20)],
            textposition=side,
            textfont={"size": 12, "color": colours.ink if strong else colours.text},
            marker={"color": colour, "size": 13 if strong else 9, "symbol": "star" if reference else "circle"},
            error_y={
                "type": "data",
                "symmetric": False,
                "array": [float(ends[1] - row.uds)] if known_ends else [],
                "arrayminus": [float(row.uds - ends[0])] if known_ends else [],
                "color": colour,
                "thickness": 1,
                "width": 0,
                "visible": chosen in (None, row.model) and not reference,
            },
            meta={"model": True},
            cliponaxis=False,
            hovertemplate=f"{name}<br>utility %{{x:.3f}}<br>UDS %{{y:.3f}}{interval}<extra></extra>",
        )
    figure.add_annotation(
        text="forgotten, utility kept", x=1, y=1, xref="paper", yref="paper", xanchor="right", yanchor="bottom"
    )
    figure.update_xaxes(title_text=label, range=[low, high], showgrid=True, tickformat=".2~f")
    figure.update_yaxes(**{**UDS_AXIS, "range": [-0.05, 1.05]})
    figure.update_layout(hovermode="closest")
    subtitle = "Line: Pareto frontier, the models that no other model beats on both."
    if absent := len(models) - len(complete):
        subtitle += f" Without both values: {absent}."
    return style(
        figure,
        "Depth against utility",
        subtitle,
        tall=430,
        legend=False,
        room=22,
        note=None if len(complete) else "No model has both values.",
        **look,
    )


def _limits(values: Sequence[float]) -> tuple[float, float]:
    """Return axis limits that are at least 0.12 apart, so that small differences look small.

    >>> _limits([0.9, 0.9])
    (0.8328, 0.9672)
    """
    low, high = min(values, default=0.0), max(values, default=1.0)
    more = max(0.0, 0.12 - (high - low)) / 2
    edge = 0.06 * max(high - low, 0.12)
    return round(low - more - edge, 4), round(high + more + edge, 4)


def _name_sides(across: Sequence[float], up: Sequence[float], names: Sequence[str], width: int = 640) -> list[str]:
    """Put each name on the first side of its point where it covers nothing (coordinates are shares of the plot).

    >>> _name_sides([0.5, 0.52], [0.5, 0.5], ["npo", "rmu"])
    ['middle left', 'middle right']
    """
    points = [(x * width, y * 300) for x, y in zip(across, up, strict=True)]  # approximate size of the plot in pixels
    taken = [(x - 6, y - 6, x + 6, y + 6) for x, y in points]
    sides: list[str] = []
    for i, ((x, y), name) in enumerate(zip(points, names, strict=True)):
        long = 7 * min(len(name), 20)
        boxes = {
            "middle right": (x + 9, y - 7, x + 9 + long, y + 7),
            "middle left": (x - 9 - long, y - 7, x - 9, y + 7),
            "top center": (x - long / 2, y + 9, x + long / 2, y + 23),
            "bottom center": (x - long / 2, y - 23, x + long / 2, y - 9),
        }
        others = [box for j, box in enumerate(taken) if j != i]
        free = (
            side
            for side, (left, low, right, high) in boxes.items()
            if left >= 0
            and right <= width
            and not any(left < b[2] and b[0] < right and low < b[3] and b[1] < high for b in others)
        )
        sides.append(next(free, "middle right"))
        taken.append(boxes[sides[-1]])
    return sides


_VERDICTS = (("agrees", "erased", "circle"), ("differs as expected", "faint", "diamond"), ("differs", "unlearned", "x"))


def differences_by_metric(compared: pd.DataFrame, **look: Unpack[Look]) -> go.Figure:
    """Plot measured minus published values, with one row per metric and one mark per model.

    Args:
        compared: `uds_lens.published.compare(run).frame`: `model`, `metric`, `measured`, `published`, `difference`,
            `margin`, `verdict`.
        **look: Theme, title, width, height (`Look`).

    Returns:
        The figure; the bar behind each row is the margin within which values agree.

    Raises:
        DataError: A column is missing.

    Example:
        >>> import pandas as pd
        >>> row = {"model": ["a"], "metric": ["uds"], "measured": [0.4], "published": [0.39], "difference": [0.01]}
        >>> differences_by_metric(pd.DataFrame({**row, "margin": [0.005], "verdict": ["differs"]})).data[0].x
        (0.01,)
    """
    require(
        compared,
        ["model", "metric", "measured", "published", "difference", "margin", "verdict"],
        source="uds_lens.published.compare(run).frame",
    )
    colours, figure = palette(look.get("theme", "light")), go.Figure()
    defined = compared[compared["difference"].notna()]
    metrics = list(dict.fromkeys(defined["metric"]))
    for place, metric in enumerate(metrics):
        margin = float(defined["margin"][defined["metric"] == metric].iloc[0])
        figure.add_shape(
            type="rect",
            x0=-margin,
            x1=margin,
            y0=place - 0.38,
            y1=place + 0.38,
            fillcolor=colours.grid,
            line={"width": 0},
            layer="below",
        )
    steps = defined.groupby("metric", sort=False).cumcount()  # spread the models of a row vertically
    sizes = defined.groupby("metric", sort=False)["metric"].transform("size")
    rows = defined["metric"].map(metrics.index).astype(float)  # without rows, `map` does not return numbers
    defined = defined.assign(row=rows + 0.6 * ((steps + 0.5) / sizes.astype(float) - 0.5))
    for verdict, colour, symbol in _VERDICTS:
        marks = defined[defined["verdict"] == verdict]
        if len(marks):
            figure.add_scatter(
                x=marks["difference"].tolist(),
                y=marks["row"].tolist(),
                mode="markers",
                name=verdict,
                showlegend=True,
                marker={"size": 8, "symbol": symbol, "color": getattr(colours, colour)},
                customdata=[
                    [shown(row.model), shown(row.metric), number(row.measured, 4), number(row.published, 4)]
                    for row in marks.itertuples()
                ],
                hovertemplate="<b>%{customdata[0]}</b>, %{customdata[1]}<br>measured %{customdata[2]}, published "
                "%{customdata[3]}<br>difference %{x:.4f}<extra></extra>",
            )
    figure.update_xaxes(title_text="measured \u2212 published", zeroline=True)
    row_axis(figure, [shown(metric, limit=28) for metric in metrics])
    heading, tall = "Measured minus published values by metric", 170 + 34 * max(1, len(metrics))
    return style(
        figure,
        heading,
        "Each mark is a model; the bar behind a row is the margin within which values agree.",
        tall=tall,
        legend=len(defined) > 0,
        note=None if len(defined) else "No values.",
        **look,
    )


def depth_by_step(steps: pd.DataFrame, **look: Unpack[Look]) -> go.Figure:
    """Plot depth, damage and, if measured, utility and the probability of the forget answers by training step.

    Args:
        steps: `curve.to_frame()` of a `uds_lens.training.DepthCurve`: `step`, `uds`, `damage`; `utility` and `answers`
            (probability of the forget answers), both in [0, 1], are also drawn. If there is a column `model`, each
            model has a panel.
        **look: Theme, title, width, height (`Look`).

    Returns:
        The figure; NaN leaves a gap.

    Raises:
        DataError: A column is missing.

    Example:
        >>> import pandas as pd
        >>> figure = depth_by_step(pd.DataFrame({"step": [0, 10], "uds": [0.0, 0.6], "damage": [float("nan"), 0.1]}))
        >>> [trace.name for trace in figure.data], figure.layout.xaxis.title.text
        (['UDS', 'damage'], 'step')
    """
    require(steps, ["step", "uds", "damage"], source="curve.to_frame()")
    colours = palette(look.get("theme", "light"))
    lines = [
        ("uds", "UDS", colours.erased, "solid"),
        ("output_depth", "output depth", colours.erased, "dot"),
        ("damage", "damage", colours.unlearned, "solid"),
        ("utility", "utility", colours.retain, "dash"),
        ("answers", "forget answers", colours.faint, "dot"),
    ]
    names = list(dict.fromkeys(steps["model"])) if "model" in steps else [None]
    figure = panels([1], columns=max(1, len(names)), space=0.04)
    for column, name in enumerate(names, start=1):
        rows = steps if name is None else steps[steps["model"] == name]
        for key, label, colour, dash in lines:
            if key not in rows or rows[key].isna().all():
                continue
            line = curve(
                rows["step"], rows[key].astype(float), name=label, colour=colour, hover=f"{label} %{{y:.3f}}", dash=dash
            )
            line.marker.size = 4
            line.showlegend = not any(trace.name == label for trace in figure.data)
            put(figure, line, row=1, column=column)
        if name is not None:
            panel_heading(figure, shown(name, limit=24), column=column)
    top = max([1.0, *steps["damage"].dropna().clip(upper=2.0)]) * 1.04
    figure.update_yaxes(range=[-0.04, top], dtick=0.25, tickformat=".2~f")
    figure.update_yaxes(title_text="UDS, damage", selector=0)
    figure.update_xaxes(title_text="step", rangemode="tozero")
    figure.update_layout(hovermode="x unified", hoverdistance=-1)
    hover_head(figure, "step %{x}")
    subtitle = "UDS 0 intact, 1 erased. Damage: loss on retained facts over loss on forget facts."
    if names == [None]:
        return style(figure, "Depth and damage by step", subtitle, tall=400, **look)
    figure.update_layout(legend_y=1.08)
    return style(figure, "Depth and damage by step", subtitle, tall=360, room=20, **look)
