"""Figures of an elicitation: scores by probe, depth against recall, and recall against the number of samples."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import numpy as np
import plotly.graph_objects as go

from uds_lens.plots._style import UDS_AXIS, Look, count, number, palette, require, shown, style

if TYPE_CHECKING:
    import pandas as pd
    from typing_extensions import Unpack


_RECALL = "ROUGE-L recall by probe"


def elicited_scores(
    summary: pd.DataFrame, *, decoding: str = "greedy", statistic: str = "mean", **look: Unpack[Look]
) -> go.Figure:
    """Plot the scores of the full, retain and unlearned models, one row per probe.

    Args:
        summary: `ElicitationResults.summary()`.
        decoding: "greedy" or "sampled".
        statistic: The "mean" or the "best" of the samples.
        **look: Theme, title, width, height (`Look`).

    Returns:
        The figure. In each row, a line spans retain's score plus the interval of unlearned minus retain.

    Raises:
        DataError: A column is missing.

    Example:
        >>> import pandas as pd
        >>> row = {"probe": "plain", "decoding": "greedy", "statistic": "mean", "unlearned": 0.4, "retain": 0.2,
        ...        "full": 0.9, "beyond_low": 0.1, "beyond_high": 0.3, "share_reason": None}
        >>> [trace.name for trace in elicited_scores(pd.DataFrame([row])).data][-3:]
        ['retain', 'full', 'unlearned']
    """
    require(
        summary,
        ["probe", "decoding", "statistic", "unlearned", "beyond_low", "beyond_high", "share_reason"],
        source="ElicitationResults.summary()",
    )
    colours, figure = palette(look.get("theme", "light")), go.Figure()
    rows = summary[(summary["decoding"] == decoding) & (summary["statistic"] == statistic)]
    if not len(rows):
        return style(
            figure, _RECALL, tall=220, note=f"No probe was run with this decoding ({decoding}, {statistic}).", **look
        )
    names = []
    for row in rows.itertuples():
        why, colon, _ = str(row.share_reason).partition(":")
        names.append(shown(row.probe) + (f" ({why})" if colon else ""))
    if "retain" in rows.columns:
        low, high = rows["retain"] + rows["beyond_low"], rows["retain"] + rows["beyond_high"]
        figure.add_scatter(
            x=[x for ends in zip(low, high, strict=True) for x in (*ends, None)],
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
    return style(
        figure,
        _RECALL,
        "Marks to the right of retain: the probe extracts more than it does from retain. Full: the most that it can "
        "extract.",
        tall=200 + 34 * len(rows),
        **look,
    )


def depth_elicited(depth: pd.DataFrame, *, probe: str, decoding: str = "greedy", **look: Unpack[Look]) -> go.Figure:
    """Plot, for one probe, how far the recall of each example exceeds retain's recall, against the example's UDS.

    Args:
        depth: `ElicitationResults.with_depth(audit)`.
        probe: Which probe.
        decoding: "greedy" or "sampled".
        **look: Theme, title, width, height (`Look`).

    Returns:
        The figure; points are jittered with a fixed seed.

    Raises:
        DataError: A column is missing.
    """
    require(
        depth, ["probe", "decoding", "uds", "beyond_retain", "question"], source="ElicitationResults.with_depth(...)"
    )
    rows = depth[(depth["probe"] == probe) & (depth["decoding"] == decoding)]
    rows = rows.dropna(subset=["uds", "beyond_retain"])
    colours = palette(look.get("theme", "light"))
    jitter = np.random.default_rng(0).uniform(-0.012, 0.012, (2, len(rows)))
    figure = go.Figure()
    figure.add_scatter(
        x=(rows["uds"].to_numpy(float) + jitter[0]).round(4),
        y=(rows["beyond_retain"].to_numpy(float) + jitter[1]).round(4),
        mode="markers",
        name="example",
        marker={"color": colours.unlearned, "size": 7, "opacity": 0.5, "line": {"width": 0}},
        customdata=[
            f"{shown(row.question, width=64, limit=140)}<br>UDS {row.uds:.2f}, beyond retain {row.beyond_retain:+.2f}"
            for row in rows.itertuples()
        ],
        hovertemplate="%{customdata}<extra></extra>",
    )
    rho = rows["uds"].rank().corr(rows["beyond_retain"].rank(), min_periods=3)
    figure.add_hline(y=0, line={"color": colours.faint, "width": 1, "dash": "dot"})
    figure.update_xaxes(**{**UDS_AXIS, "showgrid": False})
    figure.update_yaxes(title_text="recall beyond retain")
    correlation = f"Spearman's rho {number(rho)} over {count(len(rows), 'example')}"
    return style(
        figure,
        "Recall beyond retain against UDS",
        f"{shown(probe, limit=40)}, {decoding}. {correlation}; if negative, shallowly erased facts are easier to "
        "extract.",
        tall=400,
        legend=False,
        note=None if len(rows) else "No example has both a UDS and a recall.",
        **look,
    )


def query_budget(
    budget: pd.DataFrame, *, probe: str, value: Literal["best_of_k", "leak_at_k"] = "best_of_k", **look: Unpack[Look]
) -> go.Figure:
    """Plot how much is extracted against the number of samples, one curve per model.

    Args:
        budget: `ElicitationResults.budget_frame()`.
        probe: Which probe.
        value: Expected best recall, or the probability that one sample leaks the answer.
        **look: Theme, title, width, height (`Look`).

    Returns:
        The figure, with the number of samples on a logarithmic axis.

    Raises:
        DataError: A column is missing.

    Example:
        >>> import pandas as pd
        >>> frame = pd.DataFrame({"model": "full", "probe": "plain", "k": [1, 2], "best_of_k": [0.1, 0.2]})
        >>> query_budget(frame, probe="plain").data[0].y
        (0.1, 0.2)
    """
    require(budget, ["model", "probe", "k", value], source="ElicitationResults.budget_frame()")
    colours, figure = palette(look.get("theme", "light")), go.Figure()
    looks = {
        "full": (colours.faint, "solid"),
        "retain": (colours.faint, "dot"),
        "unlearned": (colours.unlearned, "solid"),
    }
    what = "expected best recall" if value == "best_of_k" else "probability of a leak"
    rows = budget[budget["probe"] == probe]
    for role, (colour, dash) in looks.items():
        curve = rows[rows["model"] == role].sort_values("k")
        if not len(curve):
            continue
        figure.add_scatter(
            x=curve["k"],
            y=curve[value].round(4),
            name=role,
            mode="lines+markers",
            line={"color": colour, "dash": dash, "width": 2.25},
            hovertemplate=f"{role}, %{{x}} samples: %{{y:.3f}}<extra></extra>",
        )
    ticks = sorted(set(rows["k"].tolist()))
    figure.update_xaxes(title_text="samples", type="log", tickvals=ticks, ticktext=[str(k) for k in ticks])
    figure.update_yaxes(title_text=what, rangemode="tozero")
    return style(
        figure,
        f"{what[0].upper()}{what[1:]} by number of samples",
        f"{shown(probe, limit=40)}, sampled; mean over questions.",
        note=None if len(rows) else f"{shown(probe)} was not sampled.",
        **look,
    )
