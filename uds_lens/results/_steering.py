"""Examples that steered a training run: the record beside its checkpoints, and how many of them an audit measures."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from uds_lens._storage import read_with_checksum
from uds_lens.data import ForgetExample
from uds_lens.errors import ResultFormatError, warn_once

RECORD, FORMAT, VERSION = "depth.json", "uds_lens.DepthCurve", 1
"""Name, format and version of the record that `uds_lens.training` writes beside a checkpoint."""

BEST = "depth-best"  # folder in the Trainer's output directory that holds the weights of the best step so far


def row_record(example: ForgetExample) -> dict[str, Any]:
    """Return what identifies an example in the record: id, subject, and a hash of its question and answer."""
    return {"id": example.id, "subject": example.subject, "hash": _hash(example)}


def steering(
    checkpoint: str, examples: Sequence[ForgetExample], control: Sequence[ForgetExample] = ()
) -> dict[str, int]:
    """Return `steered_by`, the number of examples that decided when a checkpoint's training stopped or what it kept.

    Beside it `n_steering`: how many of `examples` are among those, or about the subject of one; and, where the damage
    of retained facts decided as well, `n_steering_control`: the same of `control`.

    Warns:
        UdsLensWarning: There is a record, and it cannot be read.
    """
    file = Path(checkpoint) / RECORD
    if not file.is_file():
        return {}
    try:
        record = read_with_checksum(file, format=FORMAT, versions=(VERSION,))
        rows = record["measured"] if record["steers"] else []
        n, n_control = _shared(rows, examples), _shared(record.get("control", []), control)
    except (ResultFormatError, KeyError, TypeError) as error:
        warn_once(
            f"{str(file)[-120:]!r} cannot be read, so that nothing shows whether these examples steered the training: "
            f"{str(error)[:200]}"
        )
        return {}
    found = {"steered_by": len(rows), "n_steering": n} if rows else {}
    return found | ({"n_steering_control": n_control} if n_control else {})


def _shared(rows: Sequence[Mapping[str, Any]], examples: Sequence[ForgetExample]) -> int:
    """Count the examples that are among the record's rows, or about the subject of one."""
    subjects, hashes = {row["subject"] for row in rows} - {None}, {row["hash"] for row in rows}
    return sum(example.subject in subjects or _hash(example) in hashes for example in examples)


def _hash(example: ForgetExample) -> str:
    text = f"{example.question}\n{example.answer}"
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()
