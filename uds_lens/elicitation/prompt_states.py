"""Hooks that change what a module gives for a prompt's positions, and leave generated tokens alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from uds_lens.generation import way_of
from uds_lens.models import HookedModel
from uds_lens.patching.decoder import first_tensor

_Change = Callable[[Float[Tensor, "row pos d_model"]], Float[Tensor, "row pos d_model"]]


@contextmanager
def changed_output(module: nn.Module, change: _Change, *, length: int) -> Iterator[None]:
    """Let `change` rewrite a module's output at the first `length` positions of whole texts.

    Where the module runs over fewer, it is given generated tokens behind a cache.
    """

    def hook(module: nn.Module, args: Any, output: Any) -> Any:
        states = first_tensor(output)
        if states.shape[-2] < length:
            return None
        prompt, after = states[..., :length, :], states[..., length:, :]
        new = change(prompt)
        if after.shape[-2]:  # read whole again, with what was generated
            new = torch.cat([new, after], dim=-2)
        return new if isinstance(output, Tensor) else type(output)((new, *output[1:]))

    handle = module.register_forward_hook(hook)
    try:
        yield
    finally:
        handle.remove()


def groups_of_one_length(
    model: HookedModel, prompts: Sequence[Sequence[int]], size: int, new_tokens: int
) -> list[list[int]]:
    """Group prompts of one length that are changed and grow together, at most `size` of them.

    One at a time where texts grow otherwise than side by side: rows that leave would no longer fit what changes them.
    """
    by_length: dict[int, list[int]] = {}
    for place, prompt in enumerate(prompts):
        by_length.setdefault(len(prompt), []).append(place)
    groups = []
    for length, rows in by_length.items():
        at_once = size if way_of(model, length, new_tokens) == "side by side" else 1
        groups += [rows[first : first + at_once] for first in range(0, len(rows), at_once)]
    return groups
