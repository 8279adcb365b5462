"""Token lists of several lengths side by side, and the position of each token in its own text."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import Int
from torch import Tensor


def left_padded(
    rows: Sequence[Sequence[int]], device: torch.device
) -> tuple[Int[Tensor, "batch pos"], Int[Tensor, "batch pos"]]:
    """Ids and mask, texts at the right edge: what follows them stands in the next column for all."""
    length = max(map(len, rows))
    ids = [[0] * (length - len(row)) + list(row) for row in rows]
    mask = [[0] * (length - len(row)) + [1] * len(row) for row in rows]
    return torch.tensor(ids, device=device), torch.tensor(mask, device=device)


def right_padded(
    rows: Sequence[Sequence[int]], device: torch.device
) -> tuple[Int[Tensor, "batch pos"], Int[Tensor, "batch pos"]]:
    """Ids and mask, texts at the left edge, where they follow what stands before all of them."""
    length = max(map(len, rows))
    ids = [list(row) + [0] * (length - len(row)) for row in rows]
    mask = [[1] * len(row) + [0] * (length - len(row)) for row in rows]
    return torch.tensor(ids, device=device), torch.tensor(mask, device=device)


def positions_of(mask: Int[Tensor, "batch pos"]) -> Int[Tensor, "batch pos"]:
    """0, 1, 2 ... over the tokens of each row; padding has those of the token before it, or 0."""
    return (mask.cumsum(-1) - 1).clamp(min=0)
