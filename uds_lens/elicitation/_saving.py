"""Saved elicitations: a part is what one model said under one probe and decoding; a result is a directory of them."""

from __future__ import annotations

import hashlib
import io
import json
import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from uds_lens._storage import (
    CHECKSUM,
    atomic_directory,
    atomic_write_bytes,
    check_writable,
    checksum_of,
    conform,
    digest,
    located,
    parse_json,
    plain,
    read_file,
    read_one_version,
    read_table_rows,
    read_with_checksum,
    sha256_bytes,
    sha256_file,
    with_checksum,
)
from uds_lens._types import Protocol
from uds_lens.data import ForgetExample
from uds_lens.elicitation._options import Decoding, ElicitOptions, ProbeRecord
from uds_lens.errors import ResultFormatError
from uds_lens.results import ModelRecord

if TYPE_CHECKING:
    import pyarrow as pa

    from uds_lens.elicitation._results import ElicitationResults


HOLDOUT = "holdout"  # role of the unlearned model where it is asked questions that no model learned


@dataclass(frozen=True, kw_only=True)
class Response:
    """The prompt and the texts of one row."""

    row: int  # place of the row among the examples
    prompt: str  # the prompt; for optimised probes with the text that was found for this model
    reference: str  # the right answer
    texts: tuple[str, ...]  # generated texts, uncut: one for greedy, `samples` otherwise
    # More about it: texts without end, the loss that an optimiser reached, its steps, why it stopped.
    details: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Part:
    """One model, one probe, one decoding."""

    role: str  # `unlearned`, `retain` or `full`; `holdout` for the unlearned model on questions that no model learned
    probe: str
    decoding: Decoding
    responses: tuple[Response, ...]  # the rows that were asked
    prefilled: int = 0  # prompt tokens that went through the model for generating
    seconds: float = 0.0  # wall time


PART_FORMAT, PART_VERSION = "uds_lens.elicitation.Part", 3
FORMAT, VERSION = "uds_lens.ElicitationResults", 2
"""Format and its version, raised when older releases could misread a result."""

_MANIFEST, _EXAMPLES = "manifest.json", "examples.json"


def part_key(
    fingerprint: str,
    probe: str,
    decoding: Decoding,
    asks: Sequence[Sequence[object]],
    options: ElicitOptions,
    *,
    ends: Collection[int] = (),
) -> str:
    """Hash everything that a part depends on."""
    rows = hashlib.blake2b(repr([list(ask) for ask in asks]).encode(), digest_size=16).hexdigest()
    names = ["max_new_tokens", "dtype", "seed"]
    names += ["samples", "temperature", "top_k"] if decoding == "sampled" else []
    settings = {name: getattr(options, name) for name in names}
    whole = [fingerprint, probe, decoding, rows, settings, sorted(ends)]
    return digest(whole)


def parts_folder(out: str | os.PathLike[str]) -> Path:
    """Return where the parts of a run go, before anything is asked."""
    folder = located(out) / "parts"
    check_writable(folder / "part.parquet", directory=False)
    return folder


def write_part(part: Part, file: str | os.PathLike[str], *, key: str) -> None:
    """Write a part, atomically."""
    import pyarrow as pa
    from pyarrow import parquet

    head = {name: getattr(part, name) for name in ("role", "probe", "decoding", "prefilled", "seconds")}
    head |= {"key": key, "format": PART_FORMAT, "version": PART_VERSION}
    rows = [
        {**vars(response), "texts": list(response.texts), "details": json.dumps(dict(response.details))}
        for response in part.responses
    ]
    head[CHECKSUM] = checksum_of({**head, "rows": rows})
    table = pa.Table.from_pylist(rows, schema=_schema())
    buffer = io.BytesIO()
    parquet.write_table(table.replace_schema_metadata({"uds_lens": json.dumps(head)}), buffer, compression="zstd")
    atomic_write_bytes(file, buffer.getvalue())


def read_part(file: str | os.PathLike[str], *, key: str) -> Part:
    """Read a part."""
    return _part(read_file(file), where=repr(str(file)), key=key)


def _part(content: bytes, *, where: str, key: str) -> Part:
    rows, metadata = read_table_rows(content, schema=_schema(), where=where, what="part of an elicitation")
    try:
        head = json.loads(metadata[b"uds_lens"])
        seal = head.pop(CHECKSUM, None)
        if (head["format"], head["version"]) != (PART_FORMAT, PART_VERSION):
            raise ResultFormatError(f"{where} is not a part of an elicitation that this release reads.")
        if seal != checksum_of({**head, "rows": rows}):
            raise ResultFormatError(f"{where} was altered after it was saved: ask again.")
        if head["key"] != key:
            raise ResultFormatError(f"{where} belongs to another run ({str(head['key'])[:80]}).")
        responses = [{**row, "details": json.loads(row["details"])} for row in rows]
        members = {name: value for name, value in head.items() if name not in ("format", "version", "key")}
        return conform(Part, {**members, "responses": responses}, where=where)
    except ResultFormatError:
        raise
    except Exception as error:
        raise ResultFormatError(f"{where} is not a complete part of an elicitation: {str(error)[:200]}") from error


def _schema() -> pa.Schema:
    import pyarrow as pa

    kinds = {"row": pa.int64(), "texts": pa.list_(pa.string())}
    names = ("row", "prompt", "reference", "texts", "details")
    return pa.schema([(name, kinds.get(name, pa.string())) for name in names])


def save_elicitation(results: ElicitationResults, path: str | os.PathLike[str]) -> None:
    """Write `ElicitationResults`; an earlier one at the path is replaced, other files there stay."""
    target = check_writable(path, directory=True, format=FORMAT)
    earlier = {file.name for file in target.glob("part-*.parquet") if file.stem[5:].isdecimal()}
    with atomic_directory(target, own={_MANIFEST, _EXAMPLES, *earlier}) as folder:
        questions = {"examples": results.examples, **({"holdout": results.holdout} if results.holdout else {})}
        questions = {name: [plain(asdict(row)) for row in rows] for name, rows in questions.items()}
        atomic_write_bytes(folder / _EXAMPLES, json.dumps(questions).encode())
        names = [f"part-{number:03}.parquet" for number in range(len(results.parts))]
        for name, part in zip(names, results.parts, strict=True):
            write_part(part, folder / name, key=name)
        manifest = {
            "format": FORMAT,
            "version": VERSION,
            "options": results.options.to_dict(),
            "protocol": results.protocol,
            "models": {role: record.to_dict() for role, record in results.models.items()},
            "probes": [{**probe._asdict(), "skipped": plain(probe.skipped)} for probe in results.probes],
            "provenance": plain(results.provenance),
            "files": {name: sha256_file(folder / name) for name in (_EXAMPLES, *names)},
        }
        atomic_write_bytes(folder / _MANIFEST, with_checksum(manifest))


@dataclass(frozen=True, kw_only=True)
class _Manifest:
    """Members of a manifest, beside format, version and checksum."""

    options: ElicitOptions
    protocol: Protocol
    models: Mapping[str, ModelRecord]
    probes: tuple[ProbeRecord, ...]
    provenance: Mapping[str, Any]
    files: Mapping[str, str]


@dataclass(frozen=True, kw_only=True)
class _Questions:
    """Members of the file of questions."""

    examples: tuple[ForgetExample, ...]
    holdout: tuple[ForgetExample, ...] = ()


def load_members(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Read the members of `ElicitationResults`."""
    return read_one_version(path, _MANIFEST, _members)


def _members(folder: Path) -> dict[str, Any]:
    where = repr(str(folder))
    record = read_with_checksum(folder / _MANIFEST, format=FORMAT, versions=(VERSION,))
    members = {name: value for name, value in record.items() if name not in ("format", "version")}
    manifest = conform(_Manifest, members, where=where)
    content = {name: _checked(folder, name, known) for name, known in manifest.files.items()}
    if _EXAMPLES not in content:
        raise ResultFormatError(f"{where} is not a complete elicitation: it names no {_EXAMPLES}.")
    asked_rows = conform(_Questions, parse_json(content.pop(_EXAMPLES), where=where), where=where)
    examples, holdout = asked_rows.examples, asked_rows.holdout
    parts = tuple(_part(data, where=repr(str(folder / name)), key=name) for name, data in content.items())
    roles = [*manifest.models, *([HOLDOUT] if holdout else [])]
    lengths = {role: len(holdout if role == HOLDOUT else examples) for role in roles}
    asked = {(part.probe, part.decoding) for part in parts}
    complete = sorted((*key, role) for key in asked for role in roles)
    if (
        "unlearned" not in manifest.models
        or HOLDOUT in manifest.models
        or sorted((part.probe, part.decoding, part.role) for part in parts) != complete
        or sorted({name for name, _ in asked}) != sorted(probe.name for probe in manifest.probes)
    ):
        raise ResultFormatError(f"{where}: models, probes and parts do not fit together.")
    if any(not 0 <= response.row < lengths[part.role] for part in parts for response in part.responses):
        raise ResultFormatError(f"{where}: parts name rows that do not exist.")
    saved = {name: getattr(manifest, name) for name in ("options", "protocol", "models", "probes", "provenance")}
    return {**saved, "examples": examples, "holdout": holdout, "parts": parts}


def _checked(folder: Path, name: str, known: str) -> bytes:
    if Path(name).name != name:
        raise ResultFormatError(f"{str(folder)!r} names a file outside itself: {name[:80]!r}.")
    content = read_file(folder / name)
    if sha256_bytes(content) != known:
        raise ResultFormatError(f"{str(folder / name)!r} was altered after it was saved: ask again.")
    return content
