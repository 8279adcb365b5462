"""Losses of prompts and targets of different lengths, side by side.

Padding stands on the right, behind the target: what a decoder says at a token does not depend on what follows it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from uds_lens.elicitation.prompt_states import changed_output
from uds_lens.elicitation.suffixes import replacing
from uds_lens.models import HookedModel


class Padded(NamedTuple):
    """Prompts with their targets, as one batch."""

    ids: Int[Tensor, "row pos"]
    """Prompt, target, padding."""

    says: Bool[Tensor, "row pos"]
    """Where the next token is one of the target's."""


def padded(
    prompts: Sequence[Sequence[int]], targets: Sequence[Sequence[int]], device: torch.device
) -> Padded:
    """One batch of prompts and what is to follow each; all targets hold a token at least.

    Example:
        >>> padded([[1, 2], [1]], [[3], [4, 5, 6]], torch.device("cpu")).ids.tolist()
        [[1, 2, 3, 0], [1, 4, 5, 6]]
    """
    width = max(len(prompt) + len(target) for prompt, target in zip(prompts, targets, strict=True))
    ids = torch.zeros(len(prompts), width, dtype=torch.long)
    says = torch.zeros(len(prompts), width, dtype=torch.bool)
    for row, (prompt, target) in enumerate(zip(prompts, targets, strict=True)):
        ids[row, : len(prompt) + len(target)] = torch.tensor([*prompt, *target])
        says[row, len(prompt) - 1 : len(prompt) + len(target) - 1] = True
    return Padded(ids.to(device), says.to(device))


def padded_loss(
    model: HookedModel,
    batch: Padded,
    places: Sequence[slice],
    embeddings: Float[Tensor, "row suffix d_model"],
) -> Float[Tensor, "row"]:
    """`target_loss` of each row, with its suffix's embeddings replaced; nats per token of its own target."""
    embed = model.hf.get_input_embeddings()
    with changed_output(embed, replacing(places, embeddings), length=batch.ids.shape[1]):
        states = model.anatomy.base(input_ids=batch.ids).last_hidden_state
    logits = model.anatomy.unembed(states[batch.says])
    logits = logits if logits.dtype == torch.float64 else logits.float()
    wanted = batch.ids[:, 1:][batch.says[:, :-1]]
    logp = logits.log_softmax(-1).gather(-1, wanted[:, None])[:, 0]
    rows = batch.says.nonzero()[:, 0]
    sums = torch.zeros(len(batch.ids), dtype=logp.dtype, device=logp.device).index_add(0, rows, -logp)
    return sums / batch.says.sum(-1)
