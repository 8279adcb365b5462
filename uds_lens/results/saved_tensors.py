"""The tensors of a saved result: each with the shape and dtype it must have."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from uds_lens.errors import ResultFormatError

Shape = tuple[int | None, ...]
"""Of a tensor; None stands for the number of layers, which `s1_delta` tells."""


def tensors_from(content: bytes, shapes: Mapping[str, Shape], *, told: str) -> dict[str, Tensor]:
    """The tensors in a safetensors file.

    Args:
        content: Its bytes.
        shapes: What it must hold; names that end in `n_tokens` are whole numbers.
        told: What to call it in messages.

    Raises:
        ResultFormatError: It is no such file, holds other tensors, or one of another shape or dtype.
    """
    from safetensors import SafetensorError
    from safetensors.torch import load

    try:
        found = load(content)
    except (SafetensorError, ValueError, KeyError, TypeError, RuntimeError) as error:
        raise ResultFormatError(f"{told} holds no tensors: {str(error)[:160]}.") from error
    if wrong := sorted(set(shapes) ^ set(found)):
        raise ResultFormatError(f"{told} must hold {', '.join(shapes)[:300]}; see {wrong[0][:60]!r}.")
    first = found["s1_delta"]
    layers = first.shape[-1] if first.ndim == 2 else -1
    for name, asked in shapes.items():
        _require(name, found[name], tuple(layers if size is None else size for size in asked), told)
    return {name: found[name] for name in shapes}


def _require(name: str, tensor: Tensor, shape: tuple[int, ...], told: str) -> None:
    counts = name.endswith("n_tokens")
    dtypes: Sequence[torch.dtype] = (torch.int64,) if counts else (torch.float32, torch.float64)
    if tuple(tensor.shape) != shape or tensor.dtype not in dtypes:
        raise ResultFormatError(
            f"{told}: {name} must have shape {shape} and dtype {dtypes[-1]}; got {tuple(tensor.shape)} and "
            f"{tensor.dtype}."
        )
