"""Training data in a seeded order: each forget answer beside a retain answer, padded and grouped into batches."""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import torch
from torch import Tensor
from torch.utils.data import Dataset

from uds_lens.data import AnswerSequence
from uds_lens.errors import DataError
from uds_lens.unlearning._likelihood import pad_sequences
from uds_lens.unlearning._passes import FILLER


@dataclass(frozen=True)
class TrainingPair:
    """One forget example in one epoch, with the answers that train beside it."""

    forget: AnswerSequence  # question with the answer to forget
    winner: AnswerSequence | None  # the same question with the answer to prefer, for methods that have one
    retain: AnswerSequence | None  # an example to keep
    # Log-probability of the forget answer under `full`, nats; NaN where the method does not need it.
    forget_reference: float
    winner_reference: float  # log-probability of the winner under `full`
    is_filler: bool = False  # whether it only fills up the last batch of a process, and is not counted


@dataclass(frozen=True)
class TrainingData:
    """Answers that a method trains on, as tokens."""

    forget: Sequence[AnswerSequence]  # answers to forget
    retain: Sequence[AnswerSequence] = ()  # answers to keep
    # Per forget example the answers to prefer; epochs take them in turn.
    winners: Sequence[Sequence[AnswerSequence]] = ()
    forget_reference: Sequence[float] = ()  # log-probability of each forget answer under `full`, nats
    winner_reference: Sequence[Sequence[float]] = ()  # log-probability of each winner under `full`, nats


class PairDataset(Dataset):
    """All pairs of a training run, in an order that depends on the seed and on nothing else.

    Each epoch takes every forget example once, in an order of its own; the retain examples beside them cycle in the
    same way, all of them before the first comes again. The index of a pair decides its content, so that a killed run
    resumes with exactly the pairs that were left.
    """

    def __init__(self, data: TrainingData, *, epochs: int, seed: int) -> None:
        if not data.forget:
            raise DataError("there is no forget example to train on.")
        self._data, self._seed = data, seed
        self._n_pairs, self._n_fillers = epochs * len(data.forget), 0
        self._orders: dict[tuple[str, int], list[int]] = {}

    def filled_up(self, multiple_of: int) -> PairDataset:
        """Return the same pairs with fillers at the end, so that several processes get equally many.

        Without them accelerate would repeat the first pairs, and count them twice.
        """
        other = copy.copy(self)
        other._n_fillers = -self._n_pairs % multiple_of
        return other

    def __len__(self) -> int:
        return self._n_pairs + self._n_fillers

    def __getitem__(self, index: int) -> TrainingPair:
        if index >= self._n_pairs:  # the last pair again: its loss is finite if the batch's is
            return replace(self[self._n_pairs - 1], is_filler=True)
        data = self._data
        epoch, row = self._at("forget", index, len(data.forget))
        retain = data.retain[self._at("retain", index, len(data.retain))[1]] if data.retain else None
        turn = epoch % len(data.winners[row]) if data.winners else 0
        return TrainingPair(
            forget=data.forget[row],
            winner=data.winners[row][turn] if data.winners else None,
            retain=retain,
            forget_reference=data.forget_reference[row] if data.forget_reference else math.nan,
            winner_reference=data.winner_reference[row][turn] if data.winner_reference else math.nan,
        )

    def _at(self, side: str, index: int, n: int) -> tuple[int, int]:
        """Return the epoch of one side at an index, and the row taken there."""
        epoch, position = divmod(index, n)
        if (side, epoch) not in self._orders:
            seed = (self._seed * 1_000_003 + epoch) * 2 + (side == "retain")
            order = torch.randperm(n, generator=torch.Generator().manual_seed(seed))
            self._orders[side, epoch] = order.tolist()
        return epoch, self._orders[side, epoch][position]


class PairCollator:
    """Collate pairs into padded batches, one per side. Fillers are left out, except where there is nothing else."""

    def __init__(self, pad_token_id: int) -> None:
        self.pad_token_id = pad_token_id

    def __call__(self, pairs: Sequence[TrainingPair]) -> dict[str, dict[str, Tensor]]:
        """Return `forget`, and `winner` and `retain` where there are any, with references beside the tokens.

        Every side of a batch of fillers has `FILLER` beside its tokens.
        """
        real = [pair for pair in pairs if not pair.is_filler]
        pairs = real or pairs[:1]
        batch = {}
        for side in ("forget", "winner", "retain"):
            rows = [getattr(pair, side) for pair in pairs]
            if rows[0] is not None:
                batch[side] = pad_sequences(rows, pad_token_id=self.pad_token_id)
                if side != "retain":
                    batch[side]["reference"] = torch.tensor([getattr(pair, f"{side}_reference") for pair in pairs])
                if not real:
                    batch[side][FILLER] = torch.ones(len(rows), dtype=torch.bool)
        return batch


def length_groups(batch: Mapping[str, Mapping[str, Tensor]], *, rows: int = 8) -> list[dict[str, dict[str, Tensor]]]:
    """Split a batch into groups of rows of similar length, each without needless padding.

    On a CPU padding costs as much as text, and random batches are nearly half padding. A forget answer and its winner
    stay together; retain answers are grouped separately, so that they no longer stand beside the forget answer of
    their pair. Means over the rows of a side, as in every objective of this package, change by rounding only.

    Example:
        >>> labels = torch.tensor([[-100, 5, 6, 2], [-100, 7, -100, -100]])
        >>> mask = torch.tensor([[1, 1, 1, 1], [1, 1, 0, 0]])
        >>> short, long = length_groups({"forget": {"attention_mask": mask, "labels": labels}}, rows=1)
        >>> short["forget"]["labels"].tolist(), long["forget"]["labels"].tolist()
        ([[-100, 7]], [[-100, 5, 6, 2]])
    """
    lengths = {side: values["attention_mask"].sum(1) for side, values in batch.items()}
    n = len(next(iter(lengths.values())))
    groups = math.ceil(n / rows)
    if groups == 1 or all(bool((length == length[0]).all()) for length in lengths.values()):
        return [{side: dict(values) for side, values in batch.items()}]
    paired = torch.stack([length for side, length in lengths.items() if side != "retain"]).sum(0)
    order = {side: (length if side == "retain" else paired).argsort(stable=True) for side, length in lengths.items()}
    cuts = [slice(*edges) for edges in pairwise(round(i * n / groups) for i in range(groups + 1))]
    return [{side: _selected(values, order[side][cut]) for side, values in batch.items()} for cut in cuts]


def _selected(values: Mapping[str, Tensor], rows: Tensor) -> dict[str, Tensor]:
    """Select rows, up to the end of the longest."""
    width = int(values["attention_mask"][rows].sum(1).max())
    return {name: value[rows, :width] if value.ndim == 2 else value[rows] for name, value in values.items()}
