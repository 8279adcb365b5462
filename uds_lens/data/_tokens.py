"""From examples to token ids, with the positions that are scored and patched."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

from uds_lens._types import AnswerProtocol, Protocol, Scope, check_choice
from uds_lens.data._columns import with_rows_read
from uds_lens.data._examples import ForgetExample, SkippedExample, Span, entity_span
from uds_lens.data._prompts import (
    ChatStyle,
    RenderedExample,
    chat_text,
    chosen_protocol,
    continuation_text,
    prompt_text,
    render,
)
from uds_lens.errors import ConfigError, DataError, Setting

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


_SANE_LENGTH = 1_000_000  # tokenizers without a limit carry a huge `model_max_length`; above this it means nothing


def longest_of(tokenizer: PreTrainedTokenizerBase) -> int | None:
    """Return the tokens of the longest text that a tokenizer's model takes; None where it has no limit."""
    limit = tokenizer.model_max_length
    return int(limit) if limit is not None and 0 < limit < _SANE_LENGTH else None


def require_fast(tokenizer: PreTrainedTokenizerBase) -> None:
    """Raise `DataError` unless a tokenizer gives the characters of each token."""
    if not getattr(tokenizer, "is_fast", False):
        raise DataError(
            "a fast tokenizer is needed, because entities are found by character offsets; "
            f"got {type(tokenizer).__name__}. Load it with AutoTokenizer.from_pretrained(path, use_fast=True), "
            "or save a fast one (tokenizer.json) there."
        )


@dataclass(frozen=True, kw_only=True)
class TokenSequence:
    """Token ids with the positions to patch and to score. Position p predicts token p + 1."""

    ids: tuple[int, ...]
    """Input tokens, in order, without padding."""
    targets: tuple[int, ...]
    """The token that each scored position should predict."""
    scored: tuple[int, ...]
    """Scored positions, contiguous."""
    patched: tuple[int, ...]
    """Patched positions, increasing."""

    def __post_init__(self) -> None:
        for name, run in (("scored", self.scored), ("patched", self.patched)):
            contiguous = name == "patched" or run == tuple(range(run[0], run[0] + len(run)) if run else ())
            if list(run) != sorted({*run}) or not contiguous or (run and not 0 <= run[0] <= run[-1] < len(self.ids)):
                kind = "increasing" if name == "patched" else "a contiguous run"
                raise ConfigError(f"{name} positions must be {kind} within 0..{len(self.ids) - 1}; got {run}.")
        if len(self.targets) != len(self.scored) or not (self.scored or self.patched):
            raise ConfigError(
                "a sequence needs a scored or patched position, and one target per scored position; got "
                f"{len(self.scored)} scored, {len(self.patched)} patched, {len(self.targets)} targets."
            )

    @property
    def window(self) -> range:
        """Positions from the first patched or scored one to the end of the input."""
        return range(min((*self.patched, *self.scored)), len(self.ids))


@dataclass(frozen=True, kw_only=True)
class TokenRow(TokenSequence):
    """One example, cut before its last entity token y_T: the last input position y_T - 1 predicts it."""

    example: ForgetExample
    """Where the row comes from."""
    rendered: RenderedExample
    """Its text."""


@dataclass(frozen=True)
class Encoded:
    """All examples of a data set in tokens, and those that could not be encoded."""

    rows: list[TokenRow]
    """One per scored example, in input order."""
    skipped: list[SkippedExample]
    """The others, in input order, with reasons."""
    protocol: Protocol = "raw"
    """How the prompts were written."""
    scope: Scope = "entity"
    """Which positions are patched."""

    def __repr__(self) -> str:
        return f"Encoded({len(self.rows)} rows, {len(self.skipped)} skipped, {self.protocol} prompts)"

    @cached_property
    def ids_hash(self) -> str:
        """Hash over token ids, targets, scored and patched positions of all rows: 32 hexadecimal digits.

        It depends on what the models see and on nothing else, neither names nor paths, so it can key a cache.
        """
        digest = hashlib.blake2b(digest_size=16)
        for row in self.rows:
            for part in (row.ids, row.targets, row.scored, row.patched):
                digest.update(len(part).to_bytes(8, "little"))
                digest.update(b"".join(value.to_bytes(8, "little") for value in part))
        return digest.hexdigest()


def encode(
    examples: Iterable[ForgetExample | Mapping[str, Any]],
    tokenizer: PreTrainedTokenizerBase,
    *,
    protocol: AnswerProtocol = "auto",
    scope: Scope = "entity",
    chat: ChatStyle | None = None,
) -> Encoded:
    """Tokenise examples and mark the positions of their entities.

    With the entity's tokens y_1 ... y_T, the scored positions are y_1 - 1 ... y_T - 1. Patched are, by scope:
    "entity" the scored ones; "boundary" only y_1 - 1; "answer" from the last prompt token to y_T - 1; "all" 0
    to y_T - 1. The entity's tokens are those whose characters overlap the entity.

    Args:
        examples: Examples or rows with an entity; others are reported as skipped.
        tokenizer: A fast tokenizer (character offsets). Special tokens are added to raw prompts as it is
            configured to; chat prompts carry the ones their template writes, and continuations none.
        protocol: "raw", "chat", or "auto": the chat template where the tokenizer has one, else raw.
        scope: "entity", "boundary", "answer" or "all".
        chat: System turn and date of chat prompts; None means `ChatStyle()`.

    Returns:
        Rows and skipped examples, together as many as there were examples.

    Raises:
        DataError: The tokenizer is slow, or has no chat template for "chat"; a row cannot be read.
        ConfigError: `protocol` or `scope` is not one of the words above.
    """
    check_choice("scope", scope, Scope)
    require_fast(tokenizer)
    written = chosen_protocol(protocol, tokenizer)
    examples = with_rows_read(examples)
    spans = [entity_span(example) for example in examples]
    located = [example for example, span in zip(examples, spans, strict=True) if not isinstance(span, str)]
    rendered = [render(example, written, tokenizer, chat=chat) for example in located]
    outcomes: Iterator[TokenRow | str] = iter(())
    if rendered:
        prompts = prompt_ids(tokenizer, [text.prompt for text in rendered], protocol=written)
        coded = _tokens(
            tokenizer, [text.continuation for text in rendered], add_special_tokens=False, return_offsets_mapping=True
        )
        starts = _answer_tokens(tokenizer, rendered, written) if scope == "answer" else [0] * len(rendered)
        outcomes = map(
            partial(_row, scope=scope, limit=longest_of(tokenizer)),
            *(located, rendered, prompts, starts, coded["input_ids"], coded["offset_mapping"]),
        )
    rows: list[TokenRow] = []
    skipped: list[SkippedExample] = []
    for example, span in zip(examples, spans, strict=True):
        outcome = span if isinstance(span, str) else next(outcomes)
        if isinstance(outcome, str):
            skipped.append(SkippedExample(example.id, example.row, outcome, example.question))
        else:
            rows.append(outcome)
    return Encoded(rows, skipped, written, scope)


def prompt_ids(
    tokenizer: PreTrainedTokenizerBase, prompts: Sequence[str], *, protocol: Protocol = "raw"
) -> list[list[int]]:
    """Tokenise prompts, each with its opening special token at most once and never with a closing one.

    Raw prompts get the special tokens the tokenizer adds, except an end token it appends (a text that goes on
    has not ended). Chat prompts already hold those that belong there, as in `apply_chat_template`: none is
    added.

    Args:
        tokenizer: A fast tokenizer.
        prompts: Texts from `prompt_text`.
        protocol: The protocol they were written in.

    Returns:
        Token ids per prompt.
    """
    if not prompts:
        return []
    if protocol == "chat":
        return [list(ids) for ids in _tokens(tokenizer, prompts, add_special_tokens=False)["input_ids"]]
    coded = _tokens(tokenizer, prompts, return_special_tokens_mask=True)
    rows = []
    for ids, special in zip(coded["input_ids"], coded["special_tokens_mask"], strict=True):
        end = len(ids)
        while end > 1 and special[end - 1]:
            end -= 1
        rows.append(list(ids[:end]))
    return rows


def _tokens(tokenizer: PreTrainedTokenizerBase, texts: Sequence[str], **options: Any) -> Any:
    """Tokenise texts as they are: no padding, nothing cut."""
    return tokenizer(
        list(texts), padding=False, truncation=False, return_attention_mask=False, verbose=False, **options
    )


def entity_tokens(offsets: Sequence[tuple[int, int]], entity: Span) -> range:
    """Return the tokens whose characters overlap the entity, from the first to the last; empty when none does.

    A token of no width (some tokenizers give these to the later bytes of one character) counts inside the
    entity only.

    >>> entity_tokens([(0, 4), (4, 8), (8, 9)], Span(1, 8))
    range(0, 2)
    """
    inside = [
        index
        for index, (start, end) in enumerate(offsets)
        if (start < entity.end and end > entity.start) or entity.start < start == end < entity.end
    ]
    return range(inside[0], inside[-1] + 1) if inside else range(0)


def _answer_tokens(
    tokenizer: PreTrainedTokenizerBase, rendered: Sequence[RenderedExample], protocol: Protocol
) -> list[int]:
    """Return the first prompt token of each that belongs to the answer; the prompt's length where none does."""
    prompts = [text.prompt for text in rendered]
    coded = _tokens(tokenizer, prompts, add_special_tokens=protocol == "raw", return_offsets_mapping=True)
    return [
        next((i for i, (_, end) in enumerate(offsets) if end > text.answer_start), len(offsets))
        for text, offsets in zip(rendered, coded["offset_mapping"], strict=True)
    ]


def _row(
    example: ForgetExample,
    rendered: RenderedExample,
    prompt: list[int],
    answer_token: int,
    ids: list[int],
    offsets: list[tuple[int, int]],
    scope: Scope,
    limit: int | None,
) -> TokenRow | str:
    entity = entity_tokens(offsets, rendered.entity)
    if not entity:
        return f"The tokenizer has no token for the entity {example.entity!r}."
    if not prompt:
        return "The prompt has no token, so that no position predicts the entity."
    first, last = len(prompt) + entity.start, len(prompt) + entity[-1]
    if limit is not None and last > limit:
        return (
            f"The row needs {last} tokens up to its entity, "
            f"more than the tokenizer's limit (model_max_length) of {limit}."
        )
    tokens = [*prompt, *ids]
    patched = {
        "entity": range(first - 1, last),
        "boundary": range(first - 1, first),
        "answer": range(max(0, min(answer_token, len(prompt)) - 1), last),
        "all": range(last),
    }[scope]
    return TokenRow(
        ids=tuple(tokens[:last]),
        targets=tuple(tokens[first : last + 1]),
        scored=tuple(range(first - 1, last)),
        patched=tuple(patched),
        example=example,
        rendered=rendered,
    )


# Questions with their answers: this alone decides where an answer begins and what ends it.

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
        """The answer's tokens and those that end it: learned in training, and scored."""
        return self.ids[self.n_prompt :]

    @property
    def scored(self) -> TokenSequence:
        """The sequence for scoring: without the last token, which is only predicted."""
        return TokenSequence(
            ids=self.ids[:-1],
            targets=self.labelled,
            scored=tuple(range(self.n_prompt - 1, len(self.ids) - 1)),
            patched=(),
        )


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
    end = tokenizer.eos_token_id
    if end is None:
        raise DataError(
            "the tokenizer has no end token (eos_token), but the end of an answer is learned and scored: set it."
        )
    sequences = []
    for (question, _), head, whole, rest in zip(pairs, heads, wholes, rests, strict=True):
        ids = whole if whole[: len(head)] == head else [*head, *_plain_ids(tokenizer, rest)]
        if len(ids) <= len(head) or ids[-1] != end:
            ids = [*ids, int(end)]
        if max_tokens is not None and len(ids) > max_tokens:
            raise DataError(
                f"{question[:100]!r} with its answer has {len(ids)} tokens, more than the model's {max_tokens}: "
                "shorten the answer, or leave the row out."
            )
        sequences.append(AnswerSequence(tuple(ids), len(head)))
    return sequences


def answer_prompt(
    question: str,
    *,
    protocol: Protocol = "raw",
    tokenizer: PreTrainedTokenizerBase | None = None,
    chat: ChatStyle | None = None,
    start: str = "",
) -> str:
    r"""Write the prompt of a question up to where the answer's first token begins.

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


def answer_ends(
    tokenizer: PreTrainedTokenizerBase, *, protocol: Protocol = "raw", chat: ChatStyle | None = None
) -> tuple[int, ...]:
    """Return the tokens that end a generated answer: the one that opens the end of a chat turn, and the end token.

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
    """Return the text after the prompt: the answer and the end of its turn."""
    whole = chat_text(tokenizer, [("user", question), ("assistant", answer)], chat=chat, answer_next=False)
    if whole.startswith(prompt):
        return whole[len(prompt) :]
    # Some templates open an answer that is asked for otherwise than one that is there (an empty line of thought).
    turns = [("user", question), ("assistant", _MARK)]
    marked, asked = (chat_text(tokenizer, turns, chat=chat, answer_next=flag) for flag in (False, True))
    if marked == asked or _MARK not in marked:
        raise DataError(
            f"the chat template of {str(tokenizer.name_or_path)[:100]!r} opens another answer after an answer, or "
            "leaves answers out, so their end is unknown: let it open one only `if add_generation_prompt`, "
            "or use ",
            Setting("protocol", "raw"),
            ".",
        )
    return continuation_text(prompt, answer) + marked.rpartition(_MARK)[2]


def _plain_ids(tokenizer: PreTrainedTokenizerBase, text: str) -> list[int]:
    return list(_tokens(tokenizer, [text], add_special_tokens=False)["input_ids"][0])
