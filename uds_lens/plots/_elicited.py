"""What each probe brings out of full, of retain and of the unlearned model: three dots a row."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import numpy as np

from uds_lens.plots._style import Theme, note, number, palette, require, shown, style

if TYPE_CHECKING:
    import pandas as pd
    import plotly.graph_objects as go


def elicited_scores(
    summary: pd.DataFrame,
    *,
    decoding: str = "greedy",
    statistic: str = "mean",
    theme: Theme = "light",
    title: str | None = "Elicitation, and of whom",
) -> go.Figure:
    """Scores of the three models under every probe; the interval is that of the unlearned model beyond retain.

    Args:
        summary: `ElicitationResults.summary()`.
        decoding: "greedy" or "sampled".
        statistic: "mean", or "best" of the samples.
        theme: Light or dark.
        title: Heading; None leaves it out.

    Returns:
        The figure, the probes in their order from top to bottom.

    Raises:
        DataError: A column is missing.

    Example:
        >>> import pandas as pd
        >>> row = {"probe": "plain", "decoding": "greedy", "statistic": "mean", "unlearned": 0.4, "retain": 0.2,
        ...        "full": 0.9, "beyond_low": 0.1, "beyond_high": 0.3, "share_reason": None}
        >>> [trace.name for trace in elicited_scores(pd.DataFrame([row])).data][-3:]
        ['retain', 'full', 'unlearned']
    """
    needed = ["probe", "decoding", "statistic", "unlearned", "beyond_low", "beyond_high", "share_reason"]
    require(summary, needed, source="ElicitationResults.summary()")
    import plotly.graph_objects as go

    colours = palette(theme)
    rows = summary[(summary["decoding"] == decoding) & (summary["statistic"] == statistic)]
    names = [
        shown(row.probe)
        + next(
            (f" ({why})" for why in ("no power", "not asked") if str(row.share_reason).startswith(why)), ""
        )
        for row in rows.itertuples()
    ]
    figure = go.Figure()
    if not len(rows):
        note(figure, f"No probe was decoded like that ({decoding}, {statistic}).")
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
    words = "Right of retain: more was extracted than retain knows. Full: what the probe can extract at all."
    return style(figure, theme=theme, title=title, subtitle=words, height=200 + 34 * len(rows))


# Is what lies shallow what comes out? Depth of each example against what was elicited of it.


def depth_elicited(
    depth: pd.DataFrame,
    *,
    probe: str,
    decoding: str = "greedy",
    theme: Theme = "light",
    title: str | None = "Depth, and what comes out",
) -> go.Figure:
    """UDS of each example against its score beyond retain under one probe.

    Args:
        depth: `ElicitationResults.with_depth(audit)`.
        probe: Which probe.
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
        ["probe", "decoding", "uds", "beyond_retain", "question"],
        source="ElicitationResults.with_depth(...)",
    )
    import plotly.graph_objects as go

    colours = palette(theme)
    rows = depth[(depth["probe"] == probe) & (depth["decoding"] == decoding)].dropna(
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
    words = f"{probe}, {decoding}. Spearman's rho {number(float(rho))} over {len(rows)} examples."
    return style(figure, theme=theme, title=title, subtitle=words, height=400, legend=False)


# What more queries bring: the expected best of k texts, by model.


def query_budget(
    budget: pd.DataFrame,
    *,
    probe: str,
    value: Literal["best_of_k", "leak_at_k"] = "best_of_k",
    theme: Theme = "light",
    title: str | None = "What more queries bring",
) -> go.Figure:
    """A curve per model over the number of texts drawn.

    Args:
        budget: `ElicitationResults.budget_frame()`.
        probe: Which probe.
        value: Expected best recall, or the probability that one text gives the answer away.
        theme: Light or dark.
        title: Heading; None leaves it out.

    Returns:
        The figure; the number of texts is on a logarithmic axis.

    Raises:
        DataError: A column is missing.

    Example:
        >>> import pandas as pd
        >>> frame = pd.DataFrame({"model": "full", "probe": "plain", "k": [1, 2], "best_of_k": [0.1, 0.2]})
        >>> query_budget(frame, probe="plain").data[0].y
        (0.1, 0.2)
    """
    require(budget, ["model", "probe", "k", value], source="ElicitationResults.budget_frame()")
    import plotly.graph_objects as go

    colours = palette(theme)
    looks = {
        "full": (colours.faint, "solid"),
        "retain": (colours.faint, "dot"),
        "unlearned": (colours.unlearned, "solid"),
    }
    rows = budget[budget["probe"] == probe]
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
        note(figure, f"{probe} was not sampled.")
    ticks = sorted(set(rows["k"].tolist()))
    figure.update_xaxes(
        title_text="texts drawn", type="log", tickvals=ticks, ticktext=[str(k) for k in ticks]
    )
    what = "expected best recall" if value == "best_of_k" else "probability of a leak"
    figure.update_yaxes(title_text=what, rangemode="tozero")
    return style(
        figure, theme=theme, title=title, subtitle=f"{probe}, sampled; mean over questions.", height=380
    )
