"""Private internals of torch: a module's hooks, and the module inside a compiled one."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import nn


_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")

COMPILED = "_orig_mod"  # attribute of `torch.compile`'s wrapper that holds the original module


def hook_tables(module: nn.Module) -> list[dict[int, Callable[..., Any]]]:
    """Return the dictionaries in which a module's hooks are registered, forward hooks first."""
    return [getattr(module, name) for name in _HOOKS]


def forward_hooks_of(module: nn.Module) -> dict[int, Callable[..., Any]]:
    """Return a module's forward hooks and pre-hooks, keyed by their registration number."""
    before, after = module._forward_pre_hooks, module._forward_hooks
    return {**after, **before}


def altered_modules(model: nn.Module) -> list[tuple[str, nn.Module]]:
    """List the modules, with their names, that have forward hooks or a `forward` replaced on the instance."""
    pending, seen = [model], {id(model)}
    while pending:  # fast path without names: this runs on every pass, and most models have no altered module
        module = pending.pop()
        if _is_altered(module):
            return [(name, part) for name, part in model.named_modules() if _is_altered(part)]
        for part in module._modules.values():
            if part is not None and id(part) not in seen:
                seen.add(id(part))
                pending.append(part)
    return []


def _is_altered(module: nn.Module) -> bool:
    return bool(module._forward_hooks or module._forward_pre_hooks or "forward" in module.__dict__)


def compiled_module(module: nn.Module) -> nn.Module | None:
    """Return the module inside a `torch.compile` wrapper; None for any other module."""
    return getattr(module, COMPILED, None)


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether an exception means that memory ran out (on CUDA, in Python, or in torch's CPU allocator)."""
    import torch

    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    text = str(error)
    return "out of memory" in text or "can't allocate memory" in text
