"""The words and small tables of the dashboard that need no script."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from uds_lens.metrics import METRICS
from uds_lens.report.dashboard_notes import cautions, count, findings
from uds_lens.report.dashboard_payload import plain, settings
from uds_lens.report.dashboard_words import method_name, sources

if TYPE_CHECKING:
    import pandas as pd

    from uds_lens.report.dashboard_tables import Tables

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
