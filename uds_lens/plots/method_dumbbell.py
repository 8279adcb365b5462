"""What the depth score changes in a ranking of methods."""

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

_ENDS = {"without": "without depth", "with": "with depth"}


@arguments_checked_but("ranking")
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
