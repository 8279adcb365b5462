"""What a run sees when: the order of training data: every forget example beside a retain example, epoch after epoch."""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.utils.data import Dataset

from uds_lens.data import AnswerSequence
from uds_lens.errors import DataError
from uds_lens.unlearning.batch_totals import FILLER
from uds_lens.unlearning.padded_answers import pad_sequences


@dataclass(frozen=True)
class Visit:
    """One forget example at one moment of training, with what stands beside it."""

    forget: AnswerSequence
    """Question with the answer to forget."""

    winner: AnswerSequence | None
    """The same question with the answer to prefer, for methods that have one."""

    retain: AnswerSequence | None
    """An example to keep."""

    forget_reference: float
    """Log-probability of the forget answer under `full`, nats; NaN where the method does not need it."""

    winner_reference: float
    """The same of the winner."""

    counts: bool = True
    """False for a filler, which is run where a process has no row of the last batch, and adds nothing."""


@dataclass(frozen=True)
class TrainingData:
    """Everything a method trains on."""

    forget: Sequence[AnswerSequence]
    """Answers to forget."""

    retain: Sequence[AnswerSequence] = ()
    """Answers to keep."""

    winners: Sequence[Sequence[AnswerSequence]] = ()
    """Per forget example the answers to prefer; visits take them in turn."""

    forget_reference: Sequence[float] = ()
    """Log-probability of each forget answer under `full`, nats."""

    winner_reference: Sequence[Sequence[float]] = ()
    """The same of each winner."""


class VisitDataset(Dataset):
    """All visits of a training run in their order, which depends on the seed and on nothing else.

    Each epoch visits every forget example once, in an order of its own; beside them the retain examples go round in
    the same way, all of them before the first comes again. The place of a visit decides what it is, so that a run
    that was killed goes on with exactly what would have come.
    """

    def __init__(self, data: TrainingData, *, epochs: int, seed: int, n_visits: int | None = None) -> None:
        if not data.forget:
            raise DataError("there is no forget example to train on.")
        self._data, self._seed = data, seed
        self._n_visits = epochs * len(data.forget) if n_visits is None else n_visits
        self._n_fillers = 0
        self._orders: dict[tuple[str, int], list[int]] = {}

    def filled_up(self, multiple_of: int) -> VisitDataset:
        """Return the same visits with fillers at the end, so that several processes get equally many.

        Without them accelerate would take the first visits again, and count them twice.

        Args:
            multiple_of: Visits that all processes take at once.
        """
        other = copy.copy(self)
        other._n_fillers = -self._n_visits % multiple_of
        return other

    def __len__(self) -> int:
        return self._n_visits + self._n_fillers

    def __getitem__(self, place: int) -> Visit:
        if place >= self._n_visits:  # the last visit again: a row whose loss is finite if the batch's is
            return replace(self[self._n_visits - 1], counts=False)
        data = self._data
        epoch, index = self._at("forget", place, len(data.forget))
        retain = data.retain[self._at("retain", place, len(data.retain))[1]] if data.retain else None
        turn = epoch % len(data.winners[index]) if data.winners else 0
        return Visit(
            forget=data.forget[index],
            winner=data.winners[index][turn] if data.winners else None,
            retain=retain,
            forget_reference=data.forget_reference[index] if data.forget_reference else math.nan,
            winner_reference=data.winner_reference[index][turn] if data.winner_reference else math.nan,
        )

    def _at(self, side: str, place: int, n: int) -> tuple[int, int]:
        round_, position = divmod(place, n)
        key = (side, round_)
        if key not in self._orders:
            generator = torch.Generator().manual_seed(
                (self._seed * 1_000_003 + round_) * 2 + (side == "retain")
            )
            self._orders[key] = torch.randperm(n, generator=generator).tolist()
        return round_, self._orders[key][position]


class VisitCollator:
    """Visits to padded batches, one for each side. Fillers are left out, but for one where there is nothing else."""

    def __init__(self, pad_token_id: int) -> None:
        self.pad_token_id = pad_token_id

    def __call__(self, visits: Sequence[Visit]) -> dict[str, dict[str, Tensor]]:
        """Batches by side: `forget`, and `winner` and `retain` where there are any; references beside the tokens.

        Every side of a batch that is a filler has `FILLER` beside its tokens.
        """
        real = [visit for visit in visits if visit.counts]
        is_filler, visits = not real, real or visits[:1]
        sides = {"forget": [visit.forget for visit in visits]}
        for side in ("winner", "retain"):
            found = [getattr(visit, side) for visit in visits]
            if found[0] is not None:
                sides[side] = found
        batch = {name: pad_sequences(rows, pad_token_id=self.pad_token_id) for name, rows in sides.items()}
        batch["forget"]["reference"] = torch.tensor([visit.forget_reference for visit in visits])
        if "winner" in batch:
            batch["winner"]["reference"] = torch.tensor([visit.winner_reference for visit in visits])
        for values in batch.values() if is_filler else ():
            values[FILLER] = torch.ones(len(visits), dtype=torch.bool)
        return batch
