"""Private parts of bitsandbytes: its fast format for CPUs, and the kernel code that it requests from the Hub."""

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
    """Keep bitsandbytes from fetching and running kernel code from the Hub, and silence its note that there is none.

    Otherwise bitsandbytes does so on import, or in the first pass on a Mac, if the package `kernels` is installed. To
    allow this, import bitsandbytes beforehand.
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
    loaded["kernels"] = None  # makes an import of it fail
    try:
        with suppress(Exception):  # the error will be raised again where bitsandbytes is needed
            import_module("bitsandbytes")
    finally:
        del loaded["kernels"]
        loaded.update(before)
    if ops := loaded.get("bitsandbytes.backends.mps.ops"):
        ops._kernel_load_failed = True


def is_4bit_layer(module: nn.Module) -> bool:
    """Tell from a module's class name whether it holds 4-bit weights, without importing bitsandbytes."""
    return type(module).__name__ == "Linear4bit"


def is_bitsandbytes(config: object) -> bool:
    """Tell whether a configuration is that of a checkpoint quantised by bitsandbytes."""
    method = _quantisation(config).get("quant_method")
    return str(getattr(method, "value", method)) == "bitsandbytes"


def is_4bit_config(config: object) -> bool:
    """Tell whether a model's config says that its linear layers hold 4-bit weights."""
    return bool(_quantisation(config).get("load_in_4bit"))


def quantised_as(config: object) -> str | None:
    """Return how a config says that the weights are quantised, such as "4 bits (nf4)"; None if they are not."""
    if not (settings := _quantisation(config)):
        return None
    if is_4bit_config(config):
        return f"4 bits ({settings.get('bnb_4bit_quant_type', 'fp4')})"
    method = settings.get("quant_method", "unknown")
    return "8 bits" if settings.get("load_in_8bit") else str(getattr(method, "value", method))


def _quantisation(config: object) -> dict[str, Any]:
    """Return the quantisation settings of a config: a dictionary from a file, or a record that becomes one."""
    settings: Any = getattr(config, "quantization_config", None) or {}
    return settings if isinstance(settings, dict) else settings.to_dict()


def plain_weight(module: Any) -> Tensor:
    """Return the weight of a 4-bit layer as a matrix [out in], in the dtype it was quantised from."""
    from bitsandbytes.functional import dequantize_4bit

    return dequantize_4bit(module.weight.data, module.weight.quant_state)


def plain_in_packed(model: nn.Module) -> str | None:
    """Name a layer that expects packed weights but holds plain ones, and would fail when run; None if none does."""
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
    """Tell whether the first pass on a CPU has repacked the module's 4-bit weights, which cannot be undone exactly."""
    return bool(getattr(_state(module), "packing_format_for_cpu", False))


def may_repack(module: nn.Module) -> bool:
    """Tell whether the next pass on a CPU would repack the module's 4-bit weights."""
    return bool(getattr(module, "support_avx512bf16_for_cpu", False))


def never_repack(module: Any) -> None:
    """Make the module multiply with its dequantised weights instead."""
    module.support_avx512bf16_for_cpu = False


def block_size(module: nn.Module) -> int:
    """Return the number of neighbouring weights that share one scale."""
    return int(getattr(_state(module), "blocksize", 64))


def _state(module: nn.Module) -> object:
    return getattr(getattr(module, "weight", None), "quant_state", None)
