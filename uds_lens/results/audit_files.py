"""Saved audits and baselines: a directory with a JSON manifest, a safetensors file and a parquet table.

The manifest names the format and its version, holds the SHA-256 of the other files, and is sealed itself; it is what
makes a directory a result. Directories appear whole or not at all. Nothing is pickled, and nothing read is trusted:
sums, kinds and shapes are checked, on the bytes that are then parsed.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from uds_lens.data import SkippedExample
from uds_lens.errors import ResultFormatError
from uds_lens.results.examples_table import examples_from_parquet, examples_to_parquet
from uds_lens.results.records import ModelRecord
from uds_lens.results.saved_parts import CONTROL_FILE, PARTS, part_shapes, parts_from, parts_of
from uds_lens.results.saved_tensors import Shape, tensors_from
from uds_lens.results.settings import AuditConfig
from uds_lens.results.stage_1 import Stage1
from uds_lens.storage import (
    atomic_files,
    conform,
    located,
    parse_json,
    plain,
    read_file,
    require_fresh,
    sealed,
    sha256_bytes,
    unsealed,
)

VERSION = 3
"""Version of the format; raised when older releases could misread a result."""

PLAIN = 2
"""Version of results without control facts and with one retain model: written as such, so that older releases read
them."""

UNSEALED = 1
"""Version of release 0.1, whose manifest had no seal; still read."""

_MANIFEST, _TENSORS, _EXAMPLES = "manifest.json", "tensors.safetensors", "examples.parquet"
_MEMBERS = {"format", "version", "config", "models", "provenance", "skipped", "files"}
_MOST_ATTEMPTS = 100
"""Readings of a result that is saved again all the time, before it is given up."""

_DEEPEST = 12
"""Levels of a provenance."""


@dataclass(frozen=True)
class SavedKind:
    """What one kind of saved result holds beside configuration, examples and provenance."""

    name: str
    """Its class."""

    roles: tuple[str, ...]
    """Models it records."""

    tensors: tuple[str, ...]
    """Names of its tensors; the first axis of each is the example."""

    control: tuple[str, ...]
    """Names of its tensors on control facts, where it has some."""

    more: str
    """Name of the manifest's entry for readers, which is not read back."""


AUDIT = SavedKind(
    "DepthAudit",
    roles=("full", "retain", "unlearned"),
    tensors=(
        "n_tokens",
        "s_full",
        "s1_delta",
        "s2_delta",
        "s1_norm_ratio",
        "s1_cosine",
        "s2_norm_ratio",
        "s2_cosine",
    ),
    control=("control_s2_delta",),
    more="summary",
)
"""What a saved audit holds."""


def is_audit(path: str | os.PathLike[str]) -> bool:
    """Whether a directory says that it is a saved `DepthAudit`; whether it is whole shows when it is loaded."""
    return _format(located(path)) == f"uds_lens.{AUDIT.name}"


def audits_in(folder: str | os.PathLike[str], *, depth: int = 2) -> list[Path]:
    """Directories in a folder that say that they are a saved `DepthAudit`, of any version, sorted.

    Args:
        folder: Where to look; nothing is found where there is no such folder.
        depth: How far down. Results are not entered, nor are hidden directories.
    """
    folder = located(folder)
    if depth < 1 or not folder.is_dir():
        return []
    found: list[Path] = []
    for place in sorted(folder.iterdir()):
        if place.is_dir() and not place.name.startswith("."):
            kind = _format(place)
            if kind == f"uds_lens.{AUDIT.name}":
                found.append(place)
            elif kind is None:
                found += audits_in(place, depth=depth - 1)
    return found


def save_result(result: Stage1, path: str | os.PathLike[str], kind: SavedKind, *, more: Any) -> None:
    """Write a result to a directory, whole or not at all; what else stands in that directory stays.

    Args:
        result: What to save.
        path: Directory; an earlier result there is replaced.
        kind: What it holds.
        more: The manifest's entry for readers.

    Raises:
        ResultFormatError: Something else than a saved result stands there.
        StorageError: The system refuses to write.
    """
    from safetensors.torch import save

    place = require_fresh(path, directory=True, format=f"uds_lens.{kind.name}")
    parts = parts_of(result, kind.control)
    tensors = {name: getattr(result, name) for name in kind.tensors} | parts.tensors
    tensors = {name: tensor.clone().contiguous() for name, tensor in tensors.items()}
    files = {_TENSORS: save(tensors), _EXAMPLES: examples_to_parquet(result.examples), **parts.files}
    manifest = {
        "format": f"uds_lens.{kind.name}",
        "version": VERSION if parts.members else PLAIN,
        "config": result.config.to_dict(),
        "models": {role: record.to_dict() for role, record in result.models.items()},
        "provenance": plain(result.provenance),
        "skipped": [vars(skipped) for skipped in result.skipped],
        **parts.members,
        kind.more: plain(more),
        "files": {name: sha256_bytes(content) for name, content in files.items()},
    }
    atomic_files(place, {**files, _MANIFEST: sealed(manifest)}, own={CONTROL_FILE})


def load_audit(path: str | os.PathLike[str]) -> dict[str, Any]:
    """The fields of a saved `DepthAudit`; a folder of audits is refused with one of them named."""
    inside = audits_in(path) if _format(located(path)) is None else []
    if inside:
        raise ResultFormatError(
            f"{str(path)!r} is no saved DepthAudit, but holds {len(inside)}: load one of them, for example "
            f"DepthAudit.load({str(inside[0])!r}), or put them on one page: uds-lens report {path}"
        )
    return load_result(path, AUDIT)


def load_result(path: str | os.PathLike[str], kind: SavedKind) -> dict[str, Any]:
    """The fields of a saved result by name.

    A result that is saved again at the same time is read as one of its versions, never as a mixture.

    Raises:
        ResultFormatError: A file is missing, altered, or of another version or kind.
    """
    folder = located(path)
    for attempt in range(_MOST_ATTEMPTS):
        before = _written(folder)
        content = _manifest_bytes(folder, kind)
        try:
            return _fields(content, folder, kind)
        except ResultFormatError:
            # Was another version put in place between the files? Bytes alone do not tell: it may be put back again.
            if _written(folder) == before or attempt + 1 == _MOST_ATTEMPTS:
                raise
    raise AssertionError("unreachable")


def _written(folder: Path) -> tuple[int, ...] | None:
    """Which writing of the manifest stands there; None where there is none."""
    try:
        told = (folder / _MANIFEST).stat()
    except OSError:
        return None
    return told.st_dev, told.st_ino, told.st_size, told.st_mtime_ns, told.st_ctime_ns


def _fields(content: bytes, folder: Path, kind: SavedKind) -> dict[str, Any]:
    told, manifest = repr(str(folder)), _manifest(content, folder, kind)
    tables = (_EXAMPLES, CONTROL_FILE) if "control" in manifest else (_EXAMPLES,)
    files = {name: _content(folder / name, manifest["files"]) for name in (_TENSORS, *tables)}
    examples, *more = (examples_from_parquet(files[name], told=repr(str(folder / name))) for name in tables)
    facts = more[0] if more else ()
    shapes = _shapes(kind, len(examples)) | part_shapes(manifest, len(examples), len(facts), kind.control)
    tensors = tensors_from(files[_TENSORS], shapes, told=repr(str(folder / _TENSORS)))
    parts = parts_from(manifest, tensors, facts, told=told)
    return {
        "config": conform(AuditConfig, manifest["config"], where=f"{told}: config"),
        "models": {
            role: conform(ModelRecord, record, where=f"{told}: models.{role}")
            for role, record in manifest["models"].items()
        },
        "provenance": manifest["provenance"],
        "skipped": tuple(
            conform(SkippedExample, row, where=f"{told}: skipped[{i}]")
            for i, row in enumerate(manifest["skipped"])
        ),
        "examples": examples,
        **parts,
        **tensors,
    }


def _manifest_bytes(folder: Path, kind: SavedKind) -> bytes:
    if not (folder / _MANIFEST).exists():
        raise ResultFormatError(
            f"no saved {kind.name} in {str(folder)!r}: expected a directory with {_MANIFEST}."
        )
    return read_file(folder / _MANIFEST)


def _manifest(content: bytes, folder: Path, kind: SavedKind) -> dict[str, Any]:
    """The manifest, with members of the right kinds; what is in them is checked where it is used."""
    manifest = unsealed(
        content,
        told=repr(str(folder)),
        format=f"uds_lens.{kind.name}",
        versions=(UNSEALED, PLAIN, VERSION),
        unsealed_versions=(UNSEALED,),
    )
    kinds = {"config": dict, "models": dict, "provenance": dict, "skipped": list, "files": dict}
    wrong = sorted((_MEMBERS | {kind.more}) ^ (set(manifest) - set(PARTS)))
    kinds |= {name: shape for name, shape in PARTS.items() if name in manifest}
    wrong += [name for name, shape in kinds.items() if not isinstance(manifest.get(name), shape)]
    if wrong:
        raise ResultFormatError(
            f"{str(folder)!r} is not a complete {kind.name}: see {wrong[0][:60]!r} in it."
        )
    if set(manifest["models"]) != set(kind.roles):
        raise ResultFormatError(
            f"{str(folder)!r} is not a complete {kind.name}: expected models {', '.join(kind.roles)}, got "
            f"{', '.join(sorted(manifest['models']))[:100]}."
        )
    _require_provenance(manifest["provenance"], folder)
    return manifest


def _require_provenance(found: Mapping[str, Any], folder: Path) -> None:
    """Raise unless what is read from a provenance later has its type, where it is there."""
    versions = found.get("versions", {})
    told = isinstance(versions, dict) and all(isinstance(value, str) for value in versions.values())
    texts = (found.get(name) for name in ("first_prompt", "ids_hash", "engine"))
    if not told or not all(isinstance(text, str | None) for text in texts):
        raise ResultFormatError(
            f"{str(folder)!r}: versions, ids_hash, engine and first_prompt of its provenance must be texts."
        )
    if _depth(found) > _DEEPEST:
        raise ResultFormatError(
            f"{str(folder)!r}: its provenance is nested more than {_DEEPEST} levels deep."
        )


def _depth(value: Any, level: int = 0) -> int:
    parts = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    if level > _DEEPEST:
        return level
    return max((_depth(part, level + 1) for part in parts), default=level)


def _content(file: Path, sums: Mapping[str, Any]) -> bytes:
    content = read_file(file)
    if sha256_bytes(content) != sums.get(file.name):
        raise ResultFormatError(f"{str(file)!r} was altered after it was saved: measure again.")
    return content


def _shapes(kind: SavedKind, n: int) -> dict[str, Shape]:
    """Its own tensors."""
    return {name: (n,) if name in ("n_tokens", "s_full") else (n, None) for name in kind.tensors}


def _format(folder: Path) -> str | None:
    """What the manifest in a directory says it is; None where there is none, or it says nothing."""
    try:
        found = parse_json(read_file(folder / _MANIFEST), told="").get("format")
    except ResultFormatError:
        return None
    return found if isinstance(found, str) else None
