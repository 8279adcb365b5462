"""The figures of the dashboard, as plain JSON in the light palette."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from uds_lens import plots
from uds_lens.report.dashboard_notes import judged, labels
from uds_lens.report.dashboard_words import method_name
from uds_lens.report.page_figures import plain_figure

if TYPE_CHECKING:
    import pandas as pd

    from uds_lens.report.dashboard_tables import Tables

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
