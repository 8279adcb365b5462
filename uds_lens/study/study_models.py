"""The models of a plan one by one: what each is, how it comes about, in which states it is measured, and what of it."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import product, zip_longest
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from uds_lens.checked_arguments import arguments_checked
from uds_lens.checked_settings import require_known, shown
from uds_lens.errors import ConfigError
from uds_lens.study.plan_records import (
    GivenModel,
    Measurement,
    PoolRuns,
    Role,
    StudyPlan,
    TrainingRows,
    UnlearningRuns,
)

if TYPE_CHECKING:
    from uds_lens.unlearning import MethodConfig, RelearnConfig

StateName: TypeAlias = Literal["before", "quantised", "relearned"]
"""What was done to a model before it was measured."""

AUDIT, ELICITATION = "audit", "elicitation"
"""What is measured beside metrics; neither is the name of a metric."""

_MOST = 20_000
"""Models of a plan."""


@dataclass(frozen=True)
class StudyState:
    """A model as it is measured."""

    state: StateName
    """What was done to it."""

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
    """What it is in the study."""

    source: str
    """Where it is, or where its training starts."""

    states: tuple[StudyState, ...]
    """In which it is measured, in this order."""

    items: Mapping[StateName, tuple[str, ...]]
    """What is measured by state: metrics, `audit`, `elicitation`."""

    config: MethodConfig | None = None
    """How it is trained; None for a model that exists."""

    forget: tuple[TrainingRows, ...] = ()
    """What it learns, or forgets."""

    retain: tuple[TrainingRows, ...] = ()
    """What it keeps."""

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

    @arguments_checked
    def items_of(self, state: StudyState) -> tuple[str, ...]:
        """What is measured of it in a state."""
        return self.items[state.state]


@arguments_checked
def study_models(plan: StudyPlan) -> list[StudyModel]:
    """All models in the order in which they are taken: references first, then one of each kind in turn, shuffled.

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


def without_states(model: StudyModel) -> StudyModel:
    """The same, as it is before anything is done to it."""
    return replace(model, states=(StudyState("before"),))
