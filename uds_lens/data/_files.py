"""Rows from files on disk: JSON, JSON lines, CSV, Parquet. Nothing here interprets the cells."""

from __future__ import annotations

import csv
import io
import json
import stat
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from uds_lens._storage import tables
from uds_lens._storage.tables import LargeTableError, column_names, read_parquet
from uds_lens.data._examples import named, place, plain, short
from uds_lens.errors import DataError


def parquet_names(path: Path) -> list[str]:
    """Return the names of all columns of a Parquet file."""
    with _readable(path):
        return column_names(path)


def parquet_rows(path: Path, columns: Collection[str] | None = None) -> list[dict[str, Any]]:
    """Read the rows of a Parquet file, as one mapping from column name to cell per row."""
    names = parquet_names(path)
    if len(set(names)) < len(names):
        raise DataError(f"{place(path)}: column names must differ; got {named(names, quote='')}.")
    with _readable(path):
        table = read_parquet(path, columns=columns)
        return table.to_pylist() if table.column_names else [{}] * table.num_rows


@contextmanager
def _readable(path: Path) -> Iterator[None]:
    try:
        yield
    except LargeTableError as error:
        raise DataError(
            f"{place(path)}: its columns need more than {tables.MOST_BYTES >> 30} GiB once they are unpacked, or it "
            f"has more than {tables.MOST_ROWS} rows. Split it, or pass rows."
        ) from error
    except Exception as error:  # of Arrow, and ValueError or OverflowError for single values
        cause = error.__cause__ or error
        raise DataError(
            f"{place(path)}: not a readable Parquet file: {plain(cause)} ({type(cause).__name__})."
        ) from error


Rows = list[Any]

SUFFIXES = (".json", ".jsonl", ".csv", ".parquet")

LARGEST = 1 << 30  # bytes of a file that is read: 1 GiB, far above any set of questions


def read_rows(path: Path, *, columns: Collection[str] | None = None) -> Rows:
    """Rows of a file, chosen by its suffix.

    A `.json` file may hold an array of objects, an object with one list, or one object per line.
    """
    suffix = path.suffix.lower()
    if suffix not in SUFFIXES:
        raise DataError(
            f"{place(path)}: unknown suffix {plain(path.suffix, 20) or '(none)'}; "
            f"expected one of {', '.join(SUFFIXES)}. "
            "Convert or rename the file."
        )
    _check_file(path)
    if suffix == ".parquet":
        return parquet_rows(path, columns)
    text = _text(path)
    if not text.strip():
        raise DataError(f"{place(path)} is empty: expected at least one row.")
    if suffix == ".csv":
        return _csv(text, path)
    lines = suffix == ".jsonl" and not text.lstrip().startswith("[")
    return _json_lines(text, path) if lines else _json(text, path)


def _check_file(path: Path) -> None:
    """A device or a pipe may never end, and a huge file does not fit: both are refused before they are opened."""
    status = path.stat()
    if not stat.S_ISREG(status.st_mode):
        raise DataError(
            f"{place(path)}: expected a regular file; got a device, pipe or socket. Write it to a file first."
        )
    if status.st_size > LARGEST:
        raise DataError(
            f"{place(path)}: {status.st_size / 2**30:.1f} GiB; a file of examples may have 1 GiB. Split it."
        )


def _text(path: Path) -> str:
    with path.open("rb") as file:
        content = file.read(LARGEST + 1)
    if len(content) > LARGEST:
        raise DataError(
            f"{place(path)}: more than 1 GiB; a file of examples may have that much. Split it, or pass rows."
        )
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise DataError(
            f"{place(path)}: not UTF-8 text (byte {error.object[error.start]:#04x} at offset {error.start}). "
            "Save the file as UTF-8."
        ) from error


def _json(text: str, path: Path) -> Rows:
    if text.lstrip().startswith("{") and _one_object_per_line(text):
        return _json_lines(text, path)
    content = _parse(text, path)
    if isinstance(content, list):
        return content
    if not isinstance(content, dict):
        raise DataError(f"{place(path)}: expected a JSON array of objects; got {type(content).__name__}.")
    lists = {name: value for name, value in content.items() if isinstance(value, list)}
    if "question" in content and not isinstance(content["question"], (list, dict)):
        return [content]
    if len(lists) != 1:
        raise DataError(
            f"{place(path)}: a JSON object must hold exactly one list of rows; found {len(lists)} lists "
            f"under the keys {named(content, quote='') or '(none)'}. Write a JSON array of objects instead."
        )
    return next(iter(lists.values()))


def _one_object_per_line(text: str) -> bool:
    """True when the first two lines with content each hold a whole JSON object or start one."""
    first, _, rest = text.strip().partition("\n")
    try:
        return isinstance(json.loads(first), dict) and rest.lstrip().startswith("{")
    except (ValueError, RecursionError):
        return False


def _json_lines(text: str, path: Path) -> Rows:
    lines = text.split("\n")
    return [_parse(line, path, line=number) for number, line in enumerate(lines, start=1) if line.strip()]


def _parse(text: str, path: Path, *, line: int | None = None) -> Any:
    where = place(path) if line is None else f"{place(path)}, line {line}"
    try:
        return json.loads(text, object_pairs_hook=_object)
    except json.JSONDecodeError as error:
        at = error.lineno if line is None else line
        what = "JSON" if line is None else "JSON (one object per line)"
        raise DataError(f"{place(path)}, line {at}, column {error.colno}: broken {what}: {error.msg}.") from error
    except _TwiceError as error:
        raise DataError(
            f"{where}: an object has the key {short(error.args[0])} twice, and only one value could count: "
            f"{short(error.args[1], 60)} or {short(error.args[2], 60)}. Remove one."
        ) from error
    except (ValueError, RecursionError) as error:
        raise DataError(f"{where}: JSON that cannot be read: {plain(error)}.") from error


class _TwiceError(Exception):
    """A key that occurs twice in one object, with both values."""


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """A JSON object whose keys must differ; Python's own reader lets the last one win."""
    mapping = dict(pairs)
    if len(mapping) < len(pairs):
        seen: dict[str, Any] = {}
        for key, value in pairs:
            if key in seen:
                raise _TwiceError(key, seen[key], value)
            seen[key] = value
    return mapping


def _csv(text: str, path: Path) -> Rows:
    reader = csv.reader(io.StringIO(text, newline=""), strict=True)
    rows: Rows = []
    try:
        header = [name.strip() for name in next(reader)]
        if len(set(header)) < len(header):
            raise DataError(f"{place(path)}, line 1: column names must differ; got {named(header, quote='')}.")
        for cells in reader:
            if not cells:
                continue
            if len(cells) != len(header):
                raise DataError(
                    f"{place(path)}, line {reader.line_num}: expected {len(header)} cells ({named(header, quote='')}); "
                    f"got {len(cells)}. Quote the cells that contain commas."
                )
            rows.append(dict(zip(header, cells, strict=True)))
    except csv.Error as error:
        raise DataError(f"{place(path)}, line {reader.line_num}: broken CSV: {plain(error)}.") from error
    return rows
