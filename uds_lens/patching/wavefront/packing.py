"""Ragged rows end to end in one long row, without padding between them, and the way back.

Everything in a decoder but attention works token by token, so that it may run on packed rows; attention runs on the
padded ones.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from jaxtyping import Bool, Int
from torch import Tensor

_INT = torch.iinfo(torch.int32).max


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

    _indices: dict[tuple[str, int, int], Int[Tensor, "entry"]] = field(default_factory=dict, repr=False)
    """Where entries stand, by the way they are moved: all blocks of a pass move theirs alike, and every source's."""

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
        index = self._index("pad heads", heads, 1)
        tokens = packed[0].transpose(0, 1).flatten(0, 1)
        return tokens.index_select(0, index).unflatten(0, (len(self.order), heads, -1))

    def pad_groups(self, packed: Tensor, groups: int) -> Tensor:
        """`[1, head, token, d_head]` to `[batch, group, copy, head of the group, pos, d_head]`, contiguous."""
        heads = packed.shape[1]
        shape = (len(self.order), groups, self.copies, heads // groups, -1)
        tokens = packed[0].transpose(0, 1).flatten(0, 1)
        return tokens.index_select(0, self._index("pad groups", heads, groups)).unflatten(0, shape)

    def pack_groups(self, padded: Tensor) -> Tensor:
        """The way back, to `[1, token, head, d_head]`."""
        groups, _, heads = padded.shape[1:4]
        index = self._index("pack groups", groups * heads, groups)
        return padded.flatten(0, 4).index_select(0, index).unflatten(0, (len(self), groups * heads))[None]

    @staticmethod
    def bytes_to_move(heads: int, groups: int) -> int:
        """What is held for each token and copy of it once heads were moved in all ways, in bytes."""
        places, entries = 2 * 8, 2 * heads + groups
        return places + 4 * entries

    def _index(self, way: str, heads: int, groups: int) -> Int[Tensor, "entry"]:
        """Found once for each way and number of heads."""
        key = (way, heads, groups)
        if key not in self._indices:
            made = {"pad heads": self._padded, "pad groups": self._padded_groups, "pack groups": self._packed}
            index = made[way](heads, groups).flatten()
            rows = max(self.order.numel(), len(self)) * heads
            self._indices[key] = index.int() if rows <= _INT else index  # read at every block: half the bytes
        return self._indices[key]

    def _padded(self, heads: int, groups: int) -> Int[Tensor, "batch head pos"]:
        each = torch.arange(heads, device=self.order.device)[:, None]
        return self.order[:, None] * heads + each

    def _padded_groups(self, heads: int, groups: int) -> Int[Tensor, "batch group copy head pos"]:
        each = torch.arange(heads, device=self.order.device).view(groups, 1, -1, 1)
        return self.order.unflatten(1, (self.copies, -1))[:, None, :, None] * heads + each

    def _packed(self, heads: int, groups: int) -> Int[Tensor, "token head"]:
        width, in_group = self.order.shape[1] // self.copies, heads // groups
        copy_of_row, pos = self.places.div(width, rounding_mode="floor"), self.places.remainder(width)
        row = copy_of_row.div(self.copies, rounding_mode="floor")
        first = (row * (groups - 1) * self.copies + copy_of_row) * in_group * width + pos
        group = torch.arange(groups, device=first.device)[:, None] * (self.copies * in_group * width)
        each = (group + torch.arange(in_group, device=first.device) * width).flatten()
        return first[:, None] + each
