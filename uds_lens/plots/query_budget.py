"""What more queries bring: the expected best of k texts, by model."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from uds_lens.checked_arguments import arguments_checked_but
from uds_lens.plots.frame_columns import require
from uds_lens.plots.palette import Theme, palette
from uds_lens.plots.template import note, style

if TYPE_CHECKING:
    import pandas as pd
    import plotly.graph_objects as go


@arguments_checked_but("budget")
def query_budget(
    budget: pd.DataFrame,
    *,
    audit: str,
    value: Literal["best_of_k", "leak_at_k"] = "best_of_k",
    theme: Theme = "light",
    title: str | None = "What more queries bring",
) -> go.Figure:
    """A curve per model over the number of texts drawn.

    Args:
        budget: `ElicitationResults.budget_frame()`.
        audit: Which audit.
        value: Expected best recall, or the probability that one text gives the answer away.
        theme: Light or dark.
        title: Heading; None leaves it out.

    Returns:
        The figure; the number of texts is on a logarithmic axis.

    Raises:
        DataError: A column is missing.

    Example:
        >>> import pandas as pd
        >>> frame = pd.DataFrame({"model": "full", "audit": "plain", "k": [1, 2], "best_of_k": [0.1, 0.2]})
        >>> query_budget(frame, audit="plain").data[0].y
        (0.1, 0.2)
    """
    require(budget, ["model", "audit", "k", value], source="ElicitationResults.budget_frame()")
    import plotly.graph_objects as go

    colours = palette(theme)
    looks = {
        "full": (colours.faint, "solid"),
        "retain": (colours.faint, "dot"),
        "unlearned": (colours.unlearned, "solid"),
    }
    rows = budget[budget["audit"] == audit]
    figure = go.Figure()
    for role, (colour, dash) in looks.items():
        own = rows[rows["model"] == role].sort_values("k")
        if len(own):
            figure.add_scatter(
                x=own["k"],
                y=own[value].round(4),
                name=role,
                mode="lines+markers",
                line={"color": colour, "dash": dash, "width": 2.25},
                hovertemplate=f"{role}, %{{x}} texts: %{{y:.3f}}<extra></extra>",
            )
    if not len(rows):
        note(figure, f"{audit} was not sampled.")
    ticks = sorted(set(rows["k"].tolist()))
    figure.update_xaxes(
        title_text="texts drawn", type="log", tickvals=ticks, ticktext=[str(k) for k in ticks]
    )
    what = "expected best recall" if value == "best_of_k" else "probability of a leak"
    figure.update_yaxes(title_text=what, rangemode="tozero")
    return style(
        figure, theme=theme, title=title, subtitle=f"{audit}, sampled; mean over questions.", height=380
    )
