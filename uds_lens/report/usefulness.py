"""Metrics handed to a report: matched to its audits, as a table and beside the depth."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from uds_lens.errors import ConfigError
from uds_lens.metrics import MetricResults, MetricValue
from uds_lens.results import DepthAudit

if TYPE_CHECKING:
    import pandas as pd

MetricSources: TypeAlias = MetricResults | Mapping[str, MetricResults] | Sequence[MetricResults]
"""Results of one model or of several, in any order."""

UTILITIES = ("utility_rel", "utility", "model_utility", "retain_q_prob", "retain_q_rouge")
"""Metrics that stand for usefulness, the first that is there."""

_GROUPS = {
    "utility": "Utility",
    "aggregate": "Combined",
    "memorization": "Memorization",
    "generation": "Generation",
    "membership": "Membership",
    "representation": "Inside the model",
    "custom": "Your own",
}
_SCORES = {"full": 0.0, "retain": 1.0}


class Measured(NamedTuple):
    """What was measured beside depth."""

    values: Mapping[str, Mapping[str, MetricValue]]
    """Metrics by name of the audit; `full` and `retain` of the audits under their roles, where they are no audits."""
    roles: tuple[str, ...]
    """Those of `values` that are no audits."""
    warnings: Mapping[str, tuple[str, ...]]
    """What to know before quoting them, by the same names."""


def measured(audits: Mapping[str, DepthAudit], metrics: MetricSources) -> Measured | None:
    """The results by audit, found by the weights of the models; None without any.

    Raises:
        ConfigError: Results of a model that is none of the page's, or something that is no result.
    """
    values: dict[str, dict[str, MetricValue]] = {}
    warnings: dict[str, tuple[str, ...]] = {}
    for source in metric_sources(metrics):
        for name in _owners(audits, source):
            values.setdefault(name, {}).update(source.metrics)
            warnings[name] = tuple(dict.fromkeys((*warnings.get(name, ()), *source.warnings)))
    if not values:
        return None
    names = [*audits, *(role for role in _SCORES if role not in audits)]
    return Measured(
        {name: values[name] for name in names if name in values},
        tuple(name for name in values if name not in audits),
        warnings,
    )


def metric_sources(metrics: MetricSources) -> list[MetricResults]:
    """The results one by one."""
    if isinstance(metrics, MetricResults):
        return [metrics]
    found = list(metrics.values() if isinstance(metrics, Mapping) else metrics)
    if not all(isinstance(source, MetricResults) for source in found):
        raise ConfigError(
            "metrics of a report are MetricResults (of metrics.evaluate, or MetricResults.load); got something else."
        )
    return found


def _owners(audits: Mapping[str, DepthAudit], source: MetricResults) -> list[str]:
    """The audits of the model that was measured; else the role it has in all of them."""
    own = source.models["model"].fingerprint
    names = [name for name, audit in audits.items() if audit.models["unlearned"].fingerprint == own]
    roles = [
        role for role in _SCORES if {audit.models[role].fingerprint for audit in audits.values()} == {own}
    ]
    free = [role for role in roles if role not in audits]
    if not names and not free:
        raise ConfigError(
            f"the metrics of {source.models['model'].name!r} belong to none of the audits on the page: expected "
            "results of one of their models (the weights are compared, not the names)."
        )
    return names or free


def usefulness(found: Measured) -> str | None:
    """The metric that stands for usefulness: the first that all have, else the first that any has."""
    for enough in (all, any):
        for name in UTILITIES:
            if enough(name in own and not math.isnan(own[name].value) for own in found.values.values()):
                return name
    return None


def depth_frame(audits: Mapping[str, DepthAudit], found: Measured) -> tuple[pd.DataFrame, str] | None:
    """`model`, `uds`, `uds_low`, `uds_high` and `utility` of the models, and what utility is; None without any."""
    import pandas as pd

    name = usefulness(found)
    if name is None:
        return None
    rows = []
    for model, own in found.values.items():
        audit = audits.get(model)
        uds = _SCORES[model] if audit is None else audit.uds
        low, high = (math.nan, math.nan) if audit is None else audit.uds_interval
        value = own[name].value if name in own else math.nan
        rows.append({"model": model, "uds": uds, "uds_low": low, "uds_high": high, "utility": value})
    label = next(own[name].label for own in found.values.values() if name in own)
    return pd.DataFrame(rows), f"{label}, higher is more useful"


def metrics_table(
    audits: Mapping[str, DepthAudit], found: Measured, order: Sequence[str], references: Sequence[str]
) -> dict[str, Any]:
    """Words of the section: a row per metric, a column per model in `order`, references that are no audits last."""
    places = {name: place for place, name in enumerate(audits)}
    names = [name for name in (*order, *found.roles) if name in found.values]
    columns = [
        {"name": name, "index": places.get(name), "reference": name in references or name in found.roles}
        for name in names
    ]
    every: dict[str, MetricValue] = {}
    for name in names:
        every |= {key: value for key, value in found.values[name].items() if key not in every}
    groups = [
        {
            "label": label,
            "rows": [
                _row(value, [found.values[name].get(key) for name in names])
                for key, value in every.items()
                if value.group == group
            ],
        }
        for group, label in _GROUPS.items()
    ]
    told: dict[str, list[str]] = {}
    for name in names:
        for sentence in found.warnings.get(name, ()):
            told.setdefault(sentence, []).append(name)
    return {
        "columns": columns,
        "groups": [group for group in groups if group["rows"]],
        "warnings": [
            {"text": text, "names": who if len(who) < len(names) else []} for text, who in told.items()
        ],
        "without": [name for name in order if name not in found.values],
        "scatter": usefulness(found) is not None,
    }


def _row(metric: MetricValue, values: Sequence[MetricValue | None]) -> dict[str, Any]:
    arrow = {
        "knowledge": "higher: still known",
        "erasure": "higher: erased",
        "utility": "higher: more useful",
    }
    return {
        "label": metric.label,
        "meaning": f"0 {metric.zero}, 1 {metric.one}; {arrow[metric.direction]}",
        "cells": [_cell(value) for value in values],
    }


def _cell(metric: MetricValue | None) -> dict[str, str]:
    if metric is None:
        return {"text": "", "title": "not measured"}
    if math.isnan(metric.value):
        return {"text": "NaN", "title": metric.reason or "undefined"}
    low, high = metric.interval
    told = "" if math.isnan(low) else f"95 % interval {low:.3f} to {high:.3f}"
    return {"text": f"{metric.value:.3f}", "title": told}
