"""A plan from a TOML file, a mapping or a record, with everything checked that can be checked without a model."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping
from dataclasses import asdict, fields, is_dataclass
from pathlib import Path
from types import UnionType
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

from uds_lens.checked_arguments import arguments_checked, arguments_checked_but
from uds_lens.checked_settings import require_known, require_whole, shown
from uds_lens.errors import ConfigError, ResultFormatError
from uds_lens.storage import conform, read_file
from uds_lens.study.plan_records import AskedSets, GivenModel, Measurement, StudyPlan, TrainingRows

if sys.version_info >= (3, 11):
    from tomllib import TOMLDecodeError, loads
else:
    from tomli import TOMLDecodeError, loads

T = TypeVar("T")

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._%+=,-]{0,120}")
"""Names of models and variants: they become names of files."""

_LARGEST = 4 << 20
"""Bytes of a plan."""


@arguments_checked_but("source")
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
        raise ConfigError(str(error).replace(" is not complete: no ", " lacks ")) from error
    placed = conform(StudyPlan, _placed(as_mapping(found), base), where="plan")
    _check(placed)
    return placed


@arguments_checked
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
    from uds_lens.study.study_models import study_models

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
    require_whole("seed", found.seed, at_least=0)


def _check_given(model: GivenModel) -> None:
    if (model.role == "pool") != (model.knows is not None):
        fix = (
            "say knows = true or knows = false" if model.role == "pool" else 'knows belongs to role = "pool"'
        )
        raise ConfigError(f"the model {model.name!r} has role {model.role!r}: {fix}.")


def _check_sets(sets: AskedSets) -> None:
    files = ("forget", "holdout", "retain", "real_authors", "world_facts", "entities")
    named = [name for name in files if getattr(sets, name) is not None]
    if sets.tofu is not None and named:
        raise ConfigError(
            f"[data] names tofu and {named[0]}: tofu brings all sets; leave out one of the two."
        )
    if sets.tofu is None and sets.forget is None:
        raise ConfigError('[data] names no forget set: give forget = "forget10.json", or tofu = "DIR".')
    if sets.limit is not None:
        require_whole("limit", sets.limit, at_least=1)
    require_whole("seed", sets.seed, at_least=0)


def _check_rows(rows: TrainingRows) -> None:
    if rows.sample is not None:
        require_whole("sample", rows.sample, at_least=1)
    if rows.answers_per_row is not None:
        require_whole("answers_per_row", rows.answers_per_row, at_least=1)
        if rows.answers != "biography":
            raise ConfigError(
                f"answers_per_row cuts biographies into parts, and answers = {rows.answers!r} has none: leave it out."
            )
    require_whole("seed", rows.seed, at_least=0)


def _check_measure(measure: Measurement) -> None:
    from uds_lens.study.measurement_settings import audit_settings, elicitation_settings, metric_settings

    metric_settings(measure)
    audit_settings(measure)
    elicitation_settings(measure)
