"""Checks of settings: unknown names, wrong types and values out of range raise one sentence with the fix."""

from __future__ import annotations

import difflib
import functools
import math
from collections.abc import Callable
from dataclasses import fields
from typing import Any, TypeVar

from uds_lens.errors import ConfigError, Setting

T = TypeVar("T")

_LONGEST = 60
"""Letters of a value that a message shows."""


def names_checked(cls: type[T]) -> type[T]:
    """Make a dataclass refuse settings that it does not have with a `ConfigError` that names the nearest.

    >>> from dataclasses import dataclass
    >>> @names_checked
    ... @dataclass(frozen=True, kw_only=True)
    ... class Options:
    ...     tau: float = 0.05
    >>> Options(taw=1)
    Traceback (most recent call last):
        ...
    uds_lens.errors.ConfigError: Options has no setting 'taw'; did you mean 'tau'? It has tau.
    """
    make: Callable[..., None] = cls.__init__
    names = [field.name for field in fields(cls) if field.init]  # type: ignore[arg-type]

    @functools.wraps(make)
    def checked(self: T, *values: Any, **settings: Any) -> None:
        require_named(cls.__name__, values)
        require_known(cls.__name__, settings, names)
        make(self, **settings)

    cls.__init__ = checked  # type: ignore[assignment, method-assign]
    return cls


def require_named(owner: str, values: tuple[Any, ...]) -> None:
    """Raise `ConfigError` where settings come without their names."""
    if values:
        raise ConfigError(f"{owner} takes its settings by name; got {shown(values[0])} without one.")


def require_known(owner: str, settings: Any, names: list[str]) -> None:
    """Raise `ConfigError` where a name is not among `names`."""
    unknown = sorted(str(name) for name in settings if name not in names)
    if unknown:
        near = difflib.get_close_matches(unknown[0], names, n=1)
        hint = f"did you mean {near[0]!r}? It" if near else "it"
        told = ", ".join(repr(name[:_LONGEST]) for name in unknown[:3])
        raise ConfigError(f"{owner} has no setting {told}; {hint} has {', '.join(sorted(names))}.")


def as_settings(cls: type[T], given: T | None, *, name: str) -> T:
    """Settings that were given, or the defaults.

    Raises:
        ConfigError: Something else was given, a dict for example.
    """
    if given is None:
        return cls()
    if not isinstance(given, cls):
        raise wrong_settings(cls, given, name=name)
    return given


def wrong_settings(cls: type, given: object, *, name: str) -> ConfigError:
    """What to say where something else was given in the place of a record."""
    fix = f": {cls.__name__}(**{name}) makes one" if isinstance(given, dict) else ""
    return ConfigError(f"{name} must be {cls.__name__}; got {type(given).__name__}{fix}.")


def require_number(
    name: str,
    value: object,
    *,
    above: float = -math.inf,
    least: float = -math.inf,
    below: float = math.inf,
    words: str,
) -> None:
    """Raise `ConfigError` unless `value` is a finite number with `least <= value`, `above < value < below`."""
    if not isinstance(value, bool) and isinstance(value, int | float):
        try:
            number = float(value)
        except OverflowError:
            number = math.inf
        if math.isfinite(number) and least <= number and above < number < below:
            return
    raise ConfigError(Setting(name), f" must {words}; got {shown(value)}.")


def require_whole(name: str, value: object, *, at_least: int, at_most: int | None = None) -> None:
    """Raise `ConfigError` unless `value` is a whole number in the range."""
    if not isinstance(value, bool) and isinstance(value, int) and value >= at_least:
        if at_most is None or value <= at_most:
            return
        raise ConfigError(Setting(name), f" must be at most {at_most}; got {shown(value)}.")
    raise ConfigError(Setting(name), f" must be a whole number of at least {at_least}; got {shown(value)}.")


def require_type(name: str, value: object, kinds: tuple[type, ...], *, words: str) -> None:
    """Raise `ConfigError` unless `value` is of one of these types."""
    if not isinstance(value, kinds):
        raise ConfigError(Setting(name), f" must be {words}; got {shown(value)}.")


def require_switch(name: str, value: object) -> None:
    """Raise `ConfigError` unless `value` is True or False; the text "False" would count as true."""
    require_type(name, value, (bool,), words="True or False")


def shown(value: object) -> str:
    """A value for a message, whatever it is: short, and never an error of its own.

    >>> shown("x" * 100)[-5:], shown(10 ** 5000)
    ("xxx'…", 'a int that cannot be shown')
    """
    try:
        text = repr(value)
    except Exception:
        return f"a {type(value).__name__} that cannot be shown"
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 2]}{text[-1]}…"
