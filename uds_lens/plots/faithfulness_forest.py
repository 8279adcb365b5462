"""How well each metric tells models that know from models that do not, each with its interval."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from uds_lens.checked_arguments import arguments_checked_but
from uds_lens.plots.frame_columns import require
from uds_lens.plots.palette import Palette, Theme, palette
from uds_lens.plots.row_labels import row_labels
from uds_lens.plots.template import note, style

if TYPE_CHECKING:
    import pandas as pd
    import plotly.graph_objects as go


@arguments_checked_but("faithful")
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
