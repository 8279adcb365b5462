"""Questions and answers as the output metrics read them: chat template if there is one, answer-only targets."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from uds_lens.data import TokenSequence, continuation_text, prompt_ids, prompt_text
from uds_lens.errors import DataError
from uds_lens.metrics.options import AnswerProtocol
from uds_lens.types import Protocol

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


@dataclass(frozen=True)
class AnswerText:
    """One answer to one question."""

    owner: int
    """Index of the example it belongs to, in its set."""

    question: str
    """What is asked."""

    answer: str
    """What is scored: the reference, a paraphrase, or a wrong answer."""


def answer_protocol(protocol: AnswerProtocol, tokenizer: Any) -> Protocol:
    """The protocol to use: `auto` is "chat" for a tokenizer with a chat template, else "raw"."""
    if protocol != "auto":
        return protocol
    return "chat" if getattr(tokenizer, "chat_template", None) else "raw"


def question_text(
    question: str, *, protocol: Protocol, tokenizer: PreTrainedTokenizerBase | None = None, start: str = ""
) -> str:
    r"""The prompt of a question, ready for the answer (or for the rest of one that begins with `start`).

    In the raw protocol the space after "Answer:" belongs to the answer's first token, as in Open-Unlearning, which
    tokenises question and answer as one text.

    >>> question_text("Who wrote Ash?", protocol="raw")
    'Question: Who wrote Ash?\nAnswer:'
    """
    prompt = prompt_text(question, start, protocol, tokenizer)
    return prompt.rstrip() if protocol == "raw" else prompt


def answer_sequences(
    texts: Sequence[AnswerText], tokenizer: PreTrainedTokenizerBase, *, protocol: Protocol
) -> list[TokenSequence]:
    """Tokenise questions with their answers; scored are the answer's tokens and the end token after them.

    Args:
        texts: Questions and answers.
        tokenizer: The model's tokenizer.
        protocol: "raw" or "chat".

    Returns:
        One row per text, in order; the last target is the end token.

    Raises:
        DataError: The tokenizer has no end token, or no chat template for "chat".
    """
    if not texts:
        return []
    end = tokenizer.eos_token_id
    if end is None:
        raise DataError(
            "the tokenizer has no end token (eos_token): the metrics score the end of an answer. Set it."
        )
    prompts = [question_text(text.question, protocol=protocol, tokenizer=tokenizer) for text in texts]
    answers = [continuation_text(prompt, text.answer) for prompt, text in zip(prompts, texts, strict=True)]
    heads = prompt_ids(tokenizer, prompts, protocol=protocol)
    coded = tokenizer(
        answers,
        add_special_tokens=False,
        padding=False,
        truncation=False,
        return_attention_mask=False,
        verbose=False,
    )
    return [_row(head, ids, int(end)) for head, ids in zip(heads, coded["input_ids"], strict=True)]


def _row(head: list[int], answer: list[int], end: int) -> TokenSequence:
    ids = (*head, *answer)
    return TokenSequence(
        ids=ids, targets=(*answer, end), scored=tuple(range(len(head) - 1, len(ids))), patched=()
    )
