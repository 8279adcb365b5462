"""Before training: everything a run trains on, as far as its objective needs it."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import TypeVar, cast

import torch

from uds_lens.data import AnswerSequence, ForgetExample, answer_sequences, chosen_protocol
from uds_lens.errors import ResultFormatError, UdsLensWarning
from uds_lens.unlearning.alternates import (
    FILE,
    SamplingSettings,
    read_alternates,
    sample_alternates,
    write_alternates,
)
from uds_lens.unlearning.method_config import MethodConfig
from uds_lens.unlearning.objective_registry import Need
from uds_lens.unlearning.parent import Parent
from uds_lens.unlearning.reference_log_probs import answer_log_probs
from uds_lens.unlearning.train_options import TrainOptions
from uds_lens.unlearning.visits import TrainingData

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
