"""4-bit checkpoints of bitsandbytes on a CPU."""

from __future__ import annotations

from typing import Any


def keep_plain_format(model: Any) -> None:
    """Keep layers out of bitsandbytes' fast format for CPUs where their shape is no multiple of its blocks.

    bitsandbytes repacks the weights in the first forward pass, 32 rows at a time and block by block along each row,
    without asking whether that works out; otherwise it multiplies with the dequantised weights.
    """
    for module in model.modules():
        if getattr(module, "support_avx512bf16_for_cpu", False):
            block = getattr(getattr(module.weight, "quant_state", None), "blocksize", 64)
            if module.out_features % 32 or module.in_features % block:
                module.support_avx512bf16_for_cpu = False
