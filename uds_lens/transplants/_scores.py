"""Scores of a transplant, as pure functions of log-probabilities."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from uds_lens.results._intervals import cluster_codes


def host_depth(
    left: Float[Tensor, "example candidate"],
    cost: Float[Tensor, "example candidate"],
    left_of_retain: Float[Tensor, "example"],
    tau: float,
) -> Float[Tensor, "example candidate"]:
    """Score each example by what is still lost when blocks of `retain` replace some blocks of the unlearned model.

    `h(b, i) = clip((left(U[b <- R], i) - c(b, i)) / (left(R, i) - c(b, i)), 0, 1)`

    Args:
        left: `s_full - s` for the unlearned model with the blocks, nats per token.
        cost: c, the same for `full` with the blocks: the loss due to inserting blocks of another model.
        left_of_retain: The same for `retain` itself.
        tau: Threshold, nats per token.

    Returns:
        0 = the remaining blocks hold the answer as `full` does, 1 = as little as `retain` does. NaN where the
        denominator is at most tau: the blocks alone decide the answer, or `full` knows it no better than `retain`.

    Example:
        >>> left, cost = torch.tensor([[1.5, 4.5]]), torch.tensor([[0.5, 4.5]])
        >>> host_depth(left, cost, torch.tensor([4.5]), 0.05)
        tensor([[0.2500,    nan]])
    """
    room = left_of_retain[:, None] - cost
    defined = room > tau
    depth = ((left - cost) / torch.where(defined, room, torch.ones_like(room))).clamp(0.0, 1.0)
    return torch.where(defined, depth, torch.nan)


ADMITTED_COST = 0.1
"""A candidate is admitted only if it costs `full` at most this fraction of what `retain` lacks."""


def affordable(
    cost: Float[Tensor, "example candidate"], left_of_retain: Float[Tensor, "example"]
) -> Bool[Tensor, "candidate"]:
    """Return which candidates cost `full` little: their mean c(b) is at most a tenth of what `retain` lacks.

    >>> affordable(torch.tensor([[0.1, 2.0], [0.3, 2.0]]), torch.tensor([4.0, 6.0]))
    tensor([ True, False])
    """
    return cost.mean(0) <= ADMITTED_COST * left_of_retain.mean()


def least_on_others(
    left: Float[Tensor, "example candidate"], admitted: Bool[Tensor, "candidate"], subjects: Sequence[str | None]
) -> Int[Tensor, "example"]:
    """Choose a candidate for each example: the admitted one with the smallest mean over examples about other subjects.

    If all examples are about the same subject, the mean is over all other examples.

    Returns:
        Indices of candidates; -1 if none is admitted, or if there are no other examples.

    Example:
        >>> left = torch.tensor([[0.0, 1.0], [0.0, 1.0], [4.0, 1.0]])
        >>> least_on_others(left, torch.tensor([True, True]), ["Ada", "Ada", "Bo"])
        tensor([1, 1, 0])
    """
    if not len(left) or not bool(admitted.any()):
        return torch.full((len(left),), -1)
    codes = cluster_codes(subjects)
    if codes.max() == 0:
        codes = np.arange(len(left))
    group = torch.from_numpy(codes)
    values = left.double().masked_fill(~admitted, torch.inf)
    sums = torch.zeros(int(group.max()) + 1, left.shape[1], dtype=torch.float64).index_add_(
        0, group, torch.where(admitted, values, 0.0)
    )
    counts = torch.bincount(group)
    others = len(left) - counts
    means = (sums.sum(0) - sums) / others.clamp(min=1)[:, None]
    best = means.masked_fill(~admitted, torch.inf).argmin(1)
    return torch.where(others > 0, best, -1)[group]


def taken(values: Float[Tensor, "example candidate"], chosen: Int[Tensor, "example"]) -> Float[Tensor, "example"]:
    """Return each example's value at its chosen candidate; NaN where none was chosen.

    >>> taken(torch.tensor([[1.0, 2.0], [3.0, 4.0]]), torch.tensor([1, -1]))
    tensor([2., nan])
    """
    if not values.shape[1]:
        return torch.full((len(values),), torch.nan, dtype=values.dtype)
    return values.gather(1, chosen.clamp(min=0)[:, None])[:, 0].masked_fill(chosen < 0, torch.nan)


def nanmean_over(values: Float[Tensor, "donor example"]) -> Float[Tensor, "example"]:
    """Average over donors, leaving out those whose value is NaN.

    >>> nanmean_over(torch.tensor([[0.2, torch.nan], [0.4, torch.nan]]))
    tensor([0.3000,    nan])
    """
    return values.nanmean(0)
