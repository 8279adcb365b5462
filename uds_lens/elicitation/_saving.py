"""Saved elicitations: parts of a run (one model's texts for one probe and decoding) and complete results."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from uds_lens._storage.files import check_writable, located
from uds_lens._storage.records import conform, digest
from uds_lens._storage.results import Columns, Kind, Result, Row
from uds_lens._types import Protocol
from uds_lens.elicitation._options import Decoding, ElicitOptions, ProbeRecord
from uds_lens.errors import ResultFormatError
from uds_lens.results import ModelRecord
from uds_lens.results._saving import EXAMPLES, example_rows, examples_of

if TYPE_CHECKING:
    from uds_lens.elicitation._results import ElicitationResults


HOLDOUT = "holdout"  # role of the unlearned model when asked questions that no model was trained on


@dataclass(frozen=True, kw_only=True)
class Response:
    """Prompt and generated texts for one row."""

    row: int  # index of the row among the examples
    prompt: str  # includes any text optimised for this model
    reference: str  # the correct answer
    texts: tuple[str, ...]  # complete generated texts: one for greedy decoding, otherwise `samples`
    # for example the number of texts cut off, and an optimiser's final loss, steps and reason for stopping
    details: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Part:
    """Texts of one model for one probe and decoding."""

    role: str  # `unlearned`, `retain` or `full`; or `holdout` for the unlearned model
    probe: str
    decoding: Decoding
    responses: tuple[Response, ...]  # one per row asked about
    prefilled: int = 0  # number of prompt tokens processed for generation
    seconds: float = 0.0  # wall time


def part_key(
    fingerprint: str,
    probe: str,
    decoding: Decoding,
    asks: Sequence[Sequence[object]],
    options: ElicitOptions,
    *,
    ends: Collection[int] = (),
) -> str:
    """Return a hash of everything that a part depends on."""
    rows = hashlib.blake2b(repr([list(ask) for ask in asks]).encode(), digest_size=16).hexdigest()
    names = ["max_new_tokens", "dtype", "seed"]
    names += ["samples", "temperature", "top_k"] if decoding == "sampled" else []
    settings = {name: getattr(options, name) for name in names}
    whole = [fingerprint, probe, decoding, rows, settings, sorted(ends)]
    return digest(whole)


def parts_folder(out: str | os.PathLike[str]) -> Path:
    """Return the folder for a run's parts, after checking that it is writable."""
    folder = located(out) / "parts"
    check_writable(folder / "part.json", directory=False)
    return folder


@dataclass(frozen=True, kw_only=True)
class _Asked:
    """A part without its responses, which are stored as table rows."""

    role: str
    probe: str
    decoding: Decoding
    prefilled: int
    seconds: float


@dataclass(frozen=True, kw_only=True)
class _Alone(_Asked):
    """A part with its responses as rows."""

    texts: tuple[dict[str, Any], ...]


_PART = Kind("elicitation.Part", values=_Alone)
_ASKED = tuple(field.name for field in fields(_Asked))


def write_part(part: Part, file: str | os.PathLike[str], *, key: str) -> None:
    """Write a part, atomically."""
    Result(_PART, {"key": key}, values={**_asked(part), "texts": _rows(part)}).save(file)


def read_part(file: str | os.PathLike[str], *, key: str) -> Part:
    """Read a part."""
    saved = Result.load(file, _PART)
    if saved.settings != {"key": key}:
        raise ResultFormatError(f"{saved.where} belongs to another run ({str(saved.settings)[:80]}).")
    return Part(**_asked(saved.values), responses=tuple(_response(row, saved.where) for row in saved.values.texts))


def _asked(part: Part | _Asked) -> dict[str, Any]:
    return {name: getattr(part, name) for name in _ASKED}


def _rows(part: Part) -> list[dict[str, Any]]:
    return [{**vars(response), "details": json.dumps(dict(response.details))} for response in part.responses]


def _response(row: Mapping[str, Any], where: str) -> Response:
    try:
        details = json.loads(row["details"])
    except (ValueError, LookupError, TypeError, RecursionError) as error:
        raise ResultFormatError(f"{where} holds a text with invalid details: {str(error)[:100]}.") from error
    return conform(Response, {**row, "details": details}, where=f"{where}: texts")


@dataclass(frozen=True, kw_only=True)
class _Values:
    """Stored values other than options, models and provenance."""

    protocol: Protocol
    probes: tuple[ProbeRecord, ...]
    parts: tuple[_Asked, ...]


_TEXTS: Columns = {
    "part": "int64",
    "row": "int64",
    "prompt": "string",
    "reference": "string",
    "texts": "strings",
    "details": "string",
}
KIND = Kind(
    "ElicitationResults",
    settings=ElicitOptions,
    values=_Values,
    model=ModelRecord,
    tables={"examples": EXAMPLES, "holdout": EXAMPLES, "texts": _TEXTS},
)
"""Storage format of elicitations."""


def save_elicitation(results: ElicitationResults, path: str | os.PathLike[str]) -> None:
    """Write `ElicitationResults`, replacing an earlier result at the path and leaving other files there alone."""
    texts = [{**row, "part": number} for number, part in enumerate(results.parts) for row in _rows(part)]
    tables: dict[str, Sequence[Row]] = {"examples": example_rows(results.examples), "texts": texts}
    if results.holdout:
        tables["holdout"] = example_rows(results.holdout)
    Result(
        KIND,
        results.options,
        models=results.models,
        provenance=results.provenance,
        values={"protocol": results.protocol, "probes": results.probes, "parts": [*map(_asked, results.parts)]},
        tables=tables,
        cautions=results.warnings,
    ).save(path)


def load_members(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Read the fields of `ElicitationResults`."""
    saved = Result.load(path, KIND)
    where, values, models = saved.where, saved.values, saved.models
    examples, holdout = examples_of(saved), examples_of(saved, "holdout") if "holdout" in saved.tables else ()
    roles = [*models, *([HOLDOUT] if holdout else [])]
    asked = {(part.probe, part.decoding) for part in values.parts}
    complete = sorted((*key, role) for key in asked for role in roles)
    if (
        "unlearned" not in models
        or HOLDOUT in models
        or sorted((part.probe, part.decoding, part.role) for part in values.parts) != complete
        or sorted({name for name, _ in asked}) != sorted(probe.name for probe in values.probes)
    ):
        raise ResultFormatError(f"{where}: models, probes and parts do not match.")
    responses: list[list[Response]] = [[] for _ in values.parts]
    for row in saved.table("texts"):
        number = row["part"]
        if number is None or not 0 <= number < len(responses):
            raise ResultFormatError(f"{where}: some texts belong to a part that does not exist.")
        responses[number].append(_response({name: row[name] for name in row if name != "part"}, where))
    lengths = {role: len(holdout if role == HOLDOUT else examples) for role in roles}
    parts = tuple(Part(**_asked(part), responses=tuple(of)) for part, of in zip(values.parts, responses, strict=True))
    if any(not 0 <= response.row < lengths[part.role] for part in parts for response in part.responses):
        raise ResultFormatError(f"{where}: some parts refer to rows that do not exist.")
    return {
        "options": saved.settings,
        "protocol": values.protocol,
        "models": models,
        "examples": examples,
        "probes": values.probes,
        "parts": parts,
        "provenance": saved.provenance,
        "holdout": holdout,
    }
