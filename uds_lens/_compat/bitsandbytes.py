"""Private internals of bitsandbytes: its packed format for CPUs, and the kernels that it downloads from the Hub."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor, nn


_KERNEL = "Failed to load CPU gemm_4bit_forward"


@contextmanager
def no_hub_kernels() -> Iterator[None]:
    """Keep bitsandbytes from downloading and running kernels from the Hub, and silence its warning about them.

    If the package `kernels` is installed, bitsandbytes would download them on import, or in the first forward pass on a
    Mac. To allow the download, import bitsandbytes before calling this library.
    """

    def wanted(record: logging.LogRecord) -> bool:
        return not str(record.msg).startswith(_KERNEL)

    logger = logging.getLogger("bitsandbytes.backends.cpu.ops")
    logger.addFilter(wanted)
    try:
        if "bitsandbytes" not in sys.modules and find_spec("kernels") and find_spec("bitsandbytes"):
            _import_without_kernels()
        yield
    finally:
        logger.removeFilter(wanted)


def _import_without_kernels() -> None:
    loaded: dict[str, Any] = sys.modules
    before = {"kernels": loaded["kernels"]} if "kernels" in loaded else {}
    loaded["kernels"] = None  # makes `import kernels` fail
    try:
        with suppress(Exception):  # raised again where bitsandbytes is needed
            import_module("bitsandbytes")
    finally:
        del loaded["kernels"]
        loaded.update(before)
    if ops := loaded.get("bitsandbytes.backends.mps.ops"):
        ops._kernel_load_failed = True


def is_4bit_layer(module: nn.Module) -> bool:
    """Return whether a module holds 4-bit weights, judged by its class name (without importing bitsandbytes)."""
    return type(module).__name__ == "Linear4bit"


def is_bitsandbytes(config: object) -> bool:
    """Return whether a config belongs to a checkpoint quantised with bitsandbytes."""
    method = _quantisation(config).get("quant_method")
    return str(getattr(method, "value", method)) == "bitsandbytes"


def is_4bit_config(config: object) -> bool:
    """Return whether a model's config says that its linear layers hold 4-bit weights."""
    return bool(_quantisation(config).get("load_in_4bit"))


def quantised_as(config: object) -> str | None:
    """Return the quantisation declared in a config, such as "4 bits (nf4)"; None if there is none."""
    if not (settings := _quantisation(config)):
        return None
    if is_4bit_config(config):
        return f"4 bits ({settings.get('bnb_4bit_quant_type', 'fp4')})"
    method = settings.get("quant_method", "unknown")
    return "8 bits" if settings.get("load_in_8bit") else str(getattr(method, "value", method))


def _quantisation(config: object) -> dict[str, Any]:
    """Return a config's quantisation settings as a dictionary; empty if there are none."""
    settings: Any = getattr(config, "quantization_config", None) or {}
    return settings if isinstance(settings, dict) else settings.to_dict()


def plain_weight(module: Any) -> Tensor:
    """Return the dequantised weight matrix [out in] of a 4-bit layer, in its original dtype."""
    from bitsandbytes.functional import dequantize_4bit

    return dequantize_4bit(module.weight.data, module.weight.quant_state)


def plain_in_packed(model: nn.Module) -> str | None:
    """Return the name of a quantised layer with unquantised weights (it would fail when run); None if there is none."""
    return next(
        (
            name
            for name, module in model.named_modules()
            if type(module).__name__ in ("Linear4bit", "Linear8bitLt")
            and module.weight.is_floating_point()
            and getattr(module.weight, "quant_state", None) is None
        ),
        None,
    )


def is_repacked(module: nn.Module) -> bool:
    """Return whether a forward pass on a CPU has repacked the module's 4-bit weights (not exactly reversible)."""
    return bool(getattr(_state(module), "packing_format_for_cpu", False))


def may_repack(module: nn.Module) -> bool:
    """Return whether the next forward pass on a CPU would repack the module's 4-bit weights."""
    return bool(getattr(module, "support_avx512bf16_for_cpu", False))


def never_repack(module: Any) -> None:
    """Keep the module from repacking its weights; it multiplies with dequantised weights instead."""
    module.support_avx512bf16_for_cpu = False


def block_size(module: nn.Module) -> int:
    """Return the quantisation block size: the number of adjacent weights that share one scale."""
    return int(getattr(_state(module), "blocksize", 64))


def _state(module: nn.Module) -> object:
    return getattr(getattr(module, "weight", None), "quant_state", None)
