"""Greedy answers, many side by side, and where an answer is over."""

from __future__ import annotations

from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Any

import torch

from uds_lens._progress import progress
from uds_lens._types import Protocol
from uds_lens.data import ChatStyle, TokenSequence, answer_prompt, prompt_ids
from uds_lens.data._tokens import answer_ends
from uds_lens.generation._reading import CachedTexts, Way, WholeTexts, raise_not_finite, way_of
from uds_lens.models import HookedModel
from uds_lens.patching import row_layout

# What a pass over a reference already says of the greedy answer: it is the reference up to the first other
# choice.


@dataclass(frozen=True)
class KnownBeginning:
    """Tokens that a greedy answer begins with, and the prompt that they follow."""

    prompt: tuple[int, ...]
    """Token ids of the prompt."""

    tokens: tuple[int, ...]
    """Token ids of the answer's beginning."""

    def of(self, prompt: Sequence[int], *, ends: AbstractSet[int], limit: int) -> tuple[list[int], bool]:
        """How far the answer to a prompt is known.

        Args:
            prompt: What the answer follows; nothing is known of the answer to another prompt.
            ends: Tokens that end an answer.
            limit: Longest answer, in tokens.

        Returns:
            Its first tokens, without an end token, and whether that is all of it.

        Example:
            >>> known = KnownBeginning((1, 5), (7, 8, 2))
            >>> known.of([1, 5], ends={2}, limit=9), known.of([1, 5], ends={3}, limit=9)
            (([7, 8], True), ([7, 8, 2], False))
        """
        if tuple(prompt) != self.prompt:
            return [], False
        found = list(self.tokens[:limit])
        end = next((place for place, token in enumerate(found) if token in ends), None)
        if end is not None:
            return found[:end], True
        return found, len(found) == limit


def known_beginning(row: TokenSequence, first_choices: Sequence[int]) -> KnownBeginning | None:
    """How the greedy answer to a prompt begins, from what a model chose at each token of a reference.

    Args:
        row: Prompt and reference, the reference's tokens scored.
        first_choices: The model's first choice for each of them; empty where they were not run.

    Returns:
        The reference up to the first token where the model chooses another, and that choice; None where nothing
        was run.

    Example:
        >>> row = TokenSequence(ids=(1, 5, 7, 8), targets=(7, 8, 2), scored=(1, 2, 3), patched=())
        >>> known_beginning(row, [7, 9, 2])
        KnownBeginning(prompt=(1, 5), tokens=(7, 9))
    """
    choices = [int(token) for token in first_choices]
    if not choices:
        return None
    pairs = zip(choices, row.targets, strict=True)
    agreed = next((place for place, (own, told) in enumerate(pairs) if own != told), len(choices))
    return KnownBeginning(row.ids[: row.scored[0] + 1], tuple(choices[: agreed + 1]))


def answer_end_ids(
    model: HookedModel, *, protocol: Protocol = "raw", chat: ChatStyle | None = None
) -> frozenset[int]:
    """Tokens that end an answer: those of the generation config, the tokenizer's, and what opens a turn's end."""
    configured = getattr(getattr(model.hf, "generation_config", None), "eos_token_id", None)
    several = configured if isinstance(configured, list | tuple) else [configured]
    own = () if model.tokenizer is None else answer_ends(model.tokenizer, protocol=protocol, chat=chat)
    return frozenset(int(token) for token in (*several, *own) if token is not None)


def generate_answers(
    model: HookedModel,
    questions: Sequence[str],
    *,
    protocol: Protocol,
    chat: ChatStyle | None = None,
    start: str = "",
    max_new_tokens: int = 200,
    rows_at_once: int = 64,
    known: Sequence[KnownBeginning | None] | None = None,
    desc: str = "generate",
    show: bool | None = None,
) -> list[str]:
    """Let a model answer questions, greedily.

    Prompts are left-padded and run in batches of similar length with a key-value cache; an answer that has reached
    an end token leaves its batch. Where that changes a model's numbers (`growing_way`), answers are generated one at a
    time, or the whole text is read again for each token. The latter also holds for texts that grow past the length at
    which rotary frequencies change ("longrope", "dynamic").

    Args:
        model: The model, with its tokenizer.
        questions: What to ask.
        protocol: "raw" or "chat".
        chat: System turn and date of chat prompts; None means `ChatStyle()`.
        start: How the answer begins; part of the prompt, not of the text returned.
        max_new_tokens: Longest answer.
        rows_at_once: Answers side by side.
        known: How each answer is known to begin, from a pass over the references (`known_beginning`), so that it need
            not be generated token by token; None where that is not known, or for all.
        desc: Label of the progress bar.
        show: Progress bar on, off, or (None) in terminals only.

    Returns:
        The answers in the order of the questions, without special tokens and outer white space.

    Raises:
        ModelError: NaN or infinite logits; names the example.
    """
    tokenizer: Any = model.tokenizer
    prompts = [
        answer_prompt(q, protocol=protocol, tokenizer=tokenizer, chat=chat, start=start) for q in questions
    ]
    ids = prompt_ids(tokenizer, prompts, protocol=protocol)
    ends = answer_end_ids(model, protocol=protocol, chat=chat)
    told = [None] * len(ids) if known is None else known
    begun = [
        ([], False) if each is None else each.of(prompt, ends=ends, limit=max_new_tokens)
        for prompt, each in zip(ids, told, strict=True)
    ]
    found = [tokens for tokens, _ in begun]
    order = [i for i, (_, is_over) in enumerate(begun) if not is_over]
    order.sort(key=lambda i: len(ids[i]) + len(found[i]))
    batches = range(0, len(order), rows_at_once)
    for first in progress(batches, desc=desc, unit="batch", enabled=show):
        rows = order[first : first + rows_at_once]
        new = greedy(
            model,
            [ids[i] for i in rows],
            begun=[found[i] for i in rows],
            max_new_tokens=max_new_tokens,
            ends=ends,
            names=[questions[i] for i in rows],
        )
        for i, tokens in zip(rows, new, strict=True):
            found[i] = tokens
    return [tokenizer.decode(tokens, skip_special_tokens=True).strip() for tokens in found]


@torch.no_grad()
def greedy(
    model: HookedModel,
    prompts: Sequence[Sequence[int]],
    *,
    max_new_tokens: int,
    begun: Sequence[Sequence[int]] | None = None,
    ends: frozenset[int] | None = None,
    names: Sequence[str] | None = None,
) -> list[list[int]]:
    """Greedy continuations of tokenised prompts, side by side.

    Args:
        model: The model.
        prompts: Token ids, unpadded.
        max_new_tokens: Longest continuation.
        begun: Tokens, fewer than that, that each continuation is known to begin with; they run with the prompt.
        ends: Tokens that end a continuation; None means `answer_end_ids(model)`.
        names: What to call the rows in an error; default their numbers.

    Returns:
        New token ids per prompt, without the end token.

    Raises:
        ModelError: NaN or infinite logits.
    """
    found: list[list[int]] = [[] for _ in prompts] if begun is None else [list(tokens) for tokens in begun]
    ends = answer_end_ids(model) if ends is None else ends
    starts = [[*prompt, *tokens] for prompt, tokens in zip(prompts, found, strict=True)]
    for way, rows in _groups(model, starts, [max_new_tokens - len(tokens) for tokens in found]):
        kind = WholeTexts if way == "whole" else CachedTexts
        growing, alive = kind(model, [starts[row] for row in rows]), rows
        while True:
            logits = model.anatomy.unembed(growing.states)
            broken = (~logits.isfinite().all(-1)).nonzero()[:, 0].tolist()
            if broken:
                row = alive[broken[0]]
                raise_not_finite(model.name, names[row] if names is not None else f"number {row}")
            going = []
            for n, token in enumerate(logits.argmax(-1).tolist()):
                if token not in ends:
                    found[alive[n]].append(token)
                    if len(found[alive[n]]) < max_new_tokens:
                        going.append(n)
            alive = [alive[n] for n in going]
            if not going:
                break
            growing.grow(going, [found[row][-1] for row in alive])
    return found


def _groups(
    model: HookedModel, texts: Sequence[Sequence[int]], new_tokens: Sequence[int]
) -> list[tuple[Way, list[int]]]:
    """Texts that grow together, and how."""
    by_way: dict[Way, list[int]] = {}
    for row, (text, more) in enumerate(zip(texts, new_tokens, strict=True)):
        by_way.setdefault(way_of(model, len(text), more), []).append(row)
    groups: list[tuple[Way, list[int]]] = []
    for way, rows in by_way.items():
        if way == "one by one":
            pieces = [[row] for row in rows]
        elif way == "side by side":
            pieces = row_layout(model).split([rows], list(map(len, texts)))
        else:
            pieces = [rows]
        groups += [(way, piece) for piece in pieces]
    return groups
