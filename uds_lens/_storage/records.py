"""JSON that carries the checksum of what it says.

The seal tells a file that was altered or cut from one that is as it was saved. It is no signature: whoever alters a
file on purpose can seal it again.
"""

from __future__ import annotations

import json
import math
import os
import types
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import MISSING, fields, is_dataclass
from functools import cache
from typing import (
    TYPE_CHECKING,
    Any,
    Literal,
    NamedTuple,
    TypeVar,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

from uds_lens._storage.files import read_file, sha256_bytes
from uds_lens.errors import ResultFormatError, UdsLensError

if TYPE_CHECKING:
    import pyarrow as pa


SEAL = "sha256"
"""Last member of a sealed object: SHA-256 of all others, in their order."""

LARGEST = 1 << 28
"""Bytes of JSON that are still read."""


def plain(value: Any) -> Any:
    """A value as strict JSON has it: NaN and infinities become null, tuples lists.

    >>> plain({"a": (1, float("nan"))})
    {'a': [1, None]}
    """
    if isinstance(value, Mapping):
        return {str(key): plain(part) for key, part in value.items()}
    if isinstance(value, tuple | list):
        return [plain(part) for part in value]
    if isinstance(value, float) and not (value == value and abs(value) != float("inf")):
        return None
    return value


def sealed(record: Mapping[str, Any]) -> bytes:
    """A record as JSON with its seal.

    Args:
        record: Strict JSON values (see `plain`); `format` comes first, so that the file says what it is.

    Returns:
        UTF-8; halves of characters, as file names may hold them, are escaped.

    Example:
        >>> unsealed(sealed({"format": "uds_lens.x", "version": 2}), told="x")["version"]
        2
    """
    whole = {**record, SEAL: seal_of(record)}
    text = json.dumps(whole, indent=1, ensure_ascii=False, allow_nan=False) + "\n"
    return text.encode("utf-8", "backslashreplace")


def read_sealed(
    path: str | os.PathLike[str],
    *,
    format: str,
    versions: Collection[int],
    unsealed_versions: Collection[int] = (),
    most: int = LARGEST,
) -> dict[str, Any]:
    """The record in a file.

    Args:
        path: The file.
        format: What it must say it is.
        versions: Versions of the format that this release reads.
        unsealed_versions: Those of them that were written before there were seals.
        most: Bytes at most.

    Returns:
        The record without its seal.

    Raises:
        ResultFormatError: It cannot be read, is something else, or was altered.
    """
    told = repr(str(path)[-200:])
    return unsealed(
        read_file(path, most=most),
        told=told,
        format=format,
        versions=versions,
        unsealed_versions=unsealed_versions,
    )


def unsealed(
    content: bytes,
    *,
    told: str,
    format: str | None = None,
    versions: Collection[int] | None = None,
    unsealed_versions: Collection[int] = (),
) -> dict[str, Any]:
    """The record in the bytes of a file (see `read_sealed`)."""
    record = parse_json(content, told=told)
    found, version = record.get("format"), record.get("version")
    if not isinstance(found, str) or isinstance(version, bool) or not isinstance(version, int):
        raise ResultFormatError(f"{told} is no saved result: it names no format and version.")
    if format is not None and found != format:
        raise ResultFormatError(f"{told} holds a {found[:80]}, expected {format}.")
    if versions is not None and version not in versions:
        *most, last = map(str, sorted(versions))
        read = f"{', '.join(most)} and {last}" if most else last
        raise ResultFormatError(
            f"{told} has format version {str(version)[:20]}, this release reads {read}: use the release that wrote it."
        )
    seal = record.pop(SEAL, None)
    if seal != seal_of(record) and not (seal is None and version in unsealed_versions):
        raise ResultFormatError(f"{told} was altered after it was saved: measure again.")
    return record


def parse_json(content: bytes, *, told: str) -> dict[str, Any]:
    """The object in strict JSON: each name once, no NaN.

    Args:
        content: UTF-8.
        told: What to call it in messages.

    Raises:
        ResultFormatError: It is something else.
    """

    def once(members: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(members)
        if len(found) < len(members):
            names = [name for name, _ in members]
            twice = next(name for name in names if names.count(name) > 1)
            raise ValueError(f"the name {twice[:60]!r} stands twice in one object")
        return found

    def refuse(word: str) -> None:
        raise ValueError(f"{word} is no JSON")

    def finite(digits: str) -> float:
        number = float(digits)
        if math.isinf(number):
            raise ValueError(f"{digits[:40]} is beyond the range of numbers")
        return number

    try:
        record = json.loads(
            content.decode("utf-8"), object_pairs_hook=once, parse_constant=refuse, parse_float=finite
        )
    except (ValueError, RecursionError, MemoryError) as error:
        raise ResultFormatError(f"{told} is no saved result: {str(error)[:160]}.") from error
    if not isinstance(record, dict):
        raise ResultFormatError(f"{told} is no saved result: expected a JSON object.")
    return record


def seal_of(record: Mapping[str, Any]) -> str:
    """The seal of a record: SHA-256 of its values, whatever file they stand in.

    >>> seal_of({"row": 1}) == seal_of({"row": 2})
    False
    """
    text = json.dumps(record, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    return sha256_bytes(text.encode("ascii"))


# Values from a file, as the class they are meant for: every member there, of its type, and none besides.

T = TypeVar("T")

_WORDS = {str: "text", bool: "true or false", int: "a whole number", float: "a number", type(None): "null"}


def conform(kind: type[T], value: Any, *, where: str) -> T:
    """Plain JSON values as a dataclass or named tuple.

    Members may be text, numbers, `None`, `Literal`, lists and mappings of such, and classes again. A float may be null,
    which is NaN.

    Args:
        kind: The class.
        value: What a file holds.
        where: Its place, for messages.

    Returns:
        The object.

    Raises:
        ResultFormatError: A member is missing, unknown, or of another type; the place is named.
    """
    found: T = _shaped(kind, value, where)
    return found


def _shaped(hint: Any, value: Any, where: str) -> Any:
    if hint is Any:
        return value
    if isinstance(hint, type) and (is_dataclass(hint) or hasattr(hint, "_fields")):
        return _object(hint, value, where)
    if hint is float:
        return _float(value, where)
    if hint in (str, int, bool, type(None)):
        if type(value) is not hint:
            raise _unfit(value, _WORDS[hint], where)
        if hint is str and not value.isprintable():
            _require_whole_letters(value, where)
        return value
    shape = _COMPOUND.get(get_origin(hint))
    if shape is None:
        raise TypeError(f"{where}: a saved member cannot be of type {hint!r}")
    return shape(hint, value, where)


def _object(kind: Any, value: Any, where: str) -> Any:
    if not isinstance(value, Mapping):
        raise _unfit(value, "an object", where)
    hints, needed = _members(kind)
    unknown = sorted(set(value) - set(hints))
    missing = sorted(needed - set(value))
    if unknown or missing:
        told = [f"unknown member {unknown[0][:60]!r}"] if unknown else []
        told += [f"no {missing[0]!r}"] if missing else []
        raise ResultFormatError(f"{where} is not complete: {', '.join(told)}.")
    members = {name: _shaped(hints[name], part, f"{where}.{name}") for name, part in value.items()}
    try:
        return kind(**members)
    except UdsLensError as error:
        raise ResultFormatError(f"{where}: {str(error)[:300]}") from error


@cache
def _members(kind: Any) -> tuple[dict[str, Any], set[str]]:
    """Types by name, and the names that must be there."""
    hints = get_type_hints(kind)
    if is_dataclass(kind):
        own = fields(kind)
        needed = {f.name for f in own if f.default is MISSING and f.default_factory is MISSING}
        return {f.name: hints[f.name] for f in own}, needed
    return {name: hints[name] for name in kind._fields}, set(kind._fields) - set(kind._field_defaults)


def _float(value: Any, where: str) -> float:
    if value is None:
        return math.nan
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise _unfit(value, "a number or null", where)
    try:
        return float(value)
    except OverflowError:
        raise _unfit(value, "a number or null", where) from None


def _literal(hint: Any, value: Any, where: str) -> Any:
    words = get_args(hint)
    if not any(type(value) is type(word) and value == word for word in words):
        raise _unfit(value, f"one of {', '.join(map(repr, words))}", where)
    return value


def _union(hint: Any, value: Any, where: str) -> Any:
    kinds = get_args(hint)
    if value is None and type(None) in kinds:
        return None
    problem = None
    for kind in kinds:
        if kind is not type(None):
            try:
                return _shaped(kind, value, where)
            except ResultFormatError as error:
                problem = error
    raise problem or _unfit(value, "null", where)


def _tuple(hint: Any, value: Any, where: str) -> tuple[Any, ...]:
    if not isinstance(value, list):
        raise _unfit(value, "a list", where)
    kind = get_args(hint)[0]
    return tuple(_shaped(kind, part, f"{where}[{i}]") for i, part in enumerate(value))


def _mapping(hint: Any, value: Any, where: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise _unfit(value, "an object", where)
    kind = get_args(hint)[1]
    return {name: _shaped(kind, part, f"{where}.{str(name)[:40]}") for name, part in value.items()}


_COMPOUND: dict[Any, Callable[[Any, Any, str], Any]] = {
    Literal: _literal,
    Union: _union,
    types.UnionType: _union,
    Sequence: _tuple,
    tuple: _tuple,
    Mapping: _mapping,
    dict: _mapping,
}


def _require_whole_letters(value: str, where: str) -> None:
    try:
        value.encode("utf-8")
    except UnicodeEncodeError:
        raise ResultFormatError(
            f"{where[-120:]} holds half of a character, which no table can hold."
        ) from None


def _unfit(value: Any, expected: str, where: str) -> ResultFormatError:
    shown = str(value)[:40] if isinstance(value, str | int | float | bool) or value is None else ""
    got = _WORDS.get(type(value), "a list" if isinstance(value, list) else "an object")
    return ResultFormatError(
        f"{where[-120:]} must be {expected[:160]}; got {got}{f' ({shown!r})' if shown else ''}."
    )


# Rows of a saved Parquet table, with the memory they may take bounded before it is taken.
#
# Equal values are stored once, so that a file of two kilobytes can hold any number of them.

MOST_BYTES = 1 << 30
"""Bytes of a table once unpacked: far above any set of questions and answers."""

MOST_ROWS = 5_000_000
"""Rows of a table."""


class TableRows(NamedTuple):
    """What a table holds."""

    rows: list[dict[str, Any]]
    """A mapping from column to cell for each row."""

    metadata: Mapping[bytes, bytes]
    """What its schema says beside."""


def read_table_rows(content: bytes, *, schema: pa.Schema, told: str, what: str) -> TableRows:
    """The rows of a Parquet file.

    Args:
        content: Its bytes.
        schema: The columns it must have.
        told: What errors call the file.
        what: What it should be: "table of examples".

    Raises:
        ResultFormatError: It is broken, has other columns, or would not fit once it is unpacked.
    """
    import pyarrow as pa
    from pyarrow import parquet

    try:
        file = parquet.ParquetFile(pa.BufferReader(content))
        found = file.schema_arrow
        if found.remove_metadata() != schema:
            raise ResultFormatError(f"{told} is no {what}: it has other columns.")
        return TableRows(_rows(file, told), found.metadata or {})
    except (pa.ArrowException, OSError, ValueError, OverflowError, MemoryError) as error:
        if isinstance(error, UdsLensError):
            raise
        raise ResultFormatError(f"{told} is no {what}: {str(error)[:160]}.") from error


def _rows(file: Any, told: str) -> list[dict[str, Any]]:
    """Rows in pieces, each small enough whatever is stored once in it."""
    groups = [file.metadata.row_group(i) for i in range(file.metadata.num_row_groups)]
    sizes = [group.column(i).total_uncompressed_size for group in groups for i in range(group.num_columns)]
    fits = sum(sizes) <= MOST_BYTES and file.metadata.num_rows <= MOST_ROWS
    step = max(1, min(65_536, MOST_BYTES // max(1, *sizes, 1)))
    rows: list[dict[str, Any]] = []
    taken = 0
    for batch in file.iter_batches(batch_size=step) if fits else ():
        taken += batch.nbytes
        fits = taken <= MOST_BYTES and len(rows) + batch.num_rows <= MOST_ROWS
        if not fits:
            break
        rows += batch.to_pylist()
    if not fits:
        raise ResultFormatError(
            f"{told} would unpack to more than {MOST_BYTES >> 30} GiB, or {MOST_ROWS} rows."
        )
    return rows
