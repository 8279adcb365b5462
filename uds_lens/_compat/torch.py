"""Private parts of torch: the hooks of a module, and access to the module inside a compiled one."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import nn


_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")

COMPILED = "_orig_mod"  # attribute of `torch.compile`'s wrapper that holds the module itself


def hook_tables(module: nn.Module) -> list[dict[int, Callable[..., Any]]]:
    """Return the tables in which hooks of a module are registered, forward ones first."""
    return [getattr(module, name) for name in _HOOKS]


def forward_hooks_of(module: nn.Module) -> dict[int, Callable[..., Any]]:
    """Return the hooks that run when the module is called, keyed by their registration number in this process."""
    before, after = module._forward_pre_hooks, module._forward_hooks
    return {**after, **before}


def altered_modules(model: nn.Module) -> list[tuple[str, nn.Module]]:
    """List the names of modules with forward hooks, or with a `forward` that does not come from their class."""
    pending, seen = [model], {id(model)}
    while pending:  # fast path without names: every pass asks this, and most models have none
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
    """Return the module that `torch.compile` wrapped; None for any other module."""
    return getattr(module, COMPILED, None)


def is_out_of_memory(error: BaseException) -> bool:
    """Tell whether an exception says that an allocation failed (CUDA's own class, Python's, or the CPU allocator's)."""
    import torch

    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    text = str(error)
    return "out of memory" in text or "can't allocate memory" in text
