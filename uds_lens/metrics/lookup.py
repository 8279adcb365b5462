"""Finding metrics by name, and the registry as a table."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from textwrap import shorten
from typing import TYPE_CHECKING

from uds_lens.checked_arguments import arguments_checked, arguments_checked_but
from uds_lens.checked_settings import shown
from uds_lens.errors import ConfigError
from uds_lens.metrics.catalogue import METRICS
from uds_lens.metrics.declaration import MetricSpec
from uds_lens.metrics.trust import studied
from uds_lens.optional_packages import require_package

if TYPE_CHECKING:
    import pandas as pd

    from uds_lens.metrics.metric_options import MetricOptions


@arguments_checked_but("names")
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


@arguments_checked
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


@arguments_checked
def all_needs(spec: MetricSpec) -> list[str]:
    """What a metric needs, through the metrics it is made of."""
    found = {need for each in resolve([spec.name]) for need in each.needs}
    return [need for need in ("output", "internal", "retain", "full") if need in found]


def data_sets(spec: MetricSpec) -> list[str]:
    """Sets of `MetricData` a metric cannot do without, through the metrics it is made of."""
    return list(dict.fromkeys(name for each in resolve([spec.name]) for name in each.sets))
