"""Depth beside usefulness: is the model that forgot most still good for anything?"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Any

from uds_lens.checked_arguments import arguments_checked_but
from uds_lens.plots.frame_columns import require
from uds_lens.plots.palette import Theme, palette
from uds_lens.plots.safe_text import shown
from uds_lens.plots.template import note, style
from uds_lens.plots.utility_frontier import frontier

if TYPE_CHECKING:
    import pandas as pd
    import plotly.graph_objects as go

_WIDTH, _HEIGHT = 640, 300
"""About the pixels of the plot, for names that make room for each other."""

_PLACES = ("middle right", "middle left", "top center", "bottom center")


@arguments_checked_but("models")
def depth_utility(
    models: pd.DataFrame,
    *,
    label: str = "utility, 1 as full",
    chosen: str | None = None,
    references: Collection[str] = (),
    theme: Theme = "light",
    title: str | None = "Depth and usefulness",
) -> go.Figure:
    """Each model by usefulness (across) and UDS (up), with its name; the line joins those that no other beats in both.

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
    require(models, ["model", "utility", "uds"], source="a table of models with depth and usefulness")
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
        text="forgotten, and still useful",
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
        hovertemplate=f"{name}<br>usefulness %{{x:.3f}}<br>UDS %{{y:.3f}}{told}<extra></extra>",
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
