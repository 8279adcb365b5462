"""From examples to token ids, with the positions that are scored and patched."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from uds_lens.checked_arguments import arguments_checked
from uds_lens.data.chat_style import ChatStyle
from uds_lens.data.columns import with_rows_read
from uds_lens.data.example import ForgetExample, SkippedExample
from uds_lens.data.prompts import RenderedExample, render
from uds_lens.data.spans import Span, entity_span
from uds_lens.data.tokenizer_checks import longest_of, require_fast
from uds_lens.errors import ConfigError
from uds_lens.types import Protocol, Scope, check_choice

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


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
    """Patched positions, contiguous."""

    def __post_init__(self) -> None:
        for name, run in (("scored", self.scored), ("patched", self.patched)):
            if not _is_run(run, len(self.ids)):
                raise ConfigError(
                    f"{name} positions must be a contiguous run within 0..{len(self.ids) - 1}; got {run}."
                )
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


@arguments_checked
def encode(
    examples: Iterable[ForgetExample | Mapping[str, Any]],
    tokenizer: PreTrainedTokenizerBase,
    *,
    protocol: Protocol = "raw",
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
        protocol: "raw" or "chat".
        scope: "entity", "boundary", "answer" or "all".
        chat: System turn and date of chat prompts; None means `ChatStyle()`.

    Returns:
        Rows and skipped examples, together as many as there were examples.

    Raises:
        DataError: The tokenizer is slow, or has no chat template for "chat"; a row cannot be read.
        ConfigError: `protocol` or `scope` is not one of the words above.
    """
    check_choice("protocol", protocol, Protocol)
    check_choice("scope", scope, Scope)
    require_fast(tokenizer)
    examples = with_rows_read(examples)
    spans = [entity_span(example) for example in examples]
    located = [example for example, span in zip(examples, spans, strict=True) if not isinstance(span, str)]
    rendered = [render(example, protocol, tokenizer, chat=chat) for example in located]
    prompts = prompt_ids(tokenizer, [text.prompt for text in rendered], protocol=protocol)
    continuations = _continuations(tokenizer, [text.continuation for text in rendered])
    starts = _answer_tokens(tokenizer, rendered, protocol) if scope == "answer" else [0] * len(rendered)
    outcomes = iter(
        _row(example, text, prompt, start, continuation, scope, longest_of(tokenizer))
        for example, text, prompt, start, continuation in zip(
            located, rendered, prompts, starts, continuations, strict=True
        )
    )
    rows: list[TokenRow] = []
    skipped: list[SkippedExample] = []
    for example, span in zip(examples, spans, strict=True):
        outcome = span if isinstance(span, str) else next(outcomes)
        if isinstance(outcome, str):
            skipped.append(SkippedExample(example.id, example.row, outcome, example.question))
        else:
            rows.append(outcome)
    return Encoded(rows, skipped, protocol, scope)


@arguments_checked
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
    coded = tokenizer(
        list(prompts),
        add_special_tokens=protocol == "raw",
        padding=False,
        truncation=False,
        return_attention_mask=False,
        return_special_tokens_mask=True,
        verbose=False,
    )
    added = (
        coded["special_tokens_mask"] if protocol == "raw" else [[0] * len(ids) for ids in coded["input_ids"]]
    )
    return [_without_end(ids, mask) for ids, mask in zip(coded["input_ids"], added, strict=True)]


@arguments_checked
def entity_tokens(offsets: Sequence[tuple[int, int]], entity: Span) -> range:
    """The tokens whose characters overlap the entity, from the first to the last; empty when none does.

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
    """Index of the first prompt token that belongs to the answer; the prompt's length where none does."""
    if not rendered:
        return []
    coded = tokenizer(
        [text.prompt for text in rendered],
        add_special_tokens=protocol == "raw",
        padding=False,
        truncation=False,
        return_offsets_mapping=True,
        verbose=False,
    )
    return [
        next((i for i, (_, end) in enumerate(offsets) if end > text.answer_start), len(offsets))
        for text, offsets in zip(rendered, coded["offset_mapping"], strict=True)
    ]


def _continuations(tokenizer: PreTrainedTokenizerBase, texts: list[str]) -> list[tuple[list[int], list]]:
    if not texts:
        return []
    coded = tokenizer(
        texts,
        add_special_tokens=False,
        padding=False,
        truncation=False,
        return_attention_mask=False,
        return_offsets_mapping=True,
        verbose=False,
    )
    return list(zip(coded["input_ids"], coded["offset_mapping"], strict=True))


def _row(
    example: ForgetExample,
    rendered: RenderedExample,
    prompt: list[int],
    answer_token: int,
    continuation: tuple[list[int], list],
    scope: Scope,
    limit: int | None,
) -> TokenRow | str:
    ids, offsets = continuation
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


def _is_run(positions: tuple[int, ...], length: int) -> bool:
    """True for consecutive positions inside a sequence, and for none at all."""
    if not positions:
        return True
    first, last = positions[0], positions[-1]
    return first >= 0 and last < length and positions == tuple(range(first, last + 1))


def _without_end(ids: list[int], added: list[int]) -> list[int]:
    end = len(ids)
    while end > 1 and added[end - 1]:
        end -= 1
    return list(ids[:end])
