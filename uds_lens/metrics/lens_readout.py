"""Logit Lens: what each layer's state already says, read out by the head of `full`."""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from uds_lens.checked_arguments import arguments_checked
from uds_lens.models import Anatomy
from uds_lens.patching import target_logprobs


@arguments_checked
@torch.no_grad()
def lens_logprobs(
    anatomy: Anatomy,
    states: Float[Tensor, "batch layer win d_model"],
    targets: Int[Tensor, "batch win"],
    scored: Bool[Tensor, "batch win"],
) -> Float[Tensor, "batch layer"]:
    """Mean log-probability of the entity's tokens when each layer's state goes straight to the head of `full`.

    `k[i, l] = mean_t log softmax(head(norm(state[i, l, t])))[y_t]`, with the true residual stream of every layer,
    the last one too.

    Args:
        anatomy: `full`, whose final norm and unembedding read the states.
        states: Residual stream of any of the models.
        targets: The entity's tokens.
        scored: The positions that predict them.

    Returns:
        Nats per token, at most 0.
    """
    layers = states.shape[1]
    each = scored[:, None].expand(-1, layers, -1)
    logprobs = target_logprobs(anatomy, states, targets[:, None].expand(-1, layers, -1), each)
    return torch.where(each, logprobs.double(), 0.0).sum(-1) / scored.sum(-1)[:, None]
