"""What each audit brings out of full, of retain and of the unlearned model: three dots a row."""

from __future__ import annotations

from typing import TYPE_CHECKING

from uds_lens.checked_arguments import arguments_checked_but
from uds_lens.plots.frame_columns import require
from uds_lens.plots.palette import Theme, palette
from uds_lens.plots.safe_text import shown
from uds_lens.plots.template import note, style

if TYPE_CHECKING:
    import pandas as pd
    import plotly.graph_objects as go


@arguments_checked_but("summary")
def elicited_scores(
    summary: pd.DataFrame,
    *,
    decoding: str = "greedy",
    statistic: str = "mean",
    theme: Theme = "light",
    title: str | None = "What comes out, and of whom",
) -> go.Figure:
    """Scores of the three models under every audit; the interval is that of the unlearned model beyond retain.

    Args:
        summary: `ElicitationResults.summary()`.
        decoding: "greedy" or "sampled".
        statistic: "mean", or "best" of the samples.
        theme: Light or dark.
        title: Heading; None leaves it out.

    Returns:
        The figure, the audits in their order from top to bottom.

    Raises:
        DataError: A column is missing.

    Example:
        >>> import pandas as pd
        >>> row = {"audit": "plain", "decoding": "greedy", "statistic": "mean", "unlearned": 0.4, "retain": 0.2,
        ...        "full": 0.9, "beyond_low": 0.1, "beyond_high": 0.3, "share_reason": None}
        >>> [trace.name for trace in elicited_scores(pd.DataFrame([row])).data][-3:]
        ['retain', 'full', 'unlearned']
    """
    needed = ["audit", "decoding", "statistic", "unlearned", "beyond_low", "beyond_high", "share_reason"]
    require(summary, needed, source="ElicitationResults.summary()")
    import plotly.graph_objects as go

    colours = palette(theme)
    rows = summary[(summary["decoding"] == decoding) & (summary["statistic"] == statistic)]
    names = [
        shown(row.audit)
        + next(
            (f" ({why})" for why in ("no power", "not asked") if str(row.share_reason).startswith(why)), ""
        )
        for row in rows.itertuples()
    ]
    figure = go.Figure()
    if not len(rows):
        note(figure, f"No audit was decoded like that ({decoding}, {statistic}).")
        return style(figure, theme=theme, title=title, height=220)
    if "retain" in rows.columns:
        figure.add_scatter(
            x=[
                x
                for row in rows.itertuples()
                for x in (row.retain + row.beyond_low, row.retain + row.beyond_high, None)
            ],
            y=[y for name in names for y in (name, name, None)],
            mode="lines",
            line={"color": colours.unlearned, "width": 3},
            opacity=0.45,
            name="retain + interval of the difference",
            hoverinfo="skip",
        )
    marks = (
        ("retain", colours.faint, "circle-open"),
        ("full", colours.faint, "circle"),
        ("unlearned", colours.unlearned, "diamond"),
    )
    for role, colour, symbol in marks:
        if role in rows.columns:
            figure.add_scatter(
                x=rows[role].round(4),
                y=names,
                mode="markers",
                name=role,
                marker={"color": colour, "size": 11, "symbol": symbol, "line": {"width": 2, "color": colour}},
                hovertemplate=f"<b>%{{y}}</b><br>{role} %{{x:.3f}}<extra></extra>",
            )
    figure.update_xaxes(title_text="ROUGE-L recall", range=[-0.02, 1.02], showgrid=True)
    figure.update_yaxes(autorange="reversed", showgrid=True, automargin=True)
    words = (
        "Right of retain: told what retain does not know. Full tells what the audit could bring out at all."
    )
    return style(figure, theme=theme, title=title, subtitle=words, height=200 + 34 * len(rows))
