"""Several unlearned models by score, each with its interval."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from uds_lens.plots._judging import by_score, difference_matrix
from uds_lens.plots._style import (
    LEGEND_ROW,
    Palette,
    Theme,
    legend_rows,
    note,
    palette,
    require,
    shown,
    style,
)

if TYPE_CHECKING:
    import pandas as pd
    import plotly.graph_objects as go


def ranking(
    models: pd.DataFrame,
    *,
    references: Collection[str] = (),
    theme: Theme = "light",
    title: str | None = "Unlearning depth",
) -> go.Figure:
    """A dot and an interval per model, highest UDS on top; models without a score stand last, in words.

    Args:
        models: `uds_lens.results.models_frame(audits)`: `model`, `uds`, `uds_low`, `uds_high`, `n_measured`. Where
            `reading` is there and says "withheld", the dot is hollow.
        references: Models that are there for comparison: grey.
        theme: Light or dark.
        title: Heading; None leaves it out.

    Returns:
        The figure, from 0 (intact, as in full) to 1 (erased, as in retain).

    Raises:
        DataError: A column is missing.

    Example:
        >>> import pandas as pd
        >>> columns = {"model": ["npo", "rmu"], "uds": [0.2, 0.6], "uds_low": [0.1, 0.5], "uds_high": [0.3, 0.7]}
        >>> ranking(pd.DataFrame({**columns, "n_measured": [40, 40]})).layout.yaxis.ticktext
        ('rmu', 'npo')
    """
    columns = ["model", "uds", "uds_low", "uds_high", "n_measured"]
    require(models, columns, source="uds_lens.results.models_frame(audits)")
    import plotly.graph_objects as go

    colours = palette(theme)
    ordered = models.sort_values("uds", ascending=False, kind="stable", na_position="last")
    figure = go.Figure()
    for place, row in enumerate(ordered.itertuples()):
        _row(figure, place, row, colours, colours.faint if row.model in references else colours.erased)
    if not len(ordered):
        note(figure, "No models.")
    figure.update_xaxes(
        title_text="UDS, 0 intact to 1 erased",
        range=[-0.03, 1.03],
        dtick=0.25,
        tickformat=".2~f",
        showgrid=True,
    )
    figure.update_yaxes(
        tickvals=list(range(len(ordered))),
        ticktext=[shown(name, limit=36) for name in ordered["model"]],
        range=[len(ordered) - 0.4, -0.6],
        showgrid=False,
    )
    return style(
        figure,
        theme=theme,
        title=title,
        subtitle="Dot: mean over measurable examples; line: bootstrap interval, by subject where examples share one.",
        height=140 + 32 * max(len(ordered), 3),
        legend=False,
    )


def _row(figure: Any, place: int, row: Any, colours: Palette, colour: str) -> None:
    import plotly.graph_objects as go

    name = shown(row.model)
    if math.isnan(row.uds):
        figure.add_annotation(text="not measurable", x=0, xanchor="left", y=place)
        return
    interval = "" if math.isnan(row.uds_low) else f" ({row.uds_low:.3f} to {row.uds_high:.3f})"
    withheld = getattr(row, "reading", None) == "withheld"
    warned = "<br>reading withheld: a warning is fatal" if withheld else ""
    hover = f"<b>{name}</b><br>UDS {row.uds:.3f}{interval}<br>{row.n_measured} examples measured{warned}<extra></extra>"
    line = go.Scatter(
        x=[row.uds_low, row.uds_high],
        y=[place, place],
        mode="lines",
        line={"color": colour, "width": 3},
        opacity=0.55,
        hoverinfo="skip",
    )
    dot = go.Scatter(
        x=[row.uds],
        y=[place],
        mode="markers",
        marker={
            "color": colours.paper if withheld else colour,
            "size": 11,
            "line": {"color": colour if withheld else colours.paper, "width": 1.5},
        },
        hovertemplate=hover,
    )
    figure.add_traces([line, dot])


# Which differences between audits are real: UDS of each minus UDS of each.


def audit_differences(
    differences: pd.DataFrame,
    *,
    p: str = "p_holm",
    level: float = 0.05,
    theme: Theme = "light",
    title: str | None = "Pairwise differences (Holm-adjusted)",
) -> go.Figure:
    """UDS of the row minus UDS of the column; a star where the adjusted p-value lies below the level.

    Args:
        differences: `uds_lens.results.compare_all(...)`: `one`, `other`, `uds_one`, `uds_other`, `difference`, `low`,
            `high`, and the column `p`.
        p: Which p-value decides: `p_holm`, or `p` for the one that is not adjusted.
        level: Of the star.
        theme: Light or dark.
        title: Heading; None leaves it out.

    Returns:
        The figure, highest UDS first. An empty cell: not comparable, or the audit itself. No star where the column
        `fatal`, if it is there, says that an audit has a fatal warning.

    Raises:
        DataError: A column is missing.

    Example:
        >>> import pandas as pd
        >>> row = {"one": ["npo"], "other": ["rmu"], "uds_one": [0.7], "uds_other": [0.4], "difference": [0.3]}
        >>> figure = audit_differences(pd.DataFrame({**row, "low": [0.1], "high": [0.5], "p_holm": [0.01]}))
        >>> figure.data[0].text[0][1]
        '+0.30*'
    """
    columns = ["one", "other", "uds_one", "uds_other", "difference", "low", "high", p]
    require(differences, columns, source="uds_lens.results.compare_all(...)")
    decides = "adjusted p" if p == "p_holm" else "p"
    return difference_matrix(
        differences,
        by_score(differences, "uds"),
        p=p,
        level=level,
        theme=theme,
        title=title,
        subtitle=f"UDS of the row minus UDS of the column. Star: {decides} below {level:g}; else the order is open.",
    )


# Depth against utility: which models no other model beats in both.

_SYMBOLS = ("circle", "diamond", "square", "triangle-up")


def utility_frontier(
    models: pd.DataFrame,
    *,
    depth: str = "uds",
    utility: str = "utility_rel",
    references: pd.DataFrame | None = None,
    min_utility: float | None = None,
    theme: Theme = "light",
    title: str | None = "Depth against utility",
) -> go.Figure:
    """Every model by utility (across) and depth (up), methods in colours, the frontier as a line.

    A model is on the frontier if no other has at least as much of both and more of one.

    Args:
        models: One row per model: `model`, `method`, the columns `depth` and `utility`.
        depth: Column of erasure, higher is deeper.
        utility: Column of utility, 1 as full.
        references: `full`, `retain`: the same columns but `method`; drawn as stars, and no part of the frontier.
        min_utility: Drawn as a dotted line.
        theme: Light or dark.
        title: Heading; None leaves it out.

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
    import plotly.graph_objects as go

    colours, figure = palette(theme), go.Figure()
    known = models[models[depth].notna() & models[utility].notna()].reset_index(drop=True)
    on = frontier(known[utility].to_numpy(dtype=float), known[depth].to_numpy(dtype=float))
    figure.add_trace(_line(known.loc[on], depth, utility, colours.ink))
    for place, (method, own) in enumerate(known.groupby("method", sort=True)):
        look = {
            "color": colours.series[place % len(colours.series)],
            "symbol": _SYMBOLS[place // len(colours.series) % len(_SYMBOLS)],
            "size": 8,
            "opacity": 0.85,
        }
        figure.add_trace(_marks(own, depth, utility, shown(method, limit=24), look))
    if references is not None and len(references):
        require(references, ["model", depth, utility], source="the table of models")
        look = {"symbol": "star", "size": 14, "color": colours.ink}
        figure.add_trace(_marks(references, depth, utility, "references", look))
    if min_utility is not None:
        line = {"color": colours.faint, "width": 1, "dash": "dot"}
        figure.add_shape(type="line", x0=min_utility, x1=min_utility, yref="paper", y0=0, y1=1, line=line)
    if not len(known):
        note(figure, "No model has both values.")
    highest = max([1.0, *known[utility].astype(float)])
    figure.update_xaxes(
        title_text="utility, 1 as full", range=[-0.03, highest + 0.05], tickformat=".1f", showgrid=True
    )
    figure.update_yaxes(
        title_text=f"{shown(depth, limit=24)}, 0 intact to 1 erased",
        range=[-0.04, 1.05],
        dtick=0.2,
        tickformat=".1f",
    )
    rows = legend_rows([trace.name for trace in figure.data])
    style(
        figure,
        theme=theme,
        title=title,
        subtitle=f"{len(known)} models; line: those that no other beats in both.",
        height=440 + LEGEND_ROW * (rows - 1),
    )
    if rows > 1:  # below the plot, where it takes what it needs without covering the title
        figure.update_layout(legend={"yref": "container", "y": 0, "yanchor": "bottom"})
    return figure


def frontier(across: np.ndarray, up: np.ndarray) -> list[int]:
    """Points that no other point beats, by rising `across`; of equal points all.

    Args:
        across: One value, higher is better.
        up: The other.

    Example:
        >>> frontier(np.array([1.0, 0.5, 0.8, 1.0]), np.array([0.2, 0.9, 0.1, 0.2]))
        [1, 0, 3]
    """
    beaten = (
        (across[None, :] >= across[:, None])
        & (up[None, :] >= up[:, None])
        & ((across[None, :] > across[:, None]) | (up[None, :] > up[:, None]))
    ).any(axis=1)
    kept = np.flatnonzero(~beaten)
    return [int(i) for i in kept[np.lexsort((kept, -up[kept], across[kept]))]]


def _line(own: Any, depth: str, utility: str, colour: str) -> Any:
    import plotly.graph_objects as go

    return go.Scatter(
        x=own[utility].astype(float).tolist(),
        y=own[depth].astype(float).tolist(),
        mode="lines",
        name="frontier",
        line={"color": colour, "width": 1.2, "shape": "vh"},  # with less utility, at least as much depth
        opacity=0.6,
        customdata=[shown(model, limit=60) for model in own["model"]],
        hoverinfo="skip",
    )


def _marks(own: Any, depth: str, utility: str, name: str, look: dict[str, Any]) -> Any:
    import plotly.graph_objects as go

    return go.Scatter(
        x=own[utility].astype(float).tolist(),
        y=own[depth].astype(float).tolist(),
        mode="markers",
        name=name,
        marker=look,
        customdata=[shown(model, limit=60) for model in own["model"]],
        hovertemplate="%{customdata}<br>utility %{x:.3f}, depth %{y:.3f}<extra></extra>",
    )


# Depth against utility: is the model that forgot most still good for anything?

_WIDTH, _HEIGHT = 640, 300
"""About the pixels of the plot, for names that make room for each other."""

_PLACES = ("middle right", "middle left", "top center", "bottom center")


def depth_utility(
    models: pd.DataFrame,
    *,
    label: str = "utility, 1 as full",
    chosen: str | None = None,
    references: Collection[str] = (),
    theme: Theme = "light",
    title: str | None = "Depth against utility",
) -> go.Figure:
    """Each model by utility (across) and UDS (up), with its name; the line joins those that no other beats in both.

    Args:
        models: One row per model: `model`, `utility`, `uds`, and if there are intervals `uds_low`, `uds_high`.
        label: What `utility` is.
        chosen: The model that is looked at: drawn strong, the others light. None draws all alike.
        references: Models that are there for comparison: grey stars, and no part of the line.
        theme: Light or dark.
        title: Heading; None leaves it out.

    Returns:
        The figure; models without both values are left out, and counted below the title.

    Raises:
        DataError: A column is missing.

    Example:
        >>> import pandas as pd
        >>> frame = pd.DataFrame({"model": ["npo", "rmu"], "uds": [0.8, 0.4], "utility": [0.9, 0.5]})
        >>> depth_utility(frame).data[0].name
        'not beaten in both'
    """
    require(models, ["model", "utility", "uds"], source="a table of models with depth and utility")
    import plotly.graph_objects as go

    colours, figure = palette(theme), go.Figure()
    known = models[models["utility"].notna() & models["uds"].notna()].reset_index(drop=True)
    own = known[~known["model"].isin(list(references))]
    on = frontier(own["utility"].to_numpy(dtype=float), own["uds"].to_numpy(dtype=float))
    best = own.iloc[on]
    line = {"color": colours.faint, "width": 1, "shape": "vh"}
    figure.add_trace(
        go.Scatter(
            x=best["utility"].tolist(), y=best["uds"].tolist(), mode="lines", name="not beaten in both", line=line,
            hoverinfo="skip",
        )
    )  # fmt: skip
    low, high = _limits(known["utility"].astype(float).tolist())
    places = _text_places(
        [(x - low) / (high - low) for x in known["utility"]], known["uds"].tolist(), known["model"].tolist()
    )
    for place, row in enumerate(known.itertuples()):
        reference = row.model in references
        colour = (
            colours.faint
            if reference
            else colours.other
            if chosen not in (None, row.model)
            else colours.erased
        )
        bars = chosen in (None, row.model) and not reference
        look = {
            "color": colour,
            "size": 13 if row.model == chosen else 9,
            "symbol": "star" if reference else "circle",
        }
        figure.add_trace(
            _mark(row, look, places[place], colours.ink if row.model == chosen else colours.text, bars)
        )
    if not len(known):
        note(figure, "No model has both values.")
    figure.add_annotation(
        text="forgotten, utility kept",
        x=1,
        y=1,
        xref="paper",
        yref="paper",
        xanchor="right",
        yanchor="bottom",
    )
    figure.update_xaxes(title_text=label, range=[low, high], showgrid=True, tickformat=".2~f")
    figure.update_yaxes(
        title_text="UDS, 0 intact to 1 erased", range=[-0.05, 1.05], dtick=0.25, tickformat=".2~f"
    )
    absent = len(models) - len(known)
    words = "Line: models that no other beats in both." + (
        f" Without both values: {absent}." if absent else ""
    )
    figure.update_layout(hovermode="closest")
    style(figure, theme=theme, title=title, subtitle=words, height=430, legend=False)
    return figure.update_layout(margin_t=figure.layout.margin.t + 22)


def _mark(row: Any, look: dict[str, Any], place: str, ink: str, bars: bool) -> Any:
    import plotly.graph_objects as go

    name = shown(row.model, limit=60)
    low, high = getattr(row, "uds_low", float("nan")), getattr(row, "uds_high", float("nan"))
    told = f" ({low:.3f} to {high:.3f})" if low == low else ""
    return go.Scatter(
        x=[float(row.utility)],
        y=[float(row.uds)],
        mode="markers+text",
        name=name,
        text=[shown(row.model, limit=20)],
        textposition=place,
        textfont={"size": 12, "color": ink},
        marker=look,
        error_y={
            "type": "data",
            "symmetric": False,
            "array": [float(high - row.uds)] if low == low else [],
            "arrayminus": [float(row.uds - low)] if low == low else [],
            "color": look["color"],
            "thickness": 1,
            "width": 0,
            "visible": bars,
        },
        meta={"model": True},
        cliponaxis=False,
        hovertemplate=f"{name}<br>utility %{{x:.3f}}<br>UDS %{{y:.3f}}{told}<extra></extra>",
    )


def _limits(values: Sequence[float]) -> tuple[float, float]:
    """Ends of the axis around the values, at least 0.12 apart so that small differences look small.

    >>> _limits([0.9, 0.9])
    (0.8328, 0.9672)
    """
    low, high = min(values, default=0.0), max(values, default=1.0)
    more = max(0.0, 0.12 - (high - low)) / 2
    edge = 0.06 * max(high - low, 0.12)
    return round(low - more - edge, 4), round(high + more + edge, 4)


def _text_places(across: Sequence[float], up: Sequence[float], names: Sequence[str]) -> list[str]:
    """For each name the first side of its point, in shares of the plot, where it covers no point and no earlier name.

    >>> _text_places([0.5, 0.52], [0.5, 0.5], ["npo", "rmu"])
    ['middle left', 'middle right']
    """
    points = [(x * _WIDTH, y * _HEIGHT) for x, y in zip(across, up, strict=True)]
    taken: list[tuple[float, float, float, float]] = [(x - 6, y - 6, x + 6, y + 6) for x, y in points]
    found = []
    for i, ((x, y), name) in enumerate(zip(points, names, strict=True)):
        width = 7 * min(len(name), 20)
        boxes = {
            "middle right": (x + 9, y - 7, x + 9 + width, y + 7),
            "middle left": (x - 9 - width, y - 7, x - 9, y + 7),
            "top center": (x - width / 2, y + 9, x + width / 2, y + 23),
            "bottom center": (x - width / 2, y - 23, x + width / 2, y - 9),
        }
        own = [box for j, box in enumerate(taken) if j != i]
        inside = [place for place in _PLACES if boxes[place][0] >= 0 and boxes[place][2] <= _WIDTH]
        place = next((place for place in inside if not any(map(_overlap(boxes[place]), own))), _PLACES[0])
        taken.append(boxes[place])
        found.append(place)
    return found


def _overlap(one: tuple[float, float, float, float]) -> Any:
    return lambda other: one[0] < other[2] and other[0] < one[2] and one[1] < other[3] and other[1] < one[3]
