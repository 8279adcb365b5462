"""Depth against usefulness: which models no other model beats in both."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from uds_lens.checked_arguments import arguments_checked_but
from uds_lens.plots.frame_columns import require
from uds_lens.plots.palette import Theme, palette
from uds_lens.plots.safe_text import shown
from uds_lens.plots.template import LEGEND_ROW, legend_rows, note, style

if TYPE_CHECKING:
    import pandas as pd
    import plotly.graph_objects as go

_SYMBOLS = ("circle", "diamond", "square", "triangle-up")


@arguments_checked_but("models", "references")
def utility_frontier(
    models: pd.DataFrame,
    *,
    depth: str = "uds",
    utility: str = "utility_rel",
    references: pd.DataFrame | None = None,
    min_utility: float | None = None,
    theme: Theme = "light",
    title: str | None = "Depth against usefulness",
) -> go.Figure:
    """Every model by utility (across) and depth (up), methods in colours, the frontier as a line.

    A model is on the frontier if no other has at least as much of both and more of one.

    Args:
        models: One row per model: `model`, `method`, the columns `depth` and `utility`.
        depth: Column of erasure, higher is deeper.
        utility: Column of usefulness, 1 as full.
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
