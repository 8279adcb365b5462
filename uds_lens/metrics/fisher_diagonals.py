"""Diagonal Fisher information of a model's blocks: in memory, or on disk a file per layer.

Squares of per-example gradients of the mean entity NLL. What is kept at one time is bounded: squares of as
many layers as fit the given memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from jaxtyping import Float
from torch import Tensor

from uds_lens.checked_arguments import arguments_checked
from uds_lens.data import TokenRow
from uds_lens.metrics.block_gradients import block_parameters, each_gradient, layer_turns, n_weights
from uds_lens.models import HookedModel
from uds_lens.storage import IN_TEMPORARY, SpillFolder, writing


@arguments_checked
def diagonal_fisher(
    model: HookedModel,
    rows: Sequence[TokenRow],
    layers: Sequence[int],
    *,
    desc: str = "Fisher",
    show: bool | None = None,
) -> dict[int, Float[Tensor, "weight"]]:
    """Mean over examples of the squared gradient of the mean entity NLL, for the weights of some layers.

    Args:
        model: The model; 4-bit ones go through `dequantised` first.
        rows: The examples, in tokens.
        layers: Which layers, all held in memory.
        desc: Label of the progress bar.
        show: Progress bar on, off, or (None) in terminals only.

    Returns:
        Per layer its flattened parameters' values, float32.

    Raises:
        ModelError: NaN or infinite logits; names the first example.
    """
    sums = {
        layer: torch.zeros(n_weights(model, layer), dtype=torch.float32, device=_device(model, layer))
        for layer in layers
    }

    def add(layer: int, start: int, gradient: Tensor) -> None:
        sums[layer][start : start + len(gradient)].addcmul_(gradient, gradient)

    each_gradient(model, rows, layers, add, desc=desc, show=show)
    return {layer: total.div_(len(rows)) for layer, total in sums.items()}


class SpilledFisher:
    """Fisher diagonals of one model on disk, a file per layer, in a temporary directory that goes with this object."""

    def __init__(self) -> None:
        self._folder = SpillFolder()

    def __setitem__(self, layer: int, values: Float[Tensor, "weight"]) -> None:
        from safetensors.torch import save_file

        with writing(self._folder.path, advice=IN_TEMPORARY):
            save_file({"fisher": values.cpu().contiguous()}, self._file(layer))

    def __getitem__(self, layer: int) -> Float[Tensor, "weight"]:
        from safetensors.torch import load_file

        return load_file(self._file(layer))["fisher"]

    def close(self) -> None:
        """Delete the files."""
        self._folder.close()

    def _file(self, layer: int) -> Path:
        return self._folder.path / f"{layer}.safetensors"


def spill_fisher(
    model: HookedModel, rows: Sequence[TokenRow], *, memory_gb: float, show: bool | None = None
) -> SpilledFisher:
    """Fisher diagonals of all layers, written to disk in turns that fit the memory."""
    spilled = SpilledFisher()
    for layers in layer_turns(model, memory_gb):
        for layer, values in diagonal_fisher(model, rows, layers, desc="Fisher, retain", show=show).items():
            spilled[layer] = values
    return spilled


def _device(model: HookedModel, layer: int) -> torch.device:
    """Where the weights of a block are, and so their gradients."""
    return next((parameter.device for _, parameter in block_parameters(model, layer)), model.device)
