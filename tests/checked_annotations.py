"""Annotations checked at every call, as jaxtyping's own decorator does, at a fraction of its cost.

jaxtyping keeps the sizes of named axes from argument to argument, which takes a hundred microseconds a call and two
compilations a function. A function whose annotations name no tensor has no axes: beartype alone, compiled at its first
call, checks the same.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from dataclasses import is_dataclass
from types import FunctionType, SimpleNamespace
from typing import Any, get_args, get_type_hints

import jaxtyping
from beartype.roar import BeartypeCallHintViolation
from jaxtyping import AbstractArray, TypeCheckError

with_axes = jaxtyping.jaxtyped


def install() -> None:
    """Let the import hook use `checked`; before the first import of what it checks."""
    jaxtyping.jaxtyped = checked


def checked(what: Any = None, *, typechecker: Callable[..., Any]) -> Any:
    """What `jaxtyping.jaxtyped` returns: the function that checks, or the class whose `__init__` does."""
    again = functools.partial(checked, typechecker=typechecker)
    if what is None:
        return again
    if inspect.isclass(what):
        if is_dataclass(what) and not hasattr(what.__init__, "checks_annotations"):
            what.__init__ = again(what.__init__)
        return what
    if isinstance(what, classmethod | staticmethod):
        return type(what)(again(what.__func__))
    if isinstance(what, property):
        return property(*(each and again(each) for each in (what.fget, what.fset, what.fdel)))
    return checked_function(what, typechecker)


def checked_function(function: FunctionType, typechecker: Callable[..., Any]) -> Callable[..., Any]:
    """The function with its check before and after, switched off where jaxtyping's is."""
    checks: list[Callable[..., Any]] = []

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        __tracebackhide__ = True
        if jaxtyping.config.jaxtyping_disable:
            return function(*args, **kwargs)
        if not checks:
            checks.append(check_of(function, typechecker))
        try:
            return checks[0](*args, **kwargs)
        except BeartypeCallHintViolation as error:
            raise TypeCheckError(str(error)) from error

    call.checks_annotations = True  # type: ignore[attr-defined]
    return call


def check_of(function: FunctionType, typechecker: Callable[..., Any]) -> Callable[..., Any]:
    """jaxtyping's own check where axes are named or values come one by one, else the type checker's alone."""
    hints = {name: resolved(hint, function) for name, hint in function.__annotations__.items()}
    if inspect.isgeneratorfunction(function) or any(map(names_axes, hints.values())):
        return with_axes(function, typechecker=typechecker)
    copy = FunctionType(
        function.__code__,
        function.__globals__,
        function.__name__,
        function.__defaults__,
        function.__closure__,
    )
    copy.__kwdefaults__, copy.__annotations__ = function.__kwdefaults__, hints
    copy.__qualname__, copy.__module__ = function.__qualname__, function.__module__
    return typechecker(copy)


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
