"""Alternate answers for AltPO, sampled from the model that is to forget."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, runtime_checkable

import torch

from uds_lens._progress import progress
from uds_lens._storage import atomic_write_bytes, conform, read_sealed, sealed
from uds_lens._types import AnswerProtocol
from uds_lens.data import (
    ChatStyle,
    ForgetExample,
    answer_ends,
    answer_prompt,
    chosen_protocol,
    prompt_ids,
)
from uds_lens.errors import DataError
from uds_lens.generation import growing_way
from uds_lens.patching import as_hooked, row_layout
from uds_lens.patching._side_by_side import is_tested_family

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


FILE = "alternates.json"
"""Name of the file beside a checkpoint."""

_FORMAT = "uds_lens.alternates"

_ROUNDS, _HOTTER, _BATCH = 5, 0.5, 32


@runtime_checkable
class SamplingSettings(Protocol):
    """What alternates need of a method's configuration: that of AltPO, or of an objective of a user's own."""

    @property
    def protocol(self) -> AnswerProtocol:
        """How questions are put."""

    @property
    def chat(self) -> ChatStyle:
        """What stands around them."""

    @property
    def seed(self) -> int:
        """Of the draws."""

    @property
    def n_alternates(self) -> int:
        """Alternates per question."""

    @property
    def temperature(self) -> float:
        """Of the first draws."""

    @property
    def max_new_tokens(self) -> int:
        """Longest alternate."""


class _Row(NamedTuple):
    id: str
    question: str
    alternates: tuple[str, ...]


class _Alternates(NamedTuple):
    format: str
    version: int
    rows: tuple[_Row, ...]


def sample_alternates(
    model: Any,
    tokenizer: PreTrainedTokenizerBase,
    examples: Sequence[ForgetExample],
    *,
    config: SamplingSettings,
    show_progress: bool | None = None,
) -> list[list[str]]:
    """Sample answers that are in the model's own manner and not the one to forget.

    A sample that states the true answer is drawn again, 0.5 hotter each time: one that contains the entity, or nine
    tenths of the words of the answer.

    Args:
        model: A causal language model in evaluation mode, `full`.
        tokenizer: Its tokenizer.
        examples: Questions with the answers to forget.
        config: Number, temperature, length and seed.
        show_progress: As in `TrainOptions`.

    Returns:
        Per example `config.n_alternates` answers; the same for one seed on one machine.

    Raises:
        DataError: A question gives nothing but the true answer, however hot.
    """
    found: list[list[str]] = [[] for _ in examples]
    padded = _may_be_padded(model)
    devices = [model.device] if model.device.type == "cuda" else []
    with torch.random.fork_rng(devices=devices), torch.no_grad():
        torch.manual_seed(config.seed)
        for round_ in range(_ROUNDS):
            short = [i for i, texts in enumerate(found) if len(texts) < config.n_alternates]
            temperature = config.temperature + _HOTTER * round_
            batches = [short[start : start + _BATCH] for start in range(0, len(short), _BATCH)]
            batches = batches if padded else [[index] for index in short]
            bar = progress(
                batches, desc=f"alternates, T={temperature:g}", unit="batch", enabled=show_progress
            )
            for chosen in bar:
                questions = [examples[index].question for index in chosen]
                drawn = _draw(model, tokenizer, questions, config=config, temperature=temperature)
                for index, texts in zip(chosen, drawn, strict=True):
                    fresh = [text for text in texts if text and not states_truth(text, examples[index])]
                    found[index] = (found[index] + fresh)[: config.n_alternates]
    without = [example.question for example, texts in zip(examples, found, strict=True) if not texts]
    if without:
        raise DataError(
            f"the model gives no alternate answer to {len(without)} questions, the first {without[0]!r}: raise "
            "temperature, or leave these rows out."
        )
    return [[texts[i % len(texts)] for i in range(config.n_alternates)] for texts in found]


def states_truth(text: str, example: ForgetExample) -> bool:
    """Whether a text gives the true answer away.

    Example:
        >>> example = ForgetExample("0", "Who?", "The author is Ada Vey.")
        >>> states_truth("the author is Ada Vey", example), states_truth("The author is Bo Lund.", example)
        (True, False)
    """
    if example.entity:
        return example.entity.casefold() in text.casefold()
    truth, said = _words(example.answer), _words(text)
    return sum((truth & said).values()) >= 0.9 * sum(truth.values())


def write_alternates(
    file: Path, examples: Sequence[ForgetExample], alternates: Sequence[Sequence[str]]
) -> None:
    """Write questions with their alternates, whole or not at all."""
    rows = [
        {"id": example.id, "question": example.question, "alternates": list(texts)}
        for example, texts in zip(examples, alternates, strict=True)
    ]
    atomic_write_bytes(file, sealed({"format": _FORMAT, "version": 1, "rows": rows}))


def read_alternates(file: Path) -> list[list[str]]:
    """Alternates written by `write_alternates`, in order.

    Raises:
        ResultFormatError: The file was altered, or is something else.
    """
    record = read_sealed(file, format=_FORMAT, versions=(1,))
    return [list(row.alternates) for row in conform(_Alternates, record, where=file.name).rows]


def _words(text: str) -> Counter[str]:
    return Counter(re.findall(r"\w+", text.casefold()))


def _may_be_padded(model: Any) -> bool:
    """Whether transformers' own `generate` gives a text the same side by side with others as alone."""
    if is_tested_family(model):
        return True
    with as_hooked(model) as view:
        return row_layout(view).side == "left" and growing_way(view) == "side by side"


def _draw(
    model: Any,
    tokenizer: PreTrainedTokenizerBase,
    questions: Sequence[str],
    *,
    config: SamplingSettings,
    temperature: float,
) -> list[list[str]]:
    protocol = chosen_protocol(config.protocol, tokenizer)
    prompts = [
        answer_prompt(question, tokenizer=tokenizer, protocol=protocol, chat=config.chat)
        for question in questions
    ]
    rows = prompt_ids(tokenizer, prompts, protocol=protocol)
    ends = answer_ends(tokenizer, protocol=protocol, chat=config.chat)
    pad = tokenizer.pad_token_id if tokenizer.pad_token_id is not None else (ends[-1] if ends else 0)
    width = max(map(len, rows))
    ids = torch.tensor([[pad] * (width - len(row)) + row for row in rows], device=model.device)
    mask = torch.tensor([[0] * (width - len(row)) + [1] * len(row) for row in rows], device=model.device)
    sampled = model.generate(
        input_ids=ids,
        attention_mask=mask,
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
