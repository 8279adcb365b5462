"""Teacher-forced scores of a set of answers, from which all likelihood metrics are computed.

A prompt shared by several answers runs once; its keys and values are reused for each answer.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, fields
from itertools import chain
from typing import Any, TypeAlias
from weakref import WeakSet

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from uds_lens._compat.transformers import keep_cached_rows, keeps_plain_keys, longest_text
from uds_lens._progress import progress
from uds_lens.data import TokenBatch, make_batch
from uds_lens.data._tokens import TokenSequence
from uds_lens.generation._reading import (
    cached_pass,
    growing_way,
    normed_at_window,
    padded,
    raise_not_finite,
    read_tokens,
)
from uds_lens.models import HookedModel
from uds_lens.patching import row_layout
from uds_lens.patching._costs import ModelCosts

_CACHED = 4  # limit on a batch's cached tokens (prompts repeated for each answer), as a multiple of the token budget

_whole_only: WeakSet[Any] = WeakSet()  # models found to cache more than keys and values

_States: TypeAlias = tuple[list[int], Tensor]
"""Row indices, and the states `[token, d_model]` that predict the scored tokens of these rows, concatenated."""


@dataclass(frozen=True, eq=False)
class AnswerScores:
    """A model's score for each answer token, given the question and the preceding answer tokens.

    Each tensor has one entry per labelled token (the answer and its end). Answers that are too long for the model have
    no entries.
    """

    logprobs: tuple[Float[Tensor, "_"], ...]
    """Log-probability of each token, in nats, as float32."""

    hits: tuple[Bool[Tensor, "_"], ...]
    """Whether the token is the model's argmax."""

    standardised: tuple[Float[Tensor, "_"], ...]
    """`(log p - mu) / sigma` over the vocabulary, for Min-K++."""

    first_choices: tuple[Int[Tensor, "_"], ...] = ()
    """The model's argmax token at each position."""

    def rows(self, first: int, stop: int) -> AnswerScores:
        """Return the scores of answers `first` to `stop - 1`."""
        return AnswerScores(*(getattr(self, field.name)[first:stop] for field in fields(self)))


@torch.no_grad()
def score_answers(
    model: HookedModel,
    rows: Sequence[TokenSequence],
    *,
    names: Sequence[str] | None = None,
    token_budget: int = 4096,
    desc: str = "answers",
    show: bool | None = None,
) -> AnswerScores:
    """Score answers in one pass; a prompt shared by several answers runs only once.

    Args:
        model: The model.
        rows: The tokenised answers: `scored` from `uds_lens.data.answer_sequences`.
        names: Names of the rows in error messages, such as their questions; default: row numbers.
        token_budget: Tokens per batch, including padding.
        desc: Label of the progress bar.
        show: Whether to show a progress bar; None shows it in terminals only.

    Returns:
        Scores for each token, on the CPU.

    Raises:
        ModelError: The model outputs NaN or infinite logits; the message names the first example.
    """
    fitting = fitting_rows(model, rows)
    batches, total = _batches(model, [rows[i] for i in fitting], token_budget)
    shown = progress(batches, total=total, desc=desc, unit="batch", enabled=show)
    return scores_of(model, rows, (([fitting[i] for i in indices], states) for indices, states in shown), names=names)


def fitting_rows(model: HookedModel, rows: Sequence[TokenSequence]) -> list[int]:
    """Return the indices of the rows that fit the model's context window."""
    longest = longest_text(model.hf.config)
    return [i for i, row in enumerate(rows) if longest is None or len(row.ids) <= longest]


@torch.no_grad()
def scores_of(
    model: HookedModel, rows: Sequence[TokenSequence], batches: Iterable[_States], *, names: Sequence[str] | None = None
) -> AnswerScores:
    """Compute answer scores from the states that predict the answer tokens; see `score_answers`."""
    empty = torch.empty(0)
    scores: list[tuple[Tensor, ...]] = [(empty, empty.bool(), empty, empty.long())] * len(rows)
    broken: list[int] = []
    for chosen, states in batches:
        targets = torch.tensor([token for i in chosen for token in rows[i].targets], device=states.device)
        read = read_tokens(model.anatomy, states, targets)
        counts = [len(rows[i].scored) for i in chosen]
        for i, *parts in zip(chosen, *(values.cpu().split(counts) for values in read), strict=True):
            scores[i] = tuple(part.clone() for part in parts)
            if not bool(scores[i][0].isfinite().all()):
                broken.append(i)
    if broken:
        first = min(broken)
        raise_not_finite(model.name, f"number {first}" if names is None else names[first])
    return AnswerScores(*zip(*scores, strict=True)) if scores else AnswerScores((), (), ())


def _batches(model: HookedModel, rows: Sequence[TokenSequence], token_budget: int) -> tuple[Iterator[_States], int]:
    """Return an iterator over batches of states for all rows, and its length."""
    costs, layout = ModelCosts.of(model.hf.config, model.device), row_layout(model)
    lengths = [len(row.ids) for row in rows]
    prompts = _shared_prompts(rows) if may_share_prompts(model) else {}
    if layout.limit is not None:  # beyond this length, a prompt's keys depend on the length of the whole text
        prompts = {
            prompt: owners
            for prompt, owners in prompts.items()
            if all(layout.kind(lengths[index]) == 0 for index in owners)
        }
    together = {index for owners in prompts.values() for index in owners}
    alone = [index for index in range(len(rows)) if index not in together]
    batches = whole_batches(model, rows, alone, token_budget)

    def whole(batches: Sequence[list[int]]) -> Iterator[_States]:
        for indices in batches:
            batch = batch_of(model, rows, indices).to(model.device)
            states = normed_at_window(model, batch)
            yield indices, states[batch.scored_mask.to(states.device)]

    def behind(chunk: _Chunk) -> Iterator[_States]:
        try:
            yield from _behind_prompts(model, rows, chunk)
        except _NotShared:
            yield from whole(layout.split(chunk[1], lengths))

    chunks = _chunks(rows, prompts, costs, token_budget)
    total = sum(len(batches) for _, batches in chunks) + len(batches)
    return chain(chain.from_iterable(map(behind, chunks)), whole(batches)), total


def whole_batches(
    model: HookedModel, rows: Sequence[TokenSequence], indices: Sequence[int], token_budget: int
) -> list[list[int]]:
    """Batch rows that do not share a prompt."""
    costs = ModelCosts.of(model.hf.config, model.device)
    planned = costs.forward_batches([rows[index] for index in indices], token_budget=token_budget)
    batches = [[indices[number] for number in batch] for batch in planned]
    return row_layout(model).split(batches, [len(row.ids) for row in rows])


def batch_of(model: HookedModel, rows: Sequence[TokenSequence], indices: Sequence[int]) -> TokenBatch:
    """Make a batch of the given rows on the CPU, padded on the side that suits the model."""
    pad = model.tokenizer.pad_token_id if model.tokenizer is not None else None
    return make_batch(rows, indices=indices, pad_token_id=pad, padding_side=row_layout(model).padding_side)


# Answers with a shared prompt.

_Prompt: TypeAlias = tuple[int, ...]
_Chunk: TypeAlias = tuple[list[_Prompt], list[list[int]]]
"""Prompts of similar length that run together, and the rows with these prompts, in batches."""


class _NotShared(Exception):  # noqa: N818 - a signal, not an error
    """Raised if a model caches more than keys and values, so that answers cannot share a prompt."""


def may_share_prompts(model: HookedModel) -> bool:
    """Return whether a model can run a prompt first and its answers later, from a cache.

    This is not possible with user hooks, which expect whole sequences, with blocks that build their own positional
    mask, with recurrent layers, or if texts cannot grow in one batch (`growing_way`).
    """
    if model.hf in _whole_only or model.is_wrapped or model.runs_hooks or model.anatomy.keeps_masks:
        return False
    return growing_way(model) == "side by side"


def _prompt(row: TokenSequence) -> _Prompt:
    """Return a row's tokens up to and including the first scored position."""
    return row.ids[: row.scored[0] + 1]


def _shared_prompts(rows: Sequence[TokenSequence]) -> dict[_Prompt, list[int]]:
    """Map each prompt that is shared by at least two rows to the indices of these rows."""
    groups: dict[_Prompt, list[int]] = {}
    for index, row in enumerate(rows):
        groups.setdefault(_prompt(row), []).append(index)
    return {prompt: owners for prompt, owners in groups.items() if len(owners) > 1}


def _chunks(
    rows: Sequence[TokenSequence], prompts: dict[_Prompt, list[int]], costs: ModelCosts, token_budget: int
) -> list[_Chunk]:
    """Group prompts by length, and the answers in each group by answer length, up to the token budget per batch."""
    at_once = costs.tokens_at_once(token_budget)
    groups: list[list[_Prompt]] = []
    for prompt in sorted(prompts, key=len):
        if not groups or (len(groups[-1]) + 1) * len(prompt) > at_once:
            groups.append([])
        groups[-1].append(prompt)
    chunks = []
    for group in groups:
        indices = [index for prompt in group for index in prompts[prompt]]
        behind = []
        for row in (rows[index] for index in indices):
            first = row.scored[0]  # keep the prompt's last token, since a sequence must not be empty
            scored = tuple(position - first for position in row.scored)
            behind.append(TokenSequence(ids=row.ids[first:], targets=row.targets, scored=scored, patched=()))
        batches = []
        for batch in costs.forward_batches(behind, token_budget=token_budget):
            chosen = [indices[number] for number in batch]
            most = max(1, _CACHED * at_once // max(len(rows[index].ids) for index in chosen))
            batches += [chosen[first : first + most] for first in range(0, len(chosen), most)]
        chunks.append((group, batches))
    return chunks


def _behind_prompts(model: HookedModel, rows: Sequence[TokenSequence], chunk: _Chunk) -> Iterator[_States]:
    """Run each prompt in a chunk once, then yield the states of its rows batch by batch.

    The prompt's last state predicts an answer's first token; the answer's states predict the remaining tokens.
    `_NotShared` is raised before anything is yielded, and `may_share_prompts` then returns False for this model.
    """
    prompts, batches = chunk
    ids, mask = padded(prompts, model.device, side="left")
    output = cached_pass(model, ids, mask)
    if not keeps_plain_keys(getattr(output, "past_key_values", None)):
        _whole_only.add(model.hf)
        raise _NotShared
    number = {prompt: place for place, prompt in enumerate(prompts)}
    for batch in batches:
        part = [rows[index] for index in batch]
        owners = torch.tensor([number[_prompt(row)] for row in part])  # on the CPU: layers may be on other devices
        states = output.last_hidden_state[:, -1][owners][:, None]
        rests = [row.ids[row.scored[0] + 1 :] for row in part]
        if any(rests):
            cache = copy.deepcopy(output.past_key_values)
            keep_cached_rows(cache, owners)
            new, real = padded(rests, model.device, side="right")
            after = cached_pass(model, new, torch.cat([mask[owners], real], dim=1), cache).last_hidden_state
            states = torch.cat([states, after.to(states.device)], dim=1)
        yield batch, torch.cat([states[n, : len(row.scored)] for n, row in enumerate(part)])
