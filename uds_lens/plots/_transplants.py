"""Figures of transplants: output depth and host depth by model, and the loss undone by each band of blocks."""

from __future__ import annotations

import math
from collections.abc import Collection
from typing import TYPE_CHECKING

import plotly.graph_objects as go

from uds_lens.plots._style import UDS_AXIS, Look, number, palette, require, row_axis, shown, style

if TYPE_CHECKING:
    import pandas as pd
    from typing_extensions import Unpack


def host_depths(models: pd.DataFrame, *, references: Collection[str] = (), **look: Unpack[Look]) -> go.Figure:
    """Draw each model's output depth and host depth as an arrow; a long arrow to the left means much hidden knowledge.

    Args:
        models: `model`, `output_depth`, `host_depth`, `host_depth_low`, `host_depth_high`; rows with NaN have no arrow.
        references: Models drawn in grey for comparison: retain models, or models that never saw some of the facts.
        **look: Theme, title, width, height (`Look`).

    Returns:
        The figure, with the longest arrow on top.

    Raises:
        DataError: A column is missing.

    Example:
        >>> import pandas as pd
        >>> depths = {"output_depth": [0.47, 0.79], "host_depth": [0.47, 0.27]}
        >>> ends = {"host_depth_low": [0.4, 0.2], "host_depth_high": [0.5, 0.3]}
        >>> host_depths(pd.DataFrame({"model": ["half", "npo"], **depths, **ends})).layout.yaxis.ticktext
        ('npo', 'half')
    """
    require(
        models,
        ["model", "output_depth", "host_depth", "host_depth_low", "host_depth_high"],
        source="uds_lens.transplants.transplants_frame(...)",
    )
    colours, figure = palette(look.get("theme", "light")), go.Figure()
    hidden = models["output_depth"] - models["host_depth"]
    ordered = models.assign(hidden=hidden).sort_values("hidden", ascending=False, kind="stable", na_position="last")
    for place, row in enumerate(ordered.itertuples()):
        colour = colours.faint if row.model in references else colours.unlearned
        hover = (
            f"<b>{shown(row.model)}</b><br>output depth {number(row.output_depth, 3)}<br>host depth "
            f"{number(row.host_depth, 3)} ({number(row.host_depth_low, 3)} to {number(row.host_depth_high, 3)})"
            "<extra></extra>"
        )
        ends = {"y": [place, place], "mode": "lines", "hoverinfo": "skip"}
        figure.add_scatter(
            x=[row.host_depth_low, row.host_depth_high], line={"color": colour, "width": 6}, opacity=0.3, **ends
        )
        figure.add_scatter(x=[row.output_depth, row.host_depth], line={"color": colour, "width": 2}, **ends)
        for x, symbol in ((row.output_depth, "circle-open"), (row.host_depth, "arrow-left")):
            if symbol == "arrow-left" and not row.hidden > 0.02:
                symbol = "circle"
            marker = {"color": colour, "size": 12, "symbol": symbol, "line": {"width": 2, "color": colour}}
            if not math.isnan(x):
                figure.add_scatter(x=[x], y=[place], mode="markers", marker=marker, hovertemplate=hover)
    figure.update_xaxes(**{**UDS_AXIS, "title_text": "from output depth (open) to host depth (filled)"})
    row_axis(figure, [shown(name, limit=36) for name in ordered["model"]])
    return style(
        figure,
        "Output depth and host depth by model",
        "Host depth: what stays lost with retain's blocks in the model; band: bootstrap interval over subjects.",
        tall=140 + 32 * max(len(ordered), 3),
        legend=False,
        note=None if len(ordered) else "No models.",
        **look,
    )


def recovered_by_band(candidates: pd.DataFrame, **look: Unpack[Look]) -> go.Figure:
    """Draw the share of the loss undone by each band of `full`'s blocks, one colour per width, and by attention alone.

    Args:
        candidates: `Transplant.candidates_frame()`: `donor`, `blocks`, `first`, `last`, `width`, `attention`,
            `recovered`.
        **look: Theme, title, width, height (`Look`).

    Returns:
        The figure, with blocks on the x axis and the share that each band undoes on the y axis.

    Raises:
        DataError: A column is missing.

    Example:
        >>> import pandas as pd
        >>> band = {"donor": "full", "blocks": "block 0", "first": 0, "last": 0, "width": 1, "attention": False}
        >>> figure = recovered_by_band(pd.DataFrame([{**band, "recovered": 0.9}]))
        >>> figure.layout.title.text
        'What comes back, by band of blocks'
    """
    require(
        candidates,
        ["donor", "blocks", "first", "last", "width", "attention", "recovered"],
        source="Transplant.candidates_frame()",
    )
    colours, figure = palette(look.get("theme", "light")), go.Figure()
    of_full = candidates[candidates["donor"] == "full"].dropna(subset=["recovered"])
    bands, whole = of_full[~of_full["attention"].astype(bool)], of_full[of_full["attention"].astype(bool)]
    last = int(of_full["last"].max()) if len(of_full) else 0
    for number_of, (width, rows) in enumerate(bands.groupby("width")):
        colour = colours.series[number_of % len(colours.series)]
        xs, ys, texts = [], [], []
        for row in rows.itertuples():
            xs += [row.first - 0.4, row.last + 0.4, None]
            ys += [row.recovered, row.recovered, None]
            texts += [f"{shown(row.blocks)}: {number(row.recovered)}"] * 2 + [None]
        figure.add_scatter(
            x=xs,
            y=ys,
            mode="lines",
            line={"color": colour, "width": 4},
            name=f"{width} block{'s' * (width != 1)}",
            text=texts,
            hovertemplate="%{text}<extra></extra>",
        )
    if len(whole):
        level = float(whole["recovered"].iloc[0])
        line = {"color": colours.faint, "dash": "dot"}
        ends = [-0.4, last + 0.4]
        figure.add_scatter(x=ends, y=[level, level], mode="lines", line=line, name="attention of all blocks")
    figure.update_xaxes(title_text="block", tickformat="d", dtick=max(1, -(-last // 16)))
    figure.update_yaxes(title_text="share that comes back", tickformat=".2~f")
    return style(
        figure,
        "What comes back, by band of blocks",
        "Blocks of full transplanted into the unlearned model; means over examples.",
        note=None if len(of_full) else "Nothing was lost.",
        **look,
    )
