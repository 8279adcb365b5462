"""Heat maps of patching grids: what is lost by layer and position, or by layer and head."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from uds_lens.errors import DataError
from uds_lens.plots._style import Theme, palette, require, shown, style

if TYPE_CHECKING:
    import pandas as pd
    import plotly.graph_objects as go


def patch_heatmap(
    grid: pd.DataFrame, *, tokens: Sequence[str] | None = None, theme: Theme = "light", title: str | None = ""
) -> go.Figure:
    """Draw a grid of patches, mean over its rows: layers across; positions or heads down.

    Args:
        grid: `uds_lens.patching.patch_grid(...)`; filter it by `row` to see one text. Or with a column `cell`, text, in
            whose order its rows are drawn (`DepthMap.plot_map`).
        tokens: Texts of all tokens of that row, to label positions.
        theme: Light or dark.
        title: Heading; empty states the finding, None leaves it out.

    Returns:
        The figure; cells in nats per token (or the unit of the grid's score). Grey: not patched.

    Raises:
        DataError: A column is missing, or there is nothing to draw.

    Example:
        >>> import pandas as pd
        >>> grid = pd.DataFrame({"row": 0, "layer": [0, 1], "head": [0, 0], "lost": [0.5, 0.1]})
        >>> [list(line) for line in patch_heatmap(grid).data[0].z]
        [[0.5, 0.1]]
    """
    require(grid, ["layer", "lost"], source="uds_lens.patching.patch_grid(...)")
    down = next((name for name in ("position", "head", "cell") if name in grid.columns), None)
    if down is None or not len(grid):
        raise DataError("the grid has no positions and no heads: make it with by='position' or by='head'.")
    import plotly.graph_objects as go

    table = grid.pivot_table(index=down, columns="layer", values="lost", aggfunc="mean", sort=down != "cell")
    labels = [
        f"{i} {shown(tokens[i], limit=20)}" if tokens is not None and down == "position" else str(i)
        for i in table.index
    ]
    scale, kind = palette(theme).scale, "" if down == "cell" else f"{down} "
    figure = go.Figure(
        go.Heatmap(
            x=list(table.columns),
            y=list(range(len(labels))),
            z=table.to_numpy(),
            customdata=[[label] * table.shape[1] for label in labels],
            colorscale=[[i / (len(scale) - 1), colour] for i, colour in enumerate(scale)],
            colorbar={"title": {"text": "lost", "side": "top"}, "thickness": 12},
            hovertemplate=f"layer %{{x}}, {kind}%{{customdata}}<br>lost %{{z:.3f}}<extra></extra>",
            hoverongaps=False,
        )
    )
    figure.update_xaxes(title_text="layer", dtick=max(1, table.shape[1] // 12))
    figure.update_yaxes(
        title_text=kind.strip(),
        tickvals=list(range(len(labels))),
        ticktext=labels,
        range=[len(labels) - 0.5, -0.5],
        showgrid=False,
    )
    row, column = divmod(int(table.fillna(-math.inf).to_numpy().argmax()), table.shape[1])
    largest = table.iloc[row, column]
    where = f"layer {table.columns[column]}, {kind}{labels[row]}"
    finding = f"The largest loss is {largest:.2g}: {where}" if largest > 0 else "No patch lowers the score"
    return style(figure, theme, title, finding, height=140 + 22 * max(8, len(labels)), legend=False)
