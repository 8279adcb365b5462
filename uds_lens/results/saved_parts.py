"""What a saved result holds only where it was measured: control facts, and several retain models."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from uds_lens.data import ForgetExample, SkippedExample
from uds_lens.errors import ResultFormatError
from uds_lens.results.control_facts import ControlFacts
from uds_lens.results.examples_table import examples_to_parquet
from uds_lens.results.records import ModelRecord
from uds_lens.results.retain_models import RetainStage1
from uds_lens.results.saved_tensors import Shape
from uds_lens.results.stage_1 import Stage1
from uds_lens.storage import conform, plain

CONTROL_FILE = "control.parquet"
"""Name of the table of control facts."""

PARTS = {"control": dict, "retains": list}
"""Entries of the manifest that may be missing, with their kinds."""

_FACTS = ("n_tokens", "s_full", "s1_delta")
_RETAIN = ("s1_delta", "s1_norm_ratio", "s1_cosine")


@dataclass(frozen=True)
class SavedParts:
    """What they add to a directory."""

    tensors: dict[str, Tensor] = field(default_factory=dict)
    """By name."""
    files: dict[str, bytes] = field(default_factory=dict)
    """Beside the tensors."""
    members: dict[str, Any] = field(default_factory=dict)
    """Of the manifest."""


@dataclass(frozen=True, kw_only=True)
class _Control:
    """The entry of the control facts."""

    ids_hash: str
    sample: dict[str, Any] | None
    skipped: tuple[SkippedExample, ...]


def parts_of(result: Stage1, control_tensors: Sequence[str]) -> SavedParts:
    """What control facts and several retain models of a result add.

    Args:
        result: What is saved.
        control_tensors: Tensors of the result itself that are about control facts.
    """
    found = SavedParts()
    if (control := result.control) is not None:
        own = {f"control_{name}": getattr(control, name) for name in _FACTS}
        found.tensors.update(own | {name: getattr(result, name) for name in control_tensors})
        found.files[CONTROL_FILE] = examples_to_parquet(control.examples)
        skipped = [vars(each) for each in control.skipped]
        found.members["control"] = plain(
            {"ids_hash": control.ids_hash, "sample": control.sample, "skipped": skipped}
        )
    if result.retains:
        found.members["retains"] = [retain.model.to_dict() for retain in result.retains]
        for name in (*_RETAIN, *(() if control is None else ("control_s1_delta",))):
            found.tensors[f"retains_{name}"] = torch.stack([getattr(each, name) for each in result.retains])
    return found


def part_shapes(
    manifest: Mapping[str, Any], n: int, n_facts: int, control_tensors: Sequence[str]
) -> dict[str, Shape]:
    """The tensors that a manifest promises, with `n` examples and `n_facts` control facts."""
    shapes: dict[str, Shape] = {}
    if "control" in manifest:
        shapes |= {"control_n_tokens": (n_facts,), "control_s_full": (n_facts,)}
        shapes |= dict.fromkeys(("control_s1_delta", *control_tensors), (n_facts, None))
    if "retains" in manifest:
        several = len(manifest["retains"])
        shapes |= {f"retains_{name}": (several, n, None) for name in _RETAIN}
        if "control" in manifest:
            shapes["retains_control_s1_delta"] = (several, n_facts, None)
    return shapes


def parts_from(
    manifest: Mapping[str, Any], tensors: dict[str, Tensor], facts: tuple[ForgetExample, ...], *, told: str
) -> dict[str, Any]:
    """`control` and `retains` of a result; their tensors are taken out of `tensors`.

    Raises:
        ResultFormatError: An entry of the manifest is not what it should be.
    """
    found: dict[str, Any] = {}
    if "control" in manifest:
        entry = conform(_Control, manifest["control"], where=f"{told}: control")
        own: dict[str, Any] = {name: tensors.pop(f"control_{name}") for name in _FACTS}
        found["control"] = ControlFacts(examples=facts, **vars(entry), **own)
    if "retains" in manifest:
        found["retains"] = _retains(manifest["retains"], tensors, told)
    return found


def _retains(records: list[Any], tensors: dict[str, Tensor], told: str) -> tuple[RetainStage1, ...]:
    if len(records) < 2:
        raise ResultFormatError(
            f"{told}: retains must hold several retain models, or be missing; got {len(records)}."
        )
    names = [name for name in tensors if name.startswith("retains_")]
    own = {name.removeprefix("retains_"): tensors.pop(name) for name in names}
    return tuple(
        RetainStage1(
            model=conform(ModelRecord, record, where=f"{told}: retains[{i}]"),
            **{name: stacked[i] for name, stacked in own.items()},
        )
        for i, record in enumerate(records)
    )
