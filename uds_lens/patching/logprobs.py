"""Log-probabilities of the next tokens that are scored, and of no others."""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from uds_lens.models import Anatomy

_LOGITS_AT_ONCE = {"cpu": 1 << 22, "cuda": 1 << 25}
"""Logits held at one time: 16 MiB in float32 on a CPU, since allocators return blocks of 32 MiB to the system at once
and fetch every page anew; 128 MiB on a GPU, where small products waste the device."""


def logits_at_once(device: torch.device) -> int:
    """How many logits are held at one time on a device."""
    return _LOGITS_AT_ONCE.get(device.type, 1 << 22)


def target_logprobs(
    anatomy: Anatomy,
    states: Float[Tensor, "*rows win d_model"],
    targets: Int[Tensor, "*rows win"],
    scored: Bool[Tensor, "*rows win"],
) -> Float[Tensor, "*rows win"]:
    """Log-probability of each scored target, read out of the last layer's states.

    `log_softmax(head(norm(state)))[target]` in float32, in chunks, only where `scored`.

    Args:
        anatomy: The model that reads the states out.
        states: Last-layer residual stream.
        targets: Next-token ids; ignored where not scored.
        scored: Which entries to score.

    Returns:
        Natural logarithms in float32 (nats), at most 0; NaN where not scored.
    """
    rows, wanted = states[scored], targets[scored]
    chunk = max(1, logits_at_once(states.device) // anatomy.d_vocab)
    values = torch.empty(len(rows), dtype=torch.float32, device=states.device)
    for start in range(0, len(rows), chunk):
        part = slice(start, start + chunk)
        logits = anatomy.readout(rows[part]).float()
        values[part] = -torch.nn.functional.cross_entropy(
            logits, wanted[part].to(logits.device), reduction="none"
        ).to(values.device)
    result = torch.full(scored.shape, torch.nan, dtype=torch.float32, device=states.device)
    result[scored] = values
    return result
