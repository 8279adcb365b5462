"""Examples that steered a training run: what checkpoints say of them, and how many of them an audit measures."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from uds_lens._storage import read_with_checksum
from uds_lens.data import ForgetExample
from uds_lens.errors import ResultFormatError, warn_once

RECORD, FORMAT, VERSION = "depth.json", "uds_lens.DepthCurve", 1
"""Name, format and version of the record that `uds_lens.training` writes beside a checkpoint."""

DECLARED = "uds_lens_steering"  # the same in the model's configuration, as hashes
_ROW, _SUBJECT = "row:", "subject:"  # what a hash is of

BEST = "depth-best"  # folder in the Trainer's output directory that holds the weights of the best step so far


def row_record(example: ForgetExample) -> dict[str, Any]:
    """Return what identifies an example in the record: id, subject, and a hash of its question and answer."""
    return {"id": example.id, "subject": example.subject, "hash": _hash(f"{example.question}\n{example.answer}")}


def declare(config: Any, measured: Sequence[ForgetExample], control: Sequence[ForgetExample] = ()) -> None:
    """Write which examples steer a training into the model's configuration, as hashes, beside those of earlier ones.

    The configuration is saved with the weights and uploaded with them, so that it is there where `depth.json` is not.
    """
    _add(config, {"rows": _marks(map(row_record, measured)), "control": _marks(map(row_record, control))})


def declared_in(config: Any) -> dict[str, list[str]]:
    """Return what `declare` wrote into a configuration, which may be anybody's; where it is something else, warn."""
    found = getattr(config, DECLARED, None)
    if found is None:
        return {}
    marks = [found.get(name, []) for name in ("rows", "control")] if isinstance(found, dict) else [None]
    if not all(isinstance(each, list) and all(isinstance(mark, str) for mark in each) for each in marks):
        warn_once(
            f"{DECLARED} in the configuration of {str(getattr(config, '_name_or_path', ''))[-120:]!r} holds something "
            "else than hashes of examples, so that it does not show which examples steered the training."
        )
        return {}
    return dict(zip(("rows", "control"), marks, strict=True))


def inherit(config: Any, checkpoint: str | os.PathLike[str]) -> None:
    """Write what the `depth.json` of a checkpoint names into the configuration of a model that is made from it.

    A saved adapter and a GGUF file have no configuration of ours that names them already.
    """
    recorded = _recorded(checkpoint)
    if recorded["rows"] or recorded["control"]:
        _add(config, recorded)


def steering(
    checkpoint: str,
    examples: Sequence[ForgetExample],
    control: Sequence[ForgetExample] = (),
    *,
    declared: Mapping[str, Sequence[str]] | None = None,
) -> dict[str, int]:
    """Return `steered_by`, the number of examples that decided when a checkpoint's training stopped or what it kept.

    Beside it `n_steering`: how many of `examples` are among those, or about the subject of one; and, where the damage
    of retained facts decided as well, `n_steering_control`: the same of `control`.

    Args:
        checkpoint: The model as it was named; where that is a directory, its `depth.json` is read.
        examples: The examples of the audit.
        control: Its retained facts.
        declared: What the model's configuration says (`declared_in`).

    Warns:
        UdsLensWarning: There is a record, and it cannot be read.
    """
    marks = {name: {*found, *(declared or {}).get(name, ())} for name, found in _recorded(checkpoint).items()}
    n_rows = sum(mark.startswith(_ROW) for mark in marks["rows"])
    found = {"steered_by": n_rows, "n_steering": _shared(marks["rows"], examples)} if n_rows else {}
    n_control = _shared(marks["control"], control)
    return found | ({"n_steering_control": n_control} if n_control else {})


def _recorded(checkpoint: str | os.PathLike[str]) -> dict[str, set[str]]:
    """Return the marks of what steered by the `depth.json` in a checkpoint, or beside it where it is one file."""
    place = Path(checkpoint)
    file = (place.parent if place.is_file() else place) / RECORD
    if not file.is_file():
        return {"rows": set(), "control": set()}
    try:
        record = read_with_checksum(file, format=FORMAT, versions=(VERSION,))
        measured = record["measured"] if record["steers"] else ()
        return {"rows": _marks(measured), "control": _marks(record.get("control", ()))}
    except (ResultFormatError, KeyError, TypeError, AttributeError) as error:
        warn_once(
            f"{str(file)[-120:]!r} cannot be read, so that only the model's configuration shows whether these "
            f"examples steered the training: {str(error)[:200]}"
        )
        return {"rows": set(), "control": set()}


def _add(config: Any, marks: Mapping[str, Collection[str]]) -> None:
    before = declared_in(config)
    setattr(config, DECLARED, {name: sorted({*before.get(name, ()), *marks[name]}) for name in ("rows", "control")})


def _marks(rows: Iterable[Mapping[str, Any]]) -> set[str]:
    """Return a hash of each row, and one of each subject."""
    return {
        f"{kind}{mark}" for row in rows for kind, mark in ((_ROW, row["hash"]), (_SUBJECT, _of_subject(row))) if mark
    }


def _of_subject(row: Mapping[str, Any]) -> str | None:
    return None if row["subject"] is None else _hash(row["subject"])


def _shared(marks: Collection[str], examples: Sequence[ForgetExample]) -> int:
    """Count the examples that are marked, or about a subject that is."""
    return sum(not _marks([row_record(example)]).isdisjoint(marks) for example in examples)


def _hash(text: str) -> str:
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()
