"""Annotations checked at every call, as jaxtyping's own decorator does, at a fraction of its cost.

jaxtyping compiles two functions wherever one is defined, each time anew, and binds the arguments of every call. Here
the checks are compiled once, at the first call, also for a function that is defined inside another; and only a function
whose annotations name axes of tensors keeps their sizes in mind.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from dataclasses import is_dataclass
from types import FunctionType, SimpleNamespace
from typing import Any, get_args, get_type_hints
from weakref import WeakSet

import jaxtyping
from beartype.roar import BeartypeCallHintViolation
from jaxtyping import AbstractArray, TypeCheckError

by_jaxtyping = jaxtyping.jaxtyped
NOTHING = (lambda: None).__code__
CHECKING: WeakSet[Callable[..., Any]] = WeakSet()
"""Functions that check already: a record's `__init__` is met twice."""


def install() -> None:
    """Let the import hook use `checked`; before the first import of what it checks."""
    jaxtyping.jaxtyped = checked


def checked(what: Any = None, *, typechecker: Callable[..., Any]) -> Any:
    """What `jaxtyping.jaxtyped` returns: the function that checks, or the class whose `__init__` does."""
    again = functools.partial(checked, typechecker=typechecker)
    if what is None:
        return again
    if inspect.isclass(what):
        if is_dataclass(what) and what.__init__ not in CHECKING:
            what.__init__ = again(what.__init__)
        return what
    if isinstance(what, classmethod | staticmethod):
        return type(what)(again(what.__func__))
    if isinstance(what, property):
        return property(*(each and again(each) for each in (what.fget, what.fset, what.fdel)))
    return checked_function(what, typechecker)


def checked_function(function: FunctionType, typechecker: Callable[..., Any]) -> Callable[..., Any]:
    """The function with its checks before and after, switched off where jaxtyping's are."""
    run: Callable[..., Any] | None = None
    name_axes = False

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        __tracebackhide__ = True
        nonlocal run, name_axes
        if jaxtyping.config.jaxtyping_disable:
            return function(*args, **kwargs)
        if run is None:
            run, name_axes = checking(function, typechecker)
        try:
            if not name_axes:
                return run(*args, **kwargs)
            with by_jaxtyping("context"):
                return run(*args, **kwargs)
        except BeartypeCallHintViolation as error:
            raise TypeCheckError(str(error)) from error

    CHECKING.add(call)
    return call


Checks = tuple[Callable[..., Any], Callable[[Any], Any], bool]
"""What is done before and after each call of a function, and whether the sizes of axes are kept in mind meanwhile."""

KNOWN: dict[tuple[object, ...], Checks] = {}


def checking(function: FunctionType, typechecker: Callable[..., Any]) -> tuple[Callable[..., Any], bool]:
    """The function that checks each call, and whether its annotations name axes."""
    code = function.__code__
    if not (function.__closure__ or "<locals>" in function.__qualname__ or code.co_flags & inspect.CO_GENERATOR):
        hints = {name: resolved(hint, function) for name, hint in function.__annotations__.items()}
        whole = FunctionType(code, function.__globals__, function.__name__, function.__defaults__)
        whole.__kwdefaults__, whole.__annotations__ = function.__kwdefaults__, hints
        whole.__qualname__, whole.__module__ = function.__qualname__, function.__module__
        return typechecker(whole), any(map(names_axes, hints.values()))
    before, after, name_axes = checks_of(function, typechecker)

    def run(*args: Any, **kwargs: Any) -> Any:
        before(*args, **kwargs)
        return after(function(*args, **kwargs))

    return run, name_axes


def checks_of(function: FunctionType, typechecker: Callable[..., Any]) -> Checks:
    """The checks of a function, or of an earlier one that came from the same lines."""
    key = function.__module__, function.__qualname__, function.__code__, str(function.__annotations__)
    if key not in KNOWN:
        hints = {name: resolved(hint, function) for name, hint in function.__annotations__.items()}
        name_axes = any(map(names_axes, hints.values()))

        def result(value: Any) -> Any:
            return value

        result.__annotations__ = {"return": hints.pop("return", Any)}
        for check in (result, arguments := signature_alone(function)):
            check.__qualname__, check.__module__ = function.__qualname__, function.__module__
        arguments.__annotations__ = hints
        KNOWN[key] = typechecker(arguments), typechecker(result), name_axes
    return KNOWN[key]


def signature_alone(function: FunctionType) -> FunctionType:
    """A function that takes the same arguments and does nothing."""
    code = function.__code__
    stars = code.co_flags & (inspect.CO_VARARGS | inspect.CO_VARKEYWORDS)
    count = code.co_argcount + code.co_kwonlyargcount + bin(stars).count("1")
    empty = NOTHING.replace(
        co_argcount=code.co_argcount,
        co_posonlyargcount=code.co_posonlyargcount,
        co_kwonlyargcount=code.co_kwonlyargcount,
        co_nlocals=count,
        co_varnames=code.co_varnames[:count],
        co_flags=NOTHING.co_flags | stars,
    )
    alone = FunctionType(empty, function.__globals__, function.__name__, function.__defaults__)
    alone.__kwdefaults__ = function.__kwdefaults__
    return alone


def resolved(hint: Any, function: FunctionType) -> Any:
    """What an annotation names; `Any` where it names something that is imported for type checkers only."""
    try:
        alone = SimpleNamespace(__annotations__={"it": hint})
        return get_type_hints(alone, function.__globals__, include_extras=True)["it"]
    except Exception:  # as jaxtyping: whatever is wrong with it, mypy tells
        return Any


def names_axes(hint: Any) -> bool:
    """Whether a tensor of named axes stands anywhere in it."""
    if isinstance(hint, list):  # the arguments of a Callable
        return any(map(names_axes, hint))
    return (inspect.isclass(hint) and issubclass(hint, AbstractArray)) or any(map(names_axes, get_args(hint)))
