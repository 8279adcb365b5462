"""Questions with their answers in tokens: the one place that knows where an answer begins and what ends it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from uds_lens.checked_arguments import arguments_checked
from uds_lens.data.chat_style import ChatStyle
from uds_lens.data.prompts import chat_text, continuation_text, prompt_text
from uds_lens.data.token_sequence import TokenSequence, prompt_ids
from uds_lens.errors import DataError, Setting
from uds_lens.types import Protocol, check_choice

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_MARK = "uds lens answer mark"


@dataclass(frozen=True)
class AnswerSequence:
    """Token ids of a prompt with its answer; the answer's tokens, and those that end it, are labelled.

    Example:
        >>> sequence = AnswerSequence((1, 5, 6, 2), 2)
        >>> sequence.labelled, sequence.scored.ids, sequence.scored.targets, sequence.scored.scored
        ((6, 2), (1, 5, 6), (6, 2), (1, 2))
    """

    ids: tuple[int, ...]
    """Prompt, answer, and what ends the answer."""

    n_prompt: int
    """Tokens at the front that are not labelled."""

    @property
    def labelled(self) -> tuple[int, ...]:
        """The answer's tokens and those that end it: what is learnt, and what is scored."""
        return self.ids[self.n_prompt :]

    @property
    def scored(self) -> TokenSequence:
        """The same for scoring: without the last token, which is only predicted."""
        return TokenSequence(
            ids=self.ids[:-1],
            targets=self.labelled,
            scored=tuple(range(self.n_prompt - 1, len(self.ids) - 1)),
            patched=(),
        )


@arguments_checked
def answer_sequences(
    tokenizer: PreTrainedTokenizerBase,
    pairs: Sequence[tuple[str, str]],
    *,
    protocol: Protocol = "raw",
    chat: ChatStyle | None = None,
    max_tokens: int | None = None,
) -> list[AnswerSequence]:
    r"""Tokenise questions with their answers; in a chat, with the labels of Open-Unlearning.

    The text is tokenised at once and cut where the prompt's own tokens end. Labelled is all that follows:

    - "raw": `Question: {question}\nAnswer: {answer}`, then the end token. The space before the answer belongs to the
      answer's first token (`answer_prompt`).
    - "chat": the conversation as the template writes it, with the whole end of the turn (`<|eot_id|>`,
      `<end_of_turn>` and a line break, ...), then the end token unless that was the last one.

    Where a tokenizer joins the end of a prompt with the start of an answer into one token, prompt and answer are
    tokenised apart, so that a prompt is what generation starts from.

    Args:
        tokenizer: Tokenizer of the model.
        pairs: Question and answer.
        protocol: "raw", or "chat" for the tokenizer's template.
        chat: System turn and date of chat prompts; None means `ChatStyle()`.
        max_tokens: Longest sequence, prompt included; None sets no limit.

    Returns:
        One sequence per pair, in order; start token once.

    Raises:
        DataError: Nothing would end an answer, a sequence is too long, there is no chat template for "chat", or
            the template writes the start of an answer where none was asked for.

    References:
        Dorna et al. 2025, OpenUnlearning, arXiv 2506.12618.
    """
    check_choice("protocol", protocol, Protocol)
    if not pairs:
        return []
    prompts = [answer_prompt(q, protocol=protocol, tokenizer=tokenizer, chat=chat) for q, _ in pairs]
    rests = [
        _chat_rest(prompt, question, answer, tokenizer, chat)
        if protocol == "chat"
        else continuation_text(prompt, answer)
        for prompt, (question, answer) in zip(prompts, pairs, strict=True)
    ]
    heads = prompt_ids(tokenizer, prompts, protocol=protocol)
    wholes = prompt_ids(tokenizer, [a + b for a, b in zip(prompts, rests, strict=True)], protocol=protocol)
    found = []
    for (question, _), head, whole, rest in zip(pairs, heads, wholes, rests, strict=True):
        ids = whole if whole[: len(head)] == head else [*head, *_plain_ids(tokenizer, rest)]
        sequence = AnswerSequence(tuple(_ended(ids, len(head), tokenizer)), len(head))
        _check_length(sequence, question, max_tokens)
        found.append(sequence)
    return found


@arguments_checked
def answer_prompt(
    question: str,
    *,
    protocol: Protocol = "raw",
    tokenizer: PreTrainedTokenizerBase | None = None,
    chat: ChatStyle | None = None,
    start: str = "",
) -> str:
    r"""The prompt of a question up to where the answer's first token begins.

    A space at its end is left to the answer: tokenised at once, as a model is trained, it is a part of the answer's
    first token. Open-Unlearning keeps it in the prompt, as a token of its own that hides the answer's first one.

    Args:
        question: What is asked.
        protocol: "raw" or "chat".
        tokenizer: Needed for "chat".
        chat: System turn and date of a chat prompt.
        start: How the answer begins, where the prompt gives its beginning.

    Returns:
        The text to tokenise with `prompt_ids`.

    Example:
        >>> answer_prompt("Who wrote Ash?")
        'Question: Who wrote Ash?\nAnswer:'
    """
    return prompt_text(question, start, protocol, tokenizer, chat=chat).rstrip(" ")


@arguments_checked
def answer_ends(
    tokenizer: PreTrainedTokenizerBase, *, protocol: Protocol = "raw", chat: ChatStyle | None = None
) -> tuple[int, ...]:
    """Tokens at which a generated answer is over: what opens the end of a chat turn, and the end token.

    Returns:
        At most two ids, the turn's first. A turn's end that is ordinary text, not a special token, is left out.
    """
    end = () if tokenizer.eos_token_id is None else (int(tokenizer.eos_token_id),)
    if protocol == "raw":
        return end
    turns = [("user", _MARK), ("assistant", _MARK)]
    text = chat_text(tokenizer, turns, chat=chat, answer_next=False).rpartition(_MARK)[2].strip()
    opening = _plain_ids(tokenizer, text)[:1] if text else []
    special = {number for number, token in tokenizer.added_tokens_decoder.items() if token.special}
    special.update(tokenizer.all_special_ids)
    return tuple(dict.fromkeys((*(token for token in opening if token in special), *end)))


def _chat_rest(
    prompt: str, question: str, answer: str, tokenizer: PreTrainedTokenizerBase, chat: ChatStyle | None
) -> str:
    """What follows the prompt: the answer and the end of its turn."""
    whole = chat_text(tokenizer, [("user", question), ("assistant", answer)], chat=chat, answer_next=False)
    if whole.startswith(prompt):
        return whole[len(prompt) :]
    # Some templates open an answer that is asked for otherwise than one that is there (an empty line of thought).
    turns = [("user", question), ("assistant", _MARK)]
    marked, asked = (chat_text(tokenizer, turns, chat=chat, answer_next=flag) for flag in (False, True))
    if marked == asked or _MARK not in marked:
        raise DataError(
            f"the chat template of {str(tokenizer.name_or_path)[:100]!r} opens another answer after an answer, or "
            "leaves answers out, so that their end cannot be told: let it open one only `if add_generation_prompt`, "
            "or use ",
            Setting("protocol", "raw"),
            ".",
        )
    return continuation_text(prompt, answer) + marked.rpartition(_MARK)[2]


def _ended(ids: list[int], n_prompt: int, tokenizer: PreTrainedTokenizerBase) -> list[int]:
    end = tokenizer.eos_token_id
    if end is None:
        raise DataError(
            "the tokenizer has no end token (eos_token), but the end of an answer is learnt and scored: set it."
        )
    return ids if len(ids) > n_prompt and ids[-1] == end else [*ids, int(end)]


def _check_length(sequence: AnswerSequence, question: str, max_tokens: int | None) -> None:
    if max_tokens is not None and len(sequence.ids) > max_tokens:
        raise DataError(
            f"{question[:100]!r} with its answer has {len(sequence.ids)} tokens, more than the model's {max_tokens}: "
            "shorten the answer, or leave the row out."
        )


def _plain_ids(tokenizer: PreTrainedTokenizerBase, text: str) -> list[int]:
    coded = tokenizer(text, add_special_tokens=False, padding=False, truncation=False, verbose=False)
    return list(coded["input_ids"])
