"""Run folders of the UDS paper's released script: `summary.json`, `results.json` and what it writes beside them."""

from __future__ import annotations

import csv
import io
import json
import math
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from uds_lens._storage import read_file
from uds_lens.errors import DataError, ResultFormatError, warn_once
from uds_lens.meta import REASONS, ModelTable
from uds_lens.meta._tables import kind, member, number, origin, read_object
from uds_lens.published._conformance_check import score
from uds_lens.published._registry import find

if TYPE_CHECKING:
    import pandas as pd

SUMMARY, RESULTS, DETAILED, LAYERS = "summary.json", "results.json", "results_detailed.jsonl", "layer_details.csv"

_EXPECTED = "a run folder of the UDS paper's released script"
_RUN = re.compile(r"\d{4}_\d{6}_tf_(.+)_layer")
"""Name that the script gives a folder: month, day and time, and the model."""

_DEFAULT_TAU, _CLOSE = 0.05, 1e-6

_LONGEST, _LONGEST_PART = 2000, 255  # characters of a name, and bytes of a folder in it, that file systems take


@dataclass(frozen=True, eq=False, kw_only=True)
class ReleasedRuns(ModelTable):
    """Runs of the released script: one row per model, with `uds` and `n_measured`; `examples` has every score."""

    layers: pd.DataFrame
    """`model`, `example_id`, `layer`, `s1_delta`, `s2_delta`: nats per token, as written (full log-probability minus
    the patched one); NaN where the script wrote none."""

    settings: pd.DataFrame
    """`model`, `source`, `full`, `retain`, `dtype`, `tau`, `n_examples`, `n_skipped`, `complete` (False where the run
    was killed before it wrote its summary)."""


def read_released(path: str | os.PathLike[str]) -> ReleasedRuns:
    """Read what the UDS paper's released script wrote.

    The score is the mean over the examples that have one, as the script's is; where none has, it wrote 0, which is NaN
    here, with the reason. Scores are computed again from the layers and must agree with those that were written. A
    run that was killed has no summary: what is whole of it is read, and a warning says so.

    Args:
        path: One run folder, or a folder with several below it.

    Returns:
        One row per run. Models are called as on the authors' page where they are known (`find`), else as the run.

    Raises:
        ResultFormatError: A file is broken, or holds what the script does not write.
        DataError: There is no run, or two are of one model.

    Example:
        >>> read_released("nowhere")
        Traceback (most recent call last):
            ...
        uds_lens.errors.DataError: no run of the released script at 'nowhere': expected a folder with summary.json,
        results.json, results_detailed.jsonl or layer_details.csv.
    """
    import pandas as pd

    folders = released_folders(path)
    if not folders:
        raise DataError(
            f"no run of the released script at {os.fspath(path)!r}: expected a folder with {SUMMARY}, {RESULTS}, "
            f"{DETAILED} or {LAYERS}."
        )
    runs = [_read(folder) for folder in folders]
    names = [run.settings["model"] for run in runs]
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise DataError(f"{os.fspath(path)!r} holds several runs of {twice!r}: give one of their folders.")
    rows, reasons = [], []
    for run in runs:
        name, scores = run.settings["model"], [uds for _, uds in run.examples if uds == uds]
        uds = sum(scores) / len(scores) if scores else math.nan
        made = origin(run.settings["source"], "", names=(name,))
        rows.append({"model": name, **made, "uds": uds, "n_measured": len(scores)})
        if not scores:
            reasons.append((name, "uds", "no example is measurable (the script writes 0)"))
    examples = [(run.settings["model"], "uds", example_id, uds) for run in runs for example_id, uds in run.examples]
    layers = [(run.settings["model"], *row) for run in runs for row in run.layers]
    return ReleasedRuns(
        frame=pd.DataFrame(rows),
        reasons=pd.DataFrame(reasons, columns=list(REASONS)),
        source=str(path),
        examples=pd.DataFrame(examples, columns=["model", "metric", "example_id", "value"]),
        layers=pd.DataFrame(layers, columns=["model", "example_id", "layer", "s1_delta", "s2_delta"]),
        settings=pd.DataFrame([run.settings for run in runs]),
    )


def released_folders(path: str | os.PathLike[str]) -> list[Path]:
    """List the run folders at or below a place; a lone `summary.json` may be anybody's, and is no run."""
    top = Path(path)
    if not top.is_dir():
        return []
    files = [file for name in (RESULTS, DETAILED, LAYERS) for file in top.glob(f"**/{name}")]
    return sorted({file.parent for file in files})


@dataclass(frozen=True)
class _Run:
    settings: dict[str, Any]
    examples: Sequence[tuple[str, float]]
    layers: Sequence[tuple[str, int, float, float]]


def _read(folder: Path) -> _Run:
    summary: Mapping[str, Any] = {}
    complete = (folder / SUMMARY).is_file()
    if complete:
        summary = read_object(folder / SUMMARY, expected=_EXPECTED)
    else:
        warn_once(f"{str(folder)!r} has no {SUMMARY}: the run was killed, and what is whole of it is read.")
    where = str(folder / SUMMARY)
    tau = number(summary.get("delta_threshold"), where=f"{where}, 'delta_threshold'")
    tau = _DEFAULT_TAU if math.isnan(tau) else tau
    rows = _examples(folder, complete)
    examples, layers = [], []
    for name, record, here in rows:
        s1, s2 = (_deltas(record, part, here) for part in ("s1_deltas", "s2_deltas"))
        if len(s1) != len(s2):
            raise ResultFormatError(f"{here}: {len(s1)} values of S1 and {len(s2)} of S2.")
        uds = number(record.get("uds"), where=f"{here}, 'uds'")
        again = score(zip(s1, s2, strict=True), tau)
        if not (math.isnan(uds) and math.isnan(again)) and not abs(uds - again) <= _CLOSE:
            raise ResultFormatError(f"{here}: its layers give UDS {again:.6g}, and {uds:.6g} is written beside them.")
        examples.append((name, uds))
        layers += [(name, layer, a, b) for layer, a, b in zip(_layers(record, len(s1), here), s1, s2, strict=True)]
    if len({name for name, _ in examples}) < len(examples):
        raise ResultFormatError(f"{str(folder)!r}: an example occurs twice.")
    source = _source(summary.get("source_model_id"), where) or _from_name(folder)
    entry = find(source)
    settings = {
        "model": _from_name(folder) if entry is None else entry.name,
        "source": source,
        **{name: str(summary.get(f"{name}_model") or "") for name in ("full", "retain")},
        "dtype": str(summary.get("dtype") or ""),
        "tau": tau,
        "n_examples": len(examples),
        "n_skipped": len(member(summary, "skipped_indices", list, where=where)) if "skipped_indices" in summary else 0,
        "complete": complete,
    }
    if complete and examples:
        scores = [uds for _, uds in examples if uds == uds]
        written = number(summary.get("avg_uds"), where=f"{where}, 'avg_uds'")
        mean = sum(scores) / len(scores) if scores else 0.0
        if not math.isnan(written) and abs(written - mean) > _CLOSE:
            raise ResultFormatError(f"{where}: 'avg_uds' is {written:.6g}, and its examples have a mean of {mean:.6g}.")
    return _Run(settings, examples, layers)


def _source(given: Any, where: str) -> str:
    """Check the model's Hub id or folder, which will be looked for on this machine; "" where there is none."""
    if given is None:
        return ""
    named = isinstance(given, str) and given.isprintable() and len(given) <= _LONGEST
    if not named or max(len(os.fsencode(part)) for part in given.split("/")) > _LONGEST_PART:
        raise ResultFormatError(
            f"{where}: 'source_model_id' must be a Hub id or a folder; got {kind(given)} {ascii(given)[:40]}."
        )
    return given


def _from_name(folder: Path) -> str:
    run = _RUN.fullmatch(folder.name)
    return run[1] if run else folder.name


def _examples(folder: Path, complete: bool) -> list[tuple[str, Mapping[str, Any], str]]:
    """Return id, record and place of each example, from the most detailed file that is whole."""
    problems: list[ResultFormatError] = []
    readers = ((RESULTS, _from_results), (DETAILED, _from_lines), (LAYERS, _from_table))
    for name, read in readers:
        file = folder / name
        if not file.is_file():
            continue
        try:
            return [(_id(record, here), record, here) for record, here in read(file, complete)]
        except ResultFormatError as problem:
            if complete:
                raise
            problems.append(problem)
    raise problems[0]


def _from_results(file: Path, complete: bool) -> list[tuple[Mapping[str, Any], str]]:
    content = _json(read_file(file), str(file))
    if not isinstance(content, list):
        raise ResultFormatError(f"{str(file)!r} holds {kind(content)}: expected a list of examples.")
    return [(_object(record, f"{file}[{at}]"), f"{file}[{at}]") for at, record in enumerate(content)]


def _from_lines(file: Path, complete: bool) -> list[tuple[Mapping[str, Any], str]]:
    lines = [line for line in read_file(file).split(b"\n") if line.strip()]
    records = []
    for at, line in enumerate(lines):
        here = f"{file}, line {at + 1}"
        try:
            records.append((_object(_json(line, here), here), here))
        except ResultFormatError:
            if complete or at < len(lines) - 1 or not at:  # the last line of a killed run may be cut
                raise
    return records


def _from_table(file: Path, complete: bool) -> list[tuple[Mapping[str, Any], str]]:
    try:
        table = list(csv.DictReader(io.StringIO(read_file(file).decode("utf-8-sig"))))
    except (UnicodeDecodeError, csv.Error) as error:
        raise ResultFormatError(f"{str(file)!r} is no CSV: {str(error)[:120]}.") from error
    if not complete:
        table = table[:-1]  # the last row of a killed run may be cut
    examples: dict[str, dict[str, Any]] = {}
    for at, row in enumerate(table):
        here = f"{file}, row {at + 2}"
        if any(row.get(name) is None for name in ("idx", "layer", "s1_delta", "s2_delta", "uds")):
            raise ResultFormatError(f"{here}: expected the columns idx, layer, s1_delta, s2_delta and uds.")
        record = examples.setdefault(
            row["idx"],
            {"idx": row["idx"], "uds": _cell(row["uds"], here), "s1_deltas": [], "s2_deltas": [], "layers": []},
        )
        layer = _cell(row["layer"], here)
        if layer is None or not layer.is_integer():
            raise ResultFormatError(f"{here}: expected the number of a layer; got {row['layer'][:40]!r}.")
        record["layers"].append(int(layer))
        for name in ("s1_delta", "s2_delta"):
            record[f"{name}s"].append(_cell(row[name], here))
    whole = max((len(example["layers"]) for example in examples.values()), default=0)
    return [(example, str(file)) for example in examples.values() if complete or len(example["layers"]) == whole]


def _cell(text: str, where: str) -> float | None:
    try:
        return float(text) if text.strip() else None
    except ValueError as error:
        raise ResultFormatError(f"{where}: {text[:40]!r} is not a number.") from error


def _json(content: bytes, where: str) -> Any:
    try:
        return json.loads(content.decode("utf-8-sig"))
    except (ValueError, RecursionError, MemoryError) as error:
        raise ResultFormatError(f"{where} is not JSON ({str(error)[:120]}): expected {_EXPECTED}.") from error


def _object(value: Any, where: str) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise ResultFormatError(f"{where} is {kind(value)}: expected an example, an object.")
    return value


def _id(record: Mapping[str, Any], where: str) -> str:
    idx = record.get("idx")
    if isinstance(idx, bool) or not isinstance(idx, int | str) or not str(idx).strip():
        raise ResultFormatError(f"{where}: 'idx' must be a number or text; got {kind(idx)}.")
    return str(idx)


def _deltas(record: Mapping[str, Any], name: str, where: str) -> list[float]:
    values = record.get(name)
    if not isinstance(values, list):
        raise ResultFormatError(f"{where}: {name!r} must be a list; got {kind(values)}.")
    return [number(value, where=f"{where}, {name!r}") for value in values]


def _layers(record: Mapping[str, Any], count: int, where: str) -> list[int]:
    """The number of each layer; the script may have been asked for some of them only."""
    parts, numbers = record.get("layer_records"), record.get("layers")
    if not numbers:
        parts = parts if isinstance(parts, list) else ()
        numbers = [part.get("layer") for part in parts if isinstance(part, dict)]
    if not numbers:
        return list(range(count))
    whole = isinstance(numbers, list) and all(type(layer) is int for layer in numbers)
    if not whole or not len(numbers) == len(set(numbers)) == count:
        raise ResultFormatError(f"{where}: expected the numbers of {count} layers; got {str(numbers)[:60]}.")
    return list(numbers)
