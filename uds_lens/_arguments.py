"""Functions and records that say what is wrong with their arguments: of another kind, unknown, or missing.

The annotations are the promise, and `arguments_checked` holds callers to it. Ranges are checked where a value is used.
"""

from __future__ import annotations

import builtins
import collections.abc as abc
import difflib
import functools
import inspect
import math
import numbers
import os
import sys
import types
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, is_dataclass
from types import FunctionType, SimpleNamespace
from typing import (
    Any,
    Literal,
    Protocol,
    TypeVar,
    Union,
    get_args,
    get_origin,
    get_type_hints,
    runtime_checkable,
)

from uds_lens.errors import ConfigError, Setting

# What an annotation promises of a value, in words and as a question; checked as deep as one look goes.

LARGEST_WHOLE = 2**63 - 1
"""Whole numbers beyond it fit into no tensor, table or generator."""


@dataclass(frozen=True)
class Kind:
    """What a value must be."""

    words: str
    """For messages: "a text or None"."""

    holds: Callable[[Any], bool]
    """Whether a value is of this kind."""

    classes: tuple[type, ...] = ()
    """Classes of which an object fits, those of plain values left out."""


@runtime_checkable
class Tokenizer(Protocol):
    """What works as a tokenizer of transformers; none of its classes is imported to find out."""

    def encode(self, text: str) -> Any:
        """Tokens of a text."""

    def decode(self, token_ids: Any) -> Any:
        """Text of tokens."""


class Named(type):
    """A class that is known by its name alone; `pd.DataFrame` is one inside another."""

    def __getattr__(cls, name: str) -> Named:
        if name.startswith("_"):
            raise AttributeError(name)
        return Named(name, (), {})


def kind_of(hint: Any) -> Kind:
    """The kind that an annotation names; whatever it cannot tell, it lets pass.

    Example:
        >>> kind = kind_of(int | None)
        >>> kind.words, kind.holds(3), kind.holds(True), kind.holds(1.5)
        ('a whole number or None', True, False, False)
    """
    if hint is None:
        hint = type(None)
    if isinstance(hint, Named):
        name = hint.__name__
        return Kind(name, lambda value: any(base.__name__ == name for base in type(value).__mro__), (hint,))
    if hint in _PLAIN:
        return _PLAIN[hint]
    origin = get_origin(hint)
    if origin in (Union, types.UnionType):
        return _one_of([kind_of(each) for each in get_args(hint)])
    if origin is Literal:
        words = get_args(hint)
        told = ", ".join(map(repr, words))
        return Kind(f"one of {told}", lambda value: any(type(value) is type(w) and value == w for w in words))
    if hasattr(hint, "array_type"):  # a tensor whose shape is told
        return kind_of(hint.array_type)
    if origin is not None:
        return _container(origin, get_args(hint))
    return _class(hint) if isinstance(hint, type) else _ANYTHING


def _one_of(kinds: list[Kind]) -> Kind:
    if any(kind is _ANYTHING for kind in kinds):
        return _ANYTHING
    words = list(dict.fromkeys(kind.words for kind in kinds))
    told = " or ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)
    classes = tuple(cls for kind in kinds for cls in kind.classes)
    return Kind(told, lambda value: any(kind.holds(value) for kind in kinds), classes)


def _container(origin: Any, inner: tuple[Any, ...]) -> Kind:
    if origin is type:
        return Kind("a class", lambda value: isinstance(value, type))
    if origin is os.PathLike:
        return _PLAIN[os.PathLike]
    if origin is abc.Callable:
        return _PLAIN[abc.Callable]
    if issubclass(origin, abc.Mapping):
        return _PLAIN[abc.Mapping]
    if not issubclass(origin, abc.Iterable):
        return _class(origin)
    known, first = origin in (tuple, abc.Sequence, list), kind_of(inner[0]) if inner else _ANYTHING

    def holds(value: Any) -> bool:
        return _is_list(value, sized=known) and (not _has_first(value) or first.holds(value[0]))

    return Kind("a list" if first is _ANYTHING else f"a list of {_several(first.words)}", holds)


def _is_list(value: Any, *, sized: bool) -> bool:
    """Lists, tuples, arrays, columns of a table: what has an order; never a single text."""
    if isinstance(value, str | bytes | abc.Mapping):
        return False
    wanted = ("__iter__", "__len__", "__getitem__") if sized else ("__iter__",)
    return all(hasattr(type(value), name) for name in wanted)


def _has_first(value: Any) -> bool:
    return isinstance(value, list | tuple) and len(value) > 0


def _several(words: str) -> str:
    return _MANY.get(words, words.removeprefix("a "))


def _class(cls: type) -> Kind:
    def holds(value: Any) -> bool:
        try:
            return isinstance(value, cls)
        except TypeError:  # a protocol that cannot be asked
            return True

    return Kind(cls.__name__, holds, (cls,))


def _is_whole(value: Any) -> bool:
    whole = isinstance(value, numbers.Integral) and not isinstance(value, bool)
    return whole and abs(int(value)) <= LARGEST_WHOLE


def _is_number(value: Any) -> bool:
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        return False
    try:
        float(value)
    except OverflowError:
        return False
    return True


def _is_switch(value: Any) -> bool:
    return isinstance(value, bool) or type(value).__name__ in ("bool_", "bool")


_ANYTHING = Kind("anything", lambda value: True)

_PLAIN: dict[Any, Kind] = {
    Any: _ANYTHING,
    object: _ANYTHING,
    type(None): Kind("None", lambda value: value is None),
    str: Kind("a text", lambda value: isinstance(value, str)),
    bytes: Kind("bytes", lambda value: isinstance(value, bytes)),
    bool: Kind("True or False", _is_switch),
    int: Kind("a whole number", _is_whole),
    float: Kind("a number", _is_number),
    dict: Kind("a dict", lambda value: isinstance(value, abc.Mapping)),
    abc.Mapping: Kind("a dict", lambda value: isinstance(value, abc.Mapping)),
    abc.Callable: Kind("a function", callable),
    os.PathLike: Kind("a path", lambda value: isinstance(value, os.PathLike)),
}

_MANY = {
    "a text": "texts",
    "a whole number": "whole numbers",
    "a number": "numbers",
    "True or False": "True and False",
    "a text or a path": "texts or paths",
}

# Settings that say what is wrong with them: an unknown name, a value of another type or out of range.

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
