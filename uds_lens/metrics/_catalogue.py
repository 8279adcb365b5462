"""All metrics: ours, loaded in one order, and those a user has declared. Reading it loads no torch."""

from __future__ import annotations

import csv
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from pathlib import Path
from textwrap import shorten
from typing import TYPE_CHECKING, Any

from uds_lens._optional_packages import require_package
from uds_lens._settings import shown
from uds_lens.errors import ConfigError
from uds_lens.metrics._declaration import (
    DECLARED,
    MetricSpec,
    add_metric,
    metric,
    order_by_file,
    withdraw_metric,
)

if TYPE_CHECKING:
    import pandas as pd

    from uds_lens.metrics._options import MetricOptions


__all__ = ["METRICS", "add_metric", "metric", "withdraw_metric"]

_ORDER = (
    "es",
    "em",
    "prob",
    "paraprob",
    "truth_ratio",
    "rouge",
    "membership_attacks",
    "cka",
    "fisher_masked",
    "logit_lens",
    "uds",
    "model_utility",
    "fluency",
    "utility",
    "memorization",
    "mia_agg",
    "privacy",
    "overall",
)
"""Files of `_definitions/`, in the order of the published tables; what is made of others comes after them. A file that
is not named here comes last."""

_FOUND = sorted(path.stem for path in Path(__file__).with_name("_definitions").glob("[a-z]*.py"))
_FILES = tuple(f"uds_lens.metrics._definitions.{name}" for name in dict.fromkeys((*_ORDER, *_FOUND)))
for _file in _FILES:
    import_module(_file)
order_by_file(_FILES)  # whichever of them something else has loaded first

METRICS: Mapping[str, MetricSpec] = DECLARED
"""Every metric by name, in an order where each comes after those it is made of; a user's own come last."""

# How far metrics could be trusted where that was tried: in the study of the small TOFU Llamas.
#
# `trust.csv` is written by `studies/tofu_small/judge.py` from the study's table. There are two rules by
# which a metric is warned of. The first, on the F of all models, was fixed before the study was complete.
# The second, on the worst pair of kinds of models, was made after its results had been seen.

HOLDS_TOO_LITTLE = 0.75
"""F below which, with its whole interval, a metric is warned of; the UDS paper draws its line there too."""

CHANCE = 0.5
"""F of a metric that knows nothing of what a model knows."""


_COLUMNS = {
    "F": "faithfulness",
    "low": "low",
    "high": "high",
    "Q": "quantisation",
    "R": "relearning",
    **{f"{name}_{end}": f"{name}_{end}" for name in ("variants", "new", "worst") for end in ("low", "high")},
    "worst": "worst",
}
"""Numbers of `trust.csv` and the fields they go to."""


@dataclass(frozen=True)
class Trust:
    """What the study found of one metric."""

    faithfulness: float
    """F: how often it ranks a model that was trained on the forget set above one that was not. 0.5 is chance."""

    low: float
    """Lower end of its 95 % interval for more runs of the study's six kinds of models, and for no other kind; Wilson's
    where F is 1."""

    high: float
    """Upper end."""

    quantisation: float
    """Q, over models that are still useful: how little 4 bits move it; NaN where undefined."""

    relearning: float
    """R, over the same: how alike relearning moves it in unlearned and in retain models; NaN where undefined."""

    variants_low: float = math.nan
    """Smallest F with one of the six kinds left out."""

    variants_high: float = math.nan
    """Largest."""

    new_low: float = math.nan
    """Lower end of the 95 % interval of F for kinds of models that the study did not have, with kinds as clusters;
    Wilson's for three kinds where F is 1."""

    new_high: float = math.nan
    """Upper end."""

    worst: float = math.nan
    """F in the worst of the nine pairs of a kind that knows and a kind that does not, 10 models each."""

    worst_low: float = math.nan
    """Lower end of its 95 % interval, over runs; not adjusted for being the worst of nine."""

    worst_high: float = math.nan
    """Upper end."""

    worst_pair: str = ""
    """Which pair that is."""

    @property
    def is_doubtful(self) -> bool:
        """Whether its interval lies below 0.75, or holds 0.5: then the library warns of it."""
        return self.high < HOLDS_TOO_LITTLE or self.low <= CHANCE <= self.high

    @property
    def fails_a_pair(self) -> bool:
        """Whether the interval of its worst pair of kinds reaches 0.5: then the library warns of it too.

        This rule was made after the results had been seen. With five runs a side, an F of 0.86 does not pass it.
        """
        return self.worst_low <= CHANCE

    def __str__(self) -> str:
        told = f"F {self.faithfulness:.2f}, 95 % {self.low:.2f} to {self.high:.2f} for the kinds of models it had"
        return (
            told
            if math.isnan(self.new_low)
            else f"{told}, {self.new_low:.2f} to {self.new_high:.2f} for new kinds"
        )


@cache
def studied() -> Mapping[str, Trust]:
    """What the study found, by metric; metrics that were not in it are not here.

    Example:
        >>> found = studied()["uds"]
        >>> 0 <= found.low <= found.faithfulness <= found.high <= 1
        True
    """
    with Path(__file__).with_name("trust.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    found = {}
    for row in rows:
        numbers: dict[str, Any] = {field: float(row[name] or math.nan) for name, field in _COLUMNS.items()}
        found[row["metric"]] = Trust(**numbers, worst_pair=row["worst_pair"])
    return found


# Finding metrics by name, and the registry as a table.


def resolve(names: Iterable[str] | None, *, options: MetricOptions | None = None) -> list[MetricSpec]:
    """The metrics asked for with those they are made of, in the order of `METRICS`.

    Args:
        names: Names; None takes all.
        options: Settings, which may add metrics to those that another is made of; None adds none.

    Returns:
        Specs, each once.

    Raises:
        ConfigError: A name does not exist, or there is none.

    Example:
        >>> [spec.name for spec in resolve(["s_mia_loss"])]
        ['mia_loss', 's_mia_loss']
    """
    if isinstance(names, str):
        raise ConfigError(
            f"metrics are a list of names; got the text {names[:60]!r}: write [{names[:60]!r}]."
        )
    if names is not None and not isinstance(names, Iterable):
        raise ConfigError(f"metrics are a list of names, or None for all; got {shown(names)}.")
    wanted = set(METRICS) if names is None else set()
    queue = [] if names is None else list(names)
    if names is not None and not queue:
        raise ConfigError("no metric is asked for: name some, or None for all of them.")
    while queue:
        name = queue.pop()
        if name not in METRICS:
            known = shorten(", ".join(METRICS), 360, placeholder=" ...")
            raise ConfigError(
                f"there is no metric {str(name)[:60]!r}; there are {known} ({len(METRICS)}, the keys of METRICS)."
            )
        if name not in wanted:
            spec = METRICS[name]
            wanted.add(name)
            queue += spec.uses
            queue += [
                part for on, parts in spec.uses_if.items() if getattr(options, on, False) for part in parts
            ]
    return [spec for name, spec in METRICS.items() if name in wanted]


def require_packages(specs: Iterable[MetricSpec]) -> None:
    """Raise where metrics need an optional package that is not installed.

    Raises:
        MissingDependencyError: Naming the metrics and the package.
    """
    users: dict[str, list[str]] = {}
    for spec in specs:
        for package in spec.packages:
            users.setdefault(package, []).append(spec.name)
    for package, names in users.items():
        shown_names = f"{', '.join(names[:3])}{f' and {len(names) - 3} more' if len(names) > 3 else ''}"
        require_package(
            package, needed_by=f"measuring {shown_names} needs", instead="Or ask for other metrics."
        )


def metrics_frame(specs: Sequence[MetricSpec] | None = None) -> pd.DataFrame:
    """The registry as a table: one row per metric.

    Args:
        specs: Which metrics; None takes all.

    Returns:
        Columns `name`, `label`, `group`, `needs`, `data`, `direction`, `low`, `high`, `zero`, `one`, and what our study
        found (`uds_lens.metrics.studied`), NaN for what was not in it: `studied_f`, `studied_f_low`, `studied_f_high`
        (for the kinds of models the study had), `studied_f_new_low`, `studied_f_new_high` (for new kinds),
        `studied_f_worst` (in the worst pair of kinds), `studied_f_worst_low`, `studied_f_worst_high`.
    """
    import pandas as pd

    rows = [
        {
            "name": spec.name,
            "label": spec.label,
            "group": spec.group,
            "needs": ", ".join(all_needs(spec)),
            "data": ", ".join(data_sets(spec)),
            "direction": spec.meaning.direction,
            "low": spec.low,
            "high": spec.high,
            "zero": spec.meaning.zero,
            "one": spec.meaning.one,
            **_trusted(spec.name),
        }
        for spec in (METRICS.values() if specs is None else specs)
    ]
    return pd.DataFrame(rows)


def _trusted(name: str) -> dict[str, float]:
    trust = studied().get(name)
    fields = {
        "": "faithfulness",
        **{
            f"_{end}": end
            for end in ("low", "high", "new_low", "new_high", "worst", "worst_low", "worst_high")
        },
    }
    return {
        f"studied_f{suffix}": math.nan if trust is None else float(getattr(trust, field))
        for suffix, field in fields.items()
    }


def all_needs(spec: MetricSpec) -> list[str]:
    """What a metric needs, through the metrics it is made of."""
    found = {need for each in resolve([spec.name]) for need in each.needs}
    return [need for need in ("output", "internal", "retain", "full") if need in found]


def data_sets(spec: MetricSpec) -> list[str]:
    """Sets of `MetricData` a metric cannot do without, through the metrics it is made of."""
    return list(dict.fromkeys(name for each in resolve([spec.name]) for name in each.sets))
