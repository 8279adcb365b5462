"""Metrics of several models side by side: one row per model, one column per metric."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from uds_lens.checked_arguments import arguments_checked
from uds_lens.metrics.catalogue import METRICS
from uds_lens.metrics.earlier_results import results_in
from uds_lens.metrics.metric_results import MetricResults
from uds_lens.storage import atomic_write_text, located, require_fresh

if TYPE_CHECKING:
    import pandas as pd


@arguments_checked
def metrics_by_model(results: Mapping[str, MetricResults]) -> pd.DataFrame:
    """The values of several models as a table.

    Args:
        results: Results by the model's name.

    Returns:
        A row per model: `model`, then a column per metric that any of them has; NaN where a model has no value.
    """
    import pandas as pd

    return pd.DataFrame([{"model": name, **found.values} for name, found in results.items()])


def require_metrics_table(file: str | os.PathLike[str]) -> Path:
    """The place of that table, before any work is done for it.

    Raises:
        ResultFormatError: Something else stands there, a table of audits for example.
        StorageError: Nothing can be written there.
    """
    place = located(file)
    return require_fresh(place, directory=False, begins=b"model," if _of_metrics(place) else None)


def _of_metrics(place: Path) -> bool:
    """Whether the columns of a table are those that `metrics_by_model` gives."""
    if not place.is_file():
        return False
    with open(place, "rb") as table:
        first, *names = table.readline(1 << 14).decode("utf-8", "replace").strip().split(",")
    if first != "model" or not names:
        return False
    own = set(names) - set(METRICS)  # declared in a file that was imported then
    return not own or own <= {name for each in results_in(place.parent).values() for name in each.metrics}


def write_metrics_table(results: Mapping[str, MetricResults], file: str | os.PathLike[str]) -> Path:
    """Write that table as CSV, of `results` and of all others that are saved beside it; an empty cell is undefined.

    Args:
        results: What is at hand, by name; it comes first. The others follow in the order of their files' names.
        file: Where the table goes.
    """
    place = require_metrics_table(file)
    every = {**results, **{n: found for n, found in results_in(place.parent).items() if n not in results}}
    atomic_write_text(place, metrics_by_model(every).to_csv(index=False))
    return place
