"""Functions and records that say what is wrong with their arguments: of another kind, unknown, or missing.

The annotations are the promise, and `arguments_checked` holds callers to it. Ranges are checked where a value is used.
"""

from __future__ import annotations

import builtins
import difflib
import functools
import inspect
import sys
from collections.abc import Callable, Mapping
from dataclasses import is_dataclass
from types import FunctionType, SimpleNamespace
from typing import Any, TypeVar, get_type_hints

from uds_lens.argument_kinds import LARGEST_WHOLE, Kind, Named, Tokenizer, kind_of
from uds_lens.checked_settings import shown, wrong_settings
from uds_lens.errors import ConfigError, Setting

F = TypeVar("F", bound=Callable[..., Any])
T = TypeVar("T")

_CHECKED_WHERE_READ = (
    *("Examples", "ExampleSource", "ExamplesLike", "ModelSource", "RetainSource"),
    *("Audit", "Order", "Theme", "Value"),
)
"""Annotations whose values are looked at, and refused in better words, by what reads them."""

_TOKENIZERS = ("PreTrainedTokenizerBase", "PreTrainedTokenizerFast")
"""Annotations that stand for whatever works as a tokenizer of transformers."""


def arguments_checked(function: F) -> F:
    """Make a function, or a dataclass, refuse arguments that do not fit its annotations.

    Raises:
        ConfigError: When it is called: an argument is of another kind, has no place, or is missing.

    Example:
        >>> @arguments_checked
        ... def first(texts: list[str], *, limit: int | None = None) -> list[str]:
        ...     return texts[:limit]
        >>> first(["a", "b"], limit=1)
        ['a']
        >>> first(["a"], limt=1)
        Traceback (most recent call last):
            ...
        uds_lens.errors.ConfigError: first has no argument 'limt'; did you mean 'limit'? It has texts, limit.
        >>> first(["a"], limit=1.5)
        Traceback (most recent call last):
            ...
        uds_lens.errors.ConfigError: limit must be a whole number or None; got 1.5.
    """
    return _applied(function, but=())


def arguments_named(function: F) -> F:
    """The same for names alone, where kinds are looked at, and refused in better words, by the function itself."""
    return _applied(function, but=None)


def arguments_checked_but(*names: str) -> Callable[[F], F]:
    """`arguments_checked`, but for these arguments, which the function itself refuses in better words."""
    return lambda function: _applied(function, but=names)


def methods_checked(cls: type[T]) -> type[T]:
    """`arguments_checked` for every public method of a class."""
    for name, member in list(vars(cls).items()):
        if not name.startswith("_") and isinstance(member, FunctionType | classmethod):
            function = member.__func__ if isinstance(member, classmethod) else member
            checked = arguments_checked(function)
            setattr(cls, name, classmethod(checked) if isinstance(member, classmethod) else checked)
    return cls


def _applied(function: F, *, but: tuple[str, ...] | None) -> F:
    if not isinstance(function, type):
        return _checked(function, owner=function.__name__, of=None, but=but)
    maker = "__new__" if issubclass(function, tuple) else "__init__"
    checked = _checked(getattr(function, maker), owner=function.__name__, of=function, but=but)
    setattr(function, maker, staticmethod(checked) if maker == "__new__" else checked)
    return function


def _checked(function: F, *, owner: str, of: type | None, but: tuple[str, ...] | None) -> F:
    @functools.cache
    def promised() -> tuple[inspect.Signature, dict[str, Kind]]:
        signature = inspect.signature(function)
        hints = {
            name: Any if but is None or name in but else _hint(each, _space(function, name, of))
            for name, each in signature.parameters.items()
        }
        return signature, {name: kind_of(hint) for name, hint in hints.items()}

    @functools.wraps(function)
    def checked(*values: Any, **settings: Any) -> Any:
        signature, kinds = promised()
        try:
            given = signature.bind(*values, **settings).arguments
        except TypeError:
            raise _unbound(owner, signature, values, settings) from None
        for name, value in given.items():
            if not kinds[name].holds(value):
                raise _unfit(name, kinds[name], value)
        return function(*values, **settings)

    checked.promised = promised  # type: ignore[attr-defined]
    return checked  # type: ignore[return-value]


def kinds_of(function: Callable[..., Any]) -> dict[str, Kind] | None:
    """What a function or class holds its callers to, by argument; None where it does not."""
    maker = function
    if isinstance(function, type):
        maker = function.__new__ if issubclass(function, tuple) else function.__init__
    promised = getattr(maker, "promised", None)
    return None if promised is None else promised()[1]


def _space(function: Callable[..., Any], name: str, of: type | None) -> dict[str, Any]:
    """The names that an annotation was written with: those of the module of the function, or of the field's class."""
    for cls in () if of is None else of.__mro__:
        if name in vars(cls).get("__annotations__", {}):
            return vars(sys.modules[cls.__module__])
    found: dict[str, Any] = getattr(inspect.unwrap(function), "__globals__", {})
    return found


def _hint(parameter: inspect.Parameter, space: dict[str, Any]) -> Any:
    """A parameter's annotation; a class that is imported for type checkers only is known by its name."""
    several = parameter.kind in (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    if several or parameter.annotation is inspect.Parameter.empty:
        return Any
    holder = SimpleNamespace(__annotations__={"it": parameter.annotation})
    return get_type_hints(holder, space, _Names(space))["it"]


class _Names(dict[str, Any]):
    """What names in annotations mean where a module does not have them at run time."""

    def __init__(self, space: Mapping[str, Any]) -> None:
        super().__init__(dict.fromkeys(_CHECKED_WHERE_READ, Any), **dict.fromkeys(_TOKENIZERS, Tokenizer))
        self._space = space

    def __missing__(self, name: str) -> Any:
        if name in self._space or hasattr(builtins, name):
            raise KeyError(name)
        return Named(name, (), {})


def _unbound(
    owner: str, signature: inspect.Signature, values: tuple[Any, ...], settings: Mapping[str, Any]
) -> ConfigError:
    """Why a call does not fit a signature."""
    parts = [each for name, each in signature.parameters.items() if name not in ("self", "cls", "_cls")]
    names = [part.name for part in parts]
    if unknown := [name for name in settings if name not in names]:
        near = difflib.get_close_matches(unknown[0], names, n=1)
        hint = f"did you mean {near[0]!r}? It" if near else "it"
        has = f"{hint} has {', '.join(names)}" if names else "it has none"
        return ConfigError(f"{owner} has no argument {unknown[0][:60]!r}; {has}.")
    placed = [part for part in parts if part.kind is not inspect.Parameter.KEYWORD_ONLY]
    n_given = len(values) - (len(parts) < len(signature.parameters))
    if n_given > len(placed):
        return ConfigError(
            f"{owner} takes {', '.join(part.name for part in placed) or 'no argument'} by place, and the rest by name; "
            f"got {n_given} values without a name."
        )
    needed = [part.name for part in parts if part.default is inspect.Parameter.empty]
    absent = [
        name for name in needed if name not in settings and name not in [p.name for p in placed[:n_given]]
    ]
    if absent:
        return ConfigError(f"{owner} needs {' and '.join(map(repr, absent[:3]))}.")
    twice = next(part.name for part in placed[:n_given] if part.name in settings)
    return ConfigError(f"{owner} got {twice!r} twice: by place and by name.")


def _unfit(name: str, kind: Kind, value: object) -> ConfigError:
    words = kind.words
    for cls in kind.classes:
        if is_dataclass(cls) and words.removesuffix(" or None") == cls.__name__:
            return wrong_settings(cls, value, name=name)
    if type(value) is int and "whole number" in words:
        words = words.replace("whole number", f"whole number of at most {LARGEST_WHOLE}")
    return ConfigError(Setting(name), f" must be {words[:300]}; got {shown(value)}.")
