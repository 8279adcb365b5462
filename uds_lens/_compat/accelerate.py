"""Private parts of accelerate: placing the weights of a model, and moving them as they are needed."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import nn


def is_placed(model: nn.Module) -> bool:
    """Tell whether accelerate placed the model over devices."""
    return getattr(model, "hf_device_map", None) is not None


def is_moved(module: nn.Module) -> bool:
    """Tell whether accelerate moves inputs or weights of this one module when it runs."""
    return getattr(module, "_hf_hook", None) is not None


def is_offloaded(model: nn.Module) -> bool:
    """Tell whether accelerate keeps weights of the model elsewhere (disk, CPU) until they are needed."""
    return any(
        getattr(part, "offload", False)
        for module in model.modules()
        if (hook := getattr(module, "_hf_hook", None)) is not None
        for part in getattr(hook, "hooks", (hook,))
    )
