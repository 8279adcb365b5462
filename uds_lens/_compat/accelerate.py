"""Private internals of accelerate: how it places a model's weights on devices, and moves them when needed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from torch import nn


def is_placed(model: nn.Module) -> bool:
    """Return whether accelerate placed the model's weights on devices."""
    return getattr(model, "hf_device_map", None) is not None


def is_moved(module: nn.Module) -> bool:
    """Return whether accelerate moves this module's inputs or weights when the module runs."""
    return getattr(module, "_hf_hook", None) is not None


def is_offloaded(model: nn.Module) -> bool:
    """Return whether accelerate keeps some of the model's weights elsewhere (disk, CPU) until they are needed."""
    return any(getattr(part, "offload", False) for module in model.modules() for part in _hooks(module))


def runs_on(module: nn.Module) -> torch.device:
    """Return the device that a module runs on, even if accelerate keeps its weights elsewhere."""
    weight: Any = module.weight
    if not weight.is_meta:
        return torch.device(weight.device)
    devices = (getattr(part, "execution_device", None) for part in _hooks(module))
    return torch.device(next((device for device in devices if device is not None), weight.device))


def _hooks(module: nn.Module) -> tuple[Any, ...]:
    hook = getattr(module, "_hf_hook", None)
    return () if hook is None else tuple(getattr(hook, "hooks", (hook,)))
