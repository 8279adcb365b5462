"""Plans of studies: existing models, models to make, and what to measure. Each table in the TOML file is a record."""

from __future__ import annotations

import difflib
import os
import re
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, is_dataclass
from pathlib import Path
from typing import Any, Literal, TypeAlias, TypeVar, get_args, get_origin, get_type_hints

from uds_lens._optional_packages import require_package
from uds_lens._settings import require_known, shown, validated
from uds_lens._storage.files import did_you_mean, read_file
from uds_lens._types import ChatStyleName, NonNegativeInt, PositiveInt
from uds_lens.data._prompts import ChatStyle, chat_style_named
from uds_lens.elicitation import ElicitOptions
from uds_lens.errors import ConfigError, ResultFormatError
from uds_lens.metrics import METRICS, MetricOptions
from uds_lens.metrics._catalogue import require_packages, resolve
from uds_lens.results import AuditConfig, RunOptions
from uds_lens.unlearning import TrainOptions

if sys.version_info >= (3, 11):
    from tomllib import TOMLDecodeError, loads
else:
    from tomli import TOMLDecodeError, loads

T = TypeVar("T")

Answers: TypeAlias = Literal["own", "paraphrased", "wrong", "biography"]
"""Answers to train on: the row's own, its first paraphrase, its first wrong answer, or all answers about its subject
joined."""

PlannedSampling: TypeAlias = Literal["random", "first", "first_of_each"]  # sampling of rows in a study

Role: TypeAlias = Literal["full", "retain", "pool", "unlearned", "other"]  # role of a model in a study

StateName: TypeAlias = Literal["before", "quantised", "relearned"]  # perturbation of a model before it is measured


@validated
@dataclass(frozen=True, kw_only=True)
class TrainingRows:
    """Questions and answers to train on."""

    source: str
    """A file, `toy:forget`, `toy:retain`, `toy:holdout` or, with `split`, a TOFU directory or Hub id."""

    split: str | None = None
    """Split of TOFU, for example "forget10", including its paraphrased and wrong answers."""

    answers: Answers = "own"
    """Answers to train on."""

    answers_per_row: PositiveInt | None = None
    """Number of answers per row of a biography, in case all of them are too long for the model; by default all are
    joined."""

    sample: PositiveInt | None = None
    """Number of rows, drawn without replacement; by default all."""

    seed: NonNegativeInt = 0
    """Seed of the draw."""


@validated
@dataclass(frozen=True, kw_only=True)
class QuestionSets:
    """Questions for the metrics: all TOFU sets, or single files. See `uds_lens.metrics.MetricData`."""

    tofu: str | None = None
    """TOFU directory or Hub id, instead of single files."""

    split: str = "forget10"
    """Forget split of `tofu`."""

    forget: str | None = None
    """File of the forget set."""

    holdout: str | None = None
    """File of questions no model has seen."""

    retain: str | None = None
    """File of questions about facts to keep."""

    real_authors: str | None = None
    """File of related facts."""

    world_facts: str | None = None
    """File of unrelated facts."""

    entities: str | None = None
    """File of the forget set with entities, also allowed with `tofu`; by default `forget`."""

    limit: PositiveInt | None = None
    """Use this many questions of each set; `entities` keeps the rows for the questions drawn from `forget`."""

    sample: PlannedSampling = "random"
    """"random", spread over the subjects; "first", which is not representative in a sorted file; or "first_of_each",
    the first rows of each file separately, so that white-box metrics use different questions."""

    seed: NonNegativeInt = 0
    """Seed of the random sample."""


@validated
@dataclass(frozen=True, kw_only=True)
class TrainingSets:
    """Training sets of unlearning."""

    forget: tuple[TrainingRows, ...] = ()
    """Rows to forget; relearning also trains on them."""

    retain: tuple[TrainingRows, ...] = ()
    """Rows to keep."""


@validated
@dataclass(frozen=True, kw_only=True)
class GivenModel:
    """A model that exists."""

    name: str
    """Name of the model in the tables."""

    path: str
    """Directory, Hub id, or a checkpoint of the toy world such as `toy:npo`."""

    role: Role = "unlearned"
    """Its role in the study."""

    knows: bool | None = None
    """For a pool model: True if it was trained on the forget set, False if it never saw the forget set."""

    variant: str | None = None
    """Kind of training (pool models only)."""

    run: str | None = None
    """Training run (pool models only); None means a separate run."""

    method: str | None = None
    """Unlearning method."""

    config: str | None = None
    """Settings of the method, as text."""

    revision: str | None = None
    """Branch, tag or commit on the Hub."""


@validated
@dataclass(frozen=True, kw_only=True)
class PoolRuns:
    """Models of a pool, fine-tuned from one checkpoint, one model per combination of settings."""

    variant: str
    """Name of this kind of training."""

    knows: bool
    """True if the models are trained on the forget set, False if they never see it."""

    start: str
    """Starting checkpoint: directory, Hub id or `toy:NAME`."""

    data: tuple[TrainingRows, ...]
    """Training rows; all parts are used together."""

    settings: Mapping[str, Any] = field(default_factory=dict)
    """Settings of `RelearnConfig`; a list is an axis of the grid."""


@validated
@dataclass(frozen=True, kw_only=True)
class UnlearningRuns:
    """Unlearned models: one method with one model per combination of settings, or a published grid."""

    method: str | None = None
    """A key of `uds_lens.unlearning.METHODS`."""

    settings: Mapping[str, Any] = field(default_factory=dict)
    """Settings of the method; a list is an axis of the grid."""

    grid: str | None = None
    """"paper" makes the models of the published grid; in that case, leave out the method."""

    start: str | None = None
    """Starting checkpoint; by default the plan's `full`."""


@validated
@dataclass(frozen=True, kw_only=True)
class Relearning:
    """Fine-tuning on the forget set again."""

    settings: Mapping[str, Any] = field(default_factory=dict)
    """Settings of `RelearnConfig`, one value each."""

    seeds: tuple[int, ...] = (0,)
    """Seeds for relearning full and each unlearned model, one run per seed."""

    retain_seeds: tuple[int, ...] = (0, 1, 2, 3, 4)
    """Seeds for relearning each retain model, one run per seed; their mean is the reference for all other models."""


@validated
@dataclass(frozen=True, kw_only=True)
class Perturbations:
    """Perturbations of full, retain and each unlearned model."""

    quantise: bool = False
    """Also measure these models in 4 bits (NF4, unpacked to the dtype of the other models)."""

    relearn: Relearning | None = None
    """Also measure these models after relearning."""


@validated
@dataclass(frozen=True, kw_only=True)
class MetricPrompts:
    """Chat prompts for some metrics, models and states, because published tables mix several styles."""

    style: ChatStyleName
    """A name of `uds_lens.data.CHAT_STYLES`."""

    metrics: tuple[str, ...] = ()
    """Metrics that get these prompts; all if empty."""

    roles: tuple[Role, ...] = ()
    """Models that get these prompts; all if empty."""

    states: tuple[StateName, ...] = ()
    """States in which these prompts are used; all if empty."""

    def covers(self, metric: str, role: Role, state: StateName) -> bool:
        """Return whether a measurement uses these prompts."""
        given = ((metric, self.metrics), (role, self.roles), (state, self.states))
        return all(value in chosen or not chosen for value, chosen in given)


@validated
@dataclass(frozen=True, kw_only=True)
class Measurement:
    """Items to measure."""

    metrics: tuple[str, ...] = ()
    """Names from `uds_lens.metrics.METRICS`, for every model in every state."""

    utility: tuple[str, ...] = ()
    """Utility metrics, for full, retain and unlearned models before perturbation."""

    options: Mapping[str, Any] = field(default_factory=dict)
    """Settings of `MetricOptions`."""

    prompts: tuple[MetricPrompts, ...] = ()
    """Chat prompts that differ from `options`; the first entry that matches a measurement is used."""

    fluency: str = "heuristic"
    """Scorer of the metric `fluency`: "heuristic", "hub", or a classifier."""

    audit: Mapping[str, Any] | None = None
    """Settings of `AuditConfig`, to audit every model in every state; None means no audit."""

    elicitation: Mapping[str, Any] | None = None
    """`probes` (a list or a preset) and settings of `ElicitOptions`, for unlearned models; None means no
    elicitation."""


@validated
@dataclass(frozen=True, kw_only=True)
class StudyPlan:
    """A whole study. `uds_lens.study.plan` reads a plan from TOML and checks it."""

    name: str
    """Name of the study."""

    full: str
    """Model trained on the forget set: directory, Hub id or `toy:full`."""

    retain: str
    """Model that never saw the forget set."""

    data: QuestionSets = field(default_factory=QuestionSets)
    """Questions of the metrics."""

    train: TrainingSets = field(default_factory=TrainingSets)
    """Training sets of unlearning."""

    model: tuple[GivenModel, ...] = ()
    """Existing models, in addition to full and retain."""

    pool: tuple[PoolRuns, ...] = ()
    """Pool models to make."""

    unlearn: tuple[UnlearningRuns, ...] = ()
    """Unlearned models to make."""

    perturb: Perturbations = field(default_factory=Perturbations)
    """Perturbations of full, retain and each unlearned model."""

    measure: Measurement = field(default_factory=Measurement)
    """Items to measure."""

    training: Mapping[str, Any] = field(default_factory=dict)
    """Settings of `uds_lens.unlearning.TrainOptions`."""

    running: Mapping[str, Any] = field(default_factory=dict)
    """Settings of `uds_lens.RunOptions`."""

    keep_models: bool = True
    """Keep the weights of the models that were made; if False, they are deleted once all their states are measured."""

    seed: NonNegativeInt = 0
    """Seed for the order of models."""


NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._%+=,-]{0,120}")  # names of models and variants become file names
_LARGEST = 4 << 20  # bytes of a plan


def plan(source: str | os.PathLike[str] | Mapping[str, Any] | StudyPlan) -> StudyPlan:
    """Read a plan, and check everything that can be checked without a model.

    Paths in a file are relative to the file; paths in a mapping or record are relative to the working directory.

    Args:
        source: A TOML file, its contents as a mapping, or a plan.

    Returns:
        The plan, with absolute paths.

    Raises:
        ConfigError: A setting is unknown or invalid, a name occurs twice, or something is missing.

    Example:
        >>> two = plan({"name": "two", "full": "toy:full", "retain": "toy:retain", "data": {"forget": "toy:forget"},
        ...             "model": [{"name": "npo", "path": "toy:npo"}], "measure": {"metrics": ["es"]}})
        >>> two.model[0].role
        'unlearned'
        >>> plan({"name": "two", "fulll": "toy:full"})
        Traceback (most recent call last):
            ...
        uds_lens.errors.ConfigError: the plan has no setting 'fulll'; did you mean 'full'? It has data, ...
    """
    base = Path.cwd()
    if isinstance(source, StudyPlan):
        source = as_mapping(source)
    elif isinstance(source, str | os.PathLike):
        file = Path(source).expanduser()
        source, base = _toml(file), file.resolve().parent
    elif not isinstance(source, Mapping):
        raise ConfigError(f"a plan must be a TOML file or a dict of its settings; got {shown(source)}.")
    checked = _record(StudyPlan, _with_places(source, base), "the plan")
    _check(checked)
    return checked


def as_mapping(value: StudyPlan) -> dict[str, Any]:
    """Return a plan in the form of TOML, without None and with lists instead of tuples."""

    def bare(value: Any) -> Any:
        if isinstance(value, Mapping):
            return {str(name): bare(part) for name, part in value.items() if part is not None}
        return [bare(part) for part in value] if isinstance(value, list | tuple) else value

    return bare(asdict(value))


def _toml(file: Path) -> Mapping[str, Any]:
    try:
        return loads(read_file(file, most=_LARGEST).decode("utf-8"))
    except ResultFormatError as error:
        raise ConfigError(f"no plan to read: {error}{did_you_mean(file)}") from error
    except (TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ConfigError(f"{str(file)[-200:]!r} is not valid TOML: {str(error)[:160]}. Correct that line.") from error


def _record(kind: type[T], given: Any, where: str) -> T:
    """Make records from a table and its nested tables; each record checks its own settings."""
    if not isinstance(given, Mapping):
        raise ConfigError(f"{where} must be a table of settings; got {shown(given)}.")
    require_known(where, given, [field.name for field in fields(kind)])  # type: ignore[arg-type]
    hints, values = get_type_hints(kind), dict[str, Any]()
    for name, part in given.items():
        inner: Any = next((option for option in get_args(hints[name]) or (hints[name],) if is_dataclass(option)), None)
        if inner is None or part is None:
            values[name] = tuple(part) if isinstance(part, list) else part
        elif get_origin(hints[name]) is not tuple:
            values[name] = _record(inner, part, f"[{name}]")
        elif isinstance(part, list | tuple):
            values[name] = tuple(_record(inner, item, f"[{name}]") for item in part)
        else:
            raise ConfigError(f"{name} must be a list of tables, [[{name}]]; got {shown(part)}.")
    return kind(**values)


SETS = ("forget", "holdout", "retain", "real_authors", "world_facts")  # sets of questions, except entities

_PLACES = ("full", "tofu", "path", "start", "source", "entities", *SETS)
"""Settings that are paths, Hub ids or parts of the toy world."""

_FREE = ("settings", "options", "audit", "elicitation", "training", "running")
"""Tables that hold settings of other packages, and so contain no such paths."""


def _with_places(value: Any, base: Path) -> Any:
    """Make local paths absolute; leave Hub ids and parts of the toy world unchanged."""
    if isinstance(value, list | tuple):
        return [_with_places(part, base) for part in value]
    if not isinstance(value, Mapping):
        return value
    placed = {}
    for name, part in value.items():
        if name in _PLACES and isinstance(part, str):
            placed[name] = _place(part, base)
        else:
            placed[name] = part if name in _FREE else _with_places(part, base)
    return placed


def _place(text: str, base: Path) -> str:
    if text.startswith(("toy:", "package:")):
        return text
    path = Path(text).expanduser()
    place = path if path.is_absolute() else base / path
    hub = not path.is_absolute() and text.count("/") == 1 and not text.startswith(".") and not place.exists()
    return text if hub else str(place)


def _check(checked: StudyPlan) -> None:
    from uds_lens.study._models import study_models

    for name in (checked.name, *(entry.variant for entry in checked.pool), *(entry.name for entry in checked.model)):
        if not NAME.fullmatch(name):
            raise ConfigError(f"{shown(name)} cannot be a name: use letters, digits and . _ - (it names a file).")
    for model in checked.model:
        if (model.role == "pool") != (model.knows is not None):
            fix = 'only a pool model (role = "pool") can have knows'
            if model.role == "pool":
                fix = "set knows = true or knows = false"
            raise ConfigError(f"the model {model.name!r} has role {model.role!r}: {fix}.")
    for pool in checked.pool:
        if not pool.data:
            raise ConfigError(f"the pool {pool.variant!r} has no training data: set data = [{{source = ...}}].")
    if checked.perturb.relearn is not None:
        if not checked.train.forget:
            raise ConfigError("relearning needs the forget set: set forget = [{source = ...}] in [train].")
        for seeds in (checked.perturb.relearn.seeds, checked.perturb.relearn.retain_seeds):
            if len(set(seeds)) < len(seeds) or any(seed < 0 for seed in seeds):
                raise ConfigError(f"the seeds for relearning must be different whole numbers >= 0; got {shown(seeds)}.")
    named = [name for name in SETS if getattr(checked.data, name) is not None]
    if checked.data.tofu is not None and named:
        raise ConfigError(
            f"[data] names both tofu and {named[0]}, but tofu includes all sets: leave out one of the two."
        )
    if checked.data.tofu is None and checked.data.forget is None:
        raise ConfigError('[data] names no forget set: set forget = "forget10.json", or tofu = "DIR".')
    for settings in (metric_settings, audit_settings, elicitation_settings):
        settings(checked.measure)
    for prompts in checked.measure.prompts:
        metric_settings(checked.measure, prompts.style)
        measured = {*checked.measure.metrics, *checked.measure.utility}
        if lost := [name for name in prompts.metrics if name not in measured]:
            raise ConfigError(f"[[measure.prompts]] names {lost[0][:60]!r}, which [measure] does not measure.")
    for part in (*checked.train.forget, *checked.train.retain, *(x for pool in checked.pool for x in pool.data)):
        if part.answers_per_row is not None and part.answers != "biography":
            raise ConfigError(
                f"answers_per_row splits biographies, but answers = {part.answers!r} makes none: leave out "
                "answers_per_row."
            )
    models = study_models(checked)  # checks every setting of every run
    if not any(model.items_of(state) for model in models for state in model.states):
        raise ConfigError(
            'the plan measures nothing: name metrics, for example [measure] metrics = ["uds", "es"], or an audit.'
        )


# Some tables in a plan hold settings of other packages, which become records of those packages here.


def settings_of(kind: type[T], given: Mapping[str, Any], where: str) -> T:
    """Make a settings record from a table in a plan."""
    require_known(where, given, [field.name for field in fields(kind)])  # type: ignore[arg-type]
    values = {name: tuple(value) if isinstance(value, list) else value for name, value in given.items()}
    try:
        return kind(**values)
    except (TypeError, AttributeError) as error:
        raise ConfigError(f"{where} has a value of the wrong kind: {str(error)[:160]}; got {shown(given)}.") from error


def style_of(measure: Measurement, metric: str, role: Role, state: StateName) -> ChatStyleName | None:
    """Return the chat style for a metric; None if `options` determine it."""
    return next((prompts.style for prompts in measure.prompts if prompts.covers(metric, role, state)), None)


def metric_settings(measure: Measurement, style: ChatStyleName | None = None) -> MetricOptions:
    """Check the metrics' names and return how they are measured, in a chat style if one is named."""
    if "fluency" in measure.options:
        raise ConfigError("[measure] options must not contain fluency: set it in [measure] itself.")
    if measure.prompts and set(ChatStyle.__dataclass_fields__) & set(measure.options):
        raise ConfigError(
            "[measure] sets the system turn or the date twice, in options and in prompts: leave out one of the two."
        )
    chat = {} if style is None else asdict(chat_style_named(style))
    options = settings_of(MetricOptions, {**measure.options, **chat, "fluency": measure.fluency}, "[measure] options")
    names = (*measure.metrics, *measure.utility)
    for name in names:
        if name not in METRICS:
            near = difflib.get_close_matches(name, list(METRICS), n=1)
            hint = f"did you mean {near[0]!r}? " if near else ""
            raise ConfigError(f"no metric {name[:60]!r}; {hint}`uds-lens metrics --list` lists them.")
        if names.count(name) > 1:
            raise ConfigError(f"the metric {name!r} is named twice: name it once, in metrics or in utility.")
    return options


def audit_settings(measure: Measurement) -> AuditConfig | None:
    """Return the settings of the audit, or None."""
    if measure.audit is None:
        return None
    if "uds" in measure.metrics:
        raise ConfigError("uds would be measured twice, by the audit and as a metric: leave uds out of metrics.")
    return settings_of(AuditConfig, measure.audit, "[measure] audit")


def elicitation_settings(measure: Measurement) -> tuple[tuple[str, ...] | str, ElicitOptions] | None:
    """Return the probes of the elicitation and its settings, or None."""
    if measure.elicitation is None:
        return None
    from uds_lens.elicitation._run import chosen_probes

    given = dict(measure.elicitation)
    probes = given.pop("probes", "quick")
    if isinstance(probes, list):
        probes = tuple(probes)
    chosen_probes(probes)
    return probes, settings_of(ElicitOptions, given, "[measure] elicitation")


def require_packages_of(plan: StudyPlan) -> None:
    """Raise an error if a package that the plan needs is not installed."""
    if names := (*plan.measure.metrics, *plan.measure.utility):
        require_packages(resolve(names, options=metric_settings(plan.measure)))
    if plan.measure.elicitation is not None:
        require_package("rouge_score", needed_by="[measure] elicitation needs")
    if plan.perturb.quantise:
        require_package("bitsandbytes", needed_by="[perturb] quantise needs")


def training_settings(plan: StudyPlan) -> TrainOptions:
    """Return how models are trained, without progress bars unless the plan requests them."""
    return settings_of(TrainOptions, {"progress": False, **plan.training}, "[training]")


def running_settings(plan: StudyPlan) -> RunOptions:
    """Return how models are run, without progress bars unless the plan requests them."""
    return settings_of(RunOptions, {"progress": False, "stage_2": "knowledge", **plan.running}, "[running]")
