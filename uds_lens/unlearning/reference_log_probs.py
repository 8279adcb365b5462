"""How probable the model before training finds each answer: computed once, then a constant."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from uds_lens.checked_arguments import arguments_checked
from uds_lens.compat.transformers import forget_longer_texts
from uds_lens.data import AnswerSequence
from uds_lens.patching.side_by_side import layout_of_config
from uds_lens.unlearning.forward_passes import INPUTS
from uds_lens.unlearning.likelihood import sequence_log_probs
from uds_lens.unlearning.padded_answers import pad_sequences


@arguments_checked
def answer_log_probs(
    model: Any, sequences: Sequence[AnswerSequence], *, pad_token_id: int, batch_size: int = 16
) -> list[float]:
    """Log-probability of each answer under a model, nats.

    Args:
        model: The model before training.
        sequences: Prompts with answers.
        pad_token_id: Filler.
        batch_size: Sequences per forward pass; they are sorted by length first, and those whose rotary frequencies
            depend on the longest of a batch are kept apart.

    Returns:
        One number per sequence, in their order.
    """
    device = next(model.parameters()).device
    found = [0.0] * len(sequences)
    order = sorted(range(len(sequences)), key=lambda index: len(sequences[index].ids))
    layout = layout_of_config(model.config)  # padding stands on the right, where it changes nothing
    handles = forget_longer_texts(model)
    was_training = model.training
    model.eval()
    try:
        batches = [order[start : start + batch_size] for start in range(0, len(order), batch_size)]
        for chosen in layout.split(batches, [len(each.ids) for each in sequences]):
            batch = pad_sequences([sequences[index] for index in chosen], pad_token_id=pad_token_id)
            batch = {name: values.to(device) for name, values in batch.items()}
            with torch.no_grad():
                logits = model(**{name: batch[name] for name in INPUTS}, use_cache=False).logits
                values = sequence_log_probs(logits, batch["labels"]).tolist()
            for index, value in zip(chosen, values, strict=True):
                found[index] = value
    finally:
        model.train(was_training)
        for handle in handles:
            handle.remove()
    return found
