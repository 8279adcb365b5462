"""How sure the places of a ranking are: in how many resamples each method has each place."""

from __future__ import annotations

from typing import TYPE_CHECKING

from uds_lens.checked_arguments import arguments_checked_but
from uds_lens.errors import DataError
from uds_lens.plots.frame_columns import require
from uds_lens.plots.palette import Theme, palette
from uds_lens.plots.safe_text import shown
from uds_lens.plots.template import note, style

if TYPE_CHECKING:
    import pandas as pd
    import plotly.graph_objects as go


@arguments_checked_but("ranks")
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
