"""The values of one metric over models that know and models that never saw the data."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from uds_lens.checked_arguments import arguments_checked_but
from uds_lens.plots.frame_columns import require
from uds_lens.plots.palette import Palette, Theme, palette
from uds_lens.plots.safe_text import shown
from uds_lens.plots.template import note, style

if TYPE_CHECKING:
    import pandas as pd
    import plotly.graph_objects as go

_POOLS = ((True, "know (P)"), (False, "never saw it (N)"))


@arguments_checked_but("models", "thresholds")
def pool_histogram(
    models: pd.DataFrame,
    metric: str,
    *,
    label: str = "knows",
    thresholds: pd.DataFrame | None = None,
    theme: Theme = "light",
    title: str | None = "Do the two pools come apart?",
) -> go.Figure:
    """Two histograms on the same bins, every model as a tick below, and the cuts between them.

    Args:
        models: One row per model: `metric`, `label`, perhaps `model` for the names.
        metric: Column that is drawn, on its own scale.
        label: Column with the pool: true, false, or missing (not drawn).
        thresholds: `uds_lens.meta.thresholds(...)`: `metric`, `value`, `chosen`; the chosen cut is a dashed line,
            tied ones are dotted.
        theme: Light or dark.
        title: Heading; None leaves it out.

    Returns:
        The figure.

    Raises:
        DataError: A column is missing.

    Example:
        >>> import pandas as pd
        >>> frame = pd.DataFrame({"knows": [True, True, False], "x": [0.9, 0.8, 0.1]})
        >>> [sum(trace.y) for trace in pool_histogram(frame, "x").data if trace.type == "bar"]
        [2, 1]
    """
    require(models, [metric, label], source="the table of models, with the pool of each")
    import plotly.graph_objects as go

    colours, figure = palette(theme), go.Figure()
    known = models[models[metric].notna() & models[label].notna()]
    values = known[metric].to_numpy(dtype=float)
    edges = _edges(values)
    pools = [
        (name, known[known[label].astype(bool) == pool], colour)
        for (pool, name), colour in zip(_POOLS, (colours.unlearned, colours.retain), strict=True)
    ]
    tallest = 1
    for name, own, colour in pools:
        counts, _ = np.histogram(own[metric].to_numpy(dtype=float), edges)
        tallest = max(tallest, int(counts.max(initial=0)))
        figure.add_trace(_bars(edges, counts, name, colour))
    for place, (name, own, colour) in enumerate(pools):
        figure.add_trace(_ticks(own, metric, name, colour, -tallest * (0.05 + 0.07 * place)))
    if not len(values):
        note(figure, "No model of the pools has a value.")
    _cuts(figure, metric, thresholds, colours)
    sizes = " and ".join(f"{len(own)} models that {name}" for name, own, _ in pools)
    figure.update_xaxes(title_text=shown(metric, limit=40), range=[edges[0], edges[-1]])
    step = max(1, -(-tallest // 5))
    figure.update_yaxes(title_text="models", range=[-tallest * 0.17, tallest * 1.06], dtick=step, tick0=0)
    figure.update_layout(barmode="overlay", bargap=0.04)
    return style(figure, theme=theme, title=title, subtitle=sizes + ".", height=340)


def _edges(values: np.ndarray) -> np.ndarray:
    """Twenty bins over 0 to 1, or over what the values need."""
    if not len(values):
        return np.linspace(0.0, 1.0, 21)
    low, high = float(values.min()), float(values.max())
    if low >= 0 and high <= 1 and high - low > 0.25:
        return np.linspace(0.0, 1.0, 26)
    pad = max((high - low) * 0.05, 1e-3)
    return np.linspace(low - pad, high + pad, 22)


def _bars(edges: np.ndarray, counts: np.ndarray, name: str, colour: str) -> Any:
    import plotly.graph_objects as go

    return go.Bar(
        x=((edges[:-1] + edges[1:]) / 2).tolist(),
        y=[int(count) for count in counts],
        width=float(edges[1] - edges[0]),
        name=name,
        legendgroup=name,
        marker={"color": colour, "line": {"width": 0}},
        opacity=0.55,
        customdata=[[f"{low:.3g}", f"{high:.3g}"] for low, high in pairwise(edges)],
        hovertemplate=f"%{{customdata[0]}} to %{{customdata[1]}}: %{{y}} that {name}<extra></extra>",
    )


def _ticks(own: Any, metric: str, name: str, colour: str, height: float) -> Any:
    import plotly.graph_objects as go

    names = own["model"] if "model" in own.columns else own.index
    return go.Scatter(
        x=[float(value) for value in own[metric]],
        y=[height] * len(own),
        mode="markers",
        name=name,
        legendgroup=name,
        showlegend=False,
        marker={"symbol": "line-ns-open", "size": 8, "color": colour, "line": {"width": 1.2}},
        customdata=[shown(value, limit=60) for value in names],
        hovertemplate="%{customdata}<br>%{x:.4f}<extra></extra>",
    )


def _cuts(figure: Any, metric: str, thresholds: Any, colours: Palette) -> None:
    if thresholds is None:
        return
    require(thresholds, ["metric", "value", "chosen"], source="uds_lens.meta.thresholds(...)")
    own = thresholds[(thresholds["metric"] == metric) & thresholds["value"].notna()]
    for row in own.itertuples():
        chosen = bool(row.chosen)
        line = {
            "color": colours.ink if chosen else colours.faint,
            "width": 1.3 if chosen else 1,
            "dash": "dash" if chosen else "dot",
        }
        figure.add_shape(type="line", x0=row.value, x1=row.value, yref="paper", y0=0, y1=1, line=line)
        if chosen:
            figure.add_annotation(
                text=f"cut {row.value:.3g}",
                x=row.value,
                y=1,
                yref="paper",
                yanchor="top",
                xanchor="left",
                xshift=4,
            )
