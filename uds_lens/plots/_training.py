"""Figures of a training run: depth, damage and utility by step."""

from __future__ import annotations

from typing import TYPE_CHECKING

from uds_lens.plots._style import (
    Theme,
    curve,
    hover_head,
    number,
    palette,
    panel_heading,
    panels,
    put,
    require,
    short,
    shown,
    style,
)

if TYPE_CHECKING:
    import pandas as pd
    import plotly.graph_objects as go


def depth_by_step(steps: pd.DataFrame, *, theme: Theme = "light", title: str | None = "") -> go.Figure:
    """Plot depth, damage, and where they were measured utility and the forget answers, by step of the training.

    Args:
        steps: `curve.to_frame()` of a `uds_lens.training.DepthCurve`: `step`, `uds`, `damage`; also drawn are `utility`
            and `answers` (probability of the forget answers), in [0, 1]. With a column `model`, a panel for each.
        theme: Light or dark.
        title: Heading; empty states the finding, None leaves it out.

    Returns:
        The figure. A gap: the value is NaN there.

    Raises:
        DataError: A column is missing.

    Example:
        >>> import pandas as pd
        >>> figure = depth_by_step(pd.DataFrame({"step": [0, 10], "uds": [0.0, 0.6], "damage": [float("nan"), 0.1]}))
        >>> [trace.name for trace in figure.data], figure.layout.xaxis.title.text
        (['UDS', 'damage'], 'step')
    """
    require(steps, ["step", "uds", "damage"], source="curve.to_frame()")
    colours = palette(theme)
    lines = [
        ("uds", "UDS", colours.erased, "solid"),
        ("damage", "damage", colours.unlearned, "solid"),
        ("utility", "utility", colours.retain, "dash"),
        ("answers", "forget answers", colours.faint, "dot"),
    ]
    names = list(dict.fromkeys(steps["model"])) if "model" in steps else [None]
    figure = panels([1], columns=max(1, len(names)), space=0.04)
    for column, name in enumerate(names, start=1):
        rows = steps if name is None else steps[steps["model"] == name]
        for key, label, colour, dash in lines:
            if key not in rows or rows[key].isna().all():
                continue
            hover = f"{label} %{{y:.3f}}"
            line = curve(rows["step"], rows[key].astype(float), name=label, colour=colour, hover=hover, dash=dash)
            line.marker.size = 4
            line.showlegend = not any(trace.name == label for trace in figure.data)
            put(figure, line, row=1, column=column)
        if name is not None:
            panel_heading(figure, shown(name, limit=24), column=column)
    top = max([1.0, *steps["damage"].dropna().clip(upper=2.0)]) * 1.04
    figure.update_yaxes(range=[-0.04, top], dtick=0.25, tickformat=".2~f")
    figure.update_yaxes(title_text="UDS, damage", selector=0)
    figure.update_xaxes(title_text="step", rangemode="tozero")
    figure.update_layout(hovermode="x unified", hoverdistance=-1)
    hover_head(figure, "step %{x}")
    style(
        figure,
        theme=theme,
        title=title,
        finding=_finding(steps, names),
        subtitle="UDS 0 intact, 1 erased. Damage: loss on retained facts over loss on forget facts.",
        height=400 if names == [None] else 360,
    )
    return figure if names == [None] else figure.update_layout(margin_t=figure.layout.margin.t + 20, legend_y=1.08)


def _finding(steps: pd.DataFrame, names: list[str | None]) -> str:
    scored = steps[steps["uds"].notna()]
    if not len(scored):
        return "Depth by step: nothing was measured"
    best = scored.iloc[scored["uds"].argmax()]  # tables that were put together repeat their index
    whose = "" if names == [None] else f" ({short(best['model'])})"
    return f"Deepest at step {best['step']:.0f}{whose}: UDS {number(best['uds'])}, damage {number(best['damage'])}"
