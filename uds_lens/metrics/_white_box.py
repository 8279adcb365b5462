"""Linear CKA between models' states, the erasure derived from it, and Logit Lens."""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from uds_lens.models._anatomy import Anatomy
from uds_lens.patching import target_logprobs

_EPSILON = 1e-12
"""Avoids division by zero in layers where `full` and `retain` agree; these layers have weight 0."""


def linear_cka(left: Float[Tensor, "token left_dim"], right: Float[Tensor, "token right_dim"]) -> float:
    """Return linear centred kernel alignment, `||Y' X||_F^2 / (||X' X||_F ||Y' Y||_F)`, of column-centred X and Y.

    Args:
        left: States of one model, stacked over the tokens of all examples.
        right: States of another model on the same tokens.

    Returns:
        A value in [0, 1], where 1 means equal up to rotation and scale; NaN if the states of either model do not vary.
        Computed in float64.

    References:
        Kornblith et al. 2019, Similarity of Neural Network Representations Revisited.

    Example:
        >>> x = torch.tensor([[1.0, 0.0], [0.0, 1.0], [2.0, 2.0]])
        >>> round(linear_cka(x, 3 * x.flip(1)), 6)
        1.0
    """
    x, y = (states.double() - states.double().mean(0) for states in (left, right))
    if len(x) < max(x.shape[1], y.shape[1]):
        gram_x, gram_y = x @ x.T, y @ y.T
        shared, norm = (gram_x * gram_y).sum(), gram_x.norm() * gram_y.norm()
    else:
        shared, norm = (y.T @ x).square().sum(), (x.T @ x).norm() * (y.T @ y).norm()
    return float(shared / norm) if norm > 0 else float("nan")


def cka_erasure(
    full_retain: Float[Tensor, "layer"], unlearned_retain: Float[Tensor, "layer"]
) -> Float[Tensor, "layer"]:
    """Return `clip((C_ur - C_fr) / (1 - C_fr + eps), 0, 1)`: how far the states have moved from `full` to `retain`.

    Args:
        full_retain: CKA of `full` with `retain`.
        unlearned_retain: CKA of the unlearned model with `retain`.

    Returns:
        0 if the states are as far from `retain` as the states of `full` are, 1 if they equal the states of `retain`.

    Example:
        >>> cka_erasure(torch.tensor([0.5]), torch.tensor([0.75])).round(decimals=6)
        tensor([0.5000])
    """
    return ((unlearned_retain - full_retain) / (1 - full_retain + _EPSILON)).clamp(0.0, 1.0)


def weighted_erasure(erasure: Float[Tensor, "layer"], weights: Float[Tensor, "layer"]) -> float:
    """Return the weighted mean over layers; NaN if no layer has a positive weight.

    >>> weighted_erasure(torch.tensor([1.0, 0.0]), torch.tensor([3.0, 1.0]))
    0.75
    """
    positive = weights.double().clamp(min=0.0).nan_to_num(0.0)
    total = positive.sum()
    if not total > 0:
        return float("nan")
    return float((torch.where(positive > 0, erasure.double(), 0.0) * positive).sum() / total)


@torch.no_grad()
def lens_logprobs(
    anatomy: Anatomy,
    states: Float[Tensor, "batch layer win d_model"],
    targets: Int[Tensor, "batch win"],
    scored: Bool[Tensor, "batch win"],
) -> Float[Tensor, "batch layer"]:
    """Return the mean log-probability of the entity tokens when the head of `full` reads each layer's states.

    `k[i, l] = mean_t log softmax(head(norm(state[i, l, t])))[y_t]`, where the state is the true residual stream at
    every layer, including the last.

    Args:
        anatomy: Anatomy of `full`, whose final norm and unembedding are applied to the states.
        states: Residual stream of any of the models.
        targets: The entity tokens.
        scored: Whether a position predicts an entity token.

    Returns:
        Log-probabilities in nats per token, at most 0.
    """
    layers = states.shape[1]
    mask = scored[:, None].expand(-1, layers, -1)
    logprobs = target_logprobs(anatomy, states, targets[:, None].expand(-1, layers, -1), mask)
    return torch.where(mask, logprobs.double(), 0.0).sum(-1) / scored.sum(-1)[:, None]
