"""What a live model does beyond its weights: hooks, replaced forwards and foreign modules that somebody put on it.

None of it can be hashed. Each change gets a mark that equals only that of the very same change, in this process.
"""

from __future__ import annotations

import copy
import itertools
import secrets
from collections.abc import Callable, Iterator
from typing import Any, Literal, NamedTuple
from weakref import WeakKeyDictionary

import torch
from torch import nn

from uds_lens.compat.accelerate import is_moved
from uds_lens.compat.peft import adapter_state
from uds_lens.compat.torch import forward_hooks_by_number
from uds_lens.compat.transformer_lens import is_own_hook
from uds_lens.compat.transformers import is_plain_decoder

_OURS = ("transformers.", "accelerate.", "uds_lens.")
"""Where hooks and forwards come from that change nothing: they record, move weights, or are gone in a moment."""

_process = secrets.token_hex(8)
_numbers: WeakKeyDictionary[Callable[..., Any], int] = WeakKeyDictionary()
_count = itertools.count()


class LiveChange(NamedTuple):
    """One change."""

    kind: Literal["hook", "forward", "module"]
    """A forward hook, a forward that is no longer the class's, or a module of another class."""

    place: str
    """Name of the module."""

    mark: str
    """Equal only for the very same change."""


def behaviour_changes(model: nn.Module) -> list[LiveChange]:
    """Hooks and replaced forwards that are on a model now; a Bridge's include those on its hook points."""
    found = []
    for place, module in _named_modules(model):
        for number, hook in forward_hooks_by_number(module):
            if not _is_ours(hook):
                found.append(LiveChange("hook", place, f"{_process} {number}"))
        own = vars(module).get("forward")
        if own is not None and not is_moved(module) and not _is_ours(own):
            found.append(LiveChange("forward", place, f"{_process} {_number(own)}"))
    return found


def _named_modules(model: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """The same as torch's, each module once; without its chain of generators, since every pass asks for changes."""
    pending, seen = [("", model)], {id(model)}
    while pending:
        place, module = pending.pop()
        yield place, module
        for name, part in module._modules.items():
            if part is not None and id(part) not in seen:
                seen.add(id(part))
                pending.append((f"{place}.{name}" if place else name, part))


def module_changes(model: Any) -> list[LiveChange]:
    """Modules of a transformers model of another class than its configuration makes, with what they are set to."""
    if not is_plain_decoder(model) or getattr(model, "is_quantized", False):
        return []
    with torch.device("meta"):
        made = dict(type(model)(copy.deepcopy(model.config)).named_modules())
    return [
        LiveChange(
            "module", place, f"{type(module).__module__}.{type(module).__qualname__} {adapter_state(module)}"
        )
        for place, module in model.named_modules()
        if place not in made or type(module) is not type(made[place])
    ]


def _is_ours(function: object) -> bool:
    return str(getattr(function, "__module__", "")).startswith(_OURS) or is_own_hook(function)


def _number(function: Any) -> int:
    """A number that no other function gets, whatever address it had."""
    plain = getattr(function, "__func__", function)
    try:
        return _numbers.setdefault(plain, next(_count))
    except TypeError:  # nothing to hold on to: never equal
        return next(_count)
