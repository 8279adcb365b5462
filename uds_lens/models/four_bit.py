"""4-bit checkpoints of bitsandbytes on a CPU."""

from __future__ import annotations

import os
from typing import Any

from uds_lens.compat.bitsandbytes import (
    block_size,
    is_bitsandbytes,
    is_repacked,
    may_repack,
    never_repack,
)
from uds_lens.errors import ModelError
from uds_lens.optional_packages import require_package


def require_reader(config: object, source: str | os.PathLike[str]) -> None:
    """Raise where a checkpoint has 4-bit weights and nothing here reads them.

    Raises:
        MissingDependencyError: bitsandbytes is not installed.
    """
    if is_bitsandbytes(config):
        require_package("bitsandbytes", needed_by=f"{os.fspath(source)!r} has 4-bit weights, which need")


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
        if live and is_repacked(module):
            raise ModelError(
                "this live 4-bit model has been run on the CPU, where bitsandbytes repacked its weights in place, and "
                "they cannot be read back exactly: give its directory, or load it anew and do not run it first."
            )
        if may_repack(module) and (
            live or module.out_features % 32 or module.in_features % block_size(module)
        ):
            never_repack(module)
