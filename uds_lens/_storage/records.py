"""JSON that carries the checksum of what it says.

The seal tells a file that was altered or cut from one that is as it was saved. It is no signature: whoever alters a
file on purpose can seal it again.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Collection, Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from uds_lens._settings import shown
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


T = TypeVar("T")


def conform(kind: type[T], value: Any, *, where: str) -> T:
    """Read plain JSON values as a dataclass or named tuple: every member there, of its type, and none besides.

    pydantic does so, strictly. A float that may be NaN is null in files (`uds_lens._types.FloatOrNaN`).

    Args:
        kind: The class.
        value: What a file holds.
        where: Its place, for messages.

    Returns:
        The object.

    Raises:
        ResultFormatError: A member is missing, unknown, or of another type; the place is named.
    """
    from pydantic import ValidationError

    shape: Any = kind
    try:
        (found,) = _reader(shape).validate_json(json.dumps([value], default=str))
    except ValidationError as error:
        raise _unfit(error.errors(include_url=False)[0], where) from None
    except (ValueError, RecursionError) as error:
        raise ResultFormatError(f"{where} cannot be read: {str(error)[:160]}.") from error
    return found


@cache
def _reader(kind: Any) -> Any:
    from pydantic import ConfigDict, TypeAdapter

    # a class may have no settings for its reader, a list of it may
    return TypeAdapter(tuple[kind], config=ConfigDict(strict=True, extra="forbid"))


def _unfit(problem: Mapping[str, Any], where: str) -> ResultFormatError:
    """The first thing that is wrong in a record."""
    *above, name = problem["loc"][1:] or [""]
    if problem["type"] == "json_invalid":  # the text was written by json: nothing else can be wrong with it
        return ResultFormatError(f"{where} holds half of a character, which no table can hold.")
    if problem["type"].startswith("missing"):
        return ResultFormatError(f"{_place(where, above)} is not complete: it lacks {name!r}.")
    if problem["type"].startswith(("unexpected", "extra")):
        return ResultFormatError(f"{_place(where, above)} has an unknown member {str(name)[:60]!r}.")
    place = _place(where, problem["loc"][1:])
    cause = problem.get("ctx", {}).get("error")
    if isinstance(cause, UdsLensError):
        return ResultFormatError(f"{place}: {str(cause)[:300]}")
    expected = problem["msg"].replace("Input should be ", "")
    return ResultFormatError(f"{place} must be {expected[:160]}; got {shown(problem['input'])}.")


def _place(where: str, names: Sequence[str | int]) -> str:
    """A member's place, `manifest.json.models.full`, by its end where it is long."""
    inside = "".join(f"[{name}]" if isinstance(name, int) else f".{name[:40]}" for name in names)
    return f"{where}{inside}"[-120:]


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
