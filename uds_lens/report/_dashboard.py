"""Many models and the metrics that judge them, as one HTML page that opens offline."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from uds_lens import meta, plots
from uds_lens._storage import atomic_write_text, located, require_fresh
from uds_lens._types import check_choice
from uds_lens.errors import ConfigError
from uds_lens.meta import ModelTable, Points, ScoreParts
from uds_lens.meta._ranking import View
from uds_lens.metrics import METRICS
from uds_lens.plots._style import recolouring
from uds_lens.report._dashboard_tables import Tables, gather
from uds_lens.report._dashboard_words import (
    cautions,
    count,
    definition,
    findings,
    judged,
    labels,
    method_name,
    sources,
)
from uds_lens.report._page import fill
from uds_lens.report._payload import jsonable, plain_figure

if TYPE_CHECKING:
    import pandas as pd


# The figures of the dashboard, as plain JSON in the light palette.

SCATTERS = {"both": ("useful", "forgot"), "utility": ("useful",)}
"""The two filters under which perturbations are drawn, and the columns of the points that they ask for."""


def figures(tables: Tables) -> dict[str, Any]:
    """All figures by name; None where there is nothing to draw."""
    labelled = tables.metrics
    names = labelled[labelled["metric"] == labelled["family"]]
    found: dict[str, Any] = {"forest": None, "slopes": None, "pairs": None, "frontier": None}
    if len(names) and names["auc"].notna().any():
        found["forest"] = plain_figure(plots.faithfulness_forest(names, title=None))
    if tables.pairs is not None and len(tables.pairs):
        called = labels(tables.metrics)
        pairs = tables.pairs.assign(**{side: tables.pairs[side].map(called) for side in ("one", "other")})
        found["pairs"] = plain_figure(plots.pair_matrix(pairs, title=None))
    if len(set(tables.robust["filter"])) > 1:
        found["slopes"] = plain_figure(_slopes(tables))
    found |= {f"heatmap {key}": figure for key, figure in _heatmaps(tables).items()}
    found |= _histograms(tables) | _scatters(tables)
    if tables.ranked and tables.parts.utility in tables.models.columns:
        found["frontier"] = plain_figure(_frontier(tables))
    for by, stability in tables.stability.items():
        for resampled in stability.varying:
            for view in ("without", "with"):
                rows = stability.ranks[
                    (stability.ranks["view"] == view) & (stability.ranks["resampled"] == resampled)
                ]
                key = f"ranks {by} {view} {resampled}"
                rows = rows.assign(method=[method_name(name) for name in rows["method"]])
                found[key] = plain_figure(plots.rank_probabilities(rows, title=None))
    return found


def _labelled(frame: pd.DataFrame, metrics: pd.DataFrame) -> pd.DataFrame:
    if "label" not in metrics.columns:
        return frame
    return frame.assign(
        label=frame["metric"].map(dict(zip(metrics["metric"], metrics["label"], strict=True)))
    )


def _slopes(tables: Tables) -> Any:
    main = tables.metrics[tables.metrics["metric"] == tables.metrics["family"]]["metric"]
    rows = tables.robust[tables.robust["metric"].isin(main)]
    return plots.filter_slopes(_labelled(rows, tables.metrics), highlight=[tables.parts.depth], title=None)


def _heatmaps(tables: Tables) -> dict[str, Any]:
    found = {}
    for (setting, models), _ in tables.robust.groupby(["filter", "models"], sort=False):
        table = judged(tables, str(setting), str(models))
        if len(table):
            figure = plots.metric_heatmap(_labelled(table, tables.metrics), title=None)
            found[f"{setting} {models}"] = plain_figure(figure)
    return found


def _histograms(tables: Tables) -> dict[str, Any]:
    if tables.pools is None:
        return {}
    return {
        f"pools {name}": plain_figure(
            plots.pool_histogram(tables.pools, name, thresholds=tables.cuts, title=None)
        )
        for name in tables.metrics["metric"]
    }


def _scatters(tables: Tables) -> dict[str, Any]:
    if tables.points is None:
        return {}
    found = {}
    for name, points in tables.points.groupby("metric", sort=False):
        for key, columns in SCATTERS.items():
            shown = points.assign(kept=points[list(columns)].astype(bool).all(axis=1))
            for state in ("quantised", "relearned"):
                if points[state].notna().any():
                    figure = plots.perturbation_scatter(
                        shown,
                        str(name),
                        state="quantised" if state == "quantised" else "relearned",
                        shift=_shift(tables, str(name)) if state == "relearned" else None,
                        title=None,
                    )
                    found[f"{state} {key} {name}"] = plain_figure(figure)
    return found


def _shift(tables: Tables, metric: str) -> tuple[float, float, float] | None:
    rows = tables.robust[(tables.robust["metric"] == metric) & tables.robust["shift"].notna()]
    if not len(rows):
        return None
    shift = rows.iloc[0]
    low, high = (float(shift[name]) for name in ("shift_low", "shift_high"))
    return float(shift["shift"]), low if not math.isnan(high) else math.nan, high


def _frontier(tables: Tables) -> Any:
    references = tables.references if "depth" in tables.references.columns else None
    models = tables.models.assign(method=[method_name(name) for name in tables.models["method"]])
    return plots.utility_frontier(
        models, depth="depth", utility="utility_rel", references=references, title=None
    )


# The numbers and texts that the script of the dashboard works with, as strict JSON values.

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


# The words and small tables of the dashboard that need no script.

MISSING_ROWS = 200
"""Missing values that are listed one by one."""


def context(tables: Tables, *, title: str, n_resamples: int) -> dict[str, Any]:
    """Names of the template."""
    methods = list(dict.fromkeys(tables.models["method"])) if "method" in tables.models.columns else []
    main = tables.metrics[tables.metrics["metric"] == tables.metrics["family"]]
    reasons = tables.reasons
    return {
        "title": title,
        "lede": _lede(tables, len(main), len(methods)),
        "tiles": _tiles(tables, len(main), len(methods)),
        "findings": findings(tables),
        "cautions": cautions(tables),
        "has_metrics": bool(len(tables.metrics)),
        "has_methods": tables.ranked,
        "has_pools": tables.pools is not None and bool(len(tables.metrics)),
        "has_pairs": tables.pairs is not None,
        "has_points": tables.points is not None,
        "published": tables.published,
        "min_utility": tables.min_utility,
        "settings": settings(tables),
        "sure": next(iter(tables.stability.values())).varying if tables.stability else (),
        "parts": {
            "memorization": _labels(tables.parts.memorization),
            "membership": _labels(tables.parts.membership),
            "depth": _labels((tables.parts.depth,)),
            "utility": tables.parts.utility,
        },
        "sweep": sweep(tables.models) if methods else [],
        "missing": [
            {key: plain(value) for key, value in row.items()}
            for row in reasons.head(MISSING_ROWS).to_dict("records")
        ],
        "n_missing": len(reasons),
        "sources": [source._asdict() for source in sources(tables.metrics["metric"], methods)],
        "source": tables.source,
        "n_resamples": n_resamples,
        "n_references": len(tables.references),
        "n_models": len(tables.models),
        "n_pools": 0 if tables.pools is None else len(tables.pools),
    }


def _lede(tables: Tables, n_metrics: int, n_methods: int) -> str:
    found = [count(len(tables.models), "unlearned model")] if len(tables.models) else []
    found += [f"{count(n_methods, 'method')}"] if n_methods else []
    found += [f"{count(n_metrics, 'metric')}"] if n_metrics else []
    whose = "The UDS paper's files: " if tables.published else ""
    return f"{whose}{', '.join(found)}." if found else "Nothing was handed over."


def _tiles(tables: Tables, n_metrics: int, n_methods: int) -> list[tuple[str, int]]:
    pools = 0 if tables.pools is None else len(tables.pools)
    tiles = [("unlearned models", len(tables.models)), ("methods", n_methods), ("metrics judged", n_metrics)]
    tiles.append(("pool models", pools) if pools else ("reference models", len(tables.references)))
    return tiles


def _labels(names: tuple[str, ...]) -> str:
    return ", ".join(METRICS[name].label if name in METRICS else name for name in names)


def sweep(models: pd.DataFrame) -> list[dict[str, Any]]:
    """What was tried, by method: learning rates, epochs, and the settings that the names of configurations tell.

    A name such as `lr1e5_b01_a2_ep5` is read as settings `b` and `a` with the values that are written there.

    >>> import pandas as pd
    >>> configs = ["lr1e5_a1_ep5", "lr1e5_a2_ep5"]
    >>> rows = sweep(pd.DataFrame({"method": ["x", "x"], "config": configs, "lr": [1e-5, 1e-5]}))
    >>> rows[0]["lr"], rows[0]["swept"], rows[0]["models"]
    ('1e-05', 'a 1, 2', 2)
    """
    rows = []
    for method, own in models.groupby("method", sort=True):
        found: dict[str, list[str]] = {}
        for config in own["config"].dropna() if "config" in own.columns else ():
            for part in str(config).split("_"):
                match = re.fullmatch(r"([A-Za-z]+)(\d[\w.]*)", part)
                if match and match[1] not in ("lr", "ep"):
                    values = found.setdefault(match[1], [])
                    values += [match[2]] if match[2] not in values else []
        told = {name: f"{name} {', '.join(sorted(values))}" for name, values in found.items()}
        rows.append(
            {
                "method": method_name(str(method)),
                "lr": _list(own, "lr"),
                "epochs": _list(own, "epochs"),
                "swept": "; ".join(told[name] for name in found if len(found[name]) > 1) or "\u2013",
                "fixed": "; ".join(told[name] for name in found if len(found[name]) == 1) or "\u2013",
                "models": len(own),
            }
        )
    return rows


def _list(own: pd.DataFrame, column: str) -> str:
    if column not in own.columns or not own[column].notna().any():
        return "\u2013"
    return ", ".join(f"{value:g}" for value in sorted(own[column].dropna().unique()))


_SCRIPTS = (
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
    parts: ScoreParts | None = None,
    direction: Mapping[str, Points] | None = None,
    min_utility: float | None = None,
    select_by: View = "without",
    title: str = "Which metric can be trusted, which method forgets?",
    n_resamples: int = 1000,
) -> Path:
    """Write one HTML file about many models: metrics judged, methods ranked, every model with its parts.

    With the UDS paper's files (`uds_lens.meta.read_published`) it is the paper's dashboard, with intervals, numbers of
    models, ties, and switches for filters and for the rule that selects configurations. It opens offline and asks
    no network.

    Args:
        models: One row per unlearned model: `model`, `method`, `config`, `utility_rel`, the metrics of `parts`; or what
            a reader of `uds_lens.meta` returned. Rows with `knows` are pool models, rows without `method` references.
        path: File to write (`.html`), whole or not at all.
        pools: Models of known pools, `knows` and metrics, where they are not among `models`: gives F with intervals,
            thresholds, histograms and the differences between metrics.
        robust: Result of `uds_lens.meta.robustness_by_filter`: gives Q, R and Rob, and the switch of filters.
        points: Result of `uds_lens.meta.perturbation_points`: gives the scatters.
        parts: Columns of the score; default those of the UDS paper.
        direction: What a higher value means, for metrics that are not declared.
        min_utility: Smallest `utility_rel` of a candidate when the page opens; None takes all.
        select_by: Rule that chooses configurations when the page opens.
        title: Heading of the page.
        n_resamples: Of the bootstraps.

    Returns:
        The path.

    Raises:
        ConfigError: The path does not end in `.html`, or `select_by` is unknown.
        ResultFormatError: Something else than a page or a figure of this library stands at `path`.
        DataError: A model occurs twice, there is no column `model`, or the models are of several base models or splits.
            What else is missing is told on the page.
    """
    found, _ = write_dashboard(
        models,
        path,
        pools=pools,
        robust=robust,
        points=points,
        parts=parts,
        direction=direction,
        min_utility=min_utility,
        select_by=select_by,
        title=title,
        n_resamples=n_resamples,
    )
    return found


def write_dashboard(
    models: pd.DataFrame | ModelTable,
    path: str | os.PathLike[str],
    *,
    title: str,
    n_resamples: int = 1000,
    **given: Any,
) -> tuple[Path, tuple[str, ...]]:
    """`dashboard`, with what the page says could not be made or is too little to say much."""
    path = located(path)
    if path.suffix.lower() not in (".html", ".htm"):
        raise ConfigError(f"a dashboard is an HTML file, for example dashboard.html; got {str(path)!r}.")
    require_fresh(path, directory=False)
    check_choice("select_by", given["select_by"], View)
    tables = gather(models, n_resamples=n_resamples, **given)
    atomic_write_text(path, _page(tables, title, n_resamples))
    return path, tables.gaps


def render_dashboard(
    models: pd.DataFrame | ModelTable,
    *,
    pools: pd.DataFrame | None = None,
    robust: pd.DataFrame | None = None,
    points: pd.DataFrame | None = None,
    parts: ScoreParts | None = None,
    direction: Mapping[str, Points] | None = None,
    min_utility: float | None = None,
    select_by: View = "without",
    title: str = "Which metric can be trusted, which method forgets?",
    n_resamples: int = 1000,
) -> str:
    """The page of `dashboard` as text; arguments and errors as there."""
    check_choice("select_by", select_by, View)
    tables = gather(
        models,
        pools=pools,
        robust=robust,
        points=points,
        parts=parts,
        direction=direction,
        min_utility=min_utility,
        select_by=select_by,
        n_resamples=n_resamples,
    )
    return _page(tables, title, n_resamples)


def _page(tables: Tables, title: str, n_resamples: int) -> str:
    told: dict[str, Any] = context(tables, title=title, n_resamples=n_resamples)
    return fill(
        "dashboard.html.j2",
        scripts=_SCRIPTS,
        styles=("report.css", "dashboard.css"),
        data=payload(tables),
        context=told,
    )
