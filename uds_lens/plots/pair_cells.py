"""A matrix of differences between all pairs, and which of them are real."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from uds_lens.plots.palette import Theme, palette
from uds_lens.plots.safe_text import number, shown
from uds_lens.plots.template import note, style

if TYPE_CHECKING:
    import pandas as pd
    import plotly.graph_objects as go


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
