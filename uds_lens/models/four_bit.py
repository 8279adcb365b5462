"""4-bit checkpoints of bitsandbytes on a CPU."""

from __future__ import annotations

from typing import Any

from uds_lens.errors import ModelError


def keep_plain_format(model: Any, *, live: bool = False) -> None:
    """Keep layers out of bitsandbytes' fast format for CPUs where it does harm.

    bitsandbytes repacks the weights in the first forward pass, 32 rows at a time and block by block along each row,
    without asking whether the shape allows it; otherwise it multiplies with the dequantised weights. Reading the
    state dict of a repacked model unpacks the weights again, and not to what they were: weights that belong to
    somebody else are never repacked here, and refused where they have been.

    Args:
        model: The model, before its first pass here.
        live: Its weights are shared with a model of the caller's.

    Raises:
        ModelError: The caller's model was run on a CPU and its weights are repacked.
    """
    for module in model.modules():
        state = getattr(getattr(module, "weight", None), "quant_state", None)
        if live and getattr(state, "packing_format_for_cpu", False):
            raise ModelError(
                "this live 4-bit model has been run on the CPU, where bitsandbytes repacked its weights in place, and "
                "they cannot be read back exactly: give its directory, or load it anew and do not run it first."
            )
        if getattr(module, "support_avx512bf16_for_cpu", False):
            block = getattr(state, "blocksize", 64)
            if live or module.out_features % 32 or module.in_features % block:
                module.support_avx512bf16_for_cpu = False
