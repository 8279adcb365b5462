"""How much a whole batch holds, so that a pass over some of its rows knows its share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

import torch
from jaxtyping import Float, Int
from torch import Tensor

from uds_lens.unlearning.likelihood import IGNORED, answer_lengths

Side: TypeAlias = Literal["forget", "winner", "retain"]
"""A part of a batch: answers to forget, answers to prefer to them, answers to keep."""

Per: TypeAlias = Literal["token", "answer"]
"""What a mean runs over."""

FILLER = "filler"
"""Marks a pass that a process runs only to keep step with the others: its rows are no part of the batch."""


@dataclass(frozen=True)
class SideTotals:
    """One side of a batch, over all passes and devices."""

    answers: float
    """Rows."""

    tokens: float
    """Labelled tokens that something predicts."""

    inverse_lengths: float
    """Sum over rows of 1 / labelled tokens."""

    @classmethod
    def of(cls, labels: Int[Tensor, "batch pos"]) -> SideTotals:
        """Count one pass.

        >>> SideTotals.of(torch.tensor([[-100, 1, 2], [-100, -100, 3]]))
        SideTotals(answers=2.0, tokens=3.0, inverse_lengths=1.5)
        """
        return cls(*_counts(labels).tolist())

    def count(self, per: Per) -> float:
        """How many of what a mean runs over."""
        return self.tokens if per == "token" else self.answers

    @property
    def mean_inverse_length(self) -> float:
        """Mean over rows of 1 / labelled tokens."""
        return self.inverse_lengths / self.answers


def batch_totals(passes: Sequence[Mapping[str, Mapping[str, Tensor]]]) -> dict[str, Float[Tensor, "3"]]:
    """Counts of each side, added over the passes of a batch: answers, tokens, sum of inverse lengths; fillers are 0."""
    sides = passes[0].keys() if passes else ()
    return {side: torch.stack([_counts_of(batch[side]) for batch in passes]).sum(0) for side in sides}


def _counts_of(side: Mapping[str, Tensor]) -> Tensor:
    counts = _counts(side["labels"])
    return torch.zeros_like(counts) if FILLER in side else counts


def _counts(labels: Tensor) -> Tensor:
    labelled = (labels != IGNORED).sum(-1).double()
    return torch.stack(
        [
            torch.tensor(float(len(labels)), dtype=torch.float64, device=labels.device),
            answer_lengths(labels).sum().double(),
            (1 / labelled).sum(),
        ]
    )
