"""Preparing the data of a run: tokens, the answers to prefer, and reference log-probabilities."""

from __future__ import annotations

import os
import re
import warnings
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from importlib.resources import files
from itertools import accumulate, pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import torch

from uds_lens._progress import progress
from uds_lens._storage import atomic_write_bytes, conform, read_with_checksum, with_checksum
from uds_lens.data import (
    AnswerSequence,
    ForgetExample,
    answer_ends,
    answer_prompt,
    answer_sequences,
    chosen_protocol,
    prompt_ids,
)
from uds_lens.errors import DataError, ResultFormatError, UdsLensWarning
from uds_lens.generation import growing_way
from uds_lens.models._compatibility import require_embedded
from uds_lens.patching import as_hooked, row_layout
from uds_lens.patching._side_by_side import is_tested_family
from uds_lens.unlearning._job import Job, Parent
from uds_lens.unlearning._pairs import TrainingData
from uds_lens.unlearning._passes import answer_log_probs
from uds_lens.unlearning._settings import MethodConfig

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

T = TypeVar("T")

ALTERNATES = "alternates.json"  # name of the file beside a checkpoint

_FORMAT = "uds_lens.alternates"
_ROUNDS, _HOTTER, _BATCH = 5, 0.5, 32


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
    file = folder / ALTERNATES
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


# Alternate answers for AltPO, sampled from the model that is to forget.


def sample_alternates(
    model: Any,
    tokenizer: PreTrainedTokenizerBase,
    examples: Sequence[ForgetExample],
    *,
    config: Any,
    show_progress: bool | None = None,
) -> list[list[str]]:
    """Sample answers in the model's own style that differ from the one to forget.

    A sample that gives away the true answer is drawn again, at a temperature 0.5 higher each time: one that contains
    the entity, or nine tenths of the words of the answer.
    """
    drawn: list[list[str]] = [[] for _ in examples]
    size = _BATCH if _may_be_padded(model) else 1
    devices = [model.device] if model.device.type == "cuda" else []
    with torch.random.fork_rng(devices=devices), torch.no_grad():
        torch.manual_seed(config.seed)
        for round_ in range(_ROUNDS):
            short = [i for i, texts in enumerate(drawn) if len(texts) < config.n_alternates]
            temperature = config.temperature + _HOTTER * round_
            batches = [short[start : start + size] for start in range(0, len(short), size)]
            for chosen in progress(batches, desc=f"alternates, T={temperature:g}", unit="batch", enabled=show_progress):
                questions = [examples[index].question for index in chosen]
                answers = _draw(model, tokenizer, questions, config=config, temperature=temperature)
                for index, texts in zip(chosen, answers, strict=True):
                    valid = [text for text in texts if text and not states_truth(text, examples[index])]
                    drawn[index] = (drawn[index] + valid)[: config.n_alternates]
    without = [example.question for example, texts in zip(examples, drawn, strict=True) if not texts]
    if without:
        raise DataError(
            f"the model gives no alternate answer to {len(without)} questions, the first {without[0]!r}: raise "
            "temperature, or leave these rows out."
        )
    return [[texts[i % len(texts)] for i in range(config.n_alternates)] for texts in drawn]


def states_truth(text: str, example: ForgetExample) -> bool:
    """Tell whether a text gives away the true answer.

    Example:
        >>> example = ForgetExample("0", "Who?", "The author is Ada Vey.")
        >>> states_truth("the author is Ada Vey", example), states_truth("The author is Bo Lund.", example)
        (True, False)
    """
    if example.entity:
        return example.entity.casefold() in text.casefold()
    truth, words = (Counter(re.findall(r"\w+", x.casefold())) for x in (example.answer, text))
    return (truth & words).total() >= 0.9 * truth.total()


class _Row(NamedTuple):
    id: str
    question: str
    alternates: tuple[str, ...]


class _Alternates(NamedTuple):
    format: str
    version: int
    rows: tuple[_Row, ...]


def write_alternates(file: Path, examples: Sequence[ForgetExample], alternates: Sequence[Sequence[str]]) -> None:
    """Write questions with their alternates, atomically."""
    rows = [
        {"id": example.id, "question": example.question, "alternates": list(texts)}
        for example, texts in zip(examples, alternates, strict=True)
    ]
    atomic_write_bytes(file, with_checksum({"format": _FORMAT, "version": 1, "rows": rows}))


def read_alternates(file: Path) -> list[list[str]]:
    """Read alternates written by `write_alternates`, in order."""
    record = read_with_checksum(file, format=_FORMAT, versions=(1,))
    return [list(row.alternates) for row in conform(_Alternates, record, where=file.name).rows]


def _may_be_padded(model: Any) -> bool:
    """Tell whether transformers' `generate` gives a text the same beside others as alone."""
    if is_tested_family(model):
        return True
    with as_hooked(model) as view:
        return row_layout(view).side == "left" and growing_way(view) == "side by side"


def _draw(
    model: Any, tokenizer: PreTrainedTokenizerBase, questions: Sequence[str], *, config: Any, temperature: float
) -> list[list[str]]:
    protocol = chosen_protocol(config.protocol, tokenizer)
    prompts = [
        answer_prompt(question, tokenizer=tokenizer, protocol=protocol, chat=config.chat) for question in questions
    ]
    rows = prompt_ids(tokenizer, prompts, protocol=protocol)
    ends = answer_ends(tokenizer, protocol=protocol, chat=config.chat)
    embedded = len(model.get_input_embeddings().weight)  # a tokenizer may name a token for padding that is not
    pad = next((i for i in (tokenizer.pad_token_id, *ends[-1:]) if i is not None and i < embedded), 0)
    width = max(map(len, rows))
    sampled = model.generate(
        input_ids=torch.tensor([[pad] * (width - len(row)) + row for row in rows], device=model.device),
        attention_mask=torch.tensor([[0] * (width - len(row)) + [1] * len(row) for row in rows], device=model.device),
        do_sample=True,
        temperature=temperature,
        top_k=0,
        top_p=1.0,
        num_return_sequences=config.n_alternates,
        max_new_tokens=config.max_new_tokens,
        pad_token_id=pad,
        eos_token_id=list(ends) or None,
    )
    texts = [tokenizer.decode(row, skip_special_tokens=True).strip() for row in sampled[:, width:].tolist()]
    n = config.n_alternates
    return [texts[i * n : (i + 1) * n] for i in range(len(questions))]
