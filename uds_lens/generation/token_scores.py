"""What a model says about given tokens: one forward over a batch, read at its window."""

from __future__ import annotations

from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from uds_lens.checked_arguments import arguments_checked
from uds_lens.data import TokenBatch
from uds_lens.models import Anatomy, HookedModel
from uds_lens.patching.costs import logits_at_once
from uds_lens.patching.decoder import at_window, run_decoder


class TokenScores(NamedTuple):
    """What the model says about each token."""

    logprobs: Float[Tensor, "row"]
    """Log-probability, nats, float32; NaN where the logits are not finite."""

    hits: Bool[Tensor, "row"]
    """Is the token the model's first choice?"""

    standardised: Float[Tensor, "row"]
    """`(log p - mu) / sigma`, mu and sigma the mean and deviation of log p over the vocabulary under p."""

    first_choices: Int[Tensor, "row"]
    """The model's first choice."""


@arguments_checked
def normed_at_window(model: HookedModel, batch: TokenBatch) -> Float[Tensor, "batch win d_model"]:
    """States after the final norm at the window positions of a batch, ready for `Anatomy.unembed`.

    Args:
        model: The model; gradients flow where its parameters ask for them.
        batch: Tokens and windows, on the model's device.

    Returns:
        Copies of the states; entries beyond a row's own window repeat its last position.
    """
    return at_window(run_decoder(model.anatomy, batch, use_cache=False).last_hidden_state, batch.window)


@arguments_checked
def read_tokens(
    anatomy: Anatomy, normed: Float[Tensor, "row d_model"], targets: Int[Tensor, "row"]
) -> TokenScores:
    """Log-probability, first choice or not, and standardised log-probability of each target.

    Logits live in chunks; the log-softmax is float32 whatever the model's dtype.

    Args:
        anatomy: The model.
        normed: States after its final norm.
        targets: The token each state should predict.

    Returns:
        Four tensors, one entry per target.
    """
    chunk = max(1, logits_at_once(normed.device) // anatomy.d_vocab)
    parts = [
        _read_chunk(anatomy.unembed(normed[start : start + chunk]).float(), targets[start : start + chunk])
        for start in range(0, len(normed), chunk)
    ]
    return TokenScores(*(torch.cat(column) for column in zip(*parts, strict=True)))


def _read_chunk(logits: Float[Tensor, "row d_vocab"], targets: Int[Tensor, "row"]) -> TokenScores:
    """Everything from one exponential of each logit; with z below the largest logit, log p is z minus a constant."""
    targets = targets.to(logits.device)
    largest, first_choices = logits.max(-1)
    below = logits - largest[:, None]
    mass = below.exp()
    total = mass.sum(-1)
    own = below.gather(-1, targets[:, None])[:, 0]
    logprobs = torch.where(_all_finite(logits), own - total.log(), torch.nan)
    mean = torch.linalg.vecdot(mass, below) / total
    apart = below - mean[:, None]
    variance = torch.linalg.vecdot(mass * apart, apart) / total
    standardised = (own - mean) / variance.clamp(min=1e-6).sqrt()
    return TokenScores(logprobs, first_choices == targets, standardised, first_choices)


def _all_finite(logits: Float[Tensor, "row d_vocab"]) -> Bool[Tensor, "row"]:
    """Whether a row holds numbers only. Their sum tells it, unless it overflows: then each is looked at."""
    finite = logits.sum(-1).isfinite()
    if not bool(finite.all()):
        finite = logits.isfinite().all(-1)
    return finite
