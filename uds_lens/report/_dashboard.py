"""The dashboard of many models and their metrics, as one HTML page that opens offline."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from uds_lens import meta, plots
from uds_lens._progress import tell
from uds_lens._storage.files import atomic_write_text, check_writable, located
from uds_lens.errors import ConfigError
from uds_lens.meta import ModelTable
from uds_lens.meta._columns import BESIDE
from uds_lens.metrics import METRICS
from uds_lens.plots._style import count, recolouring
from uds_lens.report._dashboard_tables import (
    DashboardOptions as DashboardOptions,
    Tables,
    cautions,
    default_title,
    definition,
    gather,
    judged,
    labels,
    method_name,
    metric_label,
    sources,
)
from uds_lens.report._page import fill, jsonable, plain_figure

if TYPE_CHECKING:
    import pandas as pd


# Figures.

SCATTERS = {"both": ("useful", "forgot"), "utility": ("useful",)}
"""Two filters for the perturbation plots, and the columns of `points` that these need."""


def figures(tables: Tables) -> dict[str, Any]:
    """Draw all figures by name; a figure is None if there is nothing to draw."""
    metrics, main, label = tables.metrics, tables.main, labels(tables.metrics)
    drawn: dict[str, Any] = {"forest": None, "filters": None, "pairs": None, "frontier": None}
    if len(main) and main["auc"].notna().any():
        drawn["forest"] = plots.faithfulness_forest(main, title=None)
    if tables.pairs is not None and len(tables.pairs):
        named = {side: tables.pairs[side].map(label) for side in ("one", "other")}
        drawn["pairs"] = plots.pair_matrix(tables.pairs.assign(**named), title=None)
    if len(set(tables.robust["filter"])) > 1:
        rows = tables.robust[tables.robust["metric"].isin(main["metric"])]
        rows = rows.assign(label=rows["metric"].map(label))
        drawn["filters"] = plots.filter_dots(rows, title=None)
    for (setting, models), _ in tables.robust.groupby(["filter", "models"], sort=False):
        table = judged(tables, str(setting), str(models))
        if len(table):
            table = table.assign(label=table["metric"].map(label))
            drawn[f"heatmap {setting} {models}"] = plots.metric_heatmap(table, title=None)
    if tables.pools is not None:
        for name in metrics["metric"]:
            drawn[f"pools {name}"] = plots.pool_histogram(tables.pools, name, thresholds=tables.cuts, title=None)
    drawn |= _scatters(tables)
    if tables.ranked and tables.options.parts.utility in tables.models.columns:
        references = tables.references if "depth" in tables.references.columns else None
        models = tables.models.assign(method=[method_name(name) for name in tables.models["method"]])
        drawn["frontier"] = plots.utility_frontier(
            models, depth="depth", utility="utility_rel", references=references, title=None
        )
    for by, stability in tables.stability.items():
        ranks = stability.ranks.assign(method=[method_name(name) for name in stability.ranks["method"]])
        for resampled in stability.varying:
            for view in ("without", "with"):
                rows = ranks[(ranks["view"] == view) & (ranks["resampled"] == resampled)]
                drawn[f"ranks {by} {view} {resampled}"] = plots.rank_probabilities(rows, title=None)
    return {name: None if figure is None else plain_figure(figure) for name, figure in drawn.items()}


def _scatters(tables: Tables) -> dict[str, Any]:
    drawn: dict[str, Any] = {}
    if tables.points is None:
        return drawn
    for name, points in tables.points.groupby("metric", sort=False):
        shifts = tables.robust[(tables.robust["metric"] == name) & tables.robust["shift"].notna()]
        shift = None
        if len(shifts):
            value, low, high = (float(shifts.iloc[0][key]) for key in ("shift", "shift_low", "shift_high"))
            shift = value, low if not math.isnan(high) else math.nan, high
        for key, columns in SCATTERS.items():
            shown = points.assign(kept=points[list(columns)].astype(bool).all(axis=1))
            if points["quantised"].notna().any():
                drawn[f"quantised {key} {name}"] = plots.perturbation_scatter(shown, str(name), title=None)
            if points["relearned"].notna().any():
                drawn[f"relearned {key} {name}"] = plots.perturbation_scatter(
                    shown, str(name), state="relearned", shift=shift, title=None
                )
    return drawn


# Numbers and texts for the page's script, as strict JSON values.

_SCORES = ("memorization", "mia", "depth", "utility", "utility_rel", "score_without", "score_with", "zeros")
_METRIC = (
    "metric",
    "family",
    "auc",
    "low",
    "high",
    "interval",
    "cluster_low",
    "cluster_high",
    "variants_low",
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
    "reason",
    "cluster_reason",
)
_ROBUST = (
    "n",
    "q",
    "q_low",
    "q_high",
    "r",
    "r_low",
    "r_high",
    "r_at_shift",
    "r_shift_low",
    "r_shift_high",
    "q_runs_low",
    "q_runs_high",
    "r_runs_low",
    "r_runs_high",
    "clusters",
    "interval_reason",
    "shift",
    "shift_low",
    "shift_high",
    "unmoved_q",
    "unmoved_r",
    "relative_move",
    "caution",
    "q_reason",
    "r_reason",
)
_SETTINGS = {
    "utility+threshold": "enough utility, and unlearned according to the metric",
    "utility": "enough utility",
    "threshold": "unlearned according to the metric",
    "none": "all",
}


def payload(tables: Tables) -> dict[str, Any]:
    """Return all data for the page, from the tables of `gather`."""
    methods, options = _values(tables.models, "method"), tables.options
    return {
        "models": _models(tables.models, tables),
        "references": _models(tables.references, tables),
        "groups": groups(tables),
        "epochs": _values(tables.models, "epochs"),
        "methods": sorted(methods, key=method_name),
        "called": {name: method_name(name) for name in methods},
        "metrics": _metrics(tables),
        "settings": settings(tables),
        "robust": {key: _robust(tables, key) for key in settings(tables)},
        "start": {"minUtility": options.min_utility, "by": options.select_by},
        "figures": {**figures(tables), "template": jsonable(plots.template("light"))},
        "recolour": recolouring(),
    }


def settings(tables: Tables) -> dict[str, str]:
    """Return the filter settings offered for the metrics table, with the paper's first."""
    there = set(zip(tables.robust["filter"], tables.robust["models"], strict=True))
    common = " (models that pass for all metrics)"
    return {
        f"{name} {models}": words + (common if models == "common" else "")
        for models in ("own", "common")
        for name, words in _SETTINGS.items()
        if (name, models) in there
    }


def groups(tables: Tables) -> dict[str, list[dict[str, Any]]]:
    """Return what a model's expanded row shows: name, label, and whether a high value means knowledge."""
    parts, columns = tables.options.parts, [str(name) for name in tables.models.columns]
    of_ours = {name: METRICS[name] for name in columns if name in METRICS}
    useful = [name for name, metric in of_ours.items() if metric.group == "utility"]
    rest = [name for name, metric in of_ours.items() if metric.group not in ("utility", "aggregate")]
    others = [name for name in rest if name not in parts.metrics]
    chosen = {
        "Memorization": parts.memorization,
        "Privacy": (*parts.membership, parts.depth, *others),
        "Utility": useful,
    }

    def known(name: str) -> bool:
        way = tables.directions.get(name) or (name in METRICS and METRICS[name].meaning.direction)
        return way == "knowledge"

    return {
        title: [
            {"name": name, "label": metric_label(name), "known": known(name)}
            for name in dict.fromkeys(names)
            if name in columns
        ]
        for title, names in chosen.items()
    }


def plain(value: Any) -> Any:
    """Return a table cell as a JSON value: numpy numbers become Python numbers, and missing values become None.

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


def _models(frame: pd.DataFrame, tables: Tables) -> dict[str, Any]:
    """Return the rows as lists, with the column names stored once."""
    parts = [item["name"] for items in groups(tables).values() for item in items]
    wanted = ["model", "method", "config", "lr", "epochs", "reason", *_SCORES, *parts]
    beside = [name for name in BESIDE if name in frame.columns and frame[name].notna().any()]
    fields = [name for name in dict.fromkeys([*wanted, *beside]) if name in frame.columns]
    lists = [[plain(value) for value in frame[name]] for name in fields]
    return {"fields": fields, "rows": [list(row) for row in zip(*lists, strict=True)]}


def _values(frame: pd.DataFrame, column: str) -> list[Any]:
    if column not in frame.columns:
        return []
    values = (plain(value) for value in frame[column].dropna().unique())
    return sorted(values, key=lambda value: (str(type(value)), value))


def _metrics(tables: Tables) -> list[dict[str, Any]]:
    label, rows = labels(tables.metrics), []
    tags = {"O": "Output", "R": "Retain", "I": "Internal"}
    for row in tables.metrics.to_dict("records"):
        name = str(row["metric"])
        known, formula = METRICS.get(name), definition(name) or (None, None)
        needs = [need.capitalize() for need in known.needs if need != "full"] if known else []
        if isinstance(row.get("tags"), str):  # tagged as in the paper
            needs = [tags[letter] for letter in row["tags"] if letter in tags]
        rows.append(
            {
                **{key: plain(row[key]) for key in _METRIC if key in row},
                "label": label[name] if label[name] != name else metric_label(name),
                "tags": needs,
                "category": plain(row.get("category")) or (known.group if known else None),
                "direction": row.get("direction") or (known.meaning.direction if known else None),
                "formula": formula[0],
                "words": formula[1],
            }
        )
    return rows


def _robust(tables: Tables, key: str) -> dict[str, Mapping[str, Any]]:
    setting, models = key.split(" ")
    rows = tables.robust[(tables.robust["filter"] == setting) & (tables.robust["models"] == models)]
    summary, robust = meta.summary(tables.metrics, rows).set_index("metric"), rows.set_index("metric")
    return {
        str(name): {
            "rob": plain(summary["rob"][name]),
            "overall": plain(summary["overall"][name]),
            **{column: plain(robust[column][name]) for column in _ROBUST},
        }
        for name in summary.index
        if name in robust.index
    }


# Texts and small tables that need no script.

MISSING_ROWS = 200  # maximum number of missing values to list


def context(tables: Tables) -> dict[str, Any]:
    """Return the variables of the template."""
    methods = list(dict.fromkeys(tables.models["method"])) if "method" in tables.models.columns else []
    parts, options = tables.options.parts, tables.options
    n_models, n_metrics = len(tables.models), len(tables.main)
    n_pools = 0 if tables.pools is None else len(tables.pools)
    counts = [(n_models, "unlearned model"), (len(methods), "method"), (n_metrics, "metric")]
    sizes = ", ".join(count(n, thing) for n, thing in counts if n)
    whose = "The UDS paper's files: " if tables.published else ""
    reasons = tables.reasons.head(MISSING_ROWS).to_dict("records")
    return {
        "title": options.title or default_title(tables),
        "lede": f"{whose}{sizes}." if sizes else "No models.",
        "tiles": [
            (name, n)
            for name, n in (
                ("unlearned models", n_models),
                ("methods", len(methods)),
                ("metrics judged", n_metrics),
                ("pool models", n_pools),
                ("reference models", 0 if n_pools else len(tables.references)),
            )
            if n
        ],
        "cautions": cautions(tables),
        "has_metrics": bool(len(tables.metrics)),
        "has_methods": tables.ranked,
        "has_pools": tables.pools is not None and bool(len(tables.metrics)),
        "has_pairs": tables.pairs is not None,
        "has_points": tables.points is not None,
        "published": tables.published,
        "min_utility": options.min_utility,
        "settings": settings(tables),
        "sure": next(iter(tables.stability.values())).varying if tables.stability else (),
        "parts": {
            "memorization": ", ".join(map(metric_label, parts.memorization)),
            "membership": ", ".join(map(metric_label, parts.membership)),
            "depth": metric_label(parts.depth),
            "utility": parts.utility,
        },
        "sweep": sweep(tables.models) if methods else [],
        "missing": [{key: plain(value) for key, value in row.items()} for row in reasons],
        "n_missing": len(tables.reasons),
        "sources": [source._asdict() for source in sources(tables.metrics["metric"], methods)],
        "source": tables.source,
        "n_resamples": options.n_resamples,
        "n_references": len(tables.references),
        "n_models": n_models,
        "n_pools": n_pools,
    }


def sweep(models: pd.DataFrame) -> list[dict[str, Any]]:
    """Return the settings tried for each method: learning rates, epochs, and settings parsed from configuration names.

    Following the UDS paper's names, which leave out the decimal point, `lr1e5_b01_a2_ep5` means beta 0.1 and alpha 2.
    Other letters and their values are shown as written.

    >>> import pandas as pd
    >>> configs = ["lr1e5_b35_a1_ep5", "lr1e5_b35_a2_ep5"]
    >>> rows = sweep(pd.DataFrame({"method": ["x", "x"], "config": configs, "lr": [1e-5, 1e-5]}))
    >>> rows[0]["lr"], rows[0]["swept"], rows[0]["fixed"], rows[0]["models"]
    ('1e-05', '\u03b1 1, 2', '\u03b2 3.5', 2)
    """
    rows = []
    for method, group in models.groupby("method", sort=True):
        values: dict[str, set[str]] = {}
        for config in group["config"].dropna() if "config" in group.columns else ():
            for part in str(config).split("_"):
                match = re.fullmatch(r"([A-Za-z]+)(\d[\w.]*)", part)
                if match and match[1] not in ("lr", "ep"):
                    values.setdefault(match[1], set()).add(_value(match[1], match[2]))
        words = {
            name: f"{_LETTERS.get(name, name)} {', '.join(sorted(tried, key=_in_order))}"
            for name, tried in values.items()
        }
        rows.append(
            {
                "method": method_name(str(method)),
                "lr": _listed(group, "lr"),
                "epochs": _listed(group, "epochs"),
                "swept": "; ".join(words[name] for name in words if len(values[name]) > 1) or "\u2013",
                "fixed": "; ".join(words[name] for name in words if len(values[name]) == 1) or "\u2013",
                "models": len(group),
            }
        )
    return rows


_LETTERS = {"a": "\u03b1", "b": "\u03b2", "g": "\u03b3", "d": "\u03b4", "l": "layer", "s": "c"}
"""Method settings by their letters in the UDS paper's names; `s` is the scale of RMU's random direction."""


def _value(letter: str, digits: str) -> str:
    """Restore a value's decimal point: b01 is 0.1, b35 is 3.5, b10 is 10."""
    if letter not in _LETTERS or not digits.isdigit():
        return digits
    if digits.startswith("0") and len(digits) > 1:
        return f"0.{digits[1:]}"
    return f"{digits[0]}.{digits[1]}" if letter == "b" and len(digits) == 2 and digits[1] != "0" else digits


def _in_order(value: str) -> tuple[float, str]:
    return (float(value) if value.replace(".", "", 1).isdigit() else math.inf, value)


def _listed(frame: pd.DataFrame, column: str) -> str:
    values = sorted(frame[column].dropna().unique()) if column in frame.columns else []
    return ", ".join(f"{value:g}" for value in values) or "\u2013"


_SCRIPTS: Sequence[str] = (
    "elements.js",
    "drawing.js",
    "dashboard_data.js",
    "dashboard_ranking.js",
    "dashboard_tables.js",
    "dashboard_metrics.js",
    "dashboard_methods.js",
    "dashboard_models.js",
    "dashboard_main.js",
)


def dashboard(
    models: pd.DataFrame | ModelTable,
    path: str | os.PathLike[str],
    *,
    pools: pd.DataFrame | None = None,
    robust: pd.DataFrame | None = None,
    points: pd.DataFrame | None = None,
    options: DashboardOptions | None = None,
) -> Path:
    """Write an HTML dashboard of many models: metrics judged, methods ranked, and the scores of every model.

    With the UDS paper's files (`uds_lens.meta.read_published`), the result is the paper's dashboard, with intervals,
    numbers of models and ties added, and a choice of filters and of the rule that selects configurations. The page
    opens offline and makes no network requests.

    Args:
        models: One row per unlearned model: `model`, `method`, `config`, `utility_rel`, and the metrics in the score;
            or the result of one of the readers in `uds_lens.meta`. Rows with `knows` are pool models, and rows without
            `method` are references.
        path: HTML file to write, atomically.
        pools: Pool models, with `knows` and metrics, if these are not among `models`. The pools provide F with
            intervals, thresholds, histograms and the differences between metrics.
        robust: Result of `uds_lens.meta.robustness_by_filter`, which adds Q, R and Rob, and a choice of filters.
        points: Result of `uds_lens.meta.perturbation_points`, which adds scatter plots.
        options: Parts of the score, rule that selects configurations, title, and number of resamples.

    Returns:
        The path.

    Raises:
        ConfigError: The path does not end in `.html`.
        ResultFormatError: `path` exists and is not a page by this package.
        DataError: A model occurs twice, there is no column `model`, or the models come from several base models or
            splits. Other missing tables or columns are named on the page.
    """
    return write_dashboard(models, path, pools=pools, robust=robust, points=points, options=options)[0]


def write_dashboard(
    models: pd.DataFrame | ModelTable, path: str | os.PathLike[str], **given: Any
) -> tuple[Path, tuple[str, ...]]:
    """Do the work of `dashboard`, and also return notes on what could not be made or is based on too few models."""
    path = located(path)
    if path.suffix.lower() not in (".html", ".htm"):
        raise ConfigError(f"a dashboard is an HTML file, for example dashboard.html; got {str(path)!r}.")
    check_writable(path, directory=False)
    tables = gather(models, **given)
    atomic_write_text(path, page_of(tables))
    return path, tables.gaps


def page_of(tables: Tables) -> str:
    """Return the page as text, from the tables of `gather`."""
    tell(f"drawing {count(len(tables.models), 'model')}")
    return fill(
        "dashboard.html.j2",
        scripts=_SCRIPTS,
        styles=("report.css", "dashboard.css"),
        data=payload(tables),
        context=context(tables),
    )
