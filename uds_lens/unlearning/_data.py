"""Preparing the data of a run: tokens, the answers to prefer, and reference log-probabilities."""

from __future__ import annotations

import os
import warnings
from collections.abc import Sequence
from dataclasses import replace
from importlib.resources import files
from itertools import accumulate, pairwise
from pathlib import Path
from typing import TypeVar

import torch

from uds_lens.data import AnswerSequence, ForgetExample, answer_sequences, chosen_protocol
from uds_lens.errors import DataError, ResultFormatError, UdsLensWarning
from uds_lens.models._compatibility import require_embedded
from uds_lens.unlearning._alternates import FILE, read_alternates, sample_alternates, write_alternates
from uds_lens.unlearning._job import Job, Parent
from uds_lens.unlearning._pairs import TrainingData
from uds_lens.unlearning._passes import answer_log_probs
from uds_lens.unlearning._settings import MethodConfig

T = TypeVar("T")


def pairs_of(examples: Sequence[ForgetExample]) -> list[tuple[str, str]]:
    """Return question and answer of each example."""
    return [(example.question, example.answer) for example in examples]


def encoded(parent: Parent, config: MethodConfig, pairs: Sequence[tuple[str, str]]) -> list[AnswerSequence]:
    """Tokenize questions with answers, in the prompts of a run."""
    sequences = answer_sequences(
        parent.tokenizer,
        pairs,
        protocol=chosen_protocol(config.protocol, parent.tokenizer),
        chat=config.chat,
        max_tokens=parent.max_tokens,
    )
    inputs = ((question, row.ids) for (question, _), row in zip(pairs, sequences, strict=True))
    require_embedded(parent.model, inputs, name=parent.name)
    return sequences


def preferred_answers(job: Job, parent: Parent, folder: Path) -> list[list[str]]:
    """Return the answers to prefer to each forget answer; alternates are kept in `folder`, for a resumed run."""
    if "refusals" in job.objective.needs:
        generator = torch.Generator().manual_seed(job.config.seed)
        drawn = torch.randint(len(job.refusals), (len(job.forget), job.config.epochs), generator=generator)
        return [[job.refusals[index] for index in row] for row in drawn.tolist()]
    if "alternates" not in job.objective.needs:
        return [[] for _ in job.forget]
    file = folder / FILE
    if file.is_file():
        try:
            return read_alternates(file)
        except ResultFormatError as error:
            warnings.warn(UdsLensWarning(f"{error} Alternates are sampled again."), stacklevel=2)
    alternates = sample_alternates(
        parent.model, parent.tokenizer, job.forget, config=job.config, show_progress=job.options.progress
    )
    write_alternates(file, job.forget, alternates)
    return alternates


def completed(data: TrainingData, job: Job, parent: Parent, winners: Sequence[Sequence[str]]) -> TrainingData:
    """Add the answers to prefer, and reference log-probabilities where the objective needs them."""
    pairs = [(x.question, text) for x, row in zip(job.forget, winners, strict=True) for text in row]
    flat, lengths = encoded(parent, job.config, pairs), [len(row) for row in winners]
    data = replace(data, winners=_split(flat, lengths) if flat else ())
    if "reference" not in job.objective.needs:
        return data

    def reference(rows: Sequence[AnswerSequence]) -> list[float]:
        size = job.options.device_batch_size or 16
        return answer_log_probs(parent.model, rows, pad_token_id=parent.pad_token_id, batch_size=size)

    return replace(
        data, forget_reference=reference(data.forget), winner_reference=_split(reference(flat), lengths) if flat else ()
    )


def _split(values: Sequence[T], lengths: Sequence[int]) -> list[Sequence[T]]:
    return [values[start:stop] for start, stop in pairwise(accumulate(lengths, initial=0))]


def load_refusals(path: str | os.PathLike[str] | None = None) -> tuple[str, ...]:
    """Read refusals, one per line; empty lines do not count.

    Args:
        path: A text file; None reads the hundred that come with this package.

    Raises:
        DataError: The file cannot be read, or holds none.

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
