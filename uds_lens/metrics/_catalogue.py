"""All metrics, built-in and custom, and what the library's study found about them. Importing it loads no torch."""

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

import uds_lens.metrics._definitions  # noqa: F401 - declares ours
from uds_lens._optional_packages import require_package
from uds_lens._settings import shown
from uds_lens.errors import ConfigError
from uds_lens.metrics._declaration import (  # after ours are declared
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
"""All metrics by name, each after the metrics it is computed from; custom ones come last."""

HOLDS_TOO_LITTLE = 0.75
"""A metric gets a warning if the whole interval of its F is below this; the UDS paper uses the same value."""

CHANCE = 0.5  # F of a metric at chance


@dataclass(frozen=True)
class Trust:
    """Faithfulness and robustness of a metric in the library's study of small TOFU Llamas.

    Saved in `trust.csv` by `studies/tofu_small/judge.py`. Two rules trigger a warning about a metric.
    `is_doubtful`, based on F over all models, was fixed before the study was complete. `fails_a_pair`, based on the
    worst pair of kinds of models, was added after the results had been seen.
    """

    faithfulness: float
    """F: probability that the metric ranks a model trained on the forget set above one that was not. 0.5 is chance."""

    low: float
    """Lower end of its 95% interval, for further runs of the study's six kinds of models only; Wilson's if F is 1."""

    high: float
    """Upper end."""

    quantisation: float
    """Q, over models with enough utility: 1 if quantisation to 4 bits does not change it; NaN if undefined."""

    relearning: float
    """R, over the same models: 1 if relearning changes it equally in unlearned and retain models; NaN if undefined."""

    variants_low: float = math.nan
    """Lowest F with one of the six kinds left out."""

    variants_high: float = math.nan
    """Highest F with one of the six kinds left out."""

    new_low: float = math.nan
    """Lower end of the 95% interval of F for new kinds of models, with kinds as clusters; Wilson's for three kinds if F
    is 1."""

    new_high: float = math.nan
    """Upper end."""

    worst: float = math.nan
    """F in the worst of nine pairs, each of one kind of model that knows the facts and one that does not, 10 models
    each."""

    worst_low: float = math.nan
    """Lower end of its 95% interval, over runs; not adjusted for selecting the worst of nine pairs."""

    worst_high: float = math.nan
    """Upper end."""

    worst_pair: str = ""
    """The pair with the lowest F."""

    @property
    def is_doubtful(self) -> bool:
        """Whether the interval of F lies below 0.75 or contains 0.5, so that the library warns of the metric."""
        return self.high < HOLDS_TOO_LITTLE or self.low <= CHANCE <= self.high

    @property
    def fails_a_pair(self) -> bool:
        """Whether F in its worst pair is at or below 0.5, in which case the library warns, too.

        The interval is printed but not used: with five runs per side, it reaches 0.5 for 19 of the 20 metrics.
        """
        return self.worst <= CHANCE

    def __str__(self) -> str:
        new = "" if math.isnan(self.new_low) else f"; new kinds of models {self.new_low:.2f} to {self.new_high:.2f}"
        return f"F {self.faithfulness:.2f}, 95% CI {self.low:.2f} to {self.high:.2f}{new}"


_COLUMNS = {"F": "faithfulness", "Q": "quantisation", "R": "relearning"}
"""Columns of `trust.csv` that are not fields of `Trust` under the same name."""


@cache
def studied() -> Mapping[str, Trust]:
    """Return the study's verdict by metric; metrics not in the study are absent.

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
    """Return metrics together with the metrics they are computed from, in the order of `METRICS`.

    Args:
        names: Names; None takes all.
        options: Settings, which determine what CKA and Para. ROUGE read; None means the defaults.

    Returns:
        Specs, each once.

    Raises:
        ConfigError: There is no metric of that name, or no name is given.

    Example:
        >>> [spec.name for spec in resolve(["s_mia_loss"])]
        ['mia_loss', 's_mia_loss']
    """
    if names is None:
        return list(METRICS.values())
    if isinstance(names, str):
        raise ConfigError(f"metrics is a list of names: write [{names[:60]!r}] instead of {names[:60]!r}.")
    if not isinstance(names, Iterable):
        raise ConfigError(f"metrics is a list of names, or None for all; got {shown(names)}.")
    queue = list(names)
    wanted: set[str] = set()
    if not queue:
        raise ConfigError("no metric requested: name some, or pass None for all.")
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
    """Raise `MissingDependencyError` where metrics need an optional package that is not installed."""
    users: dict[str, list[str]] = {}
    for spec in specs:
        for package in spec.packages:
            users.setdefault(package, []).append(spec.name)
    for package, names in users.items():
        listed = ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
        require_package(package, needed_by=f"measuring {listed} needs", instead="Or choose other metrics.")


def metrics_frame(specs: Sequence[MetricSpec] | None = None) -> pd.DataFrame:
    """Return the registry as a table: one row per metric.

    Args:
        specs: Which metrics; default all.

    Returns:
        Columns `name`, `label`, `group`, `needs`, `data` (sets it requires), `direction`, `low`, `high`, `zero`,
        `one`; and from the library's study (NaN for a metric not in it) `studied_f` with its interval `studied_f_low`,
        `studied_f_high`, the interval for new kinds of models `studied_f_new_low`, `studied_f_new_high`, and F in the
        worst pair of kinds `studied_f_worst`, `studied_f_worst_low`, `studied_f_worst_high`.
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
    """Return the access that a metric needs, including that of the metrics it is computed from."""
    needed = {need for part in resolve([spec.name]) for need in part.needs}
    return [need for need in ("output", "internal", "retain", "full") if need in needed]


def data_sets(spec: MetricSpec) -> list[str]:
    """Return the sets of `MetricData` that a metric requires, including those of the metrics it is computed from."""
    return list(dict.fromkeys(name for part in resolve([spec.name]) for name in part.sets))
