"""The plan of a study: models that exist or are made, and what is measured of them. One record per TOML table."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, is_dataclass
from pathlib import Path
from types import UnionType
from typing import (
    TYPE_CHECKING,
    Any,
    Literal,
    TypeAlias,
    TypeVar,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

from uds_lens._optional_packages import require_package
from uds_lens._settings import (
    require_known,
    shown,
    validated,
)
from uds_lens._storage import conform, read_file
from uds_lens._types import NonNegativeInt, PositiveInt
from uds_lens.errors import ConfigError, ResultFormatError

if TYPE_CHECKING:
    from uds_lens.elicitation import ElicitOptions
    from uds_lens.metrics import MetricOptions
    from uds_lens.results import AuditConfig, RunOptions
    from uds_lens.unlearning import TrainOptions


Answers: TypeAlias = Literal["own", "paraphrased", "wrong", "biography"]
"""Answers to train on: the own one, the first paraphrase, the first wrong one, or all of a subject joined."""

PlannedSampling: TypeAlias = Literal["random", "first", "first_of_each"]
"""Rows that a limit keeps in a study."""

Role: TypeAlias = Literal["full", "retain", "pool", "unlearned", "other"]
"""Part of a model in a study."""


@validated
@dataclass(frozen=True, kw_only=True)
class TrainingRows:
    """Questions and answers to train on."""

    source: str
    """File, `toy:forget`, `toy:retain`, `toy:holdout`, or with `split` a TOFU directory or Hub id."""

    split: str | None = None
    """Split of TOFU, for example "forget10"; its paraphrased and wrong answers are joined in."""

    answers: Answers = "own"
    """Answers to train on."""

    answers_per_row: PositiveInt | None = None
    """Of a biography: how many answers one row joins, where all of them would be longer than what the model can read;
    None joins all."""

    sample: PositiveInt | None = None
    """That many rows, drawn without replacement; None takes all."""

    seed: NonNegativeInt = 0
    """Of the draw."""


@validated
@dataclass(frozen=True, kw_only=True)
class QuestionSets:
    """Questions of the metrics: one place with all TOFU sets, or single files. See `uds_lens.metrics.MetricData`."""

    tofu: str | None = None
    """TOFU directory or Hub id; then no other set is named."""

    split: str = "forget10"
    """Its forget split."""

    forget: str | None = None
    """File of the forget set."""

    holdout: str | None = None
    """File of questions no model has seen."""

    retain: str | None = None
    """File of questions about what is kept."""

    real_authors: str | None = None
    """File of related facts."""

    world_facts: str | None = None
    """File of unrelated facts."""

    entities: str | None = None
    """File of the forget set with entities; None takes `forget`."""

    limit: PositiveInt | None = None
    """Use this many of each set; `entities` keeps the rows of the questions drawn from `forget`."""

    sample: PlannedSampling = "random"
    """Which: "random", spread over the subjects; "first" for the first ones, which in a sorted file stand for
    themselves only; or "first_of_each" for the first ones of each file by itself, `entities` too, as every study took
    them before samples were random: white-box metrics are then measured on other questions than the rest."""

    seed: NonNegativeInt = 0
    """Of the random sample."""


@validated
@dataclass(frozen=True, kw_only=True)
class TrainingSets:
    """Training sets of unlearning."""

    forget: tuple[TrainingRows, ...] = ()
    """To forget; relearning takes it too."""

    retain: tuple[TrainingRows, ...] = ()
    """To keep."""


@validated
@dataclass(frozen=True, kw_only=True)
class GivenModel:
    """A model that exists."""

    name: str
    """Its name in the tables."""

    path: str
    """Directory, Hub id, or a checkpoint of the toy world such as `toy:npo`."""

    role: Role = "unlearned"
    """Its part in the study."""

    knows: bool | None = None
    """Pool of a pool model: True was trained on the forget set, False never saw it."""

    variant: str | None = None
    """Kind of training, of a pool model."""

    run: str | None = None
    """Training run, of a pool model; None is a run of its own."""

    method: str | None = None
    """Unlearning method."""

    config: str | None = None
    """Its settings, as text."""

    revision: str | None = None
    """Branch, tag or commit on the Hub."""


@validated
@dataclass(frozen=True, kw_only=True)
class PoolRuns:
    """Models of a pool: fine-tuned from one start, once per combination of settings."""

    variant: str
    """Name of this kind of training."""

    knows: bool
    """True: trained on the forget set; False: never saw it."""

    start: str
    """Where each run starts: directory, Hub id or `toy:NAME`."""

    data: tuple[TrainingRows, ...]
    """Training rows, all parts together."""

    settings: Mapping[str, Any] = field(default_factory=dict)
    """Settings of `RelearnConfig`; a list is an axis of the grid."""


@validated
@dataclass(frozen=True, kw_only=True)
class UnlearningRuns:
    """Unlearned models: one method, once per combination of settings, or a published grid."""

    method: str | None = None
    """A word of `uds_lens.unlearning.METHODS`."""

    settings: Mapping[str, Any] = field(default_factory=dict)
    """Its settings; a list is an axis of the grid."""

    grid: str | None = None
    """Instead of a method: "paper"."""

    start: str | None = None
    """Where each run starts; None is the plan's `full`."""


@validated
@dataclass(frozen=True, kw_only=True)
class Relearning:
    """Fine-tuning on the forget set again."""

    settings: Mapping[str, Any] = field(default_factory=dict)
    """Settings of `RelearnConfig`, one value each."""

    seeds: tuple[int, ...] = (0,)
    """One relearning per seed of full and each unlearned model."""

    retain_seeds: tuple[int, ...] = (0, 1, 2, 3, 4)
    """One relearning per seed of each retain model: all other models are compared with their mean."""


@validated
@dataclass(frozen=True, kw_only=True)
class Perturbations:
    """Perturbations of full, retain and each unlearned model after they were measured."""

    quantise: bool = False
    """Measure them in 4 bits too (NF4, unpacked to the dtype of the others)."""

    relearn: Relearning | None = None
    """Measure them after relearning too."""


@validated
@dataclass(frozen=True, kw_only=True)
class Measurement:
    """Items to measure."""

    metrics: tuple[str, ...] = ()
    """Names from `uds_lens.metrics.METRICS`, of every model in every state."""

    utility: tuple[str, ...] = ()
    """Metrics of utility, of full, retain and unlearned models before they are perturbed."""

    options: Mapping[str, Any] = field(default_factory=dict)
    """Settings of `MetricOptions`."""

    fluency: str = "heuristic"
    """Scorer of the metric `fluency`: "heuristic", "hub", or a classifier."""

    audit: Mapping[str, Any] | None = None
    """Settings of `AuditConfig`: audit every model in every state and save the audits; None audits nothing."""

    elicitation: Mapping[str, Any] | None = None
    """`probes`, a list or a preset, beside settings of `ElicitOptions`: ask the unlearned models; None asks nothing."""


@validated
@dataclass(frozen=True, kw_only=True)
class StudyPlan:
    """A whole study. `uds_lens.study.plan` reads one from TOML and checks it."""

    name: str
    """Name of the study."""

    full: str
    """Model that knows: directory, Hub id or `toy:full`."""

    retain: str
    """Model that never saw the forget set."""

    data: QuestionSets = field(default_factory=QuestionSets)
    """Questions of the metrics."""

    train: TrainingSets = field(default_factory=TrainingSets)
    """Training sets of unlearning."""

    model: tuple[GivenModel, ...] = ()
    """Models that exist, beside full and retain."""

    pool: tuple[PoolRuns, ...] = ()
    """Models that know or never knew, to be made."""

    unlearn: tuple[UnlearningRuns, ...] = ()
    """Unlearned models, to be made."""

    perturb: Perturbations = field(default_factory=Perturbations)
    """Perturbations."""

    measure: Measurement = field(default_factory=Measurement)
    """Items to measure."""

    training: Mapping[str, Any] = field(default_factory=dict)
    """Settings of `uds_lens.unlearning.TrainOptions`."""

    running: Mapping[str, Any] = field(default_factory=dict)
    """Settings of `uds_lens.RunOptions`."""

    keep_models: bool = True
    """Keep the weights of models that were made; False deletes them once all their states are measured."""

    seed: NonNegativeInt = 0
    """Of the order in which models are taken."""


# A plan from a TOML file, a mapping or a record, with everything checked that can be checked without a
# model.

if sys.version_info >= (3, 11):
    from tomllib import TOMLDecodeError, loads
else:
    from tomli import TOMLDecodeError, loads

T = TypeVar("T")

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._%+=,-]{0,120}")
"""Names of models and variants: they become names of files."""

_LARGEST = 4 << 20
"""Bytes of a plan."""


def plan(source: str | os.PathLike[str] | Mapping[str, Any] | StudyPlan) -> StudyPlan:
    """Read a plan and check it.

    Paths in a file are relative to the file; those in a mapping or record to the working directory.

    Args:
        source: A TOML file, its contents as a mapping, or a plan.

    Returns:
        The plan, with absolute paths.

    Raises:
        ConfigError: A setting is unknown or of the wrong kind, a name occurs twice, or something named is not there.

    Example:
        >>> found = plan({"name": "two", "full": "toy:full", "retain": "toy:retain", "data": {"forget": "toy:forget"},
        ...               "model": [{"name": "npo", "path": "toy:npo"}], "measure": {"metrics": ["es"]}})
        >>> found.model[0].role
        'unlearned'
        >>> plan({"name": "two", "fulll": "toy:full"})
        Traceback (most recent call last):
            ...
        uds_lens.errors.ConfigError: the plan has no setting 'fulll'; did you mean 'full'? It has data, ...
    """
    base = Path.cwd()
    if isinstance(source, StudyPlan):
        source = as_mapping(source)
    elif not isinstance(source, Mapping | str | os.PathLike):
        raise ConfigError(f"a plan is a TOML file, or its settings as a dict; got {shown(source)}.")
    elif not isinstance(source, Mapping):
        file = Path(source).expanduser()
        source, base = _toml(file), file.resolve().parent
    _known(StudyPlan, source, "the plan")
    try:
        found = conform(StudyPlan, dict(source), where="plan")
    except ResultFormatError as error:
        raise ConfigError(str(error)) from error
    placed = conform(StudyPlan, _placed(as_mapping(found), base), where="plan")
    _check(placed)
    return placed


def as_mapping(value: StudyPlan) -> dict[str, Any]:
    """A plan as TOML has it: without what is None, tuples as lists."""
    return _bare(asdict(value))


def _bare(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(name): _bare(part) for name, part in value.items() if part is not None}
    return [_bare(part) for part in value] if isinstance(value, list | tuple) else value


def _toml(file: Path) -> Mapping[str, Any]:
    try:
        return loads(read_file(file, most=_LARGEST).decode("utf-8"))
    except ResultFormatError as error:
        raise ConfigError(f"no plan to read: {error}") from error
    except (TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ConfigError(f"{str(file)[-200:]!r} is no TOML: {str(error)[:160]}. Mend that line.") from error


def _known(kind: Any, value: Any, where: str) -> None:
    """Unknown names at any depth, with the nearest one that exists."""
    if not isinstance(value, Mapping):
        raise ConfigError(f"{where} must be a table of settings; got {shown(value)}.")
    require_known(where, value, [each.name for each in fields(kind)])
    hints = get_type_hints(kind)
    for name, part in value.items():
        inner = _record_in(hints[name])
        if inner is not None and part is not None:
            several = get_origin(hints[name]) is tuple
            if several and not isinstance(part, list | tuple):
                raise ConfigError(f"{name} must be a list of tables, [[{name}]]; got {shown(part)}.")
            for each in part if several else [part]:
                _known(inner, each, f"[{name}]")


def _record_in(hint: Any) -> Any:
    """The record a field holds, or holds several of; None for plain values."""
    if is_dataclass(hint):
        return hint
    if get_origin(hint) in (tuple, Union, UnionType):
        return next((each for each in get_args(hint) if is_dataclass(each)), None)
    return None


_PLACES = {
    "full",
    "retain",
    "forget",
    "holdout",
    "real_authors",
    "world_facts",
    "entities",
    "tofu",
    "path",
} | {
    "start",
    "source",
}


def _placed(value: Any, base: Path) -> Any:
    """Local paths made absolute; Hub ids and the toy world stay as they are."""
    if isinstance(value, list):
        return [_placed(part, base) for part in value]
    if not isinstance(value, Mapping):
        return value
    return {
        name: _place(part, base)
        if name in _PLACES and isinstance(part, str)
        else part
        if name in ("settings", "options", "audit", "elicitation", "training", "running")
        else _placed(part, base)
        for name, part in value.items()
    }


def _place(text: str, base: Path) -> str:
    if text.startswith("toy:"):
        return text
    path = Path(text).expanduser()
    there = path if path.is_absolute() else base / path
    hub = not path.is_absolute() and text.count("/") == 1 and not text.startswith(".") and not there.exists()
    return text if hub else str(there)


def _check(found: StudyPlan) -> None:
    from uds_lens.study._models import study_models

    for name in (found.name, *(each.variant for each in found.pool), *(each.name for each in found.model)):
        if not NAME.fullmatch(name):
            raise ConfigError(
                f"{shown(name)} cannot be a name: use letters, digits and . _ - (it names a file)."
            )
    _check_models(found)
    _check_sets(found.data)
    _check_measure(found.measure)
    for group in (found.train.forget, found.train.retain, *(each.data for each in found.pool)):
        for rows in group:
            _check_rows(rows)
    models = study_models(found)  # checks every setting of every run
    if not any(model.items_of(state) for model in models for state in model.states):
        raise ConfigError(
            'the plan measures nothing: name metrics, for example [measure] metrics = ["uds", "es"], or an audit.'
        )


def _check_models(found: StudyPlan) -> None:
    for model in found.model:
        _check_given(model)
    for each in found.pool:
        if not each.data:
            raise ConfigError(
                f"the pool {each.variant!r} trains on nothing: give it data = [{{source = ...}}]."
            )
    relearn = found.perturb.relearn
    if relearn is not None:
        if not found.train.forget:
            raise ConfigError("relearning needs the forget set: give [train] forget = [{source = ...}].")
        for seeds in (relearn.seeds, relearn.retain_seeds):
            if len(set(seeds)) < len(seeds) or any(seed < 0 for seed in seeds):
                raise ConfigError(
                    f"seeds of relearning must be different whole numbers >= 0; got {shown(seeds)}."
                )


def _check_given(model: GivenModel) -> None:
    if (model.role == "pool") != (model.knows is not None):
        fix = (
            "say knows = true or knows = false" if model.role == "pool" else 'knows belongs to role = "pool"'
        )
        raise ConfigError(f"the model {model.name!r} has role {model.role!r}: {fix}.")


def _check_sets(sets: QuestionSets) -> None:
    files = ("forget", "holdout", "retain", "real_authors", "world_facts", "entities")
    named = [name for name in files if getattr(sets, name) is not None]
    if sets.tofu is not None and named:
        raise ConfigError(
            f"[data] names tofu and {named[0]}: tofu brings all sets; leave out one of the two."
        )
    if sets.tofu is None and sets.forget is None:
        raise ConfigError('[data] names no forget set: give forget = "forget10.json", or tofu = "DIR".')


def _check_rows(rows: TrainingRows) -> None:
    if rows.answers_per_row is not None and rows.answers != "biography":
        raise ConfigError(
            f"answers_per_row cuts biographies into parts, and answers = {rows.answers!r} has none: leave it out."
        )


def _check_measure(measure: Measurement) -> None:

    metric_settings(measure)
    audit_settings(measure)
    elicitation_settings(measure)


# The tables of a plan that hold settings of other rooms, as the records of those rooms.


def settings_of(kind: type[T], given: Mapping[str, Any], where: str) -> T:
    """A record of settings from a table of a plan.

    Raises:
        ConfigError: A name is unknown, or a value does not fit.
    """
    require_known(where, given, [each.name for each in fields(kind)])  # type: ignore[arg-type]
    values = {name: tuple(value) if isinstance(value, list) else value for name, value in given.items()}
    try:
        return kind(**values)
    except (TypeError, AttributeError) as error:
        raise ConfigError(
            f"{where} has a value of the wrong kind: {str(error)[:160]}; got {shown(given)}."
        ) from error


def metric_settings(measure: Measurement) -> MetricOptions:
    """How metrics are measured; checks their names too."""
    from uds_lens.metrics import METRICS, MetricOptions

    if "fluency" in measure.options:
        raise ConfigError("[measure] options: fluency stands in [measure] itself.")
    options = settings_of(MetricOptions, {**measure.options, "fluency": measure.fluency}, "[measure] options")
    for name in (*measure.metrics, *measure.utility):
        if name not in METRICS:
            import difflib

            near = difflib.get_close_matches(name, list(METRICS), n=1)
            hint = f"did you mean {near[0]!r}? " if near else ""
            raise ConfigError(
                f"no metric {name[:60]!r}; {hint}`uds-lens metrics --list` shows those there are."
            )
    both = (*measure.metrics, *measure.utility)
    twice = next((name for name in both if both.count(name) > 1), None)
    if twice is not None:
        raise ConfigError(f"the metric {twice!r} is named twice: name it once, in metrics or in utility.")
    return options


def audit_settings(measure: Measurement) -> AuditConfig | None:
    """Return the settings of the audit, or None."""
    from uds_lens.results import AuditConfig

    if measure.audit is None:
        return None
    if "uds" in measure.metrics:
        raise ConfigError(
            "uds would be measured twice, by the audit and as a metric: leave it out of metrics."
        )
    return settings_of(AuditConfig, measure.audit, "[measure] audit")


def elicitation_settings(measure: Measurement) -> tuple[tuple[str, ...] | str, ElicitOptions] | None:
    """Return the probes of the elicitation and its settings, or None."""
    if measure.elicitation is None:
        return None
    from uds_lens.elicitation import ElicitOptions
    from uds_lens.elicitation._run import chosen_probes

    given = dict(measure.elicitation)
    probes = given.pop("probes", "quick")
    if isinstance(probes, list):
        probes = tuple(probes)
    chosen_probes(probes)
    return probes, settings_of(ElicitOptions, given, "[measure] elicitation")


def require_packages_of(plan: StudyPlan) -> None:
    """Raise where the plan asks for something whose package is not installed.

    Raises:
        MissingDependencyError: With the command that installs it.
    """
    from uds_lens.metrics._catalogue import require_packages, resolve

    asked = (*plan.measure.metrics, *plan.measure.utility)
    if asked:
        require_packages(resolve(asked, options=metric_settings(plan.measure)))
    if plan.measure.elicitation is not None:
        require_package("rouge_score", needed_by="[measure] elicitation needs")
    if plan.perturb.quantise:
        require_package("bitsandbytes", needed_by="[perturb] quantise needs")


def training_settings(plan: StudyPlan) -> TrainOptions:
    """How models are trained; no bar unless one is asked for."""
    from uds_lens.unlearning import TrainOptions

    return settings_of(TrainOptions, {"progress": False, **plan.training}, "[training]")


def running_settings(plan: StudyPlan) -> RunOptions:
    """How models are run; no bar unless one is asked for."""
    from uds_lens.results import RunOptions

    return settings_of(RunOptions, {"progress": False, **plan.running}, "[running]")
