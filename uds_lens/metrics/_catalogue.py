"""The registry of built-in and custom metrics, and the study's findings about them. Does not import torch."""

from __future__ import annotations

import csv
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from functools import cache
from pathlib import Path
from textwrap import shorten
from typing import TYPE_CHECKING, Any

import uds_lens.metrics._definitions  # noqa: F401 - declares built-in metrics
from uds_lens._optional_packages import require_package
from uds_lens._settings import shown
from uds_lens.errors import ConfigError
from uds_lens.metrics._declaration import (  # after the built-in metrics are declared
    DECLARED,
    MetricSpec,
    metric as metric,
    needs_generations,
    needs_states,
    withdraw_metric as withdraw_metric,
)

if TYPE_CHECKING:
    import pandas as pd

    from uds_lens.metrics._options import MetricOptions

METRICS: Mapping[str, MetricSpec] = DECLARED
"""All metrics by name. Each metric comes after the metrics from which it is computed; custom metrics come last."""

HOLDS_TOO_LITTLE = 0.75
"""The library warns about a metric if the whole interval of the metric's F lies below this value, which the UDS paper
also uses."""

CHANCE = 0.5  # F of a metric that ranks at random


@dataclass(frozen=True)
class Trust:
    """Faithfulness and robustness of a metric, from the library's study of small TOFU Llamas.

    The values are saved in `trust.csv` by `studies/tofu_small/judge.py`. Two rules trigger a warning about a metric.
    `is_doubtful`, based on F over all models, was fixed before the study was complete. `fails_a_pair`, based on the
    worst pair of kinds of models, was added after seeing the results.
    """

    faithfulness: float
    """F: probability that the metric ranks a model trained on the forget set above a model that was not. 0.5 is
    chance."""

    low: float
    """Lower end of the 95% interval of F for new runs of the study's six kinds of models (not new kinds); Wilson
    interval if F is 1."""

    high: float
    """Upper end."""

    quantisation: float
    """Q, over models with enough utility: 1 if 4-bit quantisation does not change the metric; NaN if undefined."""

    relearning: float
    """R, over the same models: 1 if relearning changes the metric equally in unlearned and retain models; NaN if
    undefined."""

    variants_low: float = math.nan
    """Lowest F after leaving out one of the six kinds of models."""

    variants_high: float = math.nan
    """Highest F after leaving out one of the six kinds of models."""

    new_low: float = math.nan
    """Lower end of the 95% interval of F for new kinds of models, with kinds as clusters; Wilson interval for three
    kinds if F is 1."""

    new_high: float = math.nan
    """Upper end."""

    worst: float = math.nan
    """F in the worst of nine pairs; each pair combines a kind of model that knows the facts with a kind that does not
    (10 models per pair)."""

    worst_low: float = math.nan
    """Lower end of the 95% interval of `worst`, over runs; not adjusted for selecting the worst of nine pairs."""

    worst_high: float = math.nan
    """Upper end."""

    worst_pair: str = ""
    """The pair with the lowest F."""

    @property
    def is_doubtful(self) -> bool:
        """Whether the interval of F lies below 0.75 or contains 0.5; the library then warns about the metric."""
        return self.high < HOLDS_TOO_LITTLE or self.low <= CHANCE <= self.high

    @property
    def fails_a_pair(self) -> bool:
        """Whether F in the worst pair is at most 0.5; the library then also warns about the metric.

        The interval is printed but does not affect this rule. With five runs per kind, it reaches 0.5 for 19 of the
        20 metrics.
        """
        return self.worst <= CHANCE

    def __str__(self) -> str:
        new = "" if math.isnan(self.new_low) else f"; new kinds of models {self.new_low:.2f} to {self.new_high:.2f}"
        return f"F {self.faithfulness:.2f}, 95% CI {self.low:.2f} to {self.high:.2f}{new}"


_COLUMNS = {"F": "faithfulness", "Q": "quantisation", "R": "relearning"}
"""Columns of `trust.csv` that have a different name in `Trust`."""


@cache
def studied() -> Mapping[str, Trust]:
    """Return the study's findings by metric; metrics that were not studied are absent.

    Example:
        >>> uds = studied()["uds"]
        >>> 0 <= uds.low <= uds.faithfulness <= uds.high <= 1
        True
    """
    with Path(__file__).with_name("trust.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    trusts = {}
    for row in rows:
        name, pair = row.pop("metric"), row.pop("worst_pair")
        numbers: dict[str, Any] = {_COLUMNS.get(k, k): float(v or math.nan) for k, v in row.items()}
        trusts[name] = Trust(**numbers, worst_pair=pair)
    return trusts


def resolve(names: Iterable[str] | None, *, options: MetricOptions | None = None) -> list[MetricSpec]:
    """Return the named metrics and all metrics from which they are computed, in the order of `METRICS`.

    Args:
        names: Names of metrics; None means all metrics.
        options: Metric settings, which affect the passes of CKA and Para. ROUGE; None means the defaults.

    Returns:
        The specs, without duplicates.

    Raises:
        ConfigError: A name is unknown, or no name is given.

    Example:
        >>> [spec.name for spec in resolve(["s_mia_loss"])]
        ['mia_loss', 's_mia_loss']
    """
    if names is None:
        return list(METRICS.values())
    if isinstance(names, str):
        raise ConfigError(f"metrics must be a list of names: write [{names[:60]!r}] instead of {names[:60]!r}.")
    if not isinstance(names, Iterable):
        raise ConfigError(f"metrics must be a list of names, or None for all; got {shown(names)}.")
    queue = list(names)
    wanted: set[str] = set()
    if not queue:
        raise ConfigError("no metric was requested: pass names, or None for all metrics.")
    while queue:
        name = queue.pop()
        if name not in METRICS:
            near = get_close_matches(str(name)[:60], METRICS, n=1)
            hint = f" Did you mean {near[0]!r}?" if near else ""
            listed = shorten(", ".join(METRICS), 360, placeholder=" and more")
            raise ConfigError(f"no metric {str(name)[:60]!r}.{hint} The {len(METRICS)} metrics (METRICS) are {listed}.")
        if name not in wanted:
            wanted.add(name)
            spec = METRICS[name]
            queue += spec.uses
    chosen = [spec for name, spec in METRICS.items() if name in wanted]
    other = {}
    if options is not None and options.cka_scope == "answers":
        other["cka"] = needs_states("retain", "model", "full", answers="forget")
    if options is not None and options.para_rouge == "questions":
        other["para_rouge"] = needs_generations("forget/rephrased")
    return [replace(s, passes=other[s.name], references=()) if s.name in other else s for s in chosen]


def require_packages(specs: Iterable[MetricSpec]) -> None:
    """Raise `MissingDependencyError` if a metric needs an optional package that is not installed."""
    users: dict[str, list[str]] = {}
    for spec in specs:
        for package in spec.packages:
            users.setdefault(package, []).append(spec.name)
    for package, names in users.items():
        listed = ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
        require_package(package, needed_by=f"measuring {listed} needs", instead="Or choose other metrics.")


def metrics_frame(specs: Sequence[MetricSpec] | None = None) -> pd.DataFrame:
    """Return the registry as a table with one row per metric.

    Args:
        specs: The metrics to list; default all.

    Returns:
        A table with the columns `name`, `label`, `group`, `needs`, `data` (required sets), `direction`, `low`, `high`,
        `zero` and `one`. Further columns come from the library's study and are NaN for metrics that were not studied:
        `studied_f` with its interval `studied_f_low`, `studied_f_high`; the interval for new kinds of models
        `studied_f_new_low`, `studied_f_new_high`; and F in the worst pair of kinds `studied_f_worst`,
        `studied_f_worst_low`, `studied_f_worst_high`.
    """
    import pandas as pd

    unknown = Trust(math.nan, math.nan, math.nan, math.nan, math.nan)
    rows = []
    for spec in METRICS.values() if specs is None else specs:
        trust = studied().get(spec.name, unknown)
        ends = ("low", "high", "new_low", "new_high", "worst", "worst_low", "worst_high")
        rows.append(
            {
                "name": spec.name,
                "label": spec.label,
                "group": spec.group,
                "needs": ", ".join(all_needs(spec)),
                "data": ", ".join(data_sets(spec)),
                "direction": spec.meaning.direction,
                "low": spec.meaning.low,
                "high": spec.meaning.high,
                "zero": spec.meaning.zero,
                "one": spec.meaning.one,
                "studied_f": trust.faithfulness,
                **{f"studied_f_{end}": getattr(trust, end) for end in ends},
            }
        )
    return pd.DataFrame(rows)


def all_needs(spec: MetricSpec) -> list[str]:
    """Return the access that a metric needs, directly or for metrics from which it is computed."""
    needed = {need for part in resolve([spec.name]) for need in part.needs}
    return [need for need in ("output", "internal", "retain", "full") if need in needed]


def data_sets(spec: MetricSpec) -> list[str]:
    """Return the `MetricData` sets that a metric requires, directly or for metrics from which it is computed."""
    return list(dict.fromkeys(name for part in resolve([spec.name]) for name in part.sets))
