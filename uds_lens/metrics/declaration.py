"""What a metric is: its name, what it needs, which way it points, what its ends mean."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias

from uds_lens.checked_arguments import arguments_checked
from uds_lens.metrics.means import mean_of_defined

if TYPE_CHECKING:
    from uds_lens.metrics.evidence import Evidence

Role: TypeAlias = Literal["retain", "full", "model"]
"""Which model a pass runs on; `model` is the one that is evaluated."""

Kind: TypeAlias = Literal[
    "answers", "generations", "states", "patched", "lens", "fisher_spill", "fisher_masks", "fisher_sums"
]
"""What a pass measures."""

Group: TypeAlias = Literal[
    "memorization", "generation", "membership", "representation", "utility", "aggregate", "custom"
]
"""Families of metrics; `custom` is for a user's own."""

Direction: TypeAlias = Literal["knowledge", "erasure", "utility"]
"""What a higher value means: the forget set is still known, it is erased, or the model is more useful."""


@arguments_checked
@dataclass(frozen=True)
class Pass:
    """One piece of measuring: a model run over a set of texts. Metrics that name the same pass share it."""

    role: Role
    """Which model runs."""

    kind: Kind
    """What is measured."""

    what: str = ""
    """Set of texts ("forget/paraphrased"), or for `patched` and `lens` the role whose states are read."""

    start: bool = False
    """Generations only: the answer starts with the jailbreak prefix."""

    optional: bool = False
    """The metric does without where the set is empty."""

    @property
    def set_name(self) -> str:
        """The set of `MetricData` it runs over."""
        return self.what if self.kind in ("answers", "generations") else "entities"


@arguments_checked
@dataclass(frozen=True)
class Outcome:
    """What a metric found, before its name and cost are attached."""

    value: float
    """The metric; NaN where it is undefined."""

    reason: str | None = None
    """Why it is NaN, as a sentence."""

    ids: Sequence[str] = ()
    """Examples, in the order of `per_example`."""

    per_example: Sequence[float] = ()
    """Value of each example; NaN where it has none."""

    details: Mapping[str, Any] = field(default_factory=dict)
    """More numbers behind the value, per layer for example."""


@arguments_checked
class Meaning(NamedTuple):
    """How to read a value."""

    direction: Direction
    """What a higher value means."""

    zero: str
    """What 0 means."""

    one: str
    """What 1 means."""


KNOWN = Meaning("knowledge", "nothing left", "known by heart")
ERASED = Meaning("erasure", "as full", "as retain")
USEFUL = Meaning("utility", "useless", "perfect")


@arguments_checked
@dataclass(frozen=True, kw_only=True)
class MetricSpec:
    """One metric, declared once."""

    name: str
    """Key in results, on the command line and in the published tables."""

    label: str
    """Name for tables and figures."""

    group: Group
    """Family."""

    meaning: Meaning
    """Which way it points, and what 0 and 1 mean."""

    score: Callable[[Evidence], Outcome]
    """From what was measured to the value."""

    passes: tuple[Pass, ...] = ()
    """What has to be measured."""

    uses: tuple[str, ...] = ()
    """Metrics it is made of."""

    uses_if: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """More metrics it is made of, by the setting of `MetricOptions` that adds them."""

    references: tuple[str, ...] = ()
    """Sets it compares with, beyond those its passes run over."""

    packages: tuple[str, ...] = ()
    """Optional packages it cannot do without, by their names in Python."""

    low: float = 0.0
    """Smallest possible value."""

    high: float = 1.0
    """Largest possible value."""

    @property
    def made_of(self) -> tuple[str, ...]:
        """Metrics it is made of, with those that a setting adds."""
        return (*self.uses, *(name for names in self.uses_if.values() for name in names))

    @property
    def origin(self) -> str:
        """Module and name of the function that makes its value."""
        score = getattr(self.score, "func", self.score)
        return f"{getattr(score, '__module__', '?')}.{getattr(score, '__qualname__', type(score).__name__)}"

    @property
    def is_ours(self) -> bool:
        """Whether it comes with the library."""
        return self.origin.startswith("uds_lens.metrics.definitions.")

    @property
    def sets(self) -> tuple[str, ...]:
        """Sets of `MetricData` it cannot do without."""
        return tuple(dict.fromkeys((*(p.set_name for p in self.passes if not p.optional), *self.references)))

    @property
    def needs(self) -> tuple[str, ...]:
        """What it asks of the caller beyond the model: "output", "internal", "retain", "full"."""
        found: set[str] = {str(each.role) for each in self.passes if each.role != "model"}
        found |= {"output" if p.kind in ("answers", "generations") else "internal" for p in self.passes}
        return tuple(need for need in ("output", "internal", "retain", "full") if need in found)


@arguments_checked
def mean_outcome(ids: Sequence[str], per_example: Sequence[float], **details: Any) -> Outcome:
    """The mean over examples that have a value; NaN with the reason where none has.

    >>> mean_outcome(["a", "b"], [1.0, float("nan")]).value
    1.0
    """
    value = mean_of_defined(per_example)
    reason = "no example has a value" if math.isnan(value) else None
    return Outcome(value, reason, tuple(ids), tuple(per_example), details)


@arguments_checked
def needs_answers(*sets: str, role: Role = "model", optional: bool = False) -> tuple[Pass, ...]:
    """Passes over the answers of sets, teacher-forced: `Evidence.answers` has what a model says of each token.

    >>> needs_answers("forget", "forget/paraphrased")[1].what
    'forget/paraphrased'
    """
    return tuple(Pass(role, "answers", name, optional=optional) for name in sets)


@arguments_checked
def needs_generations(*sets: str, role: Role = "model", jailbreak: bool = False) -> tuple[Pass, ...]:
    """Passes that let a model answer the questions of sets: `Evidence.generations` has the texts.

    >>> needs_generations("forget", jailbreak=True)[0].start
    True
    """
    return tuple(Pass(role, "generations", name, start=jailbreak) for name in sets)


@arguments_checked
def needs_states(*roles: Role) -> tuple[Pass, ...]:
    """Passes that keep the residual stream of models at the entities: `Evidence.stacked_states`.

    >>> [each.role for each in needs_states("retain", "model")]
    ['retain', 'model']
    """
    return tuple(Pass(role, "states") for role in roles)
