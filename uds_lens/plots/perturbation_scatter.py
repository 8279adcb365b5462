"""One metric before and after a perturbation: quantisation, or relearning."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import numpy as np

from uds_lens.checked_arguments import arguments_checked_but
from uds_lens.plots.frame_columns import require
from uds_lens.plots.palette import Palette, Theme, palette
from uds_lens.plots.safe_text import number, shown
from uds_lens.plots.template import note, style
from uds_lens.types import check_choice

if TYPE_CHECKING:
    import pandas as pd
    import plotly.graph_objects as go

State: TypeAlias = Literal["quantised", "relearned"]
"""What was done to the models."""

_TITLES = {"quantised": "What quantisation moves", "relearned": "What relearning brings back"}


@arguments_checked_but("points")
def perturbation_scatter(
    points: pd.DataFrame,
    metric: str,
    *,
    state: State = "quantised",
    shift: tuple[float, float, float] | None = None,
    retain: tuple[float, float] | None = None,
    theme: Theme = "light",
    title: str | None = "",
) -> go.Figure:
    """M before (across) and after (up) of every model, with the line on which Q or R is 1.

    That line is `y = x` for quantisation and `y = x + Dr` for relearning, Dr being the shift of retain.

    Args:
        points: The points of `uds_lens.meta.robustness(...)`: `model`, `metric`, `before`, `quantised`, `relearned`,
            `kept` (passes the filters).
        metric: Which metric.
        state: Which perturbation.
        shift: Dr and the two ends of its interval (NaN: no interval); None draws `y = x` alone.
        retain: m of retain before and after relearning, drawn as a star.
        theme: Light or dark.
        title: Heading; empty takes the usual one, None leaves it out.

    Returns:
        The figure. Models that the filters leave out are faint; the counts above and below the line are of the others.

    Raises:
        DataError: A column is missing.
        ConfigError: No such state.
    """
    check_choice("state", state, State)
    require(
        points,
        ["model", "metric", "before", state, "kept"],
        source="the points of uds_lens.meta.robustness(...)",
    )
    import plotly.graph_objects as go

    colours, figure = palette(theme), go.Figure()
    own = points[(points["metric"] == metric) & points["before"].notna() & points[state].notna()]
    kept = own["kept"].astype(bool).to_numpy()
    ends = _range(own, state, retain)
    dr = 0.0 if shift is None or state == "quantised" else float(shift[0])
    _guides(figure, ends, dr, None if state == "quantised" else shift, colours)
    figure.add_trace(_marks(own[~kept], state, "left out", colours, faint=True))
    figure.add_trace(_marks(own[kept], state, "kept", colours, faint=False))
    if retain is not None and not any(map(math.isnan, retain)):
        figure.add_trace(_star(retain, colours))
    if not len(own):
        note(figure, "No model has both values.")
    moved = (own[state] - own["before"]).to_numpy(dtype=float)[kept] - dr
    above, below = int((moved > 1e-12).sum()), int((moved < -1e-12).sum())
    counts = f"Of {int(kept.sum())} kept models {above} above the line, {below} below."
    axis = {"range": ends, "showgrid": True, "constrain": "domain"}
    figure.update_xaxes(**axis, title_text=f"m before, {shown(metric, limit=30)}")
    figure.update_yaxes(**axis, title_text=f"m {state}")
    heading = _TITLES[state] if title == "" else title
    return style(figure, theme=theme, title=heading, subtitle=counts, height=440)


def _range(own: Any, state: str, retain: tuple[float, float] | None) -> list[float]:
    values = np.concatenate([own["before"].to_numpy(dtype=float), own[state].to_numpy(dtype=float)])
    values = np.append(values, [v for v in retain or () if not math.isnan(v)])
    if not len(values):
        return [0.0, 1.0]
    low, high = float(values.min()), float(values.max())
    pad = max((high - low) * 0.06, 0.01)
    return [low - pad, high + pad]


def _guides(figure: Any, ends: list[float], dr: float, shift: Any, colours: Palette) -> None:
    import plotly.graph_objects as go

    if shift is not None and not math.isnan(shift[1]):
        low, high = float(shift[1]), float(shift[2])
        figure.add_trace(
            go.Scatter(
                x=[*ends, *ends[::-1]],
                y=[ends[0] + low, ends[1] + low, ends[1] + high, ends[0] + high],
                fill="toself",
                fillcolor=colours.retain_band,
                line={"width": 0, "color": colours.retain_band},
                mode="lines",
                hoverinfo="skip",
                name="its interval",
            )
        )
    same = {"color": colours.faint, "width": 1, "dash": "dot"}
    figure.add_shape(type="line", x0=ends[0], x1=ends[1], y0=ends[0], y1=ends[1], line=same, layer="below")
    if shift is not None:
        line = {"color": colours.retain, "width": 1.5}
        figure.add_trace(
            go.Scatter(
                x=ends,
                y=[end + dr for end in ends],
                mode="lines",
                line=line,
                hoverinfo="skip",
                name=f"retain's shift {number(dr, 3)}",
            )
        )


def _marks(own: Any, state: str, name: str, colours: Palette, *, faint: bool) -> Any:
    import plotly.graph_objects as go

    colour = colours.faint if faint else colours.erased
    return go.Scatter(
        x=own["before"].astype(float).tolist(),
        y=own[state].astype(float).tolist(),
        mode="markers",
        name=name,
        marker={
            "size": 6 if faint else 8,
            "color": colour,
            "symbol": "circle-open" if faint else "circle",
            "opacity": 0.5 if faint else 0.8,
        },
        customdata=[shown(model, limit=60) for model in own["model"]],
        hovertemplate="%{customdata}<br>%{x:.4f} → %{y:.4f}<extra></extra>",
    )


def _star(retain: tuple[float, float], colours: Palette) -> Any:
    import plotly.graph_objects as go

    return go.Scatter(
        x=[retain[0]],
        y=[retain[1]],
        mode="markers",
        name="retain",
        marker={
            "symbol": "star",
            "size": 14,
            "color": colours.retain,
            "line": {"color": colours.paper, "width": 1},
        },
        hovertemplate="retain<br>%{x:.4f} → %{y:.4f}<extra></extra>",
    )
