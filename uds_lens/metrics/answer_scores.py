"""One teacher-forced pass over a set of answers, from which all likelihood metrics follow."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from uds_lens.checked_arguments import arguments_checked
from uds_lens.data import TokenSequence, make_batch
from uds_lens.generation import normed_at_window, raise_not_finite, read_tokens
from uds_lens.models import HookedModel
from uds_lens.patching import ModelCosts
from uds_lens.progress import progress


@dataclass(frozen=True, eq=False)
class AnswerScores:
    """What a model says about each token of each answer, given the question and the answer before it.

    The token axis runs over the labelled tokens: the answer and what ends it. Answers too long for the model have no
    token.
    """

    logprobs: tuple[Float[Tensor, "_"], ...]
    """Log-probability of each token, nats, float32."""

    hits: tuple[Bool[Tensor, "_"], ...]
    """Is the token the model's first choice?"""

    standardised: tuple[Float[Tensor, "_"], ...]
    """`(log p - mu) / sigma` over the vocabulary, for Min-K++."""


@arguments_checked
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
    """Run a model over answers, once.

    Args:
        model: The model.
        rows: The answers' tokens, the `scored` of `uds_lens.data.answer_sequences`.
        names: What to call the rows in an error, their questions for example; default their numbers.
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
    found: list[tuple[Tensor, Tensor, Tensor]] = [(empty, empty.bool(), empty)] * len(rows)
    kept = [rows[i] for i in fitting]
    broken: list[int] = []
    pad = model.tokenizer.pad_token_id if model.tokenizer is not None else None
    costs = ModelCosts.of(model.hf.config, model.device)
    batches = costs.forward_batches(kept, token_budget=token_budget)
    for indices in progress(batches, desc=desc, unit="batch", enabled=show):
        batch = make_batch(kept, indices=indices, pad_token_id=pad).to(model.device)
        states = normed_at_window(model, batch)
        scored = batch.scored_mask
        read = read_tokens(model.anatomy, states[scored.to(states.device)], batch.targets[scored])
        broken.extend(fitting[indices[row]] for row in _rows_not_finite(read[0], scored))
        counts = scored.sum(-1).tolist()
        for index, *parts in zip(indices, *(values.cpu().split(counts) for values in read), strict=True):
            found[fitting[index]] = (parts[0].clone(), parts[1].clone(), parts[2].clone())
    if broken:
        first = min(broken)
        raise_not_finite(model.name, f"number {first}" if names is None else names[first])
    logprobs, hits, standardised = zip(*found, strict=True) if found else ((), (), ())
    return AnswerScores(logprobs, hits, standardised)


def _rows_not_finite(logprobs: Float[Tensor, "row"], scored: Bool[Tensor, "batch win"]) -> list[int]:
    owner = scored.nonzero()[:, 0].to(logprobs.device)
    return sorted(set(owner[~logprobs.isfinite()].tolist()))
