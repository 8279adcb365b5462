"""One teacher-forced pass over a set of answers, from which all likelihood metrics follow."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from itertools import chain

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from uds_lens._progress import progress
from uds_lens.data import TokenSequence, make_batch
from uds_lens.generation import (
    NotShared,
    PromptChunk,
    may_share_prompts,
    normed_at_window,
    normed_behind_prompts,
    plan_chunks,
    raise_not_finite,
    read_tokens,
    shared_prompts,
)
from uds_lens.models import HookedModel
from uds_lens.patching import ModelCosts, row_layout


@dataclass(frozen=True, eq=False)
class AnswerScores:
    """A model's scores of each token of each answer, given the question and the answer before it.

    The token axis runs over the labelled tokens: the answer and what ends it. Answers too long for the model have no
    token.
    """

    logprobs: tuple[Float[Tensor, "_"], ...]
    """Log-probability of each token, nats, float32."""

    hits: tuple[Bool[Tensor, "_"], ...]
    """Is the token the model's first choice?"""

    standardised: tuple[Float[Tensor, "_"], ...]
    """`(log p - mu) / sigma` over the vocabulary, for Min-K++."""

    first_choices: tuple[Int[Tensor, "_"], ...] = ()
    """The model's first choice at each token."""

    def rows(self, first: int, stop: int) -> AnswerScores:
        """Return the scores of answers `first` to `stop`."""
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
    """Score answers in one pass; a prompt shared by several of them runs once.

    Args:
        model: The model.
        rows: The answers' tokens, the `scored` of `uds_lens.data.answer_sequences`.
        names: Names of the rows in an error, their questions for example; default their numbers.
        token_budget: Tokens per batch, padding included.
        desc: Label of the progress bar.
        show: Progress bar on, off, or (None) in terminals only.

    Returns:
        Scores per token, on the CPU.

    Raises:
        ModelError: NaN or infinite logits; names the first example.
    """
    longest = getattr(model.hf.config.get_text_config(), "max_position_embeddings", None)
    fitting = [i for i, row in enumerate(rows) if longest is None or len(row.ids) <= longest]
    empty = torch.empty(0)
    scores: list[tuple[Tensor, ...]] = [(empty, empty.bool(), empty, empty.long())] * len(rows)
    broken: list[int] = []
    batches, total = _batches(model, [rows[i] for i in fitting], token_budget)
    for indices, states in progress(batches, total=total, desc=desc, unit="batch", enabled=show):
        chosen = [fitting[index] for index in indices]
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


def _batches(
    model: HookedModel, rows: Sequence[TokenSequence], token_budget: int
) -> tuple[Iterator[tuple[list[int], Tensor]], int]:
    """Return an iterator over batches (indices, states that predict their scored tokens), and their number."""
    costs, layout = ModelCosts.of(model.hf.config, model.device), row_layout(model)
    lengths = [len(row.ids) for row in rows]
    prompts = shared_prompts(rows) if may_share_prompts(model) else {}
    if layout.limit is not None:  # a prompt's keys are not those that it has in a text beyond the limit
        prompts = {
            prompt: owners
            for prompt, owners in prompts.items()
            if all(layout.kind(lengths[index]) == 0 for index in owners)
        }
    chunks = plan_chunks(rows, prompts, costs=costs, token_budget=token_budget)
    together = {index for owners in prompts.values() for index in owners}
    alone = [index for index in range(len(rows)) if index not in together]
    planned = costs.forward_batches([rows[index] for index in alone], token_budget=token_budget)
    batches = layout.split([[alone[number] for number in batch] for batch in planned], lengths)

    def whole(batches: Sequence[list[int]]) -> Iterator[tuple[list[int], Tensor]]:
        pad = model.tokenizer.pad_token_id if model.tokenizer is not None else None
        for indices in batches:
            batch = make_batch(rows, indices=indices, pad_token_id=pad, padding_side=layout.padding_side)
            batch = batch.to(model.device)
            states = normed_at_window(model, batch)
            yield indices, states[batch.scored_mask.to(states.device)]

    def behind(chunk: PromptChunk) -> Iterator[tuple[list[int], Tensor]]:
        try:
            yield from normed_behind_prompts(model, rows, chunk)
        except NotShared:
            yield from whole(layout.split(chunk.batches, lengths))

    total = sum(len(chunk.batches) for chunk in chunks) + len(batches)
    return chain(chain.from_iterable(map(behind, chunks)), whole(batches)), total
