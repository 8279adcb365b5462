"""Ragged rows end to end in one long row, without padding between them, and the way back.

Everything in a decoder but attention works token by token, so that it may run on packed rows; attention runs on the
padded ones.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from jaxtyping import Bool, Int
from torch import Tensor


@dataclass(frozen=True, eq=False)
class Packing:
    """Where the tokens of padded rows stand in one packed row."""

    order: Int[Tensor, "batch pos"]
    """Index in the packed row of each padded entry; padding points at the last token of its own row."""

    places: Int[Tensor, "token"]
    """Index in the flattened padded rows of each packed token."""

    copies: int = 1
    """How many copies of every row stand side by side in the padded ones."""

    _repeated: dict[int, Packing] = field(default_factory=dict, repr=False)

    @classmethod
    def of(cls, real: Bool[Tensor, "batch pos"]) -> Packing:
        """Pack the entries that are True.

        Args:
            real: Which entries of the padded rows are tokens; at least one in each row.

        Returns:
            The packing, row after row.

        Example:
            >>> packing = Packing.of(torch.tensor([[False, True], [True, True]]))
            >>> packing.pack(torch.tensor([[0, 1], [2, 3]])).tolist()
            [[1, 2, 3]]
            >>> packing.pad(torch.tensor([[1, 2, 3]])).tolist()
            [[1, 1], [2, 3]]
        """
        places = real.flatten().nonzero()[:, 0]
        count = (real.flatten().cumsum(0) - 1).unflatten(0, real.shape)
        last = count.amax(1, keepdim=True)
        return cls(torch.where(real, count, last), places)

    def __len__(self) -> int:
        """Number of packed tokens."""
        return len(self.places)

    def repeated(self, n: int) -> Packing:
        """The packing of n copies of every row: side by side in the padded rows, one after the other when packed."""
        if n not in self._repeated:
            width, tokens = self.order.shape[1], len(self)
            copies = torch.arange(n, device=self.order.device)
            order = self.order[:, None] + (copies * tokens)[:, None]
            row = self.places.div(width, rounding_mode="floor")
            places = (self.places + row * (n - 1) * width) + (copies * width)[:, None]
            self._repeated[n] = Packing(order.flatten(1), places.flatten(), n)
        return self._repeated[n]

    def pack(self, padded: Tensor) -> Tensor:
        """`[batch, pos, ...]` to `[1, token, ...]`; a batch of 1 counts for every row."""
        rows = padded.expand(self.order.shape[0], *padded.shape[1:])
        return rows.flatten(0, 1).index_select(0, self.places)[None]

    def pad(self, packed: Tensor) -> Tensor:
        """`[1, token, ...]` to `[batch, pos, ...]`; padding repeats the last token of its row."""
        return packed[0].index_select(0, self.order.flatten()).unflatten(0, self.order.shape)

    def pad_heads(self, packed: Tensor) -> Tensor:
        """`[1, head, token, d_head]` to `[batch, head, pos, d_head]`, contiguous."""
        heads = packed.shape[1]
        each = torch.arange(heads, device=self.order.device)[:, None]
        by_head = (self.order[:, None] * heads + each).flatten()
        tokens = packed[0].transpose(0, 1).flatten(0, 1)
        return tokens.index_select(0, by_head).unflatten(0, (len(self.order), heads, -1))

    def pad_groups(self, packed: Tensor, groups: int) -> Tensor:
        """`[1, head, token, d_head]` to `[batch, group, copy, head of the group, pos, d_head]`, contiguous."""
        heads = packed.shape[1]
        each = torch.arange(heads, device=self.order.device).view(groups, 1, -1, 1)
        order = self.order.unflatten(1, (self.copies, -1))[:, None, :, None]
        by_head = order * heads + each
        tokens = packed[0].transpose(0, 1).flatten(0, 1)
        return tokens.index_select(0, by_head.flatten()).unflatten(0, by_head.shape)

    def pack_groups(self, padded: Tensor) -> Tensor:
        """The way back, to `[1, token, head, d_head]`."""
        groups, copies, heads, width = padded.shape[1:5]
        copy_of_row, pos = self.places.div(width, rounding_mode="floor"), self.places.remainder(width)
        row = copy_of_row.div(copies, rounding_mode="floor")
        first = (row * (groups - 1) * copies + copy_of_row) * heads * width + pos
        group = torch.arange(groups, device=first.device)[:, None] * (copies * heads * width)
        each = (group + torch.arange(heads, device=first.device) * width).flatten()
        by_token = first[:, None] + each
        return padded.flatten(0, 4).index_select(0, by_token.flatten()).unflatten(0, by_token.shape)[None]
