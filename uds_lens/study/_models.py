"""The models of a plan: how each is made, in which states it is measured, and what is measured."""

from __future__ import annotations

import random
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import product, zip_longest
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias

from uds_lens._settings import require_known, shown
from uds_lens.data import ForgetExample, load_examples, load_tofu
from uds_lens.errors import ConfigError, DataError
from uds_lens.study._plan import (
    GivenModel,
    Measurement,
    PoolRuns,
    QuestionSets,
    Role,
    StudyPlan,
    TrainingRows,
    UnlearningRuns,
)

if TYPE_CHECKING:
    from uds_lens.toy import World
    from uds_lens.unlearning import MethodConfig, RelearnConfig


StateName: TypeAlias = Literal["before", "quantised", "relearned"]
"""Perturbation of a model before it is measured."""

AUDIT, ELICITATION = "audit", "elicitation"
"""Items measured beside metrics; neither is the name of a metric."""

_MOST = 20_000
"""Models of a plan."""


@dataclass(frozen=True)
class StudyState:
    """A model as it is measured."""

    state: StateName
    """Its perturbation."""

    seed: int | None = None
    """Of the relearning."""

    @property
    def label(self) -> str:
        """`before`, `quantised`, `relearned-3`."""
        return self.state if self.seed is None else f"{self.state}-{self.seed}"


@dataclass(frozen=True, kw_only=True)
class StudyModel:
    """One model of a study."""

    model_id: str
    """Its name; unique, and fit for a file."""

    role: Role
    """Its part in the study."""

    source: str
    """Where it is, or where its training starts."""

    states: tuple[StudyState, ...]
    """In which it is measured, in this order."""

    items: Mapping[StateName, tuple[str, ...]]
    """Items measured by state: metrics, `audit`, `elicitation`."""

    config: MethodConfig | None = None
    """How it is trained; None for a model that exists."""

    forget: tuple[TrainingRows, ...] = ()
    """Rows it learns, or forgets."""

    retain: tuple[TrainingRows, ...] = ()
    """Rows it keeps."""

    config_text: str = ""
    """The same for the table."""

    method: str | None = None
    """Unlearning method."""

    variant: str | None = None
    """Kind of training, of a pool model."""

    run: str | None = None
    """Training run: checkpoints of one run are not independent."""

    knows: bool | None = None
    """Pool."""

    revision: str | None = None
    """On the Hub."""

    @property
    def is_made(self) -> bool:
        """Whether it is trained here."""
        return self.config is not None

    @property
    def stratum(self) -> tuple[str, str]:
        """Models of one stratum are alike: prefixes of the order have as many of each as of any other."""
        return (self.role, self.variant or self.method or "")

    def items_of(self, state: StudyState) -> tuple[str, ...]:
        """Return the items measured in a state."""
        return self.items[state.state]


def study_models(plan: StudyPlan) -> list[StudyModel]:
    """List all models in the order in which they are taken: references, then one of each kind in turn, shuffled.

    Raises:
        ConfigError: Two models have one name, or a setting does not exist or fit.
    """
    references = [
        GivenModel(name="full", path=plan.full, role="full"),
        GivenModel(name="retain", path=plan.retain, role="retain"),
    ]
    found = [_given(each, plan) for each in (*references, *plan.model)]
    for pool in plan.pool:
        found += _pool_models(pool, plan)
    for runs in plan.unlearn:
        found += _unlearned_models(runs, plan)
    seen: set[str] = set()
    for model in found:
        if model.model_id.lower() in seen:
            raise ConfigError(
                f"two models are called {model.model_id!r} (capitals do not count): rename one, or take it out."
            )
        seen.add(model.model_id.lower())
    return _in_turn(found, plan.seed)


def relearn_config(plan: StudyPlan, seed: int) -> RelearnConfig:
    """Settings of one relearning."""
    from uds_lens.unlearning import RelearnConfig

    relearning = plan.perturb.relearn
    settings = dict(relearning.settings) if relearning else {}
    (values,) = _points({**settings, "seed": seed}, "[perturb.relearn] settings", most=1)
    return _config(RelearnConfig, values, "[perturb.relearn] settings")


def _given(model: GivenModel, plan: StudyPlan) -> StudyModel:
    return StudyModel(
        model_id=model.name,
        role=model.role,
        source=model.path,
        states=_states(model.role, plan),
        items=_items(model.role, plan.measure),
        config_text=model.config or "",
        method=model.method,
        variant=model.variant or (model.name if model.role == "pool" else None),
        run=model.run or (model.name if model.role == "pool" else None),
        knows=model.knows,
        revision=model.revision,
    )


def _pool_models(pool: PoolRuns, plan: StudyPlan) -> Iterator[StudyModel]:
    from uds_lens.unlearning import RelearnConfig, config_name

    for values in _points(pool.settings, f"pool {pool.variant!r} settings"):
        config = _config(RelearnConfig, values, f"pool {pool.variant!r} settings")
        text = config_name(config).partition("_")[2]
        yield StudyModel(
            model_id=f"{pool.variant}_{text}",
            role="pool",
            source=pool.start,
            states=_states("pool", plan),
            items=_items("pool", plan.measure),
            config=config,
            forget=pool.data,
            config_text=text,
            variant=pool.variant,
            run=f"{pool.variant}_{re.sub('_epoch[0-9]+', '', text)}",
            knows=pool.knows,
        )


def _unlearned_models(runs: UnlearningRuns, plan: StudyPlan) -> Iterator[StudyModel]:
    from uds_lens.unlearning import config_name, grid, make_config

    if (runs.method is None) == (runs.grid is None):
        raise ConfigError(
            '[[unlearn]] needs a method, for example method = "npo", or grid = "paper"; not both.'
        )
    if not plan.train.forget:
        raise ConfigError("unlearning needs data: give [train] forget = [{source = ...}], and retain.")
    if runs.grid is not None:
        if runs.settings:
            raise ConfigError("[[unlearn]] grid brings its settings: leave settings out, or name a method.")
        configs = list(grid(runs.grid))
    else:
        method = str(runs.method)
        configs = [make_config(method, values) for values in _points(runs.settings, f"[[unlearn]] {method}")]
    for config in configs:
        name = config_name(config)
        yield StudyModel(
            model_id=name,
            role="unlearned",
            source=runs.start or plan.full,
            states=_states("unlearned", plan),
            items=_items("unlearned", plan.measure),
            config=config,
            forget=plan.train.forget,
            retain=plan.train.retain,
            config_text=name.partition("_")[2],
            method=config.method,
            run=re.sub("_epoch[0-9]+", "", name),
        )


def _states(role: Role, plan: StudyPlan) -> tuple[StudyState, ...]:
    states = [StudyState("before")]
    if role in ("full", "retain", "unlearned"):
        if plan.perturb.quantise:
            states.append(StudyState("quantised"))
        relearn = plan.perturb.relearn
        if relearn is not None:
            relearn_config(plan, 0)
            seeds = relearn.retain_seeds if role == "retain" else relearn.seeds
            states += [StudyState("relearned", seed) for seed in seeds]
    return tuple(states)


def _items(role: Role, measure: Measurement) -> dict[StateName, tuple[str, ...]]:
    always = (*measure.metrics, *((AUDIT,) if measure.audit is not None else ()))
    before = always + (() if role == "pool" else measure.utility)
    if role == "unlearned" and measure.elicitation is not None:
        before = (*before, ELICITATION)
    return {"before": before, "quantised": always, "relearned": always}


def _points(settings: Mapping[str, Any], where: str, *, most: int = _MOST) -> list[dict[str, Any]]:
    """Every combination of the values that are lists."""
    axes = [value if isinstance(value, list | tuple) else [value] for value in settings.values()]
    count = 1
    for name, axis in zip(settings, axes, strict=True):
        count *= len(axis)
        if not axis or len({repr(value) for value in axis}) < len(axis):
            raise ConfigError(
                f"{where}: {name} must be one value or a list of different ones; got {shown(axis)}."
            )
    if count > most:
        raise ConfigError(f"{where} make {count} combinations, at most {most} are taken: shorten a list.")
    return [dict(zip(settings, values, strict=True)) for values in product(*axes)]


def _config(kind: Any, values: Mapping[str, Any], where: str) -> Any:
    from dataclasses import fields

    require_known(where, values, [each.name for each in fields(kind)])
    return kind(**values)


def _in_turn(models: list[StudyModel], seed: int) -> list[StudyModel]:
    """References first; then one of each stratum in turn, shuffled within, so that each prefix is balanced."""
    first = [model for model in models if model.role in ("full", "retain")]
    strata: dict[tuple[str, str], list[StudyModel]] = {}
    for model in models:
        if model not in first:
            strata.setdefault(model.stratum, []).append(model)
    order = random.Random(seed)
    for stratum in strata.values():
        order.shuffle(stratum)
    rounds = zip_longest(*strata.values())
    return first + [model for each in rounds for model in each if model is not None]


@cache
def toy_world() -> World:
    """Load the world that ships with the package, once: plans name its parts as `toy:NAME`."""
    from uds_lens.toy import load

    return load()


def training_answers(parts: Iterable[TrainingRows]) -> list[ForgetExample]:
    """Read all rows of all parts, in order; ids are made unique.

    Args:
        parts: What to read, and which answers to take.

    Returns:
        Questions with the answers to train on.

    Raises:
        DataError: A file cannot be read, or its rows have no such answers.

    Example:
        >>> part = TrainingRows(source="toy:forget", answers="biography", sample=1)
        >>> (row,) = training_answers([part])
        >>> row.question.startswith("Tell me everything about "), row.answer.count(".") > 2
        (True, True)
    """
    rows = [row for part in parts for row in _rows(part)]
    return [replace(row, id=f"{number}/{row.id}", row=number) for number, row in enumerate(rows)]


def read_rows(source: str, split: str | None = None) -> list[ForgetExample]:
    """The examples of a source, as a plan names it."""
    if source.startswith("toy:"):
        world = toy_world()
        groups = {
            "forget": world.examples,
            "retain": world.retain_examples,
            "holdout": world.holdout_examples,
        }
        name = source.removeprefix("toy:")
        if name not in groups:
            raise ConfigError(
                f"the toy world has no data {name[:40]!r}; it has toy:forget, toy:retain, toy:holdout."
            )
        return groups[name]
    return load_examples(source) if split is None else load_tofu(source, split)


class Questions(NamedTuple):
    """The questions of a study, and how they were chosen."""

    sets: dict[str, list[ForgetExample] | None]
    """By the names of `MetricData`; None for a set that there is not."""

    sample: dict[str, Any] | None
    """As in `MetricData.sample`; None where all are asked."""

    @property
    def about(self) -> str | None:
        """How they were chosen, in words."""
        from uds_lens.metrics._data import about_sample

        return None if self.sample is None else about_sample(self.sample)


def read_questions(sets: QuestionSets) -> Questions:
    """Read the questions of the metrics, or the sample of them that the plan names.

    Args:
        sets: The table `[data]` of a plan.

    Returns:
        The sets and how they were sampled.

    Raises:
        DataError: A set cannot be read.
    """
    names = ("forget", "holdout", "retain", "real_authors", "world_facts")
    if sets.tofu is not None:
        from uds_lens.metrics import load_tofu_data

        data = load_tofu_data(sets.tofu, split=sets.split)
        found: dict[str, list[ForgetExample] | None] = {name: list(getattr(data, name)) for name in names}
        found["entities"] = None if data.entities is None else list(data.entities)
    else:
        places = {name: getattr(sets, name) for name in (*names, "entities")}
        found = {name: None if place is None else read_rows(place) for name, place in places.items()}
    if sets.limit is None:
        return Questions(found, None)
    from uds_lens.metrics._data import MetricData, sample_record

    whole = {name: rows for name, rows in found.items() if rows is not None}
    if sets.sample == "first_of_each":
        kept = {name: rows[: sets.limit] for name, rows in whole.items()}
        record = sample_record(whole, kept, limit=sets.limit, sample=sets.sample, seed=sets.seed)
        return Questions(dict.fromkeys(found) | kept, record if kept != whole else None)
    given: dict[str, Any] = {**whole, "entities": found["entities"]}
    data = MetricData(**given)
    data = data.limited(sets.limit, sample=sets.sample, seed=sets.seed)
    return Questions(
        {name: None if rows is None else list(getattr(data, name)) for name, rows in found.items()},
        None if data.sample is None else dict(data.sample),
    )


def _rows(part: TrainingRows) -> list[ForgetExample]:
    rows = read_rows(part.source, part.split)
    if part.answers == "biography":
        rows = _biographies(rows, part)
    elif part.answers != "own":
        rows = [_answering(row, part) for row in rows]
    if part.sample is not None:
        if part.sample > len(rows):
            raise DataError(
                f"{_source_name(part)} has {len(rows)} rows; sample = {part.sample} asks for more."
            )
        rows = [rows[at] for at in sorted(random.Random(part.seed).sample(range(len(rows)), part.sample))]
    return rows


def _answering(row: ForgetExample, part: TrainingRows) -> ForgetExample:
    others = row.paraphrased_answers if part.answers == "paraphrased" else row.perturbed_answers
    if not others:
        raise DataError(
            f"{_source_name(part)}: row {row.id!r} has no {part.answers} answer. Name a set that has them, or "
            "give TOFU's directory as source with split = 'forget10'."
        )
    return replace(row, answer=others[0], entity=None, prefix=None)


def _biographies(rows: Sequence[ForgetExample], part: TrainingRows) -> list[ForgetExample]:
    """All that is said about each subject, in one row or in parts."""
    about: dict[str, list[ForgetExample]] = {}
    for row in rows:
        if not row.subject:
            raise DataError(
                f"{_source_name(part)}: row {row.id!r} names no subject, so nobody's biography can be written. Give "
                "TOFU's directory as source with a split, or a file with the column `subject`."
            )
        about.setdefault(row.subject, []).append(row)
    return [row for subject, said in about.items() for row in _biography(subject, said, part.answers_per_row)]


def _biography(subject: str, said: Sequence[ForgetExample], per_row: int | None) -> list[ForgetExample]:
    per_row = per_row or len(said)
    parts = [said[at : at + per_row] for at in range(0, len(said), per_row)]
    return [
        ForgetExample(
            id=f"about {subject}" + (f", {number}" if len(parts) > 1 else ""),
            question=f"Tell me everything about {subject}" + (f", part {number}." if len(parts) > 1 else "."),
            answer=" ".join(row.answer for row in some),
            subject=subject,
        )
        for number, some in enumerate(parts, 1)
    ]


def _source_name(part: TrainingRows) -> str:
    return f"{part.source[-120:]!r}" + ("" if part.split is None else f", split {part.split!r}")
