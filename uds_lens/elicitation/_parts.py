"""What one model said under one audit and decoding, and its file: a run that was killed goes on from these."""

from __future__ import annotations

import hashlib
import io
import json
import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from uds_lens._storage import (
    SEAL,
    atomic_write_bytes,
    conform,
    located,
    read_file,
    read_table_rows,
    require_fresh,
    seal_of,
)
from uds_lens.elicitation._options import Decoding, ElicitOptions
from uds_lens.errors import ResultFormatError

if TYPE_CHECKING:
    import pyarrow as pa


FORMAT = "uds_lens.elicitation.Part"
VERSION = 2
"""Version of the format: its files carry a seal."""

UNSEALED = 1
"""Version without one, read only where a manifest vouches for the file."""

HOLDOUT = "holdout"
"""Role of the unlearned model where it is asked what no model learnt."""


@dataclass(frozen=True, kw_only=True)
class Said:
    """What a model was asked and said about one row."""

    row: int
    """Place of the row among the examples."""

    prompt: str
    """What it read; for optimised audits the text that was found for this model."""

    reference: str
    """What would have been right."""

    texts: tuple[str, ...]
    """Generated texts as they came: one for greedy, `samples` otherwise."""

    told: Mapping[str, Any] = field(default_factory=dict)
    """More about it: the loss that an optimiser reached, its steps, why it stopped."""


@dataclass(frozen=True, kw_only=True)
class Part:
    """One model, one audit, one decoding."""

    role: str
    """`unlearned`, `retain` or `full`; `holdout` for the unlearned model on questions that no model learnt."""

    audit: str
    """Name of the audit."""

    decoding: Decoding
    """Greedy or sampled."""

    said: tuple[Said, ...]
    """The rows that were asked."""

    prefilled: int = 0
    """Prompt tokens that went through the model for generating."""

    seconds: float = 0.0
    """Wall time."""


_COLUMNS = ("row", "prompt", "reference", "texts", "told")


def part_key(
    fingerprint: str,
    audit: str,
    decoding: Decoding,
    asks: Sequence[Sequence[object]],
    options: ElicitOptions,
    *,
    ends: Collection[int] = (),
) -> str:
    """Hash of everything that a part depends on.

    Args:
        fingerprint: Of the model's weights.
        audit: Its name, and what its name leaves out.
        decoding: Greedy or sampled.
        asks: Of each row its place, id, subject, reference and prompt tokens: texts are drawn by id, and a part holds
            places and references.
        options: Samples, lengths, seed.
        ends: Tokens that end a text: the generation config names some, and is no part of the fingerprint.
    """
    asked = hashlib.blake2b(repr([list(ask) for ask in asks]).encode(), digest_size=16).hexdigest()
    names = ["max_new_tokens", "dtype", "seed"]
    names += ["samples", "temperature", "top_k"] if decoding == "sampled" else []
    settings = {name: getattr(options, name) for name in names}
    told = [fingerprint, audit, decoding, asked, settings, sorted(ends)]
    return hashlib.blake2b(json.dumps(told, sort_keys=True).encode(), digest_size=16).hexdigest()


def parts_folder(out: str | os.PathLike[str]) -> Path:
    """Where the parts of a run lie, before anything is asked.

    Raises:
        StorageError: Nothing can be written there.
    """
    folder = located(out) / "parts"
    require_fresh(folder / "part.parquet", directory=False)
    return folder


def write_part(part: Part, file: str | os.PathLike[str], *, key: str) -> None:
    """Write a part, whole or not at all."""
    import pyarrow as pa
    from pyarrow import parquet

    head = {name: getattr(part, name) for name in ("role", "audit", "decoding", "prefilled", "seconds")} | {
        "key": key,
        "format": FORMAT,
        "version": VERSION,
    }
    rows = [
        {
            "row": said.row,
            "prompt": said.prompt,
            "reference": said.reference,
            "texts": list(said.texts),
            "told": json.dumps(dict(said.told)),
        }
        for said in part.said
    ]
    head[SEAL] = seal_of({**head, "rows": rows})
    table = pa.Table.from_pylist(rows, schema=_schema()).replace_schema_metadata(
        {"uds_lens": json.dumps(head)}
    )
    buffer = io.BytesIO()
    parquet.write_table(table, buffer, compression="zstd")
    atomic_write_bytes(file, buffer.getvalue())


def read_part(file: str | os.PathLike[str], *, key: str) -> Part:
    """Read a part.

    Raises:
        ResultFormatError: It is missing, broken, or not the one with that key.
    """
    return part_from_bytes(read_file(file), told=repr(str(file)), key=key)


def part_from_bytes(content: bytes, *, told: str, key: str, vouched: bool = False) -> Part:
    """A part from the bytes of its file.

    Args:
        content: The bytes.
        told: What errors call the file.
        key: The part's key.
        vouched: A manifest vouches for the bytes, so that they need no seal of their own.

    Raises:
        ResultFormatError: They are broken, altered, or not the part with that key.
    """
    rows, metadata = read_table_rows(content, schema=_schema(), told=told, what="part of an elicitation")
    try:
        head = json.loads(metadata[b"uds_lens"])
        seal = head.pop(SEAL, None)
        versions = (UNSEALED, VERSION) if vouched else (VERSION,)
        if head["format"] != FORMAT or head["version"] not in versions:
            raise ResultFormatError(f"{told} is no part of an elicitation that this release reads.")
        if head["version"] != UNSEALED and seal != seal_of({**head, "rows": rows}):
            raise ResultFormatError(f"{told} was altered after it was saved: ask again.")
        if head["key"] != key:
            raise ResultFormatError(f"{told} belongs to another run ({str(head['key'])[:80]}).")
        said = [{**row, "told": json.loads(row["told"])} for row in rows]
        members = {name: value for name, value in head.items() if name not in ("format", "version", "key")}
        return conform(Part, {**members, "said": said}, where=told)
    except ResultFormatError:
        raise
    except Exception as error:
        raise ResultFormatError(f"{told} is no whole part of an elicitation: {str(error)[:200]}") from error


def _schema() -> pa.Schema:
    import pyarrow as pa

    kinds = {"row": pa.int64(), "texts": pa.list_(pa.string())}
    return pa.schema([(name, kinds.get(name, pa.string())) for name in _COLUMNS])
