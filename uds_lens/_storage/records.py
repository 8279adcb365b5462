"""JSON files that contain a checksum of their values.

The checksum shows whether a file was altered or truncated. It is not a signature: anyone who alters a file on purpose
can recompute it.
"""

from __future__ import annotations

import hashlib
import inspect
import json
import math
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any, TypeVar

from uds_lens._settings import shown
from uds_lens._storage.files import Place, read_file, sha256_bytes
from uds_lens.errors import ResultFormatError, UdsLensError

CHECKSUM = "sha256"  # last member of an object: SHA-256 of all other members, in order
LARGEST = 1 << 28  # largest JSON file that is read, in bytes


def plain(value: Any) -> Any:
    """Convert a value to strict JSON: NaN and infinities become null, tuples become lists.

    >>> plain({"a": (1, float("nan"))})
    {'a': [1, None]}
    """
    if isinstance(value, Mapping):
        return {str(key): plain(part) for key, part in value.items()}
    if isinstance(value, tuple | list):
        return [plain(part) for part in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def digest(value: Any) -> str:
    """Hash plain JSON values, independently of key order (BLAKE2b, 32 hexadecimal digits).

    >>> digest({"a": 1, "b": 2}) == digest({"b": 2, "a": 1})
    True
    """
    return hashlib.blake2b(json.dumps(value, sort_keys=True).encode(), digest_size=16).hexdigest()


_NOT_OWN = {"uds_lens", *sys.stdlib_module_names}


def program_digest(*parts: Callable[..., Any] | None) -> str:
    """Hash the code of a user's own functions and classes, so that edits to them change the hash.

    The hash covers the source of the functions (for a class, its methods and those of its base classes outside this
    package), and the functions, numbers and strings that they use from their own modules. If there is no source (in an
    interactive session or with `exec`), the compiled code is hashed.
    """
    found: dict[str, str] = {}
    waiting: list[Any] = []
    for part in parts:
        if inspect.isclass(part):
            kinds = (kind for kind in part.__mro__ if kind.__module__.partition(".")[0] not in _NOT_OWN)
            waiting += (getattr(own, "fget", own) for kind in kinds for n, own in vars(kind).items() if n[:2] != "__")
        else:
            waiting.append(part)
    waiting = [inspect.unwrap(part) for part in waiting if inspect.isfunction(part)]
    while waiting:
        function = waiting.pop()
        where = f"{function.__module__}.{function.__qualname__}"
        if where in found:
            continue
        codes = [function.__code__]
        for code in codes:  # extended with nested functions
            codes += [part for part in code.co_consts if inspect.iscode(part)]
        try:
            found[where] = inspect.getsource(function)
        except (OSError, TypeError):
            consts = [[part for part in code.co_consts if not inspect.iscode(part)] for code in codes]
            found[where] = repr([(code.co_code, code.co_names) for code in codes]) + repr(consts)
        for name in sorted({name for code in codes for name in code.co_names}):
            value = function.__globals__.get(name)
            if inspect.isfunction(value) and value.__module__ == function.__module__:
                waiting.append(value)
            elif isinstance(value, bool | int | float | str):
                found[f"{function.__module__}.{name}"] = repr(value)
    return digest(found)


def with_checksum(record: Mapping[str, Any]) -> bytes:
    """Return a record and its checksum as JSON, in UTF-8.

    Example:
        >>> content = with_checksum({"format": "uds_lens.x", "version": 1, "value": 0.5})
        >>> checked_record(content, where="x", format="uds_lens.x")["value"]
        0.5
    """
    whole = {**record, CHECKSUM: checksum_of(record)}
    text = json.dumps(whole, indent=1, ensure_ascii=False, allow_nan=False) + "\n"
    return text.encode("utf-8", "backslashreplace")  # file names may contain unpaired surrogates


def read_with_checksum(path: Place, *, format: str, version: int = 1) -> dict[str, Any]:
    """Read a record from a file and verify its checksum, which is not returned."""
    content = read_file(path, most=LARGEST)
    return checked_record(content, where=repr(str(path)[-200:]), format=format, version=version)


def checked_record(content: bytes, *, where: str, format: str, version: int = 1) -> dict[str, Any]:
    """Parse a record from a file's bytes, and verify its format, version and checksum."""
    record = parse_json(content, where=where)
    named, found = record.get("format"), record.get("version")
    if not isinstance(named, str) or isinstance(found, bool) or not isinstance(found, int):
        raise ResultFormatError(f"{where} is not a saved result: it does not name its format and version.")
    if named != format:
        raise ResultFormatError(f"{where} holds a {named[:80]}, expected {format}.")
    if found != version:
        raise ResultFormatError(
            f"{where} has format version {str(found)[:20]}, but this release reads {version}: use the release that "
            "wrote it, or run the measurement again."
        )
    seal = record.pop(CHECKSUM, None)
    if seal != checksum_of(record):
        raise ResultFormatError(f"{where} was altered after it was saved: run the measurement again.")
    return record


def parse_json(content: bytes, *, where: str) -> dict[str, Any]:
    """Parse a JSON object strictly, without NaN or infinities."""

    def refuse(word: str) -> None:
        raise ValueError(f"{word} is not JSON")

    def finite(digits: str) -> float:
        number = float(digits)
        if math.isinf(number):
            raise ValueError(f"{digits[:40]} is too large for a float")
        return number

    try:
        record = json.loads(content.decode("utf-8"), parse_constant=refuse, parse_float=finite)
    except (ValueError, RecursionError, MemoryError) as error:
        raise ResultFormatError(f"{where} is not a saved result: {str(error)[:160]}.") from error
    if not isinstance(record, dict):
        raise ResultFormatError(f"{where} is not a saved result: expected a JSON object.")
    return record


def checksum_of(record: Mapping[str, Any]) -> str:
    """Return the checksum of a record: SHA-256 of its values, independent of formatting.

    >>> checksum_of({"row": 1}) == checksum_of({"row": 2})
    False
    """
    text = json.dumps(record, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    return sha256_bytes(text.encode("ascii"))


T = TypeVar("T")


def conform(kind: type[T], value: Any, *, where: str) -> T:
    """Convert plain JSON values to a dataclass or named tuple, with strict validation by pydantic.

    NaN is stored as null (`uds_lens._types.FloatOrNaN`).
    """
    from pydantic import ValidationError

    shape: Any = kind
    try:
        (record,) = _reader(shape).validate_json(json.dumps([value], default=str))
    except ValidationError as error:
        raise _unfit(error.errors(include_url=False)[0], where) from None
    except (ValueError, RecursionError) as error:
        raise ResultFormatError(f"{where} cannot be read: {str(error)[:160]}.") from error
    return record


@cache
def _reader(kind: Any) -> Any:
    from pydantic import ConfigDict, TypeAdapter

    # pydantic accepts no config for some classes, but does for a tuple of them
    return TypeAdapter(tuple[kind], config=ConfigDict(strict=True, extra="forbid"))


def _unfit(problem: Mapping[str, Any], where: str) -> ResultFormatError:
    *above, name = problem["loc"][1:] or [""]
    if problem["type"] == "json_invalid":  # the text was written by `json`, so there is no other possible cause
        return ResultFormatError(f"{where} contains an unpaired surrogate, which cannot be stored in a table.")
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
    inside = "".join(f"[{name}]" if isinstance(name, int) else f".{name[:40]}" for name in names)
    return f"{where}{inside}"[-120:]
