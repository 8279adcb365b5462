"""Transplants as stored results."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

from torch import Tensor

from uds_lens._storage.results import Kind, Result, Shape
from uds_lens.data import SkippedExample
from uds_lens.errors import ResultFormatError
from uds_lens.results import AuditConfig, ModelRecord
from uds_lens.results._saving import EXAMPLES, example_rows, examples_of, models_of
from uds_lens.transplants._candidates import Candidate

if TYPE_CHECKING:
    from uds_lens.transplants._results import Transplant


@dataclass(frozen=True, kw_only=True)
class _Values:
    """Values stored in addition to settings, models and provenance."""

    candidates: tuple[Candidate, ...]
    skipped: tuple[SkippedExample, ...]


KIND = Kind(
    "Transplant",
    settings=AuditConfig,
    values=_Values,
    model=ModelRecord,
    tables={"examples": EXAMPLES, "control": EXAMPLES},
)
"""Storage format of transplants."""


def save_transplant(found: Transplant, path: str | os.PathLike[str]) -> None:
    """Write a transplant to a directory, atomically; other files in the directory are not touched."""
    tensors: dict[str, Tensor] = {}
    tables = {"examples": example_rows(found.examples)}
    for prefix, answers in (("", found.answers), ("control_", found.control)):
        if answers is not None:
            values = {field.name: getattr(answers, field.name) for field in fields(answers)}
            tensors |= {f"{prefix}{name}": s for name, s in values.items() if s is not None}
    if found.control is not None:
        tables["control"] = example_rows(found.control_examples)
    Result(
        KIND,
        found.config,
        models=found.models,
        provenance=found.provenance,
        values={"candidates": found.candidates, "skipped": found.skipped},
        tensors=tensors,
        tables=tables,
        cautions=found.warnings,
        summary=found.summary(),
    ).save(path)


def load_transplant(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Return the fields of a saved transplant by name."""
    from uds_lens.transplants._results import Answers

    saved = Result.load(path, KIND)
    models, retains = models_of(saved, "unlearned")
    donors, candidates, n_layers = len(retains), saved.values.candidates, models["full"].n_layers
    if not candidates or any(c.first < 0 or c.width < 1 or c.last >= n_layers for c in candidates):
        raise ResultFormatError(
            f"{saved.where} lists no blocks, or blocks that a model with {n_layers} blocks does not have."
        )
    tables = {name: examples_of(saved, name) for name in ("examples", *saved.tables)}
    of = {name: _shapes(donors, len(rows), len(candidates)) for name, rows in tables.items()}
    control_shapes = {f"control_{name}": shape for name, shape in of.pop("control", {}).items()}
    tensors = saved.shaped({**of["examples"], **control_shapes})
    control = {name.removeprefix("control_"): tensors.pop(name) for name in control_shapes}
    return {
        "config": saved.settings,
        "models": saved.models,
        "candidates": candidates,
        "provenance": saved.provenance,
        "skipped": saved.values.skipped,
        "examples": tables["examples"],
        "answers": Answers(**tensors),
        "control_examples": tables.get("control", ()),
        "control": Answers(**control) if control else None,
    }


def _shapes(donors: int, n: int, candidates: int) -> Mapping[str, Shape]:
    """Return the shape of each tensor for n examples."""
    mixed = (donors, n, candidates)
    by_retain = dict.fromkeys(("full_with_retain", "retain_with_full", "unlearned_with_retain"), mixed)
    own = {"s_full": (n,), "s_retain": (donors, n), "s_unlearned": (n,)}
    among = {"retain_with_retain": (donors, *mixed)} if donors > 1 else {}
    return {**own, **by_retain, "unlearned_with_full": (n, candidates), **among}
