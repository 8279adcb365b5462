"""How much a metric's robustness depends on which models are counted."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from uds_lens.checked_arguments import arguments_checked_but
from uds_lens.errors import DataError
from uds_lens.plots.frame_columns import require
from uds_lens.plots.palette import Theme, palette
from uds_lens.plots.safe_text import shown
from uds_lens.plots.template import note, style
from uds_lens.types import check_choice

if TYPE_CHECKING:
    import pandas as pd
    import plotly.graph_objects as go

Robustness: TypeAlias = Literal["q", "r", "rob"]
"""Quantisation, relearning, or the harmonic mean of the two."""

_FILTERS = {
    "none": "all models",
    "utility": "useful",
    "threshold": "unlearned",
    "utility+threshold": "useful and unlearned",
}
_TITLES = {"q": "Q", "r": "R", "rob": "Rob"}


@arguments_checked_but("robust")
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
