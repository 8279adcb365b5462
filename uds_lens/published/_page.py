"""A comparison as one HTML page that opens offline."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from uds_lens import plots
from uds_lens._storage import atomic_write_text, check_writable, located
from uds_lens.errors import ConfigError
from uds_lens.plots._style import count, number, recolouring
from uds_lens.report._page import fill
from uds_lens.report._payload import jsonable, plain_figure

if TYPE_CHECKING:
    import pandas as pd

    from uds_lens.published._compare import Comparison

_ORDER = ("differs", "differs as expected", "no value", "agrees")
_MODEL = ("group", "model", "metric", "measured", "published", "difference", "verdict", "expect")
_METRIC = (
    "metric",
    "n",
    "agree",
    "differ",
    "expected",
    "spearman",
    "mean_difference",
    "largest_difference",
    "largest_model",
)
_POOLS = ("metric", "quantity", "measured", "published", "beyond", "n", "of", "verdict")


def write_page(comparison: Comparison, path: str | os.PathLike[str]) -> Path:
    """Write a comparison as one HTML page, atomically; arguments and errors as for `Comparison.report`."""
    place = located(path)
    if place.suffix.lower() not in (".html", ".htm"):
        raise ConfigError(f"a comparison is an HTML file, for example comparison.html; got {str(place)!r}.")
    check_writable(place, directory=False)
    atomic_write_text(place, _page(comparison))
    return place


def _page(comparison: Comparison) -> str:
    frame = comparison.frame
    counts = frame["verdict"].value_counts()
    ordered = frame.assign(order=frame["verdict"].map(_ORDER.index)).sort_values("order", kind="stable")
    known_problems = comparison.by_metric[comparison.by_metric["known"] != ""]
    agree = int(counts.get("agrees", 0))
    left_out = {
        "models that were not published": comparison.unknown,
        "metrics without published values": comparison.unpublished,
    }
    return fill(
        "comparison.html.j2",
        scripts=("elements.js", "drawing.js", "comparison.js"),
        styles=("report.css", "dashboard.css"),
        data={
            "figures": {"differences": plain_figure(comparison.plot()), "template": jsonable(plots.template("light"))},
            "recolour": recolouring(),
        },
        context={
            "title": f"{agree} of {count(len(frame), 'published value')} reproduced",
            "lede": f"{count(frame['model'].nunique(), 'model')}, {count(frame['metric'].nunique(), 'metric')}, "
            f"measured by: {comparison.measured_by}. A value agrees within the margin of its metric; one that was "
            "rounded, capped or set by definition stands for a range.",
            "tiles": [(verdict, int(counts[verdict])) for verdict in reversed(_ORDER) if verdict in counts],
            "by_metric": _sheet(comparison.by_metric, _METRIC),
            "of_pools": _sheet(comparison.of_pools, _POOLS),
            "values": _sheet(ordered, _MODEL),
            "known": list(zip(known_problems["metric"], known_problems["known"], strict=True)),
            "provenance": [
                ("run", comparison.source),
                ("published values", "the UDS paper's released files and Table 2, as this library ships them"),
                *((words, ", ".join(names)) for words, names in left_out.items() if names),
            ],
        },
    )


def _sheet(frame: pd.DataFrame, columns: Sequence[str]) -> tuple[list[str], list[list[str]]]:
    rows = [[_cell(row, name) for name in columns] for row in frame.to_dict("records")]
    return [name.replace("_", " ") for name in columns], rows


def _cell(row: Mapping[str, Any], name: str) -> str:
    value = row[name]
    if value is None or value != value:
        return "\u2013"
    return number(value, 4) if isinstance(value, float) else str(value)
