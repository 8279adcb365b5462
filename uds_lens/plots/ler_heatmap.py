"""Every example at every layer: the map of erasure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import numpy as np

from uds_lens.checked_arguments import arguments_checked_but
from uds_lens.errors import DataError
from uds_lens.plots.frame_columns import require
from uds_lens.plots.palette import Palette, Theme, palette
from uds_lens.plots.safe_text import shown
from uds_lens.plots.template import note, style
from uds_lens.types import check_choice

if TYPE_CHECKING:
    import pandas as pd
    import plotly.graph_objects as go

Order: TypeAlias = Literal["input", "uds", "cluster"]
"""Rows as in the data, by score (not measurable ones last), or similar ones together."""

_NAMED_ROWS, _LETTERS = 50, 40
_HOVER = "%{y}<br>layer %{x}: %{text}<br>S1 %{customdata[0]:.3f}, S2 %{customdata[1]:.3f} nats per token"


@arguments_checked_but("long", "examples")
def ler_heatmap(
    long: pd.DataFrame,
    examples: pd.DataFrame,
    *,
    order: Order = "uds",
    theme: Theme = "light",
    title: str | None = "Erasure of every example at every layer",
) -> go.Figure:
    """LER of each example (row) at each layer (column): 0 as in full, 1 as in retain, grey where nothing was there.

    Args:
        long: `audit.to_frame()`.
        examples: `audit.examples_frame()`, in the same order.
        order: Order of the rows.
        theme: Light or dark.
        title: Heading; None leaves it out.

    Returns:
        The figure. NaN cells (no knowledge at that layer) are in a grey that the scale does not contain; pointing at
        a cell shows entity, question and deltas.

    Raises:
        DataError: A column is missing, or the two frames do not belong together.
        ConfigError: No such order or theme.
    """
    require(long, ["layer", "s1_delta", "s2_delta", "ler"], source="audit.to_frame()")
    require(examples, ["example_id", "question", "entity", "uds"], source="audit.examples_frame()")
    check_choice("order", order, Order)
    import plotly.graph_objects as go

    colours = palette(theme)
    if not len(examples):
        figure = go.Figure()
        note(figure, "No example could be scored.")
        return style(figure, theme=theme, title=title, legend=False)
    n, layers = len(examples), sorted(long["layer"].unique())
    if len(long) != n * len(layers):
        raise DataError(
            f"{len(long)} rows do not make {n} examples x {len(layers)} layers: pass frames of one audit."
        )
    matrices = {
        name: long[name].to_numpy(dtype=float).reshape(n, -1) for name in ("ler", "s1_delta", "s2_delta")
    }
    rows = row_order(matrices["ler"], examples["uds"].to_numpy(dtype=float), order)
    figure = go.Figure(_cells(matrices, rows, layers, colours))
    _row_labels(figure, examples.iloc[rows], colours)
    figure.update_xaxes(
        title_text="layer", dtick=max(1, -(-len(layers) // 16)), tickformat="d", showline=False, ticks=""
    )
    subtitle = "0: as in full; 1: as in retain; grey: no knowledge at that layer." + _ORDERS[order]
    height = max(320, 190 + 18 * n if n <= _NAMED_ROWS else 900)
    return style(figure, theme=theme, title=title, subtitle=subtitle, height=height)


_ORDERS = {
    "input": " Rows in input order.",
    "uds": " Rows by UDS, lowest on top.",
    "cluster": " Similar rows together.",
}


def row_order(ler: np.ndarray, uds: np.ndarray, order: Order) -> np.ndarray:
    """Indices of the rows from top to bottom.

    >>> row_order(np.zeros((3, 1)), np.array([0.5, np.nan, 0.1]), "uds")
    array([2, 0, 1])
    """
    if order == "input" or (len(uds) < 3 and order == "cluster"):
        return np.arange(len(uds))
    if order == "uds":
        return np.argsort(uds, kind="stable")
    from scipy.cluster.hierarchy import leaves_list, linkage

    absent = -0.5
    features = np.where(np.isnan(ler), absent, ler)
    return leaves_list(linkage(features, method="average", optimal_ordering=len(uds) <= 500))


def _cells(matrices: Any, rows: np.ndarray, layers: Any, colours: Palette) -> Any:
    import plotly.graph_objects as go

    deltas = np.stack([matrices["s1_delta"][rows], matrices["s2_delta"][rows]], axis=-1)
    stops = np.linspace(0, 1, len(colours.scale))
    return go.Heatmap(
        z=matrices["ler"][rows].round(4),
        x=layers,
        customdata=deltas.round(4),
        text=[
            ["no knowledge, LER undefined" if x != x else f"LER {x:.2f}" for x in row]
            for row in matrices["ler"][rows]
        ],
        zmin=0,
        zmax=1,
        colorscale=[[float(stop), colour] for stop, colour in zip(stops, colours.scale, strict=True)],
        hoverongaps=True,
        hovertemplate=_HOVER + "<extra></extra>",
        xgap=1,
        ygap=1 if len(rows) <= 120 else 0,
        colorbar={
            "title": {"text": "LER<br>"},
            "tickvals": [0, 0.25, 0.5, 0.75, 1],
            "thickness": 12,
            "outlinewidth": 0,
            "len": 0.9,
            "ticks": "",
        },
    )


def row_names(examples: Any) -> list[str]:
    """What an example is about: its subject and entity where it has a subject, else its question.

    >>> import pandas as pd
    >>> columns = {"question": ["Where was she born?"] * 2, "entity": ["Quince"] * 2, "subject": ["Ada Vey", None]}
    >>> row_names(pd.DataFrame(columns))
    ['Ada Vey: Quince', 'Where was she born?']
    """
    subjects = list(examples["subject"]) if "subject" in examples.columns else [None] * len(examples)
    return [
        shown(f"{subject}: {entity}" if isinstance(subject, str) and subject else question, limit=_LETTERS)
        for question, entity, subject in zip(examples["question"], examples["entity"], subjects, strict=True)
    ]


def _row_labels(figure: Any, examples: Any, colours: Palette) -> None:
    """Hidden tick texts feed the hover; a second axis names the rows where there is room."""
    import plotly.graph_objects as go

    n = len(examples)
    entities = [shown(entity, limit=60) for entity in examples["entity"]]
    hover = [
        f"<b>{entity}</b><br>{shown(question, width=64)}<br>UDS {'not measurable' if uds != uds else f'{uds:.2f}'}"
        for entity, question, uds in zip(entities, examples["question"], examples["uds"], strict=True)
    ]
    legend = go.Scatter(
        x=[None],
        y=[None],
        yaxis="y2",
        mode="markers",
        name="no knowledge at this layer (NaN)",
        marker={"symbol": "square", "size": 11, "color": colours.missing},
    )
    figure.add_trace(legend)
    side = {"range": [n - 0.5, -0.5], "showgrid": False}
    named = n <= _NAMED_ROWS
    figure.update_layout(
        plot_bgcolor=colours.missing,
        yaxis={**side, "tickvals": list(range(n)), "ticktext": hover, "showticklabels": False},
        yaxis2={
            **side,
            "overlaying": "y",
            "matches": "y",
            "side": "left",
            "tickvals": list(range(n)) if named else [],
            "ticktext": row_names(examples) if named else [],
            "showticklabels": named,
            "title": {"text": "" if named else f"{n} examples"},
        },
    )
