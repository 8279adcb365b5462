"""Saved transplants: a directory with a JSON manifest, a safetensors file and Parquet tables, as audits have them."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import Tensor

from uds_lens._storage import (
    atomic_files,
    check_writable,
    checked_record,
    conform,
    plain,
    read_file,
    read_one_version,
    sha256_bytes,
    with_checksum,
)
from uds_lens.data import SkippedExample
from uds_lens.errors import ResultFormatError
from uds_lens.results import AuditConfig, ModelRecord
from uds_lens.results._saving import Shape, examples_from_parquet, examples_to_parquet, tensors_from
from uds_lens.transplants._candidates import Candidate

if TYPE_CHECKING:
    from uds_lens.transplants._results import Transplant

FORMAT, VERSION = "uds_lens.Transplant", 1

_MANIFEST, _TENSORS, _EXAMPLES, _CONTROL = (
    "manifest.json",
    "tensors.safetensors",
    "examples.parquet",
    "control.parquet",
)


@dataclass(frozen=True, kw_only=True)
class _Manifest:
    """Members of a manifest that are read back, beside format, version and checksum."""

    config: AuditConfig
    models: dict[str, ModelRecord]
    candidates: tuple[Candidate, ...]
    provenance: dict[str, Any]
    skipped: tuple[SkippedExample, ...]
    files: dict[str, str]


def save_transplant(found: Transplant, path: str | os.PathLike[str]) -> None:
    """Write a transplant to a directory, atomically; foreign files in that directory stay."""
    from safetensors.torch import save

    place = check_writable(path, directory=True, format=FORMAT)
    tensors: dict[str, Tensor] = {}
    tables = {_EXAMPLES: found.examples}
    for prefix, answers in (("", found.answers), ("control_", found.control)):
        if answers is not None:
            values = {field.name: getattr(answers, field.name) for field in fields(answers)}
            tensors |= {f"{prefix}{name}": s.clone().contiguous() for name, s in values.items() if s is not None}
    if found.control is not None:
        tables[_CONTROL] = found.control_examples
    files = {_TENSORS: save(tensors)} | {name: examples_to_parquet(rows) for name, rows in tables.items()}
    manifest = {
        "format": FORMAT,
        "version": VERSION,
        "config": found.config.to_dict(),
        "models": {role: record.to_dict() for role, record in found.models.items()},
        "candidates": [candidate._asdict() for candidate in found.candidates],
        "provenance": plain(found.provenance),
        "skipped": [vars(skipped) for skipped in found.skipped],
        "summary": plain(found.summary()),
        "files": {name: sha256_bytes(content) for name, content in files.items()},
    }
    atomic_files(place, {**files, _MANIFEST: with_checksum(manifest)}, own={_CONTROL})


def load_transplant(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Return the fields of a saved transplant by name."""
    return read_one_version(path, _MANIFEST, _fields)


def _fields(folder: Path) -> dict[str, Any]:
    from uds_lens.transplants._results import Answers

    where = repr(str(folder))
    if not (folder / _MANIFEST).exists():
        raise ResultFormatError(f"no saved Transplant in {where}: expected a directory with {_MANIFEST}.")
    record = checked_record(read_file(folder / _MANIFEST), where=where, format=FORMAT, versions=(VERSION,))
    members = {name: value for name, value in record.items() if name not in ("format", "version", "summary")}
    manifest = conform(_Manifest, members, where=where)
    donors = [role for role in manifest.models if role.startswith("retain")]
    if {*manifest.models} != {"full", "unlearned", *donors} or not donors or not manifest.candidates:
        raise ResultFormatError(
            f"{where} is not a complete Transplant: it needs full, retain, unlearned and candidates."
        )
    n_layers = manifest.models["full"].n_layers
    if any(c.first < 0 or c.width < 1 or c.last >= n_layers for c in manifest.candidates):
        raise ResultFormatError(f"{where} names blocks that a model of {n_layers} blocks does not have.")

    def content(name: str) -> bytes:
        text = read_file(folder / name)
        if sha256_bytes(text) != manifest.files.get(name):
            raise ResultFormatError(f"{str(folder / name)!r} was altered after it was saved: measure again.")
        return text

    names = [_EXAMPLES, *([_CONTROL] if _CONTROL in manifest.files else [])]
    tables = {name: examples_from_parquet(content(name), where=repr(str(folder / name))) for name in names}
    shapes: dict[str, Shape] = {}
    for prefix, name in (("", _EXAMPLES), ("control_", _CONTROL)):
        if name in tables:
            of = _shapes(len(donors), len(tables[name]), len(manifest.candidates))
            shapes |= {f"{prefix}{tensor}": shape for tensor, shape in of.items()}
    tensors = tensors_from(content(_TENSORS), shapes, where=repr(str(folder / _TENSORS)))
    control = None
    if _CONTROL in tables:
        control = Answers(**{name: tensors.pop(f"control_{name}") for name in _shapes(len(donors), 0, 0)})
    return {
        **{name: getattr(manifest, name) for name in ("config", "models", "candidates", "provenance", "skipped")},
        "examples": tables[_EXAMPLES],
        "answers": Answers(**tensors),
        "control_examples": tables.get(_CONTROL, ()),
        "control": control,
    }


def _shapes(donors: int, n: int, candidates: int) -> Mapping[str, Shape]:
    """Return the shapes of the tensors on n examples."""
    mixed = (donors, n, candidates)
    by_retain = dict.fromkeys(("full_with_retain", "retain_with_full", "unlearned_with_retain"), mixed)
    own = {"s_full": (n,), "s_retain": (donors, n), "s_unlearned": (n,)}
    among = {"retain_with_retain": (donors, *mixed)} if donors > 1 else {}
    return {**own, **by_retain, "unlearned_with_full": (n, candidates), **among}
