"""Entities from models: where `full` knows what `retain` does not."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch

from uds_lens.annotation.answer_words import asked, best_run, first_sentence, span_of, trimmed, verdict
from uds_lens.annotation.from_texts import Found
from uds_lens.data import ChatStyle, Encoded, ForgetExample, encode, make_batch
from uds_lens.models import (
    HookedModel,
    ModelSource,
    check_compatible,
    open_model,
    pick_device,
    read_checkpoint_info,
)
from uds_lens.patching import ModelCosts, capture, row_layout, target_logprobs
from uds_lens.progress import progress
from uds_lens.results import RunOptions
from uds_lens.types import DType, Protocol


def by_contrast(
    examples: Sequence[ForgetExample],
    *,
    full: ModelSource,
    retain: ModelSource,
    protocol: Protocol = "raw",
    chat: ChatStyle | None = None,
    dtype: DType = "float32",
    options: RunOptions | None = None,
) -> list[Found]:
    """The run of words on which `full` and `retain` differ most in log-probability per token.

    With d_t the log-probability of answer token t under `full` minus that under `retain`, and m the mean of d over
    the answer, the run of words of its first sentence with the largest sum of d_t - m is the entity: the part that
    stands out from the rest. Words of the question score 0 at most; "Yes" or "No" in front is an entity by itself.

    Args:
        examples: Questions with answers.
        full: Trained on everything.
        retain: Never saw the forget set.
        protocol: How question and answer become text.
        chat: System turn and date of chat prompts.
        dtype: Dtype of the models.
        options: How they are run.

    Returns:
        Characters of each answer, or the reason why there are none.

    Raises:
        IncompatibleModelsError: The checkpoints differ in architecture, size or tokenizer.
        ModelError: A checkpoint cannot be opened.
    """
    options = options or RunOptions()
    where = {"offline": options.offline, "trust_remote_code": options.trust_remote_code}
    infos = {
        role: read_checkpoint_info(model, revision=options.revision, **where)
        for role, model in (("full", full), ("retain", retain))
    }
    tokenizer = check_compatible(infos)
    whole = [replace(example, entity=example.answer.strip(), prefix="") for example in examples]
    encoded = encode(whole, tokenizer, protocol=protocol, scope="entity", chat=chat)
    costs = ModelCosts.of(infos["full"].config, pick_device(options.device))
    batches = costs.batches(encoded.rows, token_budget=options.token_budget)
    scores = []
    for role, source in (("full", full), ("retain", retain)):
        model = open_model(
            source,
            dtype=dtype,
            device=options.device,
            device_map=options.device_map,
            revision=options.revision,
            **where,
        )
        with model:
            scores.append(
                _answer_logprobs(
                    model,
                    encoded,
                    batches,
                    role=role,
                    show=options.progress,
                    pad_token_id=tokenizer.pad_token_id,
                )
            )
    continuations = [row.rendered.continuation for row in encoded.rows]
    offsets = (
        tokenizer(continuations, add_special_tokens=False, return_offsets_mapping=True, verbose=False)[
            "offset_mapping"
        ]
        if continuations
        else []
    )
    by_id = {}
    for row, spans, known, unknown in zip(encoded.rows, offsets, *scores, strict=True):
        shift = len(row.example.answer) - len(row.example.answer.lstrip()) - row.rendered.entity.start
        places = [(start + shift, end + shift) for start, end in spans[: len(known)]]
        by_id[row.example.id] = _standing_out(row.example, places, (known - unknown).tolist())
    reasons = {skipped.id: skipped.reason for skipped in encoded.skipped}
    return [by_id[example.id] if example.id in by_id else reasons[example.id] for example in examples]


@torch.no_grad()
def _answer_logprobs(
    model: HookedModel,
    encoded: Encoded,
    batches: Sequence[Sequence[int]],
    *,
    role: str,
    show: bool | None,
    pad_token_id: int | None,
) -> list[torch.Tensor]:
    """Log-probability of every answer token of every row, float32 on the CPU."""
    found: list[torch.Tensor] = [torch.empty(0)] * len(encoded.rows)
    layout = row_layout(model)
    batches = layout.split(batches, [len(row.ids) for row in encoded.rows])
    for indices in progress(batches, desc=f"annotate: {role}", unit="batch", enabled=show):
        batch = make_batch(
            encoded.rows, indices=indices, pad_token_id=pad_token_id, padding_side=layout.padding_side
        )
        batch = batch.to(model.device)
        states = capture(model, batch).states[:, -1]
        logprobs = target_logprobs(model.anatomy, states, batch.targets, batch.scored_mask).cpu()
        for place, row in enumerate(batch.rows):
            found[row] = logprobs[place][batch.scored_mask[place].cpu()]
    return found


def _standing_out(
    example: ForgetExample, tokens: Sequence[tuple[int, int]], difference: Sequence[float]
) -> Found:
    words = first_sentence(example.answer)
    if not words:
        return "The answer has no word."
    mean = sum(difference) / len(difference)
    known = asked(example.question)
    scores = []
    for word in words:
        own = sum(
            d - mean
            for (start, end), d in zip(tokens, difference, strict=True)
            if start < word.end and end > word.start
        )
        scores.append(min(own, 0.0) if word.key in known else own)
    run = verdict(words) or best_run(scores)
    if not run:
        return "full and retain differ nowhere in the answer."
    return span_of(example.answer, words, trimmed(words, run))
