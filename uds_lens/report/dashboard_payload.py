"""The numbers and texts that the script of the dashboard works with, as strict JSON values."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from uds_lens import meta, plots
from uds_lens.metrics import METRICS
from uds_lens.plots.palette import recolouring
from uds_lens.report.dashboard_figures import figures
from uds_lens.report.dashboard_notes import labels
from uds_lens.report.dashboard_words import definition, method_name
from uds_lens.report.page_figures import jsonable

if TYPE_CHECKING:
    import pandas as pd

    from uds_lens.report.dashboard_tables import Tables

_SCORES = ("memorization", "mia", "depth", "utility", "utility_rel", "score_without", "score_with", "zeros")
_METRIC = (
    *("metric", "family", "auc", "low", "high", "interval", "cluster_low", "cluster_high", "variants_low"),
    *(
        "variants_high",
        "new_variants_low",
        "new_variants_high",
        "mean_p",
        "mean_n",
        "n_p",
        "n_n",
        "tied_share",
        "share_at_0",
        "share_at_1",
        "threshold",
    ),
    *("reason", "cluster_reason"),
)
_ROBUST = (
    *("n", "q", "q_low", "q_high", "r", "r_low", "r_high", "r_at_shift", "r_shift_low", "r_shift_high"),
    *("q_runs_low", "q_runs_high", "r_runs_low", "r_runs_high", "p_first", "clusters", "interval_reason"),
    *("shift", "shift_low", "shift_high", "unmoved_q", "unmoved_r", "relative_move", "caution"),
    *("q_reason", "r_reason"),
)
_SETTINGS = {
    "utility+threshold": "useful, and unlearned by the metric",
    "utility": "useful",
    "threshold": "unlearned by the metric",
    "none": "all",
}


def payload(tables: Tables) -> dict[str, Any]:
    """Everything for the page, from the tables of `gather`."""
    return {
        "models": _models(tables.models, tables),
        "references": _models(tables.references, tables),
        "groups": groups(tables),
        "epochs": _values(tables.models, "epochs"),
        "methods": sorted(_values(tables.models, "method"), key=method_name),
        "called": {name: method_name(name) for name in _values(tables.models, "method")},
        "metrics": _metrics(tables),
        "settings": settings(tables),
        "robust": {key: _robust(tables, key) for key in settings(tables)},
        "start": {"minUtility": tables.min_utility, "by": tables.select_by},
        "figures": {**figures(tables), "template": jsonable(plots.template("light"))},
        "recolour": recolouring(),
    }


def settings(tables: Tables) -> dict[str, str]:
    """Filter settings that the table of metrics can switch between, and how they are called; the paper's first."""
    there = set(zip(tables.robust["filter"], tables.robust["models"], strict=True))
    found = {}
    for models in ("own", "common"):
        for name, words in _SETTINGS.items():
            if (name, models) in there:
                common = " (models that pass for all metrics)" if models == "common" else ""
                found[f"{name} {models}"] = words + common
    return found


def groups(tables: Tables) -> dict[str, list[dict[str, Any]]]:
    """Numbers of a model that its row opens to: name, label, and whether a high value means that it is known."""
    parts, own = tables.parts, [str(name) for name in tables.models.columns]
    ways = dict(tables.directions)
    rest = [name for name in own if name in METRICS and METRICS[name].group not in ("utility", "aggregate")]
    others = [name for name in rest if name not in parts.metrics]
    useful = [name for name in own if name in METRICS and METRICS[name].group == "utility"]
    chosen = {
        "Memorization": parts.memorization,
        "Privacy": (*parts.membership, parts.depth, *others),
        "Utility": useful,
    }
    return {
        title: [
            {
                "name": name,
                "label": METRICS[name].label if name in METRICS else name,
                "known": (ways.get(name) or (METRICS[name].meaning.direction if name in METRICS else ""))
                == "knowledge",
            }
            for name in dict.fromkeys(names)
            if name in own
        ]
        for title, names in chosen.items()
    }


def plain(value: Any) -> Any:
    """One cell as JSON has it: numbers of numpy become Python's, what is missing becomes null.

    >>> import numpy as np
    >>> plain(np.float64("nan")), plain(np.int64(3)), plain("x")
    (None, 3, 'x')
    """
    if value is None or isinstance(value, str):
        return value
    value = value.item() if hasattr(value, "item") else value
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value if isinstance(value, bool | int | float) else None if value != value else str(value)


def table(frame: pd.DataFrame, columns: Sequence[str]) -> dict[str, Any]:
    """Rows of a frame by position, with the names of the columns once."""
    there = [name for name in columns if name in frame.columns]
    lists = [[plain(value) for value in frame[name]] for name in there]
    return {"fields": there, "rows": [list(row) for row in zip(*lists, strict=True)] if lists else []}


def _models(frame: pd.DataFrame, tables: Tables) -> dict[str, Any]:
    parts = [item["name"] for items in groups(tables).values() for item in items]
    own = ["model", "method", "config", "lr", "epochs", "reason", *_SCORES, *parts]
    return table(frame, list(dict.fromkeys(own)))


def _values(frame: pd.DataFrame, column: str) -> list[Any]:
    if column not in frame.columns:
        return []
    return sorted(
        (plain(value) for value in frame[column].dropna().unique()), key=lambda v: (str(type(v)), v)
    )


def _metrics(tables: Tables) -> list[dict[str, Any]]:
    called, found = labels(tables.metrics), []
    for row in tables.metrics.to_dict("records"):
        name = str(row["metric"])
        known = METRICS.get(name)
        formula = definition(name)
        found.append(
            {
                **{key: plain(row[key]) for key in _METRIC if key in row},
                "label": called[name] if called[name] != name or known is None else known.label,
                "tags": _tags(row.get("tags"), name),
                "category": plain(row.get("category")) or (known.group if known else None),
                "direction": row.get("direction") or (known.meaning.direction if known else None),
                "formula": formula[0] if formula else None,
                "words": formula[1] if formula else None,
            }
        )
    return found


def _tags(tags: Any, metric: str) -> list[str]:
    """What a metric needs, as the paper tags it: Output, Retain, Internal."""
    names = {"O": "Output", "R": "Retain", "I": "Internal"}
    if isinstance(tags, str):
        return [names[letter] for letter in tags if letter in names]
    if metric not in METRICS:
        return []
    return [need.capitalize() for need in METRICS[metric].needs if need != "full"]


def _robust(tables: Tables, key: str) -> dict[str, Mapping[str, Any]]:
    setting, models = key.split(" ")
    rows = tables.robust[(tables.robust["filter"] == setting) & (tables.robust["models"] == models)]
    judged = meta.summary(tables.metrics, rows).set_index("metric")
    robust = rows.set_index("metric")
    return {
        str(name): {
            "rob": plain(judged["rob"][name]),
            "overall": plain(judged["overall"][name]),
            **{column: plain(robust[column][name]) for column in _ROBUST},
        }
        for name in judged.index
        if name in robust.index
    }
