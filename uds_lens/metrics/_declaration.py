"""Means that keep what is undefined undefined."""

from __future__ import annotations

import math
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias, TypeVar

from uds_lens.errors import ConfigError

if TYPE_CHECKING:
    from jaxtyping import Float
    from torch import Tensor

    from uds_lens.metrics._answers import AnswerScores
    from uds_lens.metrics._data import MetricData
    from uds_lens.metrics._fisher import FisherMasks
    from uds_lens.metrics._fluency import FluencyScorer
    from uds_lens.metrics._options import MetricOptions


class Undefined(Exception):  # noqa: N818 - it is an outcome, not a failure
    """A metric has no value; the message says why, as a clause."""


def harmonic_mean(values: Sequence[float]) -> float:
    """Harmonic mean: `n / sum(1 / v)`.

    Args:
        values: Numbers >= 0.

    Returns:
        Between the smallest and the largest value; 0 if one of them is 0, NaN if one is NaN or there is none.

    Raises:
        ValueError: A value is negative.

    Example:
        >>> harmonic_mean([1.0, 0.5]), harmonic_mean([1.0, 0.0])
        (0.6666666666666666, 0.0)
    """
    if not values or any(math.isnan(value) for value in values):
        return math.nan
    if min(values) < 0:
        raise ValueError(f"a harmonic mean needs values >= 0; got {min(values)!r}.")
    return len(values) / sum(1 / value for value in values) if min(values) > 0 else 0.0


def mean_of_defined(values: Sequence[float]) -> float:
    """Mean of the values that are not NaN; NaN if there is none.

    >>> mean_of_defined([1.0, float("nan"), 2.0])
    1.5
    """
    defined = [value for value in values if not math.isnan(value)]
    return math.fsum(defined) / len(defined) if defined else math.nan


def geometric_mean(probabilities: Sequence[float]) -> float:
    """Geometric mean over the answers of one example, for example its paraphrases; NaN without any.

    >>> round(geometric_mean([0.5, 0.125]), 6), geometric_mean([0.5, 0.0])
    (0.25, 0.0)
    """
    if not probabilities or any(math.isnan(p) for p in probabilities):
        return math.nan
    if min(probabilities) == 0:
        return 0.0
    return math.exp(math.fsum(math.log(p) for p in probabilities) / len(probabilities))


def harmonic_of_parts(parts: Mapping[str, float]) -> float:
    """Harmonic mean of named values.

    Raises:
        Undefined: One of them is NaN; names it.

    Example:
        >>> harmonic_of_parts({"a": 1.0, "b": 0.5})
        0.6666666666666666
    """
    undefined = [name for name, value in parts.items() if math.isnan(value)]
    if undefined:
        raise Undefined(f"{', '.join(undefined)} has no value")
    return harmonic_mean(list(parts.values()))


# What a metric is: its name, what it needs, which way it points, what its ends mean.

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
        return self.origin.startswith("uds_lens.metrics._definitions.")

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


def mean_outcome(ids: Sequence[str], per_example: Sequence[float], **details: Any) -> Outcome:
    """The mean over examples that have a value; NaN with the reason where none has.

    >>> mean_outcome(["a", "b"], [1.0, float("nan")]).value
    1.0
    """
    value = mean_of_defined(per_example)
    reason = "no example has a value" if math.isnan(value) else None
    return Outcome(value, reason, tuple(ids), tuple(per_example), details)


def needs_answers(*sets: str, role: Role = "model", optional: bool = False) -> tuple[Pass, ...]:
    """Passes over the answers of sets, teacher-forced: `Evidence.answers` has what a model says of each token.

    >>> needs_answers("forget", "forget/paraphrased")[1].what
    'forget/paraphrased'
    """
    return tuple(Pass(role, "answers", name, optional=optional) for name in sets)


def needs_generations(*sets: str, role: Role = "model", jailbreak: bool = False) -> tuple[Pass, ...]:
    """Passes that let a model answer the questions of sets: `Evidence.generations` has the texts.

    >>> needs_generations("forget", jailbreak=True)[0].start
    True
    """
    return tuple(Pass(role, "generations", name, start=jailbreak) for name in sets)


def needs_states(*roles: Role) -> tuple[Pass, ...]:
    """Passes that keep the residual stream of models at the entities: `Evidence.stacked_states`.

    >>> [each.role for each in needs_states("retain", "model")]
    ['retain', 'model']
    """
    return tuple(Pass(role, "states") for role in roles)


# Where metrics are declared: one decorator, for ours and for a user's own.

Score = TypeVar("Score", bound=Callable[..., Outcome])
"""From `Evidence` to the value."""

_declared: dict[str, MetricSpec] = {}

DECLARED: Mapping[str, MetricSpec] = MappingProxyType(_declared)
"""What has been declared so far, in that order. `uds_lens.metrics.METRICS` is the same with all of ours loaded."""


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


# What the function of a metric may ask: what was measured, the data, the settings, and other metrics.


class Evidence(ABC):
    """Everything that was measured for one model and its references. This class loads no torch; `Measured` does."""

    data: MetricData
    """The sets that were asked."""

    options: MetricOptions
    """The settings."""

    fluency: FluencyScorer
    """What tells language from gibberish."""

    outcomes: dict[str, Outcome]
    """What the metrics before this one found."""

    @abstractmethod
    def answers(self, name: str, role: Role = "model") -> AnswerScores:
        """What a model says of every token of every answer of a set; of no text where the set is empty."""

    @abstractmethod
    def texts(self, name: str) -> Sequence[str]:
        """The answers of a set, in the order of `answers`."""

    @abstractmethod
    def by_example(self, name: str, values: Sequence[float]) -> list[list[float]]:
        """Values of a set's answers, listed per example: several where there are paraphrases."""

    @abstractmethod
    def generations(self, name: str, role: Role = "model", *, jailbreak: bool = False) -> tuple[str, ...]:
        """Greedy answers to a set's questions."""

    @abstractmethod
    def stacked_states(self, role: Role, layer: int) -> Float[Tensor, "token d_model"]:
        """States of one layer at the scored positions of all examples, float64."""

    @abstractmethod
    def patched_delta(self, role: Role) -> Float[Tensor, "example layer"]:
        """What patching a model's states into `full` costs, nats per token."""

    @abstractmethod
    def lens(self, role: Role) -> Float[Tensor, "example layer"]:
        """Logit Lens of a model's states through the head of `full`, nats per token."""

    @abstractmethod
    def masks(self) -> FisherMasks:
        """Fisher masks of `full` and `retain`."""

    @abstractmethod
    def fisher(self) -> list[Float[Tensor, "_"]]:
        """Fisher information of the model at the masked weights: a tensor per layer."""

    @abstractmethod
    def entity_ids(self) -> list[str]:
        """Identities of the examples that white-box metrics look at."""

    @abstractmethod
    def n_skipped(self) -> int:
        """Examples whose entity could not be located."""

    @abstractmethod
    def n_layers(self) -> int:
        """Layers of the models."""

    def ids(self, name: str) -> list[str]:
        """Identities of a set's examples."""
        return [example.id for example in self.data.examples(name)]

    def value(self, name: str) -> float:
        """Another metric's value.

        Raises:
            Undefined: It is NaN; carries its reason.
        """
        outcome = self.outcomes[name]
        if math.isnan(outcome.value):
            raise Undefined(f"{name} is NaN: {outcome.reason}")
        return outcome.value
