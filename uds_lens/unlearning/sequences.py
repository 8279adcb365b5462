"""Questions and answers as training sequences: prompt, answer, end token; only the answer is learnt."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from uds_lens.data import continuation_text, prompt_ids, prompt_text
from uds_lens.errors import DataError
from uds_lens.types import Protocol
from uds_lens.unlearning.likelihood import IGNORED

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_MARK = "uds lens answer mark"


@dataclass(frozen=True)
class AnswerSequence:
    """Token ids of a prompt with its answer."""

    ids: tuple[int, ...]
    """Prompt, answer and end token."""

    n_prompt: int
    """Tokens at the front that are not learnt."""


def answer_sequences(
    tokenizer: PreTrainedTokenizerBase,
    pairs: Sequence[tuple[str, str]],
    *,
    protocol: Protocol = "raw",
    max_tokens: int | None = None,
) -> list[AnswerSequence]:
    r"""Tokenise questions with answers, the way an answer is read and written.

    Raw text is `Question: {question}\nAnswer: {answer}`. The space before the answer belongs to the answer's first
    token, as it does when the whole line is tokenised at once; a prompt that ends in a lone space is another one.

    Args:
        tokenizer: Tokenizer of the model.
        pairs: Question and answer.
        protocol: "raw", or "chat" for the tokenizer's template.
        max_tokens: Longest sequence; None sets no limit.

    Returns:
        One sequence per pair. The end token is the tokenizer's end of sequence, in a chat what ends the turn.

    Raises:
        DataError: A sequence is too long, or there is no chat template for "chat".
    """
    prompts = [trained_prompt(question, tokenizer, protocol=protocol) for question, _ in pairs]
    answers = [continuation_text(prompt, answer) for prompt, (_, answer) in zip(prompts, pairs, strict=True)]
    if not pairs:
        return []
    front = prompt_ids(tokenizer, prompts, protocol=protocol)
    coded = tokenizer(answers, add_special_tokens=False, padding=False, truncation=False, verbose=False)
    end = end_token(tokenizer, protocol=protocol)
    tail = [] if end is None else [end]
    sequences = [
        AnswerSequence((*prompt, *answer, *tail), len(prompt))
        for prompt, answer in zip(front, coded["input_ids"], strict=True)
    ]
    for (question, _), sequence in zip(pairs, sequences, strict=True):
        if max_tokens is not None and len(sequence.ids) > max_tokens:
            raise DataError(
                f"{question!r} with its answer has {len(sequence.ids)} tokens, more than the model's {max_tokens}: "
                "shorten the answer, or leave the row out."
            )
    return sequences


def trained_prompt(question: str, tokenizer: PreTrainedTokenizerBase, *, protocol: Protocol = "raw") -> str:
    """The prompt of a question up to where the answer's first token begins: without the space before the answer."""
    return prompt_text(question, "", protocol, tokenizer).rstrip(" ")


def end_token(tokenizer: PreTrainedTokenizerBase, *, protocol: Protocol = "raw") -> int | None:
    """The token that ends an answer; None where the tokenizer has no end of sequence."""
    if protocol == "chat":
        turns = [{"role": "user", "content": _MARK}, {"role": "assistant", "content": _MARK}]
        rest = str(tokenizer.apply_chat_template(turns, tokenize=False)).rpartition(_MARK)[2].strip()
        ids = tokenizer(rest, add_special_tokens=False)["input_ids"] if rest else []
        if ids:
            return int(ids[0])
    return None if tokenizer.eos_token_id is None else int(tokenizer.eos_token_id)


def pad_sequences(sequences: Sequence[AnswerSequence], *, pad_token_id: int) -> dict[str, Tensor]:
    """Sequences side by side, padded on the right.

    Returns:
        `input_ids`, `attention_mask` and `labels` [batch pos]; labels are -100 on prompts and padding.

    Example:
        >>> batch = pad_sequences([AnswerSequence((1, 5, 6, 2), 2), AnswerSequence((1, 7, 2), 1)], pad_token_id=0)
        >>> batch["labels"].tolist()
        [[-100, -100, 6, 2], [-100, 7, 2, -100]]
    """
    width = max(len(sequence.ids) for sequence in sequences)
    shape = (len(sequences), width)
    ids = torch.full(shape, pad_token_id, dtype=torch.long)
    mask = torch.zeros(shape, dtype=torch.long)
    labels = torch.full(shape, IGNORED, dtype=torch.long)
    for row, sequence in enumerate(sequences):
        n = len(sequence.ids)
        ids[row, :n] = torch.tensor(sequence.ids)
        mask[row, :n] = 1
        labels[row, sequence.n_prompt : n] = ids[row, sequence.n_prompt : n]
    return {"input_ids": ids, "attention_mask": mask, "labels": labels}
