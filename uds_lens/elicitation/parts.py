"""What one model said under one audit and decoding, and its file: a run that was killed goes on from these."""

from __future__ import annotations

import hashlib
import io
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from uds_lens.elicitation.options import Decoding, ElicitOptions
from uds_lens.errors import ResultFormatError
from uds_lens.storage import atomic_write_bytes, located, read_file, require_fresh

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


def part_key(
    fingerprint: str,
    audit: str,
    decoding: Decoding,
    asks: Sequence[Sequence[object]],
    options: ElicitOptions,
) -> str:
    """Hash of everything that a part depends on.

    Args:
        fingerprint: Of the model's weights.
        audit: Its name, and what its name leaves out.
        decoding: Greedy or sampled.
        asks: Of each row its place, id, subject, reference and prompt tokens: texts are drawn by id, and a part holds
            places and references.
        options: Samples, lengths, seed.
    """
    asked = hashlib.blake2b(repr([list(ask) for ask in asks]).encode(), digest_size=16).hexdigest()
    names = ["max_new_tokens", "dtype", "seed"]
    names += ["samples", "temperature", "top_k"] if decoding == "sampled" else []
    settings = {name: getattr(options, name) for name in names}
    told = [fingerprint, audit, decoding, asked, settings]
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
        "format": "uds_lens.elicitation.Part",
        "version": 1,
    }
    table = pa.table(
        {
            "row": pa.array([said.row for said in part.said], pa.int64()),
            "prompt": pa.array([said.prompt for said in part.said], pa.string()),
            "reference": pa.array([said.reference for said in part.said], pa.string()),
            "texts": pa.array([list(said.texts) for said in part.said], pa.list_(pa.string())),
            "told": pa.array([json.dumps(dict(said.told)) for said in part.said], pa.string()),
        }
    ).replace_schema_metadata({"uds_lens": json.dumps(head)})
    buffer = io.BytesIO()
    parquet.write_table(table, buffer, compression="zstd")
    atomic_write_bytes(file, buffer.getvalue())


def read_part(file: str | os.PathLike[str], *, key: str) -> Part:
    """Read a part.

    Raises:
        ResultFormatError: It is missing, broken, or not the one with that key.
    """
    return part_from_bytes(read_file(file), told=repr(str(file)), key=key)


def part_from_bytes(content: bytes, *, told: str, key: str) -> Part:
    """A part from the bytes of its file, which errors call `told`.

    Raises:
        ResultFormatError: They are broken, or not the part with that key.
    """
    from pyarrow import parquet

    try:
        table = parquet.read_table(io.BytesIO(content))
        head = json.loads(table.schema.metadata[b"uds_lens"])
        if head.pop("format") != "uds_lens.elicitation.Part" or head.pop("version") != 1:
            raise ResultFormatError(f"{told} is no part of an elicitation that this release reads.")
        if (found := head.pop("key")) != key:
            raise ResultFormatError(f"{told} belongs to another run ({str(found)[:80]}).")
        said = tuple(
            Said(**{**row, "texts": tuple(row["texts"]), "told": json.loads(row["told"])})
            for row in table.to_pylist()
        )
        return Part(said=said, **head)
    except ResultFormatError:
        raise
    except Exception as error:
        raise ResultFormatError(f"{told} is no whole part of an elicitation: {str(error)[:200]}") from error
