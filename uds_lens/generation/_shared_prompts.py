"""Answers behind one prompt: the prompt runs once, and each answer behind its keys and values."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any
from weakref import WeakSet

import torch
from jaxtyping import Float, Int
from torch import Tensor

from uds_lens._compat.transformers import keep_cached_rows, keeps_plain_keys
from uds_lens.data import TokenSequence
from uds_lens.generation._reading import cached_pass, growing_way, padded
from uds_lens.models import HookedModel
from uds_lens.patching import ModelCosts

_CACHED = 4
"""Tokens whose keys and values a batch holds, prompts repeated for each answer, as a multiple of its budget."""

_whole_only: WeakSet[Any] = WeakSet()
"""Models that were seen to keep more than keys and values of what they read."""


class NotShared(Exception):  # noqa: N818 - a signal, not an error
    """A model keeps more than keys and values of a prompt, so that its answers cannot run behind it."""


def shared_prompts(rows: Sequence[TokenSequence]) -> dict[tuple[int, ...], list[int]]:
    """Group rows that differ only behind their prompt, which is all tokens up to the first scored position.

    Args:
        rows: Answers behind prompts; each has a scored position.

    Returns:
        Indices into `rows` by prompt, for prompts of at least two rows.

    Example:
        >>> rows = [TokenSequence(ids=(1, 5, n), targets=(n, 2), scored=(1, 2), patched=()) for n in (7, 8)]
        >>> shared_prompts(rows)
        {(1, 5): [0, 1]}
    """
    groups: dict[tuple[int, ...], list[int]] = {}
    for index, row in enumerate(rows):
        groups.setdefault(_prompt(row), []).append(index)
    return {prompt: owners for prompt, owners in groups.items() if len(owners) > 1}


def may_share_prompts(model: HookedModel) -> bool:
    """Return whether a model's sequences may be run in two parts.

    Not where user hooks count on whole ones, nor where blocks keep a mask of their own by place in the sequence, nor
    where layers are recurrent, nor where texts do not grow side by side (`growing_way`).
    """
    if model.hf in _whole_only or model.is_wrapped or model.runs_hooks or model.anatomy.keeps_masks:
        return False
    return growing_way(model) == "side by side"


@dataclass(frozen=True)
class PromptChunk:
    """Prompts that run together, and the answers behind them, in batches."""

    prompts: list[tuple[int, ...]]
    """Token ids of the prompts, of similar length."""

    batches: list[list[int]]
    """Indices of the rows in each batch."""


def plan_chunks(
    rows: Sequence[TokenSequence],
    prompts: dict[tuple[int, ...], list[int]],
    *,
    costs: ModelCosts,
    token_budget: int,
) -> list[PromptChunk]:
    """Group prompts by length, and the answers behind each group by theirs.

    Args:
        rows: All rows.
        prompts: From `shared_prompts`.
        costs: Of the model that runs them.
        token_budget: Tokens per batch, padding included; prompts and answers count apart.

    Returns:
        The chunks, in the order in which they run.
    """
    at_once = costs.tokens_at_once(token_budget)
    groups: list[list[tuple[int, ...]]] = []
    for prompt in sorted(prompts, key=len):
        if not groups or (len(groups[-1]) + 1) * len(prompt) > at_once:
            groups.append([])
        groups[-1].append(prompt)
    chunks = []
    for group in groups:
        indices = [index for prompt in group for index in prompts[prompt]]
        behind = [_behind(rows[index]) for index in indices]
        batches = []
        for batch in costs.forward_batches(behind, token_budget=token_budget):
            chosen = [indices[number] for number in batch]
            most = max(1, _CACHED * at_once // max(len(rows[index].ids) for index in chosen))
            batches += [chosen[first : first + most] for first in range(0, len(chosen), most)]
        chunks.append(PromptChunk(group, batches))
    return chunks


@torch.no_grad()
def normed_behind_prompts(
    model: HookedModel, rows: Sequence[TokenSequence], chunk: PromptChunk
) -> Iterator[tuple[list[int], Float[Tensor, "token d_model"]]]:
    """Yield states after the final norm at the scored positions of a chunk's rows; each prompt runs once.

    Indices of cached rows stay on the CPU, since layers may lie on several devices.

    Args:
        model: One that `may_share_prompts`.
        rows: All rows.
        chunk: From `plan_chunks`.

    Yields:
        Indices of a batch, and its rows' states, row after row.

    Raises:
        NotShared: Before anything is yielded; `may_share_prompts` is False from then on.
    """
    ids, mask = padded(chunk.prompts, model.device, side="left")
    output = cached_pass(model, ids, mask)
    if not keeps_plain_keys(getattr(output, "past_key_values", None)):
        _whole_only.add(model.hf)
        raise NotShared
    number = {prompt: place for place, prompt in enumerate(chunk.prompts)}
    for batch in chunk.batches:
        part = [rows[index] for index in batch]
        owners = torch.tensor([number[_prompt(row)] for row in part])
        last = output.last_hidden_state[:, -1][owners]
        yield batch, _resumed(model, part, last, copy.deepcopy(output.past_key_values), mask[owners], owners)


def _resumed(
    model: HookedModel,
    rows: Sequence[TokenSequence],
    last: Float[Tensor, "batch d_model"],
    cache: Any,
    prompt_mask: Int[Tensor, "batch pos"],
    owners: Int[Tensor, "batch"],
) -> Float[Tensor, "token d_model"]:
    """Run answers behind their prompts; the prompt's last state predicts an answer's first token."""
    rests = [row.ids[row.scored[0] + 1 :] for row in rows]
    states = last[:, None]
    if any(rests):
        ids, mask = padded(rests, model.device, side="right")
        keep_cached_rows(cache, owners)
        output = cached_pass(model, ids, torch.cat([prompt_mask, mask], dim=1), cache)
        states = torch.cat([states, output.last_hidden_state.to(states.device)], dim=1)
    return torch.cat([states[number, : len(row.scored)] for number, row in enumerate(rows)])


def _behind(row: TokenSequence) -> TokenSequence:
    """Return the part that runs behind the prompt, with the prompt's last token, since a sequence is never empty."""
    first = row.scored[0]
    scored = tuple(position - first for position in row.scored)
    return TokenSequence(ids=row.ids[first:], targets=row.targets, scored=scored, patched=())


def _prompt(row: TokenSequence) -> tuple[int, ...]:
    return row.ids[: row.scored[0] + 1]
