"""Saved metrics: one strict JSON file with a format name, a version and a seal; whole or absent."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

from uds_lens.errors import ResultFormatError
from uds_lens.metrics.metric_options import MetricOptions
from uds_lens.metrics.metric_results import Cost, MetricResults, MetricValue
from uds_lens.results import ModelRecord
from uds_lens.storage import (
    atomic_write_bytes,
    conform,
    located,
    plain,
    read_sealed,
    require_fresh,
    sealed,
)

FORMAT = "uds_lens.MetricResults"
VERSION = 2
"""Version of the format; raised when older releases could misread a result."""

UNSEALED = 1
"""Version of release 0.1, which had no seal; still read."""


@dataclass(frozen=True, kw_only=True)
class _File:
    """Members of a file, beside format, version and seal."""

    options: MetricOptions
    models: Mapping[str, ModelRecord]
    sizes: Mapping[str, int]
    provenance: Mapping[str, Any]
    total: Cost
    metrics: tuple[MetricValue, ...]
    generations: Mapping[str, tuple[str, ...]]


def save_results(results: MetricResults, path: str | os.PathLike[str]) -> None:
    """Write `MetricResults`.

    Raises:
        ResultFormatError: Something else than saved results stands there.
        StorageError: The system refuses to write.
    """
    atomic_write_bytes(require_fresh(path, directory=False, format=FORMAT), sealed(as_dict(results)))


def as_dict(results: MetricResults) -> dict[str, Any]:
    """Everything in plain values as strict JSON has them; NaN and infinity are None."""
    return {
        "format": FORMAT,
        "version": VERSION,
        "options": results.options.to_dict(),
        "models": {role: record.to_dict() for role, record in results.models.items()},
        "sizes": dict(results.sizes),
        "provenance": plain(results.provenance),
        "total": results.total._asdict(),
        "metrics": [
            plain({**_fields(metric), "cost": metric.cost._asdict(), "details": metric.details})
            for metric in results
        ],
        "generations": {name: list(texts) for name, texts in results.generations.items()},
    }


def load_results(path: str | os.PathLike[str]) -> MetricResults:
    """Read `MetricResults`."""
    file = located(path)
    if not file.exists() or file.is_dir():
        raise ResultFormatError(f"no saved metrics at {str(file)!r}: expected a JSON file written by save().")
    record = read_sealed(file, format=FORMAT, versions=(UNSEALED, VERSION), unsealed_versions=(UNSEALED,))
    told = repr(str(file))
    members = {name: value for name, value in record.items() if name not in ("format", "version")}
    found = conform(_File, members, where=told)
    if "model" not in found.models:
        raise ResultFormatError(f"{told} is not complete: it names no model.")
    return MetricResults(
        metrics=_by_name(found.metrics, told),
        models=found.models,
        options=found.options,
        sizes=found.sizes,
        generations=found.generations,
        provenance=found.provenance,
        total=found.total,
    )


def _by_name(metrics: tuple[MetricValue, ...], told: str) -> dict[str, MetricValue]:
    """Metrics by name; an upper bound of null is infinity."""
    found: dict[str, MetricValue] = {}
    for metric in metrics:
        sizes = {len(metric.per_example), len(metric.ids), len(metric.subjects or metric.ids)}
        if metric.name in found or len(sizes) > 1:
            raise ResultFormatError(
                f"{told}: the metric {metric.name[:60]!r} stands there twice, or its ids and values differ in number."
            )
        found[metric.name] = replace(metric, high=math.inf) if math.isnan(metric.high) else metric
    return found


def _fields(metric: MetricValue) -> dict[str, Any]:
    skipped = ("cost", "details") if metric.subjects else ("cost", "details", "subjects")
    return {field.name: getattr(metric, field.name) for field in fields(metric) if field.name not in skipped}
