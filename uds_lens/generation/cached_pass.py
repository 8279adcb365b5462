"""A pass over tokens that stand behind others, whose keys and values are kept."""

from __future__ import annotations

from typing import Any

from jaxtyping import Int
from torch import Tensor

from uds_lens.generation.padding import positions_of
from uds_lens.models import HookedModel


def cached_pass(
    model: HookedModel,
    ids: Int[Tensor, "batch new"],
    mask: Int[Tensor, "batch pos"] | None,
    cache: Any = None,
) -> Any:
    """Run the decoder on new tokens of every row.

    Args:
        model: The model.
        ids: New tokens.
        mask: 0 at padding, 1 at tokens: of those before, then of the new ones; None where nothing is padding.
        cache: Keys and values of those before, which grows; None where there are none.

    Returns:
        The decoder's output: `last_hidden_state` `[batch, new, d_model]` after the final norm, and `past_key_values`.
    """
    padded: dict[str, Any] = {}
    if mask is not None:
        padded = {"attention_mask": mask, "position_ids": positions_of(mask)[:, -ids.shape[1] :]}
    return model.anatomy.base(input_ids=ids, past_key_values=cache, use_cache=True, **padded)
