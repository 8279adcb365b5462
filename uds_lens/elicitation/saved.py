"""Saved elicitations: a directory with a sealed manifest, the examples and one file per part; whole or absent."""

from __future__ import annotations

import json
import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from uds_lens.checked_arguments import arguments_checked
from uds_lens.data import ForgetExample
from uds_lens.data.readers import as_examples
from uds_lens.elicitation.options import ElicitOptions
from uds_lens.elicitation.parts import HOLDOUT, Part, part_from_bytes, write_part
from uds_lens.elicitation.result_records import AuditRecord
from uds_lens.elicitation.results import ElicitationResults
from uds_lens.errors import DataError, ResultFormatError
from uds_lens.results import ModelRecord
from uds_lens.storage import (
    atomic_directory,
    atomic_write_bytes,
    conform,
    parse_json,
    plain,
    read_file,
    read_sealed,
    require_fresh,
    sealed,
    sha256_bytes,
    sha256_file,
)
from uds_lens.types import Protocol

FORMAT = "uds_lens.ElicitationResults"
VERSION = 1
"""Version of the format; raised when older releases could misread a result."""

_MANIFEST, _EXAMPLES = "manifest.json", "examples.json"


@arguments_checked
def require_place(path: str | os.PathLike[str]) -> Path:
    """The place for a result: where nothing stands, or an empty folder, or an earlier elicitation.

    Raises:
        ResultFormatError: Something else stands there.
        StorageError: Nothing can be written there.
    """
    return require_fresh(path, directory=True, format=FORMAT)


def save_elicitation(results: ElicitationResults, path: str | os.PathLike[str]) -> None:
    """Write `ElicitationResults`; an earlier one at the path is replaced, what else stands there stays."""
    target = require_place(path)
    earlier = {
        file.name for file in target.glob("part-*.parquet") if file.stem.removeprefix("part-").isdecimal()
    }
    with atomic_directory(target, own={_MANIFEST, _EXAMPLES, *earlier}) as folder:
        rows = [plain(asdict(example)) for example in results.examples]
        asked = {"examples": rows}
        if results.holdout:
            asked["holdout"] = [plain(asdict(example)) for example in results.holdout]
        atomic_write_bytes(folder / _EXAMPLES, json.dumps(asked).encode())
        names = [f"part-{number:03}.parquet" for number in range(len(results.parts))]
        for name, part in zip(names, results.parts, strict=True):
            write_part(part, folder / name, key=name)
        manifest = {
            "format": FORMAT,
            "version": VERSION,
            "options": results.options.to_dict(),
            "protocol": results.protocol,
            "models": {role: record.to_dict() for role, record in results.models.items()},
            "audits": [{**audit._asdict(), "skipped": plain(audit.skipped)} for audit in results.audits],
            "provenance": plain(results.provenance),
            "files": {name: sha256_file(folder / name) for name in (_EXAMPLES, *names)},
        }
        atomic_write_bytes(folder / _MANIFEST, sealed(manifest))


def load_elicitation(path: str | os.PathLike[str]) -> ElicitationResults:
    """Read `ElicitationResults`.

    Raises:
        ResultFormatError: A file is missing, altered, or of another version.
    """
    folder = Path(path).expanduser()
    told = repr(str(folder))
    record = read_sealed(folder / _MANIFEST, format=FORMAT, versions=(VERSION,))
    members = {name: value for name, value in record.items() if name not in ("format", "version")}
    found = conform(_Manifest, members, where=told)
    content = {name: _checked(folder, name, digest) for name, digest in found.files.items()}
    if _EXAMPLES not in content:
        raise ResultFormatError(f"{told} is no whole elicitation: it names no {_EXAMPLES}.")
    asked = parse_json(content.pop(_EXAMPLES), told=told)
    examples, holdout = _examples(asked.get("examples"), told), _examples(asked.get("holdout", []), told)
    parts = tuple(
        part_from_bytes(data, told=repr(str(folder / name)), key=name, vouched=True)
        for name, data in content.items()
    )
    roles = [*found.models, *([HOLDOUT] if holdout else [])]
    if (
        "unlearned" not in found.models
        or HOLDOUT in found.models
        or {part.role for part in parts} != set(roles)
    ):
        raise ResultFormatError(f"{told}: models and parts do not fit together.")
    lengths = {role: len(holdout if role == HOLDOUT else examples) for role in roles}
    if any(not 0 <= said.row < lengths[part.role] for part in parts for said in part.said):
        raise ResultFormatError(f"{told}: parts speak of rows that are not there.")
    if any(len(pair) != 2 for audit in found.audits for pair in audit.skipped):
        raise ResultFormatError(f"{told}: a skipped row is its id and a reason.")
    if not _complete(parts, found.audits, roles):
        raise ResultFormatError(f"{told}: audits and parts do not fit together.")
    return ElicitationResults(
        options=found.options,
        protocol=found.protocol,
        models=found.models,
        examples=tuple(examples),
        audits=found.audits,
        parts=parts,
        provenance=found.provenance,
        holdout=tuple(holdout),
    )


@dataclass(frozen=True, kw_only=True)
class _Manifest:
    """Members of a manifest, beside format, version and seal."""

    options: ElicitOptions
    protocol: Protocol
    models: Mapping[str, ModelRecord]
    audits: tuple[AuditRecord, ...]
    provenance: Mapping[str, Any]
    files: Mapping[str, str]


def _examples(rows: Any, told: str) -> list[ForgetExample]:
    """Rows as they were; a reader would number them anew."""
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise ResultFormatError(f"{told}: its examples must be a list of rows.")
    places = [row.get("row") for row in rows]
    if not all(type(place) is int for place in places):
        raise ResultFormatError(f"{told}: each row must tell its place, a whole number.")
    try:
        found = as_examples(rows)
    except DataError as error:
        raise ResultFormatError(f"{told}: {str(error)[:300]}") from error
    return [replace(example, row=place) for example, place in zip(found, places, strict=True)]


def _complete(parts: Sequence[Part], audits: Sequence[AuditRecord], roles: Collection[str]) -> bool:
    """Whether each audit has one part of every model in each of its decodings, and nothing else is there."""
    asked = {(part.audit, part.decoding) for part in parts}
    found = sorted((part.audit, part.decoding, part.role) for part in parts)
    whole = found == sorted((*each, role) for each in asked for role in roles)
    return whole and sorted({name for name, _ in asked}) == sorted(audit.name for audit in audits)


def _checked(folder: Path, name: str, digest: str) -> bytes:
    if Path(name).name != name:
        raise ResultFormatError(f"{str(folder)!r} names a file outside itself: {name[:80]!r}.")
    content = read_file(folder / name)
    if sha256_bytes(content) != digest:
        raise ResultFormatError(f"{str(folder / name)!r} was altered after it was saved: ask again.")
    return content
