"""Where `retain` has more Fisher information than `full`, and how much of that a model has."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from uds_lens.checked_arguments import arguments_checked
from uds_lens.data import TokenRow
from uds_lens.metrics.block_gradients import each_gradient, layer_turns
from uds_lens.metrics.definitions.fisher_masked import FRACTIONS
from uds_lens.metrics.fisher_diagonals import SpilledFisher, diagonal_fisher
from uds_lens.models import HookedModel

EPSILON = 1e-30
"""Squared gradients are small numbers: large enough to divide by, too small to change a quotient."""


@dataclass(frozen=True, eq=False)
class FisherMasks:
    """Per layer, the weights whose Fisher information `retain` has more of than `full`, most first.

    The mask of a fraction p is the first `max(1, floor(p n))` entries of a layer of n weights, or fewer where fewer
    have more in `retain`.
    """

    indices: tuple[Int[Tensor, "_"], ...]
    """Positions in the layer's flattened parameters, one tensor per layer."""

    retain: tuple[Float[Tensor, "_"], ...]
    """Fisher information of `retain` there."""

    full: tuple[Float[Tensor, "_"], ...]
    """Fisher information of `full` there."""

    n_weights: tuple[int, ...]
    """Weights of each layer."""

    @arguments_checked
    def size(self, layer: int, fraction: float) -> int:
        """Entries of a layer's mask."""
        return min(mask_size(self.n_weights[layer], fraction), len(self.indices[layer]))

    @property
    def n_layers(self) -> int:
        """Number of layers."""
        return len(self.indices)


def mask_size(n_weights: int, fraction: float) -> int:
    """Entries of a mask: the fraction of the layer's weights, rounded down, at least one.

    >>> mask_size(25_000, 0.0001), mask_size(39_960, 0.0001), mask_size(100, 0.0001)
    (2, 3, 1)
    """
    return max(1, int(fraction * n_weights))


@arguments_checked
def fisher_masks(
    full: HookedModel,
    retain: SpilledFisher,
    rows: Sequence[TokenRow],
    *,
    memory_gb: float,
    fractions: Sequence[float] = FRACTIONS,
    show: bool | None = None,
) -> FisherMasks:
    """Masks of the largest `a_i = max(F_retain - F_full, 0)` of each layer, with both models' values there."""
    layers: dict[int, tuple[Tensor, Tensor, Tensor, int]] = {}
    for turn in layer_turns(full, memory_gb):
        for layer, own in diagonal_fisher(full, rows, turn, desc="Fisher, full", show=show).items():
            layers[layer] = _mask_layer(retain[layer], own.cpu(), max(fractions))
    columns = list(zip(*(layers[layer] for layer in range(full.n_layers)), strict=True))
    return FisherMasks(*columns)


@arguments_checked
def masked_fisher(
    model: HookedModel,
    rows: Sequence[TokenRow],
    masks: FisherMasks,
    *,
    memory_gb: float,
    show: bool | None = None,
) -> list[Float[Tensor, "_"]]:
    """Fisher information of a model at the masked weights; nothing else is kept."""
    sums = [torch.zeros(len(indices), dtype=torch.float64, device=model.device) for indices in masks.indices]
    parts: dict[tuple[int, int], tuple[Tensor, Tensor]] = {}

    def add(layer: int, start: int, gradient: Tensor) -> None:
        if (layer, start) not in parts:
            indices = masks.indices[layer].to(gradient.device)
            inside = ((indices >= start) & (indices < start + len(gradient))).nonzero()[:, 0]
            parts[layer, start] = indices[inside] - start, inside.to(model.device)
        at, into = parts[layer, start]
        sums[layer][into] += gradient[at].to(model.device).double().square()

    for turn in layer_turns(model, memory_gb):
        each_gradient(model, rows, turn, add, desc="Fisher, model", show=show)
    return [(total / len(rows)).cpu() for total in sums]


@arguments_checked
def fisher_erasure(
    masks: FisherMasks, model: Sequence[Float[Tensor, "_"]], fraction: float
) -> tuple[Float[Tensor, "layer"], Float[Tensor, "layer"]]:
    """Erasure and weight of each layer: `1 - clip((F_ret - F_unl) / (e + eps), 0, 1)`, `e = F_ret - F_full`.

    Args:
        masks: From `fisher_masks`.
        model: From `masked_fisher`.
        fraction: Which mask; means run over its entries.

    Returns:
        Erasure, 0 = as in `full`, 1 = as in `retain`; and the weights e (0 where a layer has no mask).

    Example:
        >>> one = lambda value: (torch.tensor([value]),)
        >>> masks = FisherMasks((torch.tensor([3]),), one(4.0), one(2.0), (10,))
        >>> [values.tolist() for values in fisher_erasure(masks, [torch.tensor([3.0])], 0.01)]
        [[0.5], [2.0]]
    """
    erasure, weights = [], []
    for layer in range(masks.n_layers):
        size = masks.size(layer, fraction)
        if size == 0:
            erasure.append(torch.nan)
            weights.append(0.0)
            continue
        retain, full, own = (
            float(values[layer][:size].double().mean()) for values in (masks.retain, masks.full, model)
        )
        excess = retain - full
        erasure.append(1.0 - min(max((retain - own) / (excess + EPSILON), 0.0), 1.0))
        weights.append(excess)
    return torch.tensor(erasure, dtype=torch.float64), torch.tensor(weights, dtype=torch.float64)


def _mask_layer(
    retain: Float[Tensor, "weight"], full: Float[Tensor, "weight"], fraction: float
) -> tuple[Tensor, Tensor, Tensor, int]:
    excess = (retain - full).clamp(min=0.0)
    top = excess.topk(mask_size(len(excess), fraction))
    indices = top.indices[top.values > 0]
    return indices, retain[indices].double(), full[indices].double(), len(excess)
