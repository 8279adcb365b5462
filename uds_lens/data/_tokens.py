"""Convert examples to token ids, with the positions to score and to patch."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

from uds_lens._types import AnswerProtocol, EntitySpace, Protocol, Scope, check_choice
from uds_lens.data._columns import with_rows_read
from uds_lens.data._examples import ForgetExample, SkippedExample, Span, entity_span, short
from uds_lens.data._prompts import (
    ChatStyle,
    RenderedExample,
    answer_turn,
    chosen_protocol,
    continuation_text,
    open_turn,
    prompt_text,
    rendered_or_reason,
)
from uds_lens.errors import ConfigError, DataError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


_SANE_LENGTH = 1_000_000  # a `model_max_length` above this means that there is no limit


def longest_of(tokenizer: PreTrainedTokenizerBase) -> int | None:
    """Return a tokenizer's maximum number of tokens (`model_max_length`); None if it has no limit."""
    limit = tokenizer.model_max_length
    return int(limit) if limit is not None and 0 < limit < _SANE_LENGTH else None


def require_fast(tokenizer: PreTrainedTokenizerBase) -> None:
    """Raise `DataError` unless a tokenizer returns the character offsets of tokens."""
    if not getattr(tokenizer, "is_fast", False):
        raise DataError(
            "a fast tokenizer is needed, because entities are found by character offsets; "
            f"got {type(tokenizer).__name__}. Load it with AutoTokenizer.from_pretrained(path, use_fast=True), "
            "or save a fast one (tokenizer.json) there."
        )


@dataclass(frozen=True, kw_only=True)
class TokenSequence:
    """Token ids, with the positions to patch and to score. Position p predicts token p + 1."""

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
                "a sequence needs at least one scored or patched position, and one target per scored position; got "
                f"{len(self.scored)} scored, {len(self.patched)} patched, {len(self.targets)} targets."
            )

    @property
    def window(self) -> range:
        """The positions from the first patched or scored one to the end of the input."""
        return range(min((*self.patched, *self.scored)), len(self.ids))


@dataclass(frozen=True, kw_only=True)
class TokenRow(TokenSequence):
    """One example up to its last entity token y_T, which may be left out because position y_T - 1 predicts it."""

    example: ForgetExample
    """The example from which the row was made."""
    rendered: RenderedExample
    """Its text."""
    characters: tuple[Span, ...] = ()
    """Character range of each target in `rendered.continuation`; the first may start before the continuation
    (negative)."""


@dataclass(frozen=True)
class Encoded:
    """A tokenised data set: its rows, and the examples that could not be encoded."""

    rows: list[TokenRow]
    """One per scored example, in input order."""
    skipped: list[SkippedExample]
    """The skipped examples, in input order, with reasons."""
    protocol: Protocol = "raw"
    """The prompt protocol."""
    scope: Scope = "entity"
    """Which positions are patched."""

    def __repr__(self) -> str:
        return f"Encoded({len(self.rows)} rows, {len(self.skipped)} skipped, {self.protocol} prompts)"

    @cached_property
    def ids_hash(self) -> str:
        """Hash of the token ids, targets, scored positions and patched positions of all rows: 32 hexadecimal digits.

        It depends only on what the models see, not on names or paths, so it can serve as a cache key.
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
    entity_space: EntitySpace = "answer",
    last_token: bool = False,
) -> Encoded:
    """Tokenise examples and mark the positions of their entities.

    If the entity's tokens have the positions y_1 ... y_T, the scored positions are y_1 - 1 ... y_T - 1. The patched
    positions depend on the scope. "entity": the scored positions; "boundary": only y_1 - 1; "answer": from the last
    prompt token to y_T - 1; "all": 0 to y_T - 1. The entity's tokens are those whose characters overlap the entity.

    Prompt and continuation are tokenised together, as in training. A token that spans the boundary between them (as in
    Chinese) belongs to the entity. Prompt and continuation are tokenised separately, as in the UDS paper, if the prompt
    ends in whitespace (a raw prompt with an empty prefix), and always with `entity_space="always"`.

    Args:
        examples: Examples or rows with an entity; others are reported as skipped.
        tokenizer: A fast tokenizer (for character offsets). It adds its special tokens to raw prompts only: chat
            prompts already contain those of the template, and continuations get none.
        protocol: "raw", "chat", or "auto" ("chat" if the tokenizer has a chat template, otherwise "raw").
        scope: "entity", "boundary", "answer" or "all".
        chat: Style of chat prompts; None means `ChatStyle()`.
        entity_space: What separates prefix and entity; see `render`.
        last_token: Whether rows include the entity's last token, which is only predicted. This is needed for models
            whose rotary frequencies depend on the length of the row.

    Returns:
        The rows and the skipped examples; each example is in one of the two lists.

    Raises:
        DataError: The tokenizer is slow, or has no chat template for "chat"; a row cannot be read.
        ConfigError: `protocol`, `scope` or `entity_space` is unknown.
    """
    check_choice("scope", scope, Scope)
    require_fast(tokenizer)
    written = chosen_protocol(protocol, tokenizer)
    examples = with_rows_read(examples)
    spans = [entity_span(example) for example in examples]
    texts = [
        span
        if isinstance(span, str)
        else rendered_or_reason(example, span, written, tokenizer, chat=chat, entity_space=entity_space)
        for example, span in zip(examples, spans, strict=True)
    ]
    located = [(x, text) for x, text in zip(examples, texts, strict=True) if not isinstance(text, str)]
    coded = _coded_examples(tokenizer, [text for _, text in located], written, always=entity_space == "always")
    limit, unknown = longest_of(tokenizer), _unknown_token(tokenizer)
    outcomes = (
        _row(example, text, whole, scope=scope, limit=limit, unknown=unknown, last_token=last_token)
        for (example, text), whole in zip(located, coded, strict=True)
    )
    rows: list[TokenRow] = []
    skipped: list[SkippedExample] = []
    for example, text in zip(examples, texts, strict=True):
        outcome = text if isinstance(text, str) else next(outcomes)
        if isinstance(outcome, str):
            skipped.append(SkippedExample(example.id, example.row, outcome, example.question))
        else:
            rows.append(outcome)
    return Encoded(rows, skipped, written, scope)


def prompt_ids(
    tokenizer: PreTrainedTokenizerBase, prompts: Sequence[str], *, protocol: Protocol = "raw"
) -> list[list[int]]:
    """Tokenise prompts, each with at most one start token and no end token.

    Raw prompts get the tokenizer's special tokens, except for an end token, because the text continues. Chat prompts
    already contain the special tokens of the template.

    Args:
        tokenizer: A fast tokenizer.
        prompts: Texts from `prompt_text`.
        protocol: The prompt protocol.

    Returns:
        Token ids per prompt.
    """
    return [prompt.ids for prompt in _coded(tokenizer, prompts, protocol)]


class _Coded(NamedTuple):
    """A tokenised text."""

    ids: list[int]
    places: list[tuple[int, int]]  # characters of each token


def _coded(tokenizer: PreTrainedTokenizerBase, texts: Sequence[str], protocol: Protocol) -> list[_Coded]:
    """Tokenise texts that begin a row."""
    if not texts:
        return []
    raw = protocol == "raw"
    options = {"return_offsets_mapping": True, "add_special_tokens": raw, "return_special_tokens_mask": raw}
    coded = _tokens(tokenizer, texts, **options)
    rows = []
    for number, (ids, offsets) in enumerate(zip(coded["input_ids"], coded["offset_mapping"], strict=True)):
        end = len(ids)
        while raw and end > 1 and coded["special_tokens_mask"][number][end - 1]:
            end -= 1
        rows.append(_Coded(list(ids[:end]), offsets[:end]))
    return rows


def _joined(
    tokenizer: PreTrainedTokenizerBase,
    heads: Sequence[str],
    rests: Sequence[str],
    protocol: Protocol,
    *,
    apart: Sequence[bool] | None = None,
) -> list[tuple[_Coded, int]]:
    """Tokenise each head and rest as one text, or separately if requested or if a token would span the boundary.

    Returns:
        The tokens of each whole text, and the number of tokens in its head.
    """
    begun = _coded(tokenizer, heads, protocol)
    wholes = _coded(tokenizer, [head + rest for head, rest in zip(heads, rests, strict=True)], protocol)
    joined = []
    for number, (head, whole) in enumerate(zip(begun, wholes, strict=True)):
        if (apart is not None and apart[number]) or whole.ids[: len(head.ids)] != head.ids:
            (rest,) = _coded(tokenizer, [rests[number]], "chat")  # adds no special tokens
            border = len(heads[number])
            behind = [(border + start, border + end) for start, end in rest.places]
            whole = _Coded([*head.ids, *rest.ids], [*head.places, *behind])
        joined.append((whole, len(head.ids)))
    return joined


def _tokens(tokenizer: PreTrainedTokenizerBase, texts: Sequence[str], **options: Any) -> Any:
    """Tokenise texts as they are, without padding or truncation."""
    return tokenizer(
        list(texts), padding=False, truncation=False, return_attention_mask=False, verbose=False, **options
    )


def entity_tokens(offsets: Sequence[tuple[int, int]], entity: Span) -> range:
    """Return the range of tokens whose characters overlap the entity; empty if there are none.

    A zero-width token (which some tokenizers use for a character's later bytes) is included only inside the entity.

    >>> entity_tokens([(0, 4), (4, 8), (8, 9)], Span(1, 8))
    range(0, 2)
    """
    inside = [
        index
        for index, (start, end) in enumerate(offsets)
        if (start < entity.end and end > entity.start) or entity.start < start == end < entity.end
    ]
    return range(inside[0], inside[-1] + 1) if inside else range(0)


def _coded_examples(
    tokenizer: PreTrainedTokenizerBase, texts: Sequence[RenderedExample], protocol: Protocol, *, always: bool
) -> list[_Coded]:
    """Tokenise each example as a whole, as in training, or prompt and continuation separately (see `encode`)."""
    apart, heads, rests = [], [], []
    for text in texts:
        begins = protocol == "chat" and text.answer_start == len(text.prompt)  # with the turn's own whitespace
        apart.append(always or (text.prompt[-1:].isspace() and not begins))
        head = text.prompt if apart[-1] else text.prompt[: text.answer_start].rstrip(" ")
        heads.append(head)
        rests.append((text.prompt + text.continuation)[len(head) :])
    return [whole for whole, _ in _joined(tokenizer, heads, rests, protocol, apart=apart)]


def _unknown_token(tokenizer: PreTrainedTokenizerBase) -> int | None:
    """Return the unknown token; None if it is also an ordinary token or the end token (GPT-2)."""
    unknown = tokenizer.unk_token_id
    return None if unknown in (None, tokenizer.eos_token_id, tokenizer.bos_token_id) else int(unknown)


def _row(
    example: ForgetExample,
    rendered: RenderedExample,
    whole: _Coded,
    *,
    scope: Scope,
    limit: int | None,
    unknown: int | None,
    last_token: bool,
) -> TokenRow | str:
    border = len(rendered.prompt)
    entity = entity_tokens(whole.places, Span(*(border + place for place in rendered.entity)))
    if not entity:
        return f"The tokenizer has no token for the entity {short(example.entity)}."
    first, last = entity[0], entity[-1]
    if first == 0:
        return "The prompt has no tokens, so no position predicts the entity."
    if unknown in whole.ids[first : last + 1]:
        return f"The tokenizer has only its unknown token for part of the entity {short(example.entity)}."
    length = last + last_token
    if limit is not None and length > limit:
        return (
            f"The row needs {length} tokens up to its entity, "
            f"more than the tokenizer's limit (model_max_length) of {limit}."
        )
    answer = next((i for i, (_, end) in enumerate(whole.places) if end > rendered.answer_start), first)
    patched = {
        "entity": range(first - 1, last),
        "boundary": range(first - 1, first),
        "answer": range(max(0, min(answer, first) - 1), last),
        "all": range(last),
    }[scope]
    return TokenRow(
        ids=tuple(whole.ids[:length]),
        targets=tuple(whole.ids[first : last + 1]),
        scored=tuple(range(first - 1, last)),
        patched=tuple(patched),
        example=example,
        rendered=rendered,
        characters=tuple(Span(start - border, end - border) for start, end in whole.places[first : last + 1]),
    )


# Questions with answers. Only the functions below decide where an answer begins and what ends it.


@dataclass(frozen=True)
class AnswerSequence:
    """Token ids of a prompt with its answer. The tokens of the answer, and of its end, are labelled.

    Example:
        >>> sequence = AnswerSequence((1, 5, 6, 2), 2)
        >>> sequence.labelled, sequence.scored.ids, sequence.scored.targets, sequence.scored.scored
        ((6, 2), (1, 5, 6), (6, 2), (1, 2))
    """

    ids: tuple[int, ...]
    """Token ids of the prompt, the answer, and the end of the answer."""

    n_prompt: int
    """Number of unlabelled tokens at the start."""

    @property
    def labelled(self) -> tuple[int, ...]:
        """The tokens of the answer and of its end, on which models are trained and scored."""
        return self.ids[self.n_prompt :]

    @property
    def scored(self) -> TokenSequence:
        """Return the sequence for scoring, without the last token, which is only predicted."""
        return self.scored_in(self.ids[:-1])

    def scored_in(self, ids: tuple[int, ...]) -> TokenSequence:
        """Return the sequence for scoring with these input ids, which may include the last token (see `encode`)."""
        return TokenSequence(
            ids=ids, targets=self.labelled, scored=tuple(range(self.n_prompt - 1, len(self.ids) - 1)), patched=()
        )


def answer_sequences(
    tokenizer: PreTrainedTokenizerBase,
    pairs: Sequence[tuple[str, str]],
    *,
    protocol: Protocol = "raw",
    chat: ChatStyle | None = None,
    max_tokens: int | None = None,
) -> list[AnswerSequence]:
    r"""Tokenise questions with their answers; chats are labelled as in Open-Unlearning.

    Each text is tokenised as a whole. All tokens after those of the prompt are labelled:

    - "raw": `Question: {question}\nAnswer: {answer}`, then the end token. The space before the answer belongs to the
      answer's first token (`answer_prompt`).
    - "chat": the conversation as the template writes it, with the complete end of the turn (`<|eot_id|>`,
      `<end_of_turn>` and a line break, ...), followed by the end token unless the turn already ends in it. What a
      template writes before every answer, such as an empty thinking block, belongs to the prompt.

    If the end of a prompt and the start of an answer would share a token, prompt and answer are tokenised separately,
    so that the prompt is the same as in generation.

    Args:
        tokenizer: The model's tokenizer.
        pairs: Pairs of question and answer.
        protocol: "raw", or "chat" for the tokenizer's template.
        chat: Style of chat prompts; None means `ChatStyle()`.
        max_tokens: Maximum sequence length, including the prompt; None sets no limit.

    Returns:
        One sequence per pair, in order, with a single start token.

    Raises:
        DataError: The tokenizer has no end token or, for "chat", no chat template; a sequence is too long; or the
            template opens an answer that was not requested.

    References:
        Dorna et al. 2025, OpenUnlearning, arXiv 2506.12618.
    """
    check_choice("protocol", protocol, Protocol)
    if not pairs:
        return []
    texts = _questions_and_answers(pairs, protocol, tokenizer, chat)
    prompts, rests = [prompt for prompt, _ in texts], [rest for _, rest in texts]
    end = tokenizer.eos_token_id
    if end is None:
        raise DataError(
            "the tokenizer has no end token (eos_token), which marks the end of an answer in training and scoring: "
            "set tokenizer.eos_token."
        )
    sequences = []
    for (question, _), (whole, n_prompt) in zip(pairs, _joined(tokenizer, prompts, rests, protocol), strict=True):
        ids = whole.ids
        if len(ids) <= n_prompt or ids[-1] != end:
            ids = [*ids, int(end)]
        if max_tokens is not None and len(ids) > max_tokens:
            raise DataError(
                f"{question[:100]!r} with its answer has {len(ids)} tokens, more than the model's {max_tokens}: "
                "shorten the answer, or leave the row out."
            )
        sequences.append(AnswerSequence(tuple(ids), n_prompt))
    return sequences


def answer_prompt(
    question: str,
    *,
    protocol: Protocol = "raw",
    tokenizer: PreTrainedTokenizerBase | None = None,
    chat: ChatStyle | None = None,
    start: str = "",
) -> str:
    r"""Return the prompt for a question, up to where the answer's first token begins.

    A trailing space is left to the answer, because it is part of the answer's first token if prompt and answer are
    tokenised together, as in training. Open-Unlearning keeps the space in the prompt as a separate token, which changes
    the answer's first token.

    Args:
        question: The question.
        protocol: "raw" or "chat".
        tokenizer: Required for "chat".
        chat: Style of chat prompts; None means `ChatStyle()`.
        start: Beginning of the answer, if the prompt includes it.

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
    """Return the tokens that end a generated answer: the first token of a chat turn's end, and the end token.

    Returns:
        At most two ids, starting with the end of the turn. The turn's end is omitted if it is ordinary text, not a
        special token.
    """
    end = () if tokenizer.eos_token_id is None else (int(tokenizer.eos_token_id),)
    if protocol == "raw":
        return end
    text = open_turn(tokenizer, [("user", "?")], chat=chat).end.strip()
    opening = _tokens(tokenizer, [text], add_special_tokens=False)["input_ids"][0][:1]
    special = {number for number, token in tokenizer.added_tokens_decoder.items() if token.special}
    special.update(tokenizer.all_special_ids)
    return tuple(dict.fromkeys((*(token for token in opening if token in special), *end)))


def _questions_and_answers(
    pairs: Sequence[tuple[str, str]], protocol: Protocol, tokenizer: PreTrainedTokenizerBase, chat: ChatStyle | None
) -> list[tuple[str, str]]:
    """Return each prompt without trailing spaces, and the text after it: the answer and the end of its turn."""
    if protocol == "raw":
        asked = [answer_prompt(question) for question, _ in pairs]
        return [(prompt, continuation_text(prompt, answer)) for prompt, (_, answer) in zip(asked, pairs, strict=True)]
    turns = {question: [("user", question)] for question, _ in pairs}
    openings = {question: open_turn(tokenizer, turn, chat=chat) for question, turn in turns.items()}
    texts = []
    for question, answer in pairs:  # a question may have several answers
        turn = answer_turn(tokenizer, turns[question], answer, chat=chat, opening=openings[question])
        prompt = turn.head.rstrip(" ")
        texts.append((prompt, turn.head[len(prompt) :] + turn.rest))
    return texts
