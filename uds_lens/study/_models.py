"""The models in a plan: how each one is made, its states, and the items to measure."""

from __future__ import annotations

import math
import random
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import product, zip_longest
from typing import TYPE_CHECKING, Any

from uds_lens._settings import shown
from uds_lens.data import ForgetExample, load_examples, load_tofu
from uds_lens.data._columns import with_authors
from uds_lens.errors import ConfigError, DataError
from uds_lens.study._plan import (
    SETS,
    GivenModel,
    PoolRuns,
    QuestionSets,
    Role,
    StateName,
    StudyPlan,
    TrainingRows,
    UnlearningRuns,
    settings_of,
)
from uds_lens.toy import World, load
from uds_lens.unlearning import RelearnConfig

if TYPE_CHECKING:
    from uds_lens.metrics import MetricData
    from uds_lens.unlearning import MethodConfig


AUDIT, ELICITATION = "audit", "elicitation"  # items measured in addition to metrics; neither is the name of a metric
_MOST = 20_000  # maximum number of models in a plan


@dataclass(frozen=True)
class StudyState:
    """A state in which a model is measured."""

    state: StateName
    """Its perturbation."""

    seed: int | None = None
    """Seed of the relearning."""

    @property
    def label(self) -> str:
        """`before`, `quantised`, `relearned-3`."""
        return self.state if self.seed is None else f"{self.state}-{self.seed}"


@dataclass(frozen=True, kw_only=True)
class StudyModel:
    """One model of a study."""

    model_id: str
    """Its name, unique and valid as a file name."""

    role: Role
    """Its role in the study."""

    source: str
    """Its checkpoint, or the checkpoint its training starts from."""

    states: tuple[StudyState, ...]
    """States in which it is measured, in order."""

    items: Mapping[StateName, tuple[str, ...]]
    """Items measured by state: metrics, `audit`, `elicitation`."""

    config: MethodConfig | None = None
    """Configuration of its training; None for an existing model."""

    forget: tuple[TrainingRows, ...] = ()
    """Rows to learn or to forget."""

    retain: tuple[TrainingRows, ...] = ()
    """Rows to keep."""

    config_text: str = ""
    """The configuration as text, for the table."""

    method: str | None = None
    """Unlearning method."""

    variant: str | None = None
    """Kind of training (pool models)."""

    run: str | None = None
    """Training run: checkpoints of one run are not independent."""

    knows: bool | None = None
    """Whether it was trained on the forget set (pool models)."""

    revision: str | None = None
    """Revision on the Hub."""

    @property
    def is_made(self) -> bool:
        """Whether it is trained here."""
        return self.config is not None

    @property
    def stratum(self) -> tuple[str, str]:
        """Kind of model. Models of different kinds alternate, so that a study cut short has models of every kind."""
        return (self.role, self.variant or self.method or "")

    def items_of(self, state: StudyState) -> tuple[str, ...]:
        """Return the items measured in a state."""
        return self.items[state.state]


def study_models(plan: StudyPlan) -> list[StudyModel]:
    """List all models in processing order: references first, then shuffled models, one of each kind in turn.

    Raises:
        ConfigError: Two models have the same name, or a setting is unknown or invalid.
    """
    references = [
        GivenModel(name="full", path=plan.full, role="full"),
        GivenModel(name="retain", path=plan.retain, role="retain"),
    ]
    models = [_given(model, plan) for model in (*references, *plan.model)]
    for pool in plan.pool:
        models += _pool_models(pool, plan)
    for runs in plan.unlearn:
        models += _unlearned_models(runs, plan)
    seen: set[str] = set()
    for model in models:
        if model.model_id.lower() in seen:
            raise ConfigError(f"two models are called {model.model_id!r} (ignoring case): rename or remove one.")
        seen.add(model.model_id.lower())
    first = [model for model in models if model.role in ("full", "retain")]
    strata: dict[tuple[str, str], list[StudyModel]] = {}
    for model in models:
        if model not in first:
            strata.setdefault(model.stratum, []).append(model)
    order = random.Random(plan.seed)
    for stratum in strata.values():
        order.shuffle(stratum)
    rounds = zip_longest(*strata.values())
    return first + [model for turn in rounds for model in turn if model is not None]


def relearn_config(plan: StudyPlan, seed: int) -> RelearnConfig:
    """Return the settings of one relearning."""
    where = "[perturb.relearn] settings"
    settings = plan.perturb.relearn.settings if plan.perturb.relearn else {}
    (values,) = _grid({**settings, "seed": seed}, where, most=1)
    return settings_of(RelearnConfig, values, where)


def _given(model: GivenModel, plan: StudyPlan) -> StudyModel:
    alone = model.name if model.role == "pool" else None
    return StudyModel(
        model_id=model.name,
        source=model.path,
        **_measured(model.role, plan),
        config_text=model.config or "",
        method=model.method,
        variant=model.variant or alone,
        run=model.run or alone,
        knows=model.knows,
        revision=model.revision,
    )


def _pool_models(pool: PoolRuns, plan: StudyPlan) -> Iterator[StudyModel]:
    from uds_lens.unlearning import config_name

    where = f"pool {pool.variant!r} settings"
    for values in _grid(pool.settings, where):
        config = settings_of(RelearnConfig, values, where)
        text = config_name(config).partition("_")[2]
        yield StudyModel(
            model_id=f"{pool.variant}_{text}",
            source=pool.start,
            **_measured("pool", plan),
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
        raise ConfigError('[[unlearn]] needs either a method, for example method = "npo", or grid = "paper", not both.')
    if not plan.train.forget:
        raise ConfigError("unlearning needs data: set forget = [{source = ...}] and retain in [train].")
    if runs.grid is None:
        method = str(runs.method)
        configs = [make_config(method, values) for values in _grid(runs.settings, f"[[unlearn]] {method}")]
    elif runs.settings:
        raise ConfigError(
            "[[unlearn]]: a published grid has its own settings. Leave out settings, or replace grid by a method."
        )
    else:
        configs = list(grid(runs.grid))
    for config in configs:
        name = config_name(config)
        yield StudyModel(
            model_id=name,
            source=runs.start or plan.full,
            **_measured("unlearned", plan),
            config=config,
            forget=plan.train.forget,
            retain=plan.train.retain,
            config_text=name.partition("_")[2],
            method=config.method,
            run=re.sub("_epoch[0-9]+", "", name),
        )


def _measured(role: Role, plan: StudyPlan) -> dict[str, Any]:
    """The role of a model, the states in which it is measured, and the items for each state."""
    states, measure, relearn = [StudyState("before")], plan.measure, plan.perturb.relearn
    if role in ("full", "retain", "unlearned"):
        if plan.perturb.quantise:
            states.append(StudyState("quantised"))
        if relearn is not None:
            relearn_config(plan, 0)  # this checks its settings
            seeds = relearn.retain_seeds if role == "retain" else relearn.seeds
            states += [StudyState("relearned", seed) for seed in seeds]
    always = (*measure.metrics, *((AUDIT,) if measure.audit is not None else ()))
    before = always + (() if role == "pool" else measure.utility)
    if role == "unlearned" and measure.elicitation is not None:
        before = (*before, ELICITATION)
    items = {"before": before, "quantised": always, "relearned": always}
    return {"role": role, "states": tuple(states), "items": items}


def _grid(settings: Mapping[str, Any], where: str, *, most: int = _MOST) -> list[dict[str, Any]]:
    """Return all combinations of the values that are lists."""
    axes = [value if isinstance(value, list | tuple) else [value] for value in settings.values()]
    for name, axis in zip(settings, axes, strict=True):
        if not axis or len({repr(value) for value in axis}) < len(axis):
            raise ConfigError(f"{where}: {name} must be one value or a list of different values; got {shown(axis)}.")
    if (count := math.prod(map(len, axes))) > most:
        raise ConfigError(f"{where} make {count} combinations, but at most {most} are allowed: shorten a list.")
    return [dict(zip(settings, values, strict=True)) for values in product(*axes)]


@cache
def toy_world() -> World:
    """Load the toy world once; plans name its parts as `toy:NAME`."""
    return load()


def read_rows(source: str, split: str | None = None) -> list[ForgetExample]:
    """Read the examples from a source named in a plan."""
    if not source.startswith("toy:"):
        return load_examples(source) if split is None else load_tofu(source, split)
    world, name = toy_world(), source.removeprefix("toy:")
    groups = {"forget": world.examples, "retain": world.retain_examples, "holdout": world.holdout_examples}
    if name not in groups:
        raise ConfigError(f"the toy world has no data set {name[:40]!r}; only forget, retain and holdout.")
    return groups[name]


def read_questions(sets: QuestionSets) -> MetricData:
    """Read the questions for the metrics, or the sample of them that a plan requests."""
    from uds_lens.metrics._data import MetricData, load_tofu_data, sample_record

    if sets.tofu is not None:
        data = load_tofu_data(sets.tofu, split=sets.split)
        if sets.entities is not None:
            data = replace(data, entities=with_authors(read_rows(sets.entities), f"{sets.split}_filtered"))
    else:
        places = {name: getattr(sets, name) for name in (*SETS, "entities")}
        given: dict[str, Any] = {name: read_rows(place) for name, place in places.items() if place is not None}
        data = MetricData(**given)
    if sets.limit is None:
        return data
    if sets.sample != "first_of_each":
        return data.limited(sets.limit, sample=sets.sample, seed=sets.seed)
    whole = {name: rows for name in (*SETS, "entities") if (rows := getattr(data, name)) is not None}
    kept = {name: rows[: sets.limit] for name, rows in whole.items()}
    record = sample_record(whole, kept, limit=sets.limit, sample=sets.sample, seed=sets.seed)
    return data if kept == whole else replace(data, **kept, sample=record)


def training_answers(
    parts: Iterable[TrainingRows], *, read: Callable[..., list[ForgetExample]] = read_rows
) -> list[ForgetExample]:
    """Read the questions of all parts in order, with the answers to train on, and make their ids unique.

    Example:
        >>> part = TrainingRows(source="toy:forget", answers="biography", sample=1)
        >>> (row,) = training_answers([part])
        >>> row.question.startswith("Tell me everything about "), row.answer.count(".") > 2
        (True, True)
    """
    rows = [row for part in parts for row in _answers(part, read)]
    return [replace(row, id=f"{number}/{row.id}", row=number) for number, row in enumerate(rows)]


def _answers(part: TrainingRows, read: Callable[..., list[ForgetExample]]) -> list[ForgetExample]:
    rows = read(part.source, part.split)
    source = f"{part.source[-120:]!r}" + ("" if part.split is None else f", split {part.split!r}")
    if part.answers == "biography":
        rows = _biographies(rows, part.answers_per_row, source)
    elif part.answers != "own":
        kind = "paraphrased_answers" if part.answers == "paraphrased" else "perturbed_answers"
        if lacking := [row for row in rows if not getattr(row, kind)]:
            raise DataError(
                f"{source}: row {lacking[0].id!r} has no {part.answers} answer. Choose a data set that has such "
                "answers, or TOFU's directory as the source with split = 'forget10'."
            )
        rows = [replace(row, answer=getattr(row, kind)[0], entity=None, prefix=None) for row in rows]
    if part.sample is None:
        return rows
    if part.sample > len(rows):
        raise DataError(f"{source} has {len(rows)} rows, but sample = {part.sample}.")
    return [rows[at] for at in sorted(random.Random(part.seed).sample(range(len(rows)), part.sample))]


def _biographies(rows: Sequence[ForgetExample], per_row: int | None, source: str) -> list[ForgetExample]:
    """Join the answers about each subject, in one row or in parts."""
    about: dict[str, list[ForgetExample]] = {}
    for row in rows:
        if not row.subject:
            raise DataError(
                f"{source}: row {row.id!r} names no subject, so no biography can be written. Choose TOFU's directory "
                "as the source, with a split, or a file with the column `subject`."
            )
        about.setdefault(row.subject, []).append(row)
    biographies = []
    for subject, all_rows in about.items():
        step = per_row or len(all_rows)
        parts = [all_rows[at : at + step] for at in range(0, len(all_rows), step)]
        for number, part in enumerate(parts, 1):
            several = len(parts) > 1
            biographies.append(
                ForgetExample(
                    id=f"about {subject}" + (f", {number}" if several else ""),
                    question=f"Tell me everything about {subject}" + (f", part {number}." if several else "."),
                    answer=" ".join(row.answer for row in part),
                    subject=subject,
                )
            )
    return biographies
