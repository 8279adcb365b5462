"""JSON that carries the checksum of what it says.

The seal tells a file that was altered or cut from one that is as it was saved. It is no signature: whoever alters a
file on purpose can seal it again.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Collection, Mapping
from typing import Any

from uds_lens.errors import ResultFormatError
from uds_lens.storage.whole_file import read_file, sha256_bytes

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
