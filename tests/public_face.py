"""Everything a user can call: each room's public functions, classes and methods, and stand-ins for their arguments."""

import ast
import inspect
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

import uds_lens as ul
from uds_lens._arguments import Kind, Named


class Public(NamedTuple):
    """One thing that can be called."""

    name: str
    """Room and name: `meta.rank`, `results.DepthAudit.load`."""
    call: Callable[..., Any]
    """It; a method as the function that it is, with anything in the place of its object."""


def public() -> Iterator[Public]:
    """All of them, once."""
    seen: set[int] = set()
    for room in sorted(ul._ROOMS - {"errors"}):
        module = import_module(f"uds_lens.{room}")
        for name in module.__all__:
            found = getattr(module, name)
            if id(found) in seen or not (inspect.isfunction(found) or inspect.isclass(found)):
                continue
            seen.add(id(found))
            yield Public(f"{room}.{name}", found)
            if inspect.isclass(found):
                yield from _methods(f"{room}.{name}", found, seen)


_MACHINERY = ("uds_lens.patching._blocks",)
"""Modules of base classes whose methods the fast engine calls for every block, and nobody else does."""


def _methods(name: str, cls: type, seen: set[int]) -> Iterator[Public]:
    for base in cls.__mro__:
        if not base.__module__.startswith("uds_lens.") or base.__module__ in _MACHINERY:
            continue
        for word, member in vars(base).items():
            function = getattr(member, "__func__", member)
            if word.startswith("_") or not inspect.isfunction(function) or id(function) in seen:
                continue
            seen.add(id(function))
            if len(inspect.signature(function).parameters) > 1:
                yield Public(f"{name}.{word}", function)


_PLAIN = (
    None,
    "x",
    1,
    0.5,
    False,
    {},
    [],
    (),
    Path("x"),
    len,
    int,
    torch.zeros(1),
    np.zeros(1),
    torch.device("cpu"),
)


def stand_in(kind: Kind) -> Any:
    """Something of a kind, good for nothing but its type."""
    for value in _PLAIN:
        if kind.holds(value):
            return value
    if kind.words.startswith("one of "):
        return ast.literal_eval(f"[{kind.words.removeprefix('one of ')}]")[0]
    cls = kind.classes[0]
    if isinstance(cls, Named):
        return type(cls.__name__, (), {})()
    if getattr(cls, "_is_protocol", False):
        return type("StandIn", (), {word: len for word in dir(cls) if not word.startswith("_")})()
    return tuple.__new__(cls, [None] * 9) if issubclass(cls, tuple) else object.__new__(cls)
