"""Does the score depend on how long the entity is?"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from uds_lens.checked_arguments import arguments_checked_but
from uds_lens.plots.frame_columns import require
from uds_lens.plots.palette import Theme, palette
from uds_lens.plots.safe_text import number, shown
from uds_lens.plots.template import note, style

if TYPE_CHECKING:
    import pandas as pd
    import plotly.graph_objects as go

_ENOUGH = 3
"""Examples of one length from which on their mean is drawn."""


@arguments_checked_but("examples")
def length_scatter(
    examples: pd.DataFrame, *, theme: Theme = "light", title: str | None = "Depth and length of the entity"
) -> go.Figure:
    """UDS of each measurable example against the tokens of its entity, the mean per length, and Spearman's rho.

    Args:
        examples: `audit.examples_frame()`.
        theme: Light or dark.
        title: Heading; None leaves it out.

    Returns:
        The figure. Points are moved sideways a little (seeded) so that they do not hide each other.

    Raises:
        DataError: A column is missing.
    """
    require(examples, ["n_tokens", "uds", "entity", "question"], source="audit.examples_frame()")
    import plotly.graph_objects as go

    colours = palette(theme)
    measured = examples[examples["uds"].notna()]
    aside = np.random.default_rng(0).uniform(-0.28, 0.28, len(measured))
    points = go.Scatter(
        x=(measured["n_tokens"].to_numpy(dtype=float) + aside).round(3),
        y=measured["uds"].round(4),
        mode="markers",
        name="example",
        marker={"color": colours.retain, "size": 6, "opacity": 0.45, "line": {"width": 0}},
        customdata=[
            f"<b>{shown(row.entity, limit=60)}</b><br>{shown(row.question, width=64, limit=140)}<br>"
            f"{row.n_tokens} tokens, UDS {row.uds:.2f}"
            for row in measured.itertuples()
        ],
        hovertemplate="%{customdata}<extra></extra>",
    )
    means = measured.groupby("n_tokens")["uds"].agg(["mean", "size"])
    means = means[means["size"] >= _ENOUGH]
    line = go.Scatter(
        x=means.index,
        y=means["mean"],
        mode="lines+markers",
        name=f"mean per length ({_ENOUGH} examples or more)",
        line={"color": colours.unlearned, "width": 2},
        marker={"color": colours.unlearned, "size": (4 + 2 * np.sqrt(means["size"])).clip(upper=16).tolist()},
        customdata=means["size"],
        hovertemplate="%{x} tokens: mean UDS %{y:.2f} (%{customdata} examples)<extra></extra>",
    )
    figure = go.Figure([points, line])
    if not len(measured):
        note(figure, "No example is measurable.")
    figure.update_xaxes(title_text="entity length, tokens", tickformat="d", dtick=_step(measured["n_tokens"]))
    figure.update_yaxes(
        title_text="UDS, 0 intact to 1 erased", range=[-0.04, 1.04], dtick=0.25, tickformat=".2~f"
    )
    return style(figure, theme=theme, title=title, subtitle=_correlation_words(measured), height=380)


def rank_correlation(examples: pd.DataFrame) -> float:
    """Spearman's rho between entity length and UDS over measurable examples; NaN with fewer than three or no variation.

    Example:
        >>> import pandas as pd
        >>> round(rank_correlation(pd.DataFrame({"n_tokens": [1, 2, 5], "uds": [0.9, 0.5, 0.1]})), 6)
        -1.0
    """
    measured = examples[examples["uds"].notna()]
    if len(measured) < 3 or min(measured["n_tokens"].nunique(), measured["uds"].nunique()) < 2:
        return math.nan
    return float(measured["n_tokens"].rank().corr(measured["uds"].rank()))


def _correlation_words(measured: Any) -> str:
    return f"Spearman's rho {number(rank_correlation(measured))} over {len(measured)} measurable examples."


def _step(tokens: Any) -> int:
    return max(1, -(-int(tokens.max() - tokens.min() + 1) // 14)) if len(tokens) else 1
