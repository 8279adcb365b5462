"""What an annotation promises of a value, in words and as a question; checked as deep as one look goes."""

from __future__ import annotations

import collections.abc as abc
import numbers
import os
import types
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, Protocol, Union, get_args, get_origin, runtime_checkable

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
