"""The candidates for transplants: bands of blocks, and the attention of all blocks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

from torch import nn

_ATTENTION = ("self_attn", "attn", "attention", "self_attention", "self_attn_layer")
"""Names of the attention module of a block, in different families."""


class Candidate(NamedTuple):
    """Blocks of a donor that replace the same blocks of the host."""

    first: int
    """The first block, from 0."""

    width: int
    """Number of blocks (with `attention`, always all blocks of the model)."""

    attention: bool = False
    """Whether only the attention of each block is taken from the donor."""

    @property
    def last(self) -> int:
        """The last block."""
        return self.first + self.width - 1

    @property
    def label(self) -> str:
        """Name of the candidate.

        >>> Candidate(3, 1).label, Candidate(4, 2).label, Candidate(0, 8, attention=True).label
        ('block 3', 'blocks 4-5', 'attention')
        """
        if self.attention:
            return "attention"
        return f"block {self.first}" if self.width == 1 else f"blocks {self.first}-{self.last}"

    def holds(self, layer: int) -> bool:
        """Return whether a block, or its attention, is taken from the donor."""
        return self.first <= layer <= self.last


def widths_of(n_layers: int) -> list[int]:
    """Return the widths of bands: about an eighth and a quarter of the number of blocks, and at least 1.

    >>> widths_of(8), widths_of(30), widths_of(4)
    ([1, 2], [4, 8], [1])
    """
    return sorted({max(1, int(n_layers / part + 0.5)) for part in (8, 4)})


def candidates_of(n_layers: int, *, attention: bool = True) -> tuple[Candidate, ...]:
    """Return all candidates for a model: bands of each width, then the attention of all blocks.

    Bands of the same width start half a width apart (`max(1, width // 2)`), and the first and last blocks are always
    covered.

    Args:
        n_layers: Number of blocks in the model.
        attention: Whether the blocks have an attention module that can be exchanged.

    Example:
        >>> [candidate.label for candidate in candidates_of(5)]
        ['block 0', 'block 1', 'block 2', 'block 3', 'block 4', 'attention']
        >>> [c.label for c in candidates_of(16) if c.width == 4]
        ['blocks 0-3', 'blocks 2-5', 'blocks 4-7', 'blocks 6-9', 'blocks 8-11', 'blocks 10-13', 'blocks 12-15']
    """
    bands = [
        Candidate(first, width)
        for width in widths_of(n_layers)
        for first in sorted({*range(0, n_layers - width + 1, max(1, width // 2)), n_layers - width})
    ]
    return (*bands, *([Candidate(0, n_layers, attention=True)] if attention else []))


def passes_of(candidates: Sequence[Candidate], n_layers: int) -> float:
    """Count the forward passes for a host and its candidates; before a band, the host's own states are reused.

    >>> passes_of([Candidate(0, 2), Candidate(2, 2), Candidate(0, 4, attention=True)], 4)
    3.5
    """
    return 1 + sum((n_layers - candidate.first) / n_layers for candidate in candidates)


def attention_name(block: nn.Module) -> str | None:
    """Return the name of a block's attention module; None if it has none, as in recurrent blocks."""
    return next((name for name, _ in block.named_children() if name in _ATTENTION), None)


def have_attention(blocks: nn.ModuleList) -> bool:
    """Return whether some blocks have an attention module that can be exchanged."""
    return any(attention_name(block) is not None for block in blocks)


@contextmanager
def with_attention(block: nn.Module, donor: nn.Module) -> Iterator[nn.Module]:
    """Exchange the attention of a block for that of a donor inside the `with` block, if it has attention."""
    name = attention_name(block)
    if name is None:
        yield block
        return
    own = getattr(block, name)
    setattr(block, name, getattr(donor, name))
    try:
        yield block
    finally:
        setattr(block, name, own)
