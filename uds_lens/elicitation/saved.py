"""Saved elicitations: a directory with a sealed manifest, the examples and one file per part; whole or absent."""

from __future__ import annotations

import json
import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from uds_lens.data import ForgetExample
from uds_lens.data.readers import as_examples
from uds_lens.elicitation.options import ElicitOptions
from uds_lens.elicitation.parts import HOLDOUT, Part, part_from_bytes, write_part
from uds_lens.elicitation.result_records import AuditRecord
from uds_lens.elicitation.results import ElicitationResults
from uds_lens.errors import ResultFormatError
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

FORMAT = "uds_lens.ElicitationResults"
VERSION = 1
"""Version of the format; raised when older releases could misread a result."""

_MANIFEST, _EXAMPLES = "manifest.json", "examples.json"


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
    manifest = read_sealed(folder / _MANIFEST, format=FORMAT, versions=(VERSION,))
    try:
        content = {name: _checked(folder, name, digest) for name, digest in manifest["files"].items()}
        asked = parse_json(content[_EXAMPLES], told=told)
        examples, holdout = _examples(asked["examples"]), _examples(asked.get("holdout", ()))
        roles = [*manifest["models"], *([HOLDOUT] if holdout else [])]
        parts = tuple(
            part_from_bytes(data, told=repr(str(folder / name)), key=name)
            for name, data in content.items()
            if name != _EXAMPLES
        )
        models: Mapping[str, Any] = manifest["models"]
        audits = [conform(AuditRecord, audit, where=f"{told}: audits") for audit in manifest["audits"]]
        if "unlearned" not in models or HOLDOUT in models or {part.role for part in parts} != set(roles):
            raise ResultFormatError(f"{told}: models and parts do not fit together.")
        lengths = {role: len(holdout if role == HOLDOUT else examples) for role in roles}
        if any(not 0 <= said.row < lengths[part.role] for part in parts for said in part.said):
            raise ResultFormatError(f"{told}: parts speak of rows that are not there.")
        if any(len(pair) != 2 for audit in audits for pair in audit.skipped):
            raise ResultFormatError(f"{told}: a skipped row is its id and a reason.")
        if not _complete(parts, audits, roles):
            raise ResultFormatError(f"{told}: audits and parts do not fit together.")
        return ElicitationResults(
            options=conform(ElicitOptions, manifest["options"], where=f"{told}: options"),
            protocol=manifest["protocol"],
            models={
                role: conform(ModelRecord, record, where=f"{told}: models.{role}")
                for role, record in models.items()
            },
            examples=tuple(examples),
            audits=tuple(audits),
            parts=parts,
            provenance=manifest["provenance"],
            holdout=tuple(holdout),
        )
    except ResultFormatError:
        raise
    except Exception as error:
        raise ResultFormatError(f"{told} is no whole elicitation: {str(error)[:200]}") from error


def _examples(rows: Sequence[Mapping[str, Any]]) -> list[ForgetExample]:
    """Rows as they were; a reader would number them anew."""
    return [
        replace(example, row=int(row["row"])) for example, row in zip(as_examples(rows), rows, strict=True)
    ]


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
