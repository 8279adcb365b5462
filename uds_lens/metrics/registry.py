"""Where metrics are declared: one decorator, for ours and for a user's own."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import TypeVar

from uds_lens.checked_arguments import arguments_checked
from uds_lens.errors import ConfigError
from uds_lens.metrics.declaration import Group, Meaning, MetricSpec, Outcome, Pass

Score = TypeVar("Score", bound=Callable[..., Outcome])
"""From `Evidence` to the value."""

_declared: dict[str, MetricSpec] = {}

DECLARED: Mapping[str, MetricSpec] = MappingProxyType(_declared)
"""What has been declared so far, in that order. `uds_lens.metrics.METRICS` is the same with all of ours loaded."""


@arguments_checked
def metric(
    *,
    name: str,
    label: str,
    meaning: Meaning,
    group: Group = "custom",
    passes: Sequence[Pass] = (),
    uses: Sequence[str] = (),
    uses_if: Mapping[str, Sequence[str]] | None = None,
    references: Sequence[str] = (),
    packages: Sequence[str] = (),
    low: float = 0.0,
    high: float = 1.0,
) -> Callable[[Score], Score]:
    """Declare a metric: the decorated function turns what was measured into its value.

    From then on it is in `METRICS`, in `evaluate` and, where the module is imported, on the command line. Its results
    are saved with its declaration, so that they load where the metric is unknown.

    Args:
        name: Key in results: small letters, digits, `_` and `.`.
        label: Name for tables and figures.
        meaning: Which way it points, and what 0 and 1 mean.
        group: Family.
        passes: What has to be measured (`needs_answers`, `needs_generations`, `needs_states`).
        uses: Metrics it is made of; they are declared before it.
        uses_if: More of them, by the name of the `MetricOptions` setting that adds them.
        references: Sets it compares with, beyond those its passes run over.
        packages: Optional packages it cannot do without, by their names in Python.
        low: Smallest possible value.
        high: Largest possible value.

    Returns:
        A decorator that leaves the function as it is.

    Raises:
        ConfigError: The name is taken or no name, or a metric it uses does not exist. A function of the same name and
            module may be declared again, as a notebook's cell that runs twice does.

    Example:
        >>> from uds_lens.metrics import Meaning, withdraw_metric, mean_outcome, metric, needs_answers
        >>> @metric(
        ...     name="first_token",
        ...     label="First token",
        ...     meaning=Meaning("knowledge", zero="never known", one="always known"),
        ...     passes=needs_answers("forget"),
        ... )
        ... def first_token(evidence):
        ...     hits = evidence.answers("forget").hits
        ...     return mean_outcome(evidence.ids("forget"), [float(each[0]) for each in hits])
        >>> from uds_lens.metrics import METRICS
        >>> METRICS["first_token"].label
        'First token'
        >>> withdraw_metric("first_token")
    """

    def declare(score: Score) -> Score:
        add_metric(
            MetricSpec(
                name=name,
                label=label,
                group=group,
                meaning=meaning,
                score=score,
                passes=tuple(passes),
                uses=tuple(uses),
                uses_if={setting: tuple(names) for setting, names in (uses_if or {}).items()},
                references=tuple(references),
                packages=tuple(packages),
                low=low,
                high=high,
            )
        )
        return score

    return declare


@arguments_checked
def add_metric(spec: MetricSpec) -> None:
    """Declare a metric by its record; `metric` does the same as a decorator.

    Raises:
        ConfigError: As for `metric`.
    """
    if not re.fullmatch(r"[a-z][a-z0-9_.]*", spec.name):
        raise ConfigError(
            f"a metric is named with small letters, digits, '_' and '.', a letter first; got {spec.name[:60]!r}."
        )
    earlier = _declared.get(spec.name)
    if earlier is not None and (earlier.origin != spec.origin or earlier.is_ours):
        raise ConfigError(
            f"there is a metric {spec.name!r} already, declared by {earlier.origin}: choose another name"
            + ("." if earlier.is_ours else f", or withdraw_metric({spec.name!r}) first.")
        )
    unknown = [name for name in spec.made_of if name not in _declared and not spec.is_ours]
    if unknown:
        raise ConfigError(f"{spec.name!r} is made of {unknown[0]!r}, which is no metric: declare that first.")
    _declared[spec.name] = spec


def order_by_file(files: Sequence[str]) -> None:
    """Put the metrics declared in these modules first, module by module; the others stay in their order."""
    rank = {file: number for number, file in enumerate(files)}
    ordered = sorted(_declared.values(), key=lambda spec: rank.get(spec.origin.rpartition(".")[0], len(rank)))
    _declared.clear()
    _declared.update((spec.name, spec) for spec in ordered)


@arguments_checked
def withdraw_metric(name: str) -> None:
    """Take back a metric of your own.

    Raises:
        ConfigError: There is none of that name, it is one of the library's, or others are made of it.
    """
    found = _declared.get(name)
    if found is None or found.is_ours:
        raise ConfigError(f"{name!r} is no metric of your own, and cannot be withdrawn.")
    users = [spec.name for spec in _declared.values() if name in spec.made_of]
    if users:
        raise ConfigError(f"{users[0]!r} is made of {name!r}: withdraw that first.")
    del _declared[name]
