"""Names at the ends of lines, moved apart where lines end close to each other."""

from __future__ import annotations

import html
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from uds_lens.plots.safe_text import shown

LABEL_HEIGHT = 16
"""Pixels from one name to the next."""

_LETTERS = 22


def label_room(names: Iterable[str]) -> int:
    """Pixels to the right of the plot that the names take."""
    return 34 + 7 * max((min(len(name), _LETTERS) for name in names), default=0)


def end_labels(
    figure: Any, limits: Sequence[float], *, plot_height: float, colours: Mapping[str, str] | None = None
) -> None:
    """Write each trace's name where its line ends, with a thin line to it where the name had to move.

    Args:
        figure: Lines with `meta["place"]`, which becomes the name of the annotation.
        limits: Range of the y axis.
        plot_height: Its height in pixels.
        colours: Colour of a name whose line is too light for text, by the line's colour.
    """
    ends = []
    for trace in figure.data:
        known = [(x, y) for x, y in zip(trace.x, trace.y, strict=True) if y == y]
        if known:
            ends.append((trace, *known[-1]))
    low, high = limits
    gap = LABEL_HEIGHT * (high - low) / plot_height
    places = apart([y for _, _, y in ends], gap=gap, low=low, high=high)
    right = figure.layout.xaxis.range[1]
    for (trace, x, y), place in zip(ends, places, strict=True):
        figure.add_annotation(
            name=str(trace.meta["place"]),
            text=_cut(trace.name),
            x=x,
            y=y,
            ax=right,
            ay=place,
            axref="x",
            ayref="y",
            xanchor="left",
            showarrow=True,
            arrowhead=0,
            arrowwidth=1,
            arrowcolor=trace.line.color,
            standoff=5,
            borderpad=0,
            font={"color": (colours or {}).get(trace.line.color, trace.line.color), "size": 12.5},
        )


def apart(values: Sequence[float], *, gap: float, low: float, high: float) -> list[float]:
    """Places near `values`, in their order, at least `gap` apart and inside the limits where there is room for all.

    >>> apart([0.5, 0.5, 0.9], gap=0.25, low=0.0, high=1.0)
    [0.375, 0.625, 0.9]
    >>> apart([1.0, 1.0], gap=0.5, low=0.0, high=1.0)
    [0.5, 1.0]
    """
    order = sorted(range(len(values)), key=lambda i: values[i])
    groups: list[
        tuple[float, list[int]]
    ] = []  # centre and members; members stand a gap apart around the centre
    for i in order:
        centre, members = values[i], [i]
        while True:
            centre = _inside(centre, len(members), gap, low, high)
            if not groups or centre - groups[-1][0] >= gap * (len(members) + len(groups[-1][1])) / 2 - 1e-12:
                break
            before, earlier = groups.pop()
            n, m = len(earlier), len(members)
            centre, members = (before * n + centre * m) / (n + m), [*earlier, *members]
        groups.append((centre, members))
    found = [0.0] * len(values)
    for centre, members in groups:
        for rank, i in enumerate(members):
            found[i] = centre + gap * (rank - (len(members) - 1) / 2)
    return found


def _inside(centre: float, n: int, gap: float, low: float, high: float) -> float:
    half = gap * (n - 1) / 2
    return max(min(centre, high - half), low + half)


def _cut(name: str) -> str:
    """A name that is already safe for plotly, cut between letters and not within one."""
    return shown(html.unescape(name).replace("\u200b", ""), limit=_LETTERS)
