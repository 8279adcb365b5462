"""Is what lies shallow what comes out? Depth of each example against what was elicited of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from uds_lens.checked_arguments import arguments_checked_but
from uds_lens.plots.frame_columns import require
from uds_lens.plots.palette import Theme, palette
from uds_lens.plots.safe_text import number, shown
from uds_lens.plots.template import note, style

if TYPE_CHECKING:
    import pandas as pd
    import plotly.graph_objects as go


@arguments_checked_but("depth")
def depth_elicited(
    depth: pd.DataFrame,
    *,
    audit: str,
    decoding: str = "greedy",
    theme: Theme = "light",
    title: str | None = "Depth, and what comes out",
) -> go.Figure:
    """UDS of each example against its score beyond retain under one audit.

    Args:
        depth: `ElicitationResults.with_depth(audit)`.
        audit: Which audit.
        decoding: "greedy" or "sampled".
        theme: Light or dark.
        title: Heading; None leaves it out.

    Returns:
        The figure; points are moved a little (seeded) so that they do not hide each other.

    Raises:
        DataError: A column is missing.
    """
    require(
        depth,
        ["audit", "decoding", "uds", "beyond_retain", "question"],
        source="ElicitationResults.with_depth(...)",
    )
    import plotly.graph_objects as go

    colours = palette(theme)
    rows = depth[(depth["audit"] == audit) & (depth["decoding"] == decoding)].dropna(
        subset=["uds", "beyond_retain"]
    )
    random = np.random.default_rng(0)
    aside = random.uniform(-0.012, 0.012, (2, len(rows)))
    figure = go.Figure(
        go.Scatter(
            x=(rows["uds"].to_numpy(float) + aside[0]).round(4),
            y=(rows["beyond_retain"].to_numpy(float) + aside[1]).round(4),
            mode="markers",
            name="example",
            marker={"color": colours.unlearned, "size": 7, "opacity": 0.5, "line": {"width": 0}},
            customdata=[
                f"{shown(row.question, width=64, limit=140)}<br>UDS {row.uds:.2f}, "
                f"beyond retain {row.beyond_retain:+.2f}"
                for row in rows.itertuples()
            ],
            hovertemplate="%{customdata}<extra></extra>",
        )
    )
    if not len(rows):
        note(figure, "No example has both.")
    rho = rows["uds"].rank().corr(rows["beyond_retain"].rank()) if len(rows) > 2 else float("nan")
    figure.add_hline(y=0, line={"color": colours.faint, "width": 1, "dash": "dot"})
    figure.update_xaxes(title_text="UDS, 0 intact to 1 erased", range=[-0.04, 1.04])
    figure.update_yaxes(title_text="recall beyond retain")
    words = f"{audit}, {decoding}. Spearman's rho {number(float(rho))} over {len(rows)} examples."
    return style(figure, theme=theme, title=title, subtitle=words, height=400, legend=False)
