"""Settings records: unknown names, wrong types and out-of-range values raise a one-sentence error."""

from __future__ import annotations

import difflib
import functools
from collections.abc import Mapping
from dataclasses import fields
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from uds_lens.errors import ConfigError, Setting

T = TypeVar("T")

_LONGEST = 60
"""Maximum length of a value shown in a message, in characters."""


def validated(cls: type[T]) -> type[T]:
    """Make a dataclass validate its settings on construction: pydantic checks them strictly against the annotations.

    Ranges are part of the annotations (`uds_lens._types`); checks that involve several settings are in `__post_init__`.

    >>> from dataclasses import dataclass
    >>> @validated
    ... @dataclass(frozen=True, kw_only=True)
    ... class Options:
    ...     tau: float = 0.05
    >>> Options(tau="0.1")
    Traceback (most recent call last):
        ...
    uds_lens.errors.ConfigError: tau must be a number; got '0.1'.
    >>> Options(taw=1)
    Traceback (most recent call last):
        ...
    uds_lens.errors.ConfigError: Options has no setting 'taw'; did you mean 'tau'? It has tau.
    """
    cls.__pydantic_config__ = {  # type: ignore[attr-defined]
        "strict": True,
        "extra": "forbid",
        "allow_inf_nan": False,
        "arbitrary_types_allowed": True,
        "use_attribute_docstrings": True,
    }

    record: Any = cls

    @functools.wraps(cls.__init__)
    def checked(self: Any, *values: Any, **settings: Any) -> None:
        from pydantic import ValidationError
        from pydantic_core import ArgsKwargs

        try:
            _adapter(record).validator.validate_python(ArgsKwargs(values, settings), self_instance=self)
        except ValidationError as error:
            raise _refusal(cls, error) from None

    cls.__init__ = checked  # type: ignore[method-assign]
    return cls


def check_value(name: str, value: object, kind: Any) -> None:
    """Raise `ConfigError` if a value is not valid for a type.

    >>> from uds_lens._types import Share
    >>> check_value("k", 0.0, Share)
    Traceback (most recent call last):
        ...
    uds_lens.errors.ConfigError: k must be a number > 0 and <= 1; got 0.0.
    """
    from pydantic import ValidationError

    try:
        _adapter(kind).validate_python(value, strict=True)
    except ValidationError:
        raise ConfigError(Setting(name), f" must be {_expected(kind)}; got {shown(value)}.") from None


@functools.cache
def _adapter(kind: Any) -> Any:
    # deferred until the first record is created, so that --help neither imports pydantic nor builds validators
    from pydantic import TypeAdapter

    return TypeAdapter(kind)


def described(record: type) -> dict[str, dict[str, Any]]:
    """Return the JSON schema of each field of a validated record, except fields annotated with `SkipJsonSchema`.

    The "description" in a schema is the docstring below the field, in this class or a base class.

    >>> from uds_lens.results import AuditConfig
    >>> described(AuditConfig)["seed"]["description"]
    'Seed of the bootstrap and, if there is a limit, of the sample.'
    """
    from pydantic.json_schema import GenerateJsonSchema

    class Lenient(GenerateJsonSchema):
        """Give settings that only Python can express an empty schema."""

        ignored_warning_kinds = {"skipped-choice", "non-serializable-default"}  # noqa: RUF012

        def handle_invalid_for_json_schema(self, schema: Any, error_info: str) -> dict[str, Any]:
            return {}

    told: dict[str, dict[str, Any]] = {}
    for cls in reversed([cls for cls in record.__mro__ if hasattr(cls, "__pydantic_config__")]):
        for name, what in _adapter(cls).json_schema(schema_generator=Lenient)["properties"].items():
            told[name] = told.get(name, {}) | what
    return told


def _refusal(cls: type, error: Any) -> Exception:
    """Convert the first problem that pydantic found to one of the library's errors."""
    problems = error.errors(include_url=False)
    unknown = [str(problem["loc"][-1]) for problem in problems if problem["type"] == "unexpected_keyword_argument"]
    if unknown:
        return unknown_settings(cls.__name__, unknown, [each.name for each in fields(cls)])
    first = problems[0]
    cause = first.get("ctx", {}).get("error")
    if isinstance(cause, Exception):
        return cause
    if first["type"] == "unexpected_positional_argument":
        return ConfigError(f"{cls.__name__} takes keyword arguments only; got {shown(first['input'])}.")
    name = str(first["loc"][0])
    if first["type"].startswith("missing"):
        return ConfigError(f"{cls.__name__} lacks ", Setting(name), ".")
    kind = get_type_hints(cls, include_extras=True)[name]
    return ConfigError(Setting(name), f" must be {_expected(kind)}; got {shown(first['input'])}.")


def require_known(owner: str, settings: Any, names: list[str]) -> None:
    """Raise `ConfigError` if a setting is not among `names`."""
    if unknown := [str(name) for name in settings if name not in names]:
        raise unknown_settings(owner, unknown, names)


def unknown_settings(owner: str, unknown: list[str], names: list[str]) -> ConfigError:
    """Return the error for unknown names, suggesting the closest known one."""
    unknown = sorted(unknown)
    near = difflib.get_close_matches(unknown[0], names, n=1)
    hint = f"did you mean {near[0]!r}? It" if near else "it"
    given = ", ".join(repr(name[:_LONGEST]) for name in unknown[:3])
    return ConfigError(f"{owner} has no setting {given}; {hint} has {', '.join(sorted(names))}.")


def as_settings(cls: type[T], given: T | None, *, name: str) -> T:
    """Return the given settings, or the defaults if there are none.

    Raises:
        ConfigError: `given` has another type, such as a dict.
    """
    if given is None:
        return cls()
    if not isinstance(given, cls):
        fix = f": {cls.__name__}(**{name}) makes one" if isinstance(given, dict) else ""
        raise ConfigError(f"{name} must be {cls.__name__}; got {type(given).__name__}{fix}.")
    return given


_WORDS: dict[Any, str] = {
    bool: "True or False",
    int: "a whole number",
    float: "a number",
    str: "a string",
    dict: "a dict",
    Mapping: "a dict",
    NoneType: "None",
}

_BOUNDS = {"ge": ">=", "gt": ">", "le": "<=", "lt": "<"}


def _expected(kind: Any) -> str:
    """Describe the values that a type allows, such as "a number >= 0, or None"."""
    origin, arguments = get_origin(kind), get_args(kind)
    if origin is Annotated:
        bounds = [
            f"{sign} {getattr(mark, bound)}"
            for mark in arguments[1:]
            for bound, sign in _BOUNDS.items()
            if hasattr(mark, bound)
        ]
        bounds += [f"like {mark.pattern}" for mark in arguments[1:] if getattr(mark, "pattern", None)]
        return " ".join([_expected(arguments[0]), " and ".join(bounds)]).rstrip()
    if origin is Literal:
        return f"one of {', '.join(map(repr, arguments))}"
    if origin in (Union, UnionType):
        return ", or ".join(map(_expected, arguments))
    if origin is tuple:
        return f"a list, each {_expected(arguments[0])}"
    return _WORDS.get(origin or kind, getattr(kind, "__name__", str(kind)))


def shown(value: object) -> str:
    """Return a short representation of any value for a message; never raises.

    >>> shown("x" * 100)[-5:], shown(10 ** 5000)
    ("xxx'…", 'a value of type int that cannot be shown')
    """
    try:
        text = repr(value)
    except Exception:
        return f"a value of type {type(value).__name__} that cannot be shown"
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 2]}{text[-1]}…"
