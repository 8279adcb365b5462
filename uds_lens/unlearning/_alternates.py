"""Alternate answers for AltPO, sampled from the model that is to forget."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from uds_lens._progress import progress
from uds_lens._storage import atomic_write_bytes, conform, read_with_checksum, with_checksum
from uds_lens.data import ForgetExample, answer_ends, answer_prompt, chosen_protocol, prompt_ids
from uds_lens.errors import DataError
from uds_lens.generation import growing_way
from uds_lens.patching import as_hooked, row_layout
from uds_lens.patching._side_by_side import is_tested_family

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

FILE = "alternates.json"  # name of the file beside a checkpoint

_FORMAT = "uds_lens.alternates"
_ROUNDS, _HOTTER, _BATCH = 5, 0.5, 32


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
