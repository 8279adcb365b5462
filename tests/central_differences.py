"""The one-hot gradient of a suffix against central differences of the loss."""

from collections.abc import Iterator
from typing import Any

import torch

from uds_lens.elicitation._asking import changed_output
from uds_lens.elicitation._gcg import replacing, target_loss, token_gradient


def gradient_entries(
    model: Any, slot: Any, suffix: str, *, entries: int, step: float = 1e-4
) -> Iterator[tuple[float, float, float]]:
    """Random entries: central difference, gradient, mean size of the gradient's entries. The model is in float64."""
    ids, place = slot.ids_and_place(model, suffix)
    found = token_gradient(model, slot, ids, place)
    embed, row = model.hf.get_input_embeddings(), torch.tensor([ids])
    table, length = embed.weight.detach(), len(ids) + len(slot.target)
    own, random = table[row[:, place]], torch.Generator().manual_seed(0)
    for _ in range(entries):
        where = int(torch.randint(place.stop - place.start, (1,), generator=random))
        token = int(torch.randint(len(table), (1,), generator=random))
        losses = []
        for sign in (1, -1):
            moved = own.clone()
            moved[0, where] += sign * step * table[token]
            with torch.no_grad(), changed_output(embed, replacing([place], moved), length=length):
                losses.append(float(target_loss(model, row, slot.target)))
        measured = (losses[0] - losses[1]) / (2 * step)
        yield measured, float(found[where, token]), float(found.abs().mean())
