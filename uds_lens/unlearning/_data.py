"""Before training: everything a run trains on, as far as its objective needs it."""

from __future__ import annotations

import copy
import math
import os
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from importlib.resources import files
from pathlib import Path
from typing import TypeVar, cast

import torch
from torch import Tensor
from torch.utils.data import Dataset

from uds_lens.data import (
    AnswerSequence,
    ForgetExample,
    answer_sequences,
    chosen_protocol,
)
from uds_lens.errors import DataError, ResultFormatError, UdsLensWarning
from uds_lens.unlearning._alternates import (
    FILE,
    SamplingSettings,
    read_alternates,
    sample_alternates,
    write_alternates,
)
from uds_lens.unlearning._configs import MethodConfig
from uds_lens.unlearning._job import Parent
from uds_lens.unlearning._likelihood import pad_sequences
from uds_lens.unlearning._options import TrainOptions
from uds_lens.unlearning._passes import FILLER, answer_log_probs
from uds_lens.unlearning._registry import Need

# What a run sees when: the order of training data: every forget example beside a retain example, epoch
# after epoch.


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


T = TypeVar("T")


def pairs_of(examples: Sequence[ForgetExample]) -> list[tuple[str, str]]:
    """Question and answer of each example."""
    return [(example.question, example.answer) for example in examples]


def encoded(parent: Parent, config: MethodConfig, pairs: Sequence[tuple[str, str]]) -> list[AnswerSequence]:
    """Questions with answers in the tokens of a model, in the run's own prompts.

    Raises:
        DataError: One is too long for the model.
    """
    return answer_sequences(
        parent.tokenizer,
        pairs,
        protocol=chosen_protocol(config.protocol, parent.tokenizer),
        chat=config.chat,
        max_tokens=parent.max_tokens,
    )


def training_data(
    parent: Parent,
    config: MethodConfig,
    needs: frozenset[Need],
    forget: Sequence[AnswerSequence],
    retain: Sequence[AnswerSequence],
    examples: Sequence[ForgetExample],
    winners: Sequence[Sequence[str]],
    options: TrainOptions,
) -> TrainingData:
    """What the training loop draws from: tokens, and reference log-probabilities where the objective needs them.

    Args:
        parent: The model to start from.
        config: The method.
        needs: What its objective asks for.
        forget: Answers to forget.
        retain: Answers to keep.
        examples: The examples of `forget`, for their questions.
        winners: Per example the answers to prefer, none where the method has no use for them.
        options: How to run it.
    """

    def referenced(rows: Sequence[AnswerSequence]) -> list[float]:
        size = options.device_batch_size or 16
        return answer_log_probs(parent.model, rows, pad_token_id=parent.pad_token_id, batch_size=size)

    pairs = [(x.question, text) for x, row in zip(examples, winners, strict=True) for text in row]
    flat = encoded(parent, config, pairs)
    lengths = [len(row) for row in winners]
    needed = "reference" in needs
    return TrainingData(
        forget=forget,
        retain=retain,
        winners=_split(flat, lengths) if flat else (),
        forget_reference=referenced(forget) if needed else (),
        winner_reference=_split(referenced(flat), lengths) if needed and flat else (),
    )


def winning_answers(
    parent: Parent,
    config: MethodConfig,
    needs: frozenset[Need],
    forget: Sequence[ForgetExample],
    refusals: Sequence[str],
    folder: Path,
    options: TrainOptions,
) -> list[list[str]]:
    """Per forget example the answers to prefer to it; alternates are kept in `folder`, for a resumed run."""
    if "refusals" in needs:
        generator = torch.Generator().manual_seed(config.seed)
        drawn = torch.randint(len(refusals), (len(forget), config.epochs), generator=generator)
        return [[refusals[index] for index in row] for row in drawn.tolist()]
    if "alternates" in needs:
        return _alternates(parent, config, forget, folder, options)
    return [[] for _ in forget]


def _alternates(
    parent: Parent, config: MethodConfig, forget: Sequence[ForgetExample], folder: Path, options: TrainOptions
) -> list[list[str]]:
    """Those an earlier try of this run drew, or new ones; with one seed on one machine they are the same."""
    file = folder / FILE
    if file.is_file():
        try:
            return read_alternates(file)
        except ResultFormatError as error:
            warnings.warn(UdsLensWarning(f"{error} Alternates are drawn again."), stacklevel=2)
    settings = cast("SamplingSettings", config)  # the declaration of the objective has checked its fields
    drawn = sample_alternates(
        parent.model, parent.tokenizer, forget, config=settings, show_progress=options.progress
    )
    write_alternates(file, forget, drawn)
    return drawn


def _split(values: Sequence[T], lengths: Sequence[int]) -> list[Sequence[T]]:
    starts = [sum(lengths[:i]) for i in range(len(lengths))]
    return [values[start : start + n] for start, n in zip(starts, lengths, strict=True)]


# Refusals that models are taught to give instead of an answer.


def load_refusals(path: str | os.PathLike[str] | None = None) -> tuple[str, ...]:
    """Read refusals, one per line; empty lines do not count.

    Args:
        path: A text file; None reads the hundred that come with this package.

    Returns:
        The refusals, in order.

    Raises:
        DataError: The file is not there, or holds none.

    Example:
        >>> len(load_refusals())
        100
    """
    if path is None:
        text = files("uds_lens.unlearning").joinpath("refusals.txt").read_text(encoding="utf-8")
    else:
        try:
            text = Path(path).expanduser().read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise DataError(
                f"cannot read refusals from {os.fspath(path)!r}: {error}. Expected one per line."
            ) from error
    refusals = tuple(line.strip() for line in text.splitlines() if line.strip())
    if not refusals:
        raise DataError(f"{os.fspath(path or 'refusals.txt')!r} holds no refusal: expected one per line.")
    return refusals
