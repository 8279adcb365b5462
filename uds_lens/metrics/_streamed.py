"""Teacher-forced passes of a model that is read a block at a time; all of one model share one reading."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from uds_lens.audit._inputs import Plan
from uds_lens.audit._memory import GIB
from uds_lens.audit._states import SourceStates, StateStore
from uds_lens.audit._streamed import streamed_model
from uds_lens.data import TokenBatch, TokenSequence, make_batch
from uds_lens.errors import ConfigError, Setting
from uds_lens.metrics._answers import fitting_rows, scores_of
from uds_lens.metrics._data import AnswerText
from uds_lens.metrics._declaration import Pass
from uds_lens.metrics._white_box import lens_logprobs
from uds_lens.models import HookedModel
from uds_lens.patching import ModelCosts, row_layout
from uds_lens.patching._streamed import StreamedBatch, StreamedRows, run_streamed, tokens_in
from uds_lens.results import AuditConfig, RunOptions
from uds_lens.results._records import ModelRecord

_ONCE = ("answers", "states", "lens")
"""Kinds of passes that read a model once."""

_WHY_WHOLE = {"generations": "text that is generated would read the whole model again for each token"}


@torch.no_grad()
def read_passes(
    source: str | os.PathLike[str],
    wanted: Sequence[Pass],
    *,
    plan: Plan | None,
    answers: Mapping[Pass, tuple[list[AnswerText], list[TokenSequence]]],
    states: Mapping[Pass, Any],
    config: AuditConfig,
    run: RunOptions,
    check: Callable[[HookedModel], None],
) -> tuple[dict[Pass, Any], ModelRecord, str, str]:
    """Read a model once for several passes.

    Args:
        source: The checkpoint.
        wanted: The passes.
        plan: Rows and batches of the entity examples; None where no pass is over them.
        answers: Texts and tokens of the sets of answers.
        states: Results of the passes whose states are read by the logit lens; None where this reading gives them.
        config: What is measured.
        run: How it is run.
        check: Is called with the model before anything is read.

    Returns:
        The results, the record of the model, its device, and how rows were batched.

    Raises:
        ConfigError: A pass needs the whole model at once.
    """
    for p in wanted:
        if p.kind not in _ONCE:
            why = _WHY_WHOLE.get(p.kind, "gradients need the whole model at once")
            raise ConfigError(
                Setting("stream", True, of="RunOptions"),
                f" cannot measure {p.what or p.kind} ({p.kind}): {why}. Choose other metrics, or models that fit.",
            )
    results: dict[Pass, Any] = {}
    with streamed_model(source, config, run) as streamed:
        model = streamed.model
        check(model)
        layout = row_layout(model)
        pad = model.tokenizer.pad_token_id if model.tokenizer is not None else None
        sets: dict[Pass, list[tuple[list[int], TokenBatch]]] = {}
        for p, (_, rows) in answers.items():
            fitting = fitting_rows(model, rows)
            costs = ModelCosts.of(model.hf.config, model.device)
            planned = costs.forward_batches([rows[i] for i in fitting], token_budget=run.token_budget)
            chosen = layout.split([[fitting[i] for i in part] for part in planned], [len(row.ids) for row in rows])
            sets[p] = [
                (part, make_batch(rows, indices=part, pad_token_id=pad, padding_side=layout.padding_side))
                for part in chosen
            ]
        own = next((p for p in wanted if p.kind == "states"), None)
        entities = plan.batches_for(model) if own is not None and plan is not None else []
        entity_batches = [plan.batch_of(rows, layout.padding_side) for rows in entities] if plan is not None else []
        batches = [batch for parts in sets.values() for _, batch in parts]
        if wanted:  # the logit lens alone embeds no token, and takes the final norm, with a tied head
            streamed.embed(tokens_in([*batches, *entity_batches]))
        whole = {p: [(part, StreamedRows(model, batch)) for part, batch in parts] for p, parts in sets.items()}
        at_entities = [StreamedBatch(model, batch, packed=plan.packed) for batch in entity_batches] if plan else []
        riders: list[StreamedBatch | StreamedRows] = [
            *(rows for parts in whole.values() for _, rows in parts),
            *at_entities,
        ]
        if riders:
            run_streamed(streamed, riders, desc=f"read {os.path.basename(os.fspath(source))}", show=run.progress)
        store = StateStore(budget=int(run.memory_gib * GIB))
        for rows_of, batch, rider in zip(entities, entity_batches, at_entities, strict=True):
            hidden = rider.source_states(config.last_layer).states
            assert plan is not None
            plan.require_finite(hidden.isfinite().all(-1).all(-1).all(-1), rows_of, model.name, "hidden states")
            store.put(batch, hidden)
        with streamed.head():
            for p, parts in whole.items():
                texts, rows = answers[p]
                read = ((part, w.normed()[w.batch.scored_mask]) for part, w in parts)
                results[p] = scores_of(model, rows, read, names=[text.question for text in texts])
            own_states = SourceStates(ModelRecord.of(_hashed(streamed)), store, config.site, config.last_layer)
            if own is not None:
                results[own] = own_states
            for p in wanted:
                if p.kind == "lens":
                    assert plan is not None
                    known = own_states if states[p] is None else states[p].value
                    results[p] = lens_of(known, model, plan)
        return results, own_states.record, str(model.device), layout.described()


def _hashed(streamed: Any) -> HookedModel:
    """Return the model of a reading, with the fingerprint of what was read."""
    streamed.fingerprint()
    model: HookedModel = streamed.model
    return model


def lens_of(source: SourceStates, model: HookedModel, plan: Plan) -> torch.Tensor:
    """Return a source's log-probabilities `[example, layer]` through a model's final norm and head."""
    values = torch.full((len(plan.encoded.rows), model.n_layers), torch.nan, dtype=torch.float64)
    for number in range(len(plan.batches)):
        batch = plan.batch(number)
        states = source.cache(batch).states.to(model.device, model.dtype)
        batch = batch.to(model.device)
        values[list(batch.rows)] = lens_logprobs(model.anatomy, states, batch.targets, batch.scored_mask).cpu()
    return values
