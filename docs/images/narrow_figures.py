"""Figures for phones: without a title (the page has it), and with as many legend rows as needed."""

from __future__ import annotations

from pathlib import Path

import plotly.graph_objects as go

import uds_lens as ul
from uds_lens.plots._style import LEGEND_ROW, legend_rows

WIDTH = 390
_TOP = 28


def save_narrow(figure: go.Figure, file: Path) -> None:
    """Write a figure as wide as a phone, at twice the density."""
    small, layout = go.Figure(figure), figure.layout
    names = [str(trace.name) for trace in figure.data if trace.showlegend is not False and trace.name]
    rows = legend_rows(names, width=WIDTH - 64) if layout.showlegend else 0
    top = _TOP + rows * LEGEND_ROW
    small.update_layout(
        title={"text": "", "subtitle": {"text": ""}}, height=layout.height - layout.margin.t + top, margin_t=top
    )
    ul.plots.save_figure(small, file, width=WIDTH, scale=2, overwrite=True)
