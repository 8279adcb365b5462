"""Losses of many prompts that are one prompt but for a token each: what they have in common is read once.

Candidates of a step differ from the prompt they came from in one place. Sorted by that place, a batch of them shares
all that stands before its first one, not only what stands before the suffix: keys and values of one row, which grow
from batch to batch and are handed to all rows of it.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from uds_lens.compat.transformers import keeps_plain_keys, shared_cached_row
from uds_lens.elicitation.suffixes import target_loss
from uds_lens.models import HookedModel
from uds_lens.patching import row_layout


class SharedBeginning:
    """Losses of candidates, and the keys and values of the text before the suffix, kept from step to step.

    Args:
        model: The model.
        target: Tokens that it has to say.
        rows_at_once: Candidates side by side.
        cached: Whether anything is shared; without it, where layers are recurrent, and beyond the length at which
            rotary frequencies change, every candidate is read from its first token on.
    """

    def __init__(
        self, model: HookedModel, target: Sequence[int], *, rows_at_once: int, cached: bool = True
    ) -> None:
        self._model, self._target = model, tuple(target)
        self._layout = row_layout(model)
        self._rows_at_once = rows_at_once if self._layout.side is not None else 1
        self._cached = cached
        self._before: list[int] = []
        self._kept: Any = None

    @torch.no_grad()
    def losses(
        self, rows: Sequence[Sequence[int]], current: Sequence[int], start: int
    ) -> Float[Tensor, "row"]:
        """The target's mean negative log-probability after each prompt, as `target_loss` gives it.

        Args:
            rows: Prompts as long as `current`, alike up to `start`.
            current: The prompt that they were made from.
            start: Where its suffix begins.

        Returns:
            One number per row, in their order, on the CPU.
        """
        ids = torch.tensor([list(row) for row in rows])
        self._cached = self._cached and self._layout.kind(ids.shape[1] + len(self._target)) == 0
        first = _first_change(ids, list(current))
        order = first.argsort(stable=True)
        read, cache = self._beginning(list(current[:start]))
        found = []
        for batch in order.split(self._rows_at_once):
            past, shared = None, int(first[batch[0]]) if self._cached else 0
            if shared > read:
                cache, read = self._read(current[read:shared], cache), shared
            if not self._cached:  # it keeps more than keys and values, as was just seen
                shared = 0
            if shared > 0:
                past = shared_cached_row(cache, len(batch))
            after = ids[batch, shared:].to(self._model.device)
            found.append(target_loss(self._model, after, self._target, past=past).cpu())
        sorted_losses = torch.cat(found)
        return torch.empty_like(sorted_losses).index_copy_(0, order, sorted_losses)

    def _beginning(self, before: list[int]) -> tuple[int, Any]:
        """How many tokens before the suffix have been read, and a copy of their keys and values that may grow."""
        if not self._cached or not before:
            return 0, None
        if before != self._before:
            self._before, self._kept = before, self._read(before, None)
        return (len(before), copy.deepcopy(self._kept)) if self._cached else (0, None)

    def _read(self, tokens: Sequence[int], cache: Any) -> Any:
        row = torch.tensor([list(tokens)], device=self._model.device)
        options = {} if cache is None else {"past_key_values": cache}
        output = self._model.anatomy.base(input_ids=row, use_cache=True, **options)
        kept = getattr(output, "past_key_values", None)
        self._cached = self._cached and keeps_plain_keys(kept)
        return kept


def _first_change(ids: Tensor, current: list[int]) -> Tensor:
    """Where each row first differs from the prompt; the last place where nowhere, for that token is read again."""
    changed = ids != torch.tensor(current)
    changed[:, -1] = True
    return changed.int().argmax(-1)
