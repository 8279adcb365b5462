"""Metric specifications (requirements, direction, function), and the decorator that declares a metric.

This module does not import torch.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias, TypeVar

from uds_lens.errors import ConfigError

if TYPE_CHECKING:
    from jaxtyping import Float
    from torch import Tensor

    from uds_lens.data import ForgetExample
    from uds_lens.metrics._answers import AnswerScores
    from uds_lens.metrics._data import MetricData
    from uds_lens.metrics._fisher import FisherMasks
    from uds_lens.metrics._options import FluencyScorer, MetricOptions
    from uds_lens.metrics._passes import Session
    from uds_lens.models import HookedModel
    from uds_lens.transplants._running import HostScores


class Undefined(Exception):  # noqa: N818 - it is an outcome, not a failure
    """Raised if a metric has no value; the message gives the reason, as a clause."""


# Means that propagate undefined values.


def harmonic_mean(values: Sequence[float]) -> float:
    """Return the harmonic mean `n / sum(1 / v)` of nonnegative values.

    Returns:
        A number between the smallest and the largest value; 0 if any value is 0, NaN if any value is NaN or `values` is
        empty.

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
    """Return the mean of the values that are not NaN; NaN if all are NaN.

    >>> mean_of_defined([1.0, float("nan"), 2.0])
    1.5
    """
    defined = [value for value in values if not math.isnan(value)]
    return math.fsum(defined) / len(defined) if defined else math.nan


def geometric_mean(probabilities: Sequence[float]) -> float:
    """Return the geometric mean over an example's answers, such as its paraphrases; NaN without answers.

    >>> round(geometric_mean([0.5, 0.125]), 6), geometric_mean([0.5, 0.0])
    (0.25, 0.0)
    """
    if not probabilities or any(math.isnan(p) for p in probabilities):
        return math.nan
    if min(probabilities) == 0:
        return 0.0
    return math.exp(math.fsum(math.log(p) for p in probabilities) / len(probabilities))


def harmonic_of_parts(parts: Mapping[str, float]) -> float:
    """Return the harmonic mean of named values; raise `Undefined` with the names of all NaN values."""
    undefined = [name for name, value in parts.items() if math.isnan(value)]
    if undefined:
        raise Undefined(f"{', '.join(undefined)} has no value")
    return harmonic_mean(list(parts.values()))


Role: TypeAlias = Literal["retain", "full", "model"]  # the model that a pass runs; `model` is being evaluated

Kind: TypeAlias = Literal[
    "answers",
    "generations",
    "gradients",
    "own",
    "states",
    "patched",
    "lens",
    "transplanted",
    "fisher_spill",
    "fisher_masks",
    "fisher_sums",
]
"""What a pass measures."""

OF_TEXTS: tuple[Kind, ...] = ("answers", "generations", "gradients")
"""Kinds of passes over the texts of a set. All other kinds run over spans located in the answers."""

Group: TypeAlias = Literal[
    "memorization", "generation", "membership", "representation", "utility", "aggregate", "custom"
]
"""Families of metrics; `custom` is for user-defined metrics."""

Direction: TypeAlias = Literal["knowledge", "erasure", "utility"]
"""Meaning of a higher value: more knowledge of the forget set, more erasure, or more utility."""


@dataclass(frozen=True)
class Pass:
    """One measurement: running a model over a set of texts. Metrics that declare the same pass share it."""

    role: Role
    """Model to run."""

    kind: Kind
    """What to measure."""

    what: str = ""
    """Set of texts, such as "forget/paraphrased". For `patched` and `lens`, the role that provides the states. For
    `states`, the set whose whole answers are used (with the prompts of the output metrics), or empty to use the
    entities."""

    start: bool = False
    """For generations only: whether answers start with the jailbreak prefix."""

    optional: bool = field(default=False, compare=False)
    """Skip this pass if the set is empty; the metric can be computed without this pass."""

    measure: Callable[[HookedModel], Any] | None = field(default=None, compare=False)
    """For `own`: the function to call with the open model; `what` names the function and its settings."""

    @property
    def set_name(self) -> str:
        """The `MetricData` set that the pass runs over; empty for `own`."""
        return "" if self.kind == "own" else (self.what if self.kind in (*OF_TEXTS, "states") else "") or "entities"


def needs_answers(*sets: str, role: Role = "model", optional: bool = False) -> tuple[Pass, ...]:
    """Return passes that score the answers in the given sets token by token, teacher-forced (`Evidence.answers`).

    >>> needs_answers("forget", "forget/paraphrased")[1].what
    'forget/paraphrased'
    """
    return tuple(Pass(role, "answers", name, optional=optional) for name in sets)


def needs_generations(*sets: str, role: Role = "model", jailbreak: bool = False) -> tuple[Pass, ...]:
    """Return passes in which a model answers the questions in the given sets (`Evidence.generations`).

    >>> needs_generations("forget", jailbreak=True)[0].start
    True
    """
    return tuple(Pass(role, "generations", name, start=jailbreak) for name in sets)


def needs_gradients(*sets: str, role: Role = "model") -> tuple[Pass, ...]:
    """Return passes that compute gradients of each answer's loss in the given sets (`Evidence.gradient_norms`).

    >>> needs_gradients("forget", "holdout")[1].set_name
    'holdout'
    """
    return tuple(Pass(role, "gradients", name) for name in sets)


def needs_states(*roles: Role, answers: str = "") -> tuple[Pass, ...]:
    """Return passes that collect models' residual-stream states at the entities (`Evidence.stacked_states`).

    If `answers` names a set, states are collected over whole answers instead, with the prompts of the output metrics.
    "forget/endings" selects the last token of each true answer and of its first perturbed answer.

    >>> [each.role for each in needs_states("retain", "model")]
    ['retain', 'model']
    """
    return tuple(Pass(role, "states", answers) for role in roles)


@dataclass(frozen=True)
class Outcome:
    """Value of a metric, before its name and cost are attached."""

    value: float
    """The metric; NaN where it is undefined."""

    reason: str | None = None
    """Why the value is NaN, as a clause."""

    ids: Sequence[str] = ()
    """Ids of the examples, in the order of `per_example`."""

    per_example: Sequence[float] = ()
    """Value of each example; NaN if an example has no value."""

    details: Mapping[str, Any] = field(default_factory=dict)
    """Further numbers, for example per layer."""


def mean_outcome(ids: Sequence[str], per_example: Sequence[float], **details: Any) -> Outcome:
    """Return the mean over examples that have a value; NaN with a reason if no example has one.

    >>> mean_outcome(["a", "b"], [1.0, float("nan")]).value
    1.0
    """
    value = mean_of_defined(per_example)
    reason = "no example has a value" if math.isnan(value) else None
    return Outcome(value, reason, tuple(ids), tuple(per_example), details)


class Meaning(NamedTuple):
    """Scale of a metric."""

    direction: Direction
    """What a higher value means."""

    zero: str
    """Meaning of 0."""

    one: str
    """Meaning of 1."""

    low: float = 0.0
    """Smallest possible value."""

    high: float = 1.0
    """Largest possible value."""


KNOWN = Meaning("knowledge", "nothing left", "known by heart")
ERASED = Meaning("erasure", "as full", "as retain")
USEFUL = Meaning("utility", "useless", "perfect")


@dataclass(frozen=True, kw_only=True)
class MetricSpec:
    """Declaration of a metric."""

    name: str
    """Key in results, on the command line and in the published tables."""

    label: str
    """Display name in tables and figures."""

    group: Group
    """Family."""

    meaning: Meaning
    """Its scale."""

    score: Callable[[Evidence], Outcome]
    """Function that computes the value from measurements."""

    passes: tuple[Pass, ...] = ()
    """Measurements it needs."""

    uses: tuple[str, ...] = ()
    """Metrics from which this metric is computed."""

    references: tuple[str, ...] = ()
    """Sets that the metric uses in addition to the sets of its passes."""

    packages: tuple[str, ...] = ()
    """Optional packages that the metric requires, by import name."""

    @property
    def origin(self) -> str:
        """Module and name of the function."""
        score = getattr(self.score, "func", self.score)
        return f"{getattr(score, '__module__', '?')}.{getattr(score, '__qualname__', type(score).__name__)}"

    @property
    def is_ours(self) -> bool:
        """Whether the metric is built in."""
        return self.origin.startswith("uds_lens.metrics._definitions.")

    @property
    def sets(self) -> tuple[str, ...]:
        """`MetricData` sets that the metric requires."""
        return tuple(
            dict.fromkeys((*(p.set_name for p in self.passes if p.set_name and not p.optional), *self.references))
        )

    @property
    def needs(self) -> tuple[str, ...]:
        """Access that the metric needs, out of "output", "internal", "retain" and "full"."""
        needed: set[str] = {p.role for p in self.passes if p.role != "model"}
        needed |= {"output" if p.kind in ("answers", "generations", "own") else "internal" for p in self.passes}
        return tuple(need for need in ("output", "internal", "retain", "full") if need in needed)


class Evidence:
    """Measurements for one model and its reference models, as passed to a metric's function."""

    def __init__(self, session: Session, fluency: FluencyScorer) -> None:
        self._session = session
        self.data: MetricData = session.data
        """The sets of questions."""
        self.options: MetricOptions = session.options
        """The settings."""
        self.fluency = fluency
        """The fluency scorer."""
        self.outcomes: dict[str, Outcome] = {}
        """Outcomes of the metrics computed before this one."""
        self.spec: MetricSpec | None = None
        """The metric being computed, which can only access the passes that it declares."""

    def ids(self, name: str) -> list[str]:
        """Ids of the examples in a set."""
        return [example.id for example in self.data.examples(name)]

    def texts(self, name: str) -> Sequence[str]:
        """Answer texts of a set, in the same order as `answers`."""
        return [text.answer for text in self.data.texts(name)]

    def answers(self, name: str, role: Role = "model") -> AnswerScores:
        """Token scores for every answer in a set; empty if the set is empty."""
        from uds_lens.metrics._answers import AnswerScores

        wanted = self._declared(Pass(role, "answers", name))
        if self.data.missing(name) is not None:  # the pass is optional
            return AnswerScores((), (), ())
        return self._value(wanted)

    def by_example(self, name: str, values: Sequence[float]) -> list[list[float]]:
        """Group the values of a set's answers by example (several per example if there are paraphrases)."""
        listed: list[list[float]] = [[] for _ in self.data.examples(name)]
        for text, value in zip(self.data.texts(name) if values else (), values, strict=True):
            listed[text.owner].append(value)
        return listed

    def generations(self, name: str, role: Role = "model", *, jailbreak: bool = False) -> tuple[str, ...]:
        """Greedy answers to the questions in a set."""
        return self._value(Pass(role, "generations", name, start=jailbreak))

    def gradient_norms(self, name: str, role: Role = "model") -> list[float]:
        """For each answer, the gradient norm of its loss, averaged over a model's weight tensors (`gradient_norms`)."""
        return self._value(Pass(role, "gradients", name))

    def measured(self, own: Pass) -> Any:
        """Return value of a pass's own function (`Pass.measure`)."""
        return self._value(own)

    def first_tokens(self, text: str, n: int) -> str:
        """The first n tokens of a text, using the models' tokenizer."""
        tokenizer: Any = self._session.tokenizer
        places = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)["offset_mapping"]
        return text if len(places) <= n else text[: places[n - 1][1]]

    def stacked_states(
        self, role: Role, layer: int, *, answers: str = "", first: bool = False
    ) -> Float[Tensor, "token d_model"]:
        """States of one layer at all scored positions, or at the first scored position of each example, as float64."""
        import torch

        wanted = Pass(role, "states", answers)
        source, rows = self._value(wanted), self._session.plan_of(wanted).encoded.rows
        at = [[position - row.window[0] for position in row.scored[: 1 if first else None]] for row in rows]
        return torch.cat([source.store.get(n)[layer, places].double() for n, places in enumerate(at)])

    def patched_delta(self, role: Role) -> Float[Tensor, "example layer"]:
        """Log-probability lost by patching a model's states into `full`, in nats per token."""
        return self._value(Pass("full", "patched", role)).delta

    def lens(self, role: Role) -> Float[Tensor, "example layer"]:
        """Logit Lens of a model's states, read by the head of `full`, in nats per token."""
        return self._value(Pass("full", "lens", role))

    def transplanted(self, role: Role) -> HostScores:
        """Log-probabilities of the entities under a model, both unchanged and with blocks from `retain`."""
        return self._value(Pass(role, "transplanted"))

    def masks(self) -> FisherMasks:
        """Fisher masks of `full` and `retain`."""
        return self._value(Pass("full", "fisher_masks"))

    def fisher(self) -> list[Float[Tensor, "_"]]:
        """Fisher information of the model at the masked weights, as one tensor per layer."""
        return self._value(Pass("model", "fisher_sums"))

    def state_examples(self, answers: str = "") -> list[ForgetExample]:
        """Examples in the order of the states, without examples whose spans could not be located."""
        return [row.example for row in self._session.plan_of(Pass("model", "states", answers)).encoded.rows]

    def entity_ids(self) -> list[str]:
        """Ids of the examples used by white-box metrics."""
        return [example.id for example in self.state_examples()]

    def entity_subjects(self) -> list[str | None]:
        """Subjects of the examples used by white-box metrics."""
        return [example.subject for example in self.state_examples()]

    def n_skipped(self) -> int:
        """Number of examples whose entity could not be located."""
        return len(self._session.plan.encoded.skipped)

    def n_layers(self) -> int:
        """Number of layers of the models."""
        return self._session.records["model"].n_layers

    def value(self, name: str) -> float:
        """Value of another metric.

        Raises:
            Undefined: The value is NaN; the message gives the reason.
            ConfigError: The metric being computed does not declare this metric in `uses`.
        """
        if self.spec is not None and name not in self.spec.uses:
            raise ConfigError(f'metric {self.spec.name!r} reads the value of {name!r}: declare uses=("{name}",).')
        outcome = self.outcomes[name]
        if math.isnan(outcome.value):
            raise Undefined(f"{name} is NaN: {outcome.reason}")
        return outcome.value

    def _declared(self, wanted: Pass) -> Pass:
        if self.spec is not None and wanted not in self.spec.passes:
            raise ConfigError(
                f"metric {self.spec.name!r} reads {wanted}, which is not one of its passes: declare this pass as well "
                "(needs_answers, needs_generations, needs_states)."
            )
        return wanted

    def _value(self, wanted: Pass) -> Any:
        return self._session.results[self._declared(wanted)].value


Score = TypeVar("Score", bound=Callable[..., Outcome])  # function from `Evidence` to `Outcome`

_declared: dict[str, MetricSpec] = {}

DECLARED: Mapping[str, MetricSpec] = MappingProxyType(_declared)
"""Metrics declared so far, in order. In `uds_lens.metrics.METRICS`, all built-in metrics are already declared."""


def metric(
    *,
    name: str,
    label: str,
    meaning: Meaning,
    group: Group = "custom",
    passes: Sequence[Pass] = (),
    uses: Sequence[str] = (),
    references: Sequence[str] = (),
    packages: Sequence[str] = (),
) -> Callable[[Score], Score]:
    """Declare a metric; the decorated function computes its value from measurements.

    The metric then appears in `METRICS` and can be measured by `evaluate` and, if the module is imported, on the
    command line. Saved results include the declaration, so they can be loaded even if the metric is not declared.

    Args:
        name: Key in results; lower-case letters, digits, `_` and `.`.
        label: Display name in tables and figures.
        meaning: Direction, meanings of 0 and 1, smallest and largest value.
        group: Family.
        passes: Measurements that the metric needs (`needs_answers`, `needs_generations`, `needs_states`).
        uses: Metrics from which this metric is computed, which must already be declared.
        references: Sets that the metric uses in addition to the sets of its passes.
        packages: Optional packages that the metric requires, by import name.

    Returns:
        A decorator that returns the function unchanged.

    Raises:
        ConfigError: The name is invalid or taken, or a metric in `uses` does not exist. A function with the same name
            and module may be declared again, as happens when a notebook cell is rerun.

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
                references=tuple(references),
                packages=tuple(packages),
            )
        )
        return score

    return declare


def add_metric(spec: MetricSpec) -> None:
    """Declare a metric from its spec, as the decorator `metric` does for a function.

    Raises:
        ConfigError: As for `metric`.
    """
    if not re.fullmatch(r"[a-z][a-z0-9_.]*", spec.name):
        raise ConfigError(
            f"metric name {spec.name[:60]!r} is invalid: use lower-case letters, digits, '_' and '.', starting with a "
            "letter."
        )
    earlier = _declared.get(spec.name)
    if earlier is not None and (earlier.origin != spec.origin or earlier.is_ours):
        raise ConfigError(
            f"metric {spec.name!r} already exists, declared by {earlier.origin}: choose another name"
            + ("." if earlier.is_ours else f", or call withdraw_metric({spec.name!r}) first.")
        )
    unknown = [name for name in spec.uses if name not in _declared and not spec.is_ours]
    if unknown:
        raise ConfigError(f"metric {spec.name!r} uses {unknown[0]!r}, which does not exist: declare it first.")
    _declared[spec.name] = spec


def withdraw_metric(name: str) -> None:
    """Withdraw a custom metric.

    Raises:
        ConfigError: The metric does not exist, is built in, or is used by other metrics.
    """
    spec = _declared.get(name)
    if spec is None or spec.is_ours:
        raise ConfigError(f"{name!r} is not a custom metric and cannot be withdrawn.")
    users = [other.name for other in _declared.values() if name in other.uses]
    if users:
        raise ConfigError(f"metric {users[0]!r} uses {name!r}: withdraw {users[0]!r} first.")
    del _declared[name]
