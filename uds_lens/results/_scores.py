"""The Unlearning Depth Score as pure functions of the deltas.

Reference: the UDS paper (arXiv 2605.24614). Where the paper is silent, undefined values are NaN, and the raw ratio is
kept next to the clipped one.
"""

from __future__ import annotations

import math

import torch
from jaxtyping import Bool, Float
from torch import Tensor


def ke_mask(s1_delta: Float[Tensor, "example layer"], tau: float) -> Bool[Tensor, "example layer"]:
    """Return the mask of knowledge-encoding (KE) layers, `s1_delta > tau`.

    Args:
        s1_delta: Log-probability lost when retain's state is patched in, nats per token.
        tau: Threshold, nats per token.

    Returns:
        True on KE layers; False where `s1_delta` is NaN.

    Example:
        >>> ke_mask(torch.tensor([[0.01, 0.5]]), 0.05)
        tensor([[False,  True]])
    """
    return s1_delta > tau


def layer_erasure_ratio(
    s1_delta: Float[Tensor, "example layer"],
    s2_delta: Float[Tensor, "example layer"],
    ke: Bool[Tensor, "example layer"],
    *,
    clip: bool = True,
) -> Float[Tensor, "example layer"]:
    """Compute the layer erasure ratio (LER), `clip(s2_delta / s1_delta, 0, 1)` on KE layers.

    Args:
        s1_delta: Log-probability lost with retain's state, nats per token.
        s2_delta: Log-probability lost with the unlearned model's state, nats per token.
        ke: KE layers.
        clip: False keeps the raw ratio, which is above 1 where the layer lost more than retain lacks, and below 0 where
            the unlearned state helps.

    Returns:
        0 = as in `full`, 1 = as in `retain`; NaN outside the KE layers.

    Example:
        >>> s1, s2 = torch.tensor([[2.0, 0.01]]), torch.tensor([[3.0, 0.0]])
        >>> layer_erasure_ratio(s1, s2, ke_mask(s1, 0.05))
        tensor([[1., nan]])
    """
    ratio = torch.where(ke, s2_delta / torch.where(ke, s1_delta, torch.ones_like(s1_delta)), torch.nan)
    return ratio.clamp(0.0, 1.0) if clip else ratio


def uds_per_example(
    s1_delta: Float[Tensor, "example layer"], ler: Float[Tensor, "example layer"], ke: Bool[Tensor, "example layer"]
) -> Float[Tensor, "example"]:
    """Score each example by its mean LER over KE layers, weighted by `s1_delta`.

    `UDS_i = sum_KE s1_delta LER / sum_KE s1_delta`

    Args:
        s1_delta: Weights, nats per token.
        ler: Clipped layer erasure ratio.
        ke: KE layers.

    Returns:
        0 = intact, 1 = erased; NaN where an example has no KE layer (not measurable).

    Example:
        >>> s1 = torch.tensor([[1.0, 3.0], [0.0, 0.0]])
        >>> ke = ke_mask(s1, 0.05)
        >>> uds_per_example(s1, layer_erasure_ratio(s1, torch.tensor([[1.0, 0.0], [0.0, 0.0]]), ke), ke)
        tensor([0.2500,    nan])
    """
    zero = torch.zeros_like(s1_delta)
    weights = torch.where(ke, s1_delta, zero)
    total = weights.sum(-1)
    erased = (weights * torch.where(ke, ler, zero)).sum(-1)
    return torch.where(total > 0, erased / total.clamp(min=torch.finfo(total.dtype).tiny), torch.nan)


def mean_uds(per_example: Float[Tensor, "example"]) -> float:
    """Average over the measurable examples; NaN if there are none.

    >>> mean_uds(torch.tensor([0.25, 0.75, torch.nan]))
    0.5
    """
    measured = per_example[~per_example.isnan()]
    return float(measured.double().mean()) if len(measured) else math.nan


def output_depth(
    s_full: Float[Tensor, "example"],
    s_unlearned: Float[Tensor, "example"],
    s_retain: Float[Tensor, "example"],
    tau: float,
) -> Float[Tensor, "example"]:
    """Score each example by unpatched answers alone: how much of what `retain` lacks `unlearned` also lacks.

    `O_i = clip((s_full - s_unlearned) / (s_full - s_retain), 0, 1)`

    Args:
        s_full: Mean log-probability that `full` gives to the entity's tokens, nats per token.
        s_unlearned: The same quantity for the unlearned model.
        s_retain: The same quantity for the retain model or its stand-in.
        tau: Threshold, nats per token.

    Returns:
        0 = answers as `full` does, 1 = as `retain` does; NaN where `full` knows the answer no better than `retain`
        (`s_full - s_retain <= tau`, or one of them is NaN). `mean_uds` averages it.

    Example:
        >>> output_depth(torch.tensor([-0.5, -0.5]), torch.tensor([-1.5, -9.0]), torch.tensor([-4.5, -0.5]), 0.05)
        tensor([0.2500,    nan])
    """
    lacking = s_full - s_retain
    known = lacking > tau
    depth = ((s_full - s_unlearned) / torch.where(known, lacking, torch.ones_like(lacking))).clamp(0.0, 1.0)
    return torch.where(known, depth, torch.nan)
