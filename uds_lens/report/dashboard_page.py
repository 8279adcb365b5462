"""Many models and the metrics that judge them, as one HTML page that opens offline."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from uds_lens.checked_arguments import arguments_checked
from uds_lens.errors import ConfigError
from uds_lens.meta import ModelTable, Points, ScoreParts
from uds_lens.meta.method_ranking import View
from uds_lens.report.dashboard_context import context
from uds_lens.report.dashboard_payload import payload
from uds_lens.report.dashboard_tables import Tables, gather
from uds_lens.report.filling import fill
from uds_lens.storage import atomic_write_text, located, require_fresh
from uds_lens.types import check_choice

if TYPE_CHECKING:
    import pandas as pd

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


@arguments_checked
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


@arguments_checked
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
