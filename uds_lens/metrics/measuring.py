"""What each kind of pass does with an open model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from uds_lens.audit.source_states import SourceStates, read_source
from uds_lens.audit.target import PatchScores, TargetScores, score_sources
from uds_lens.generation import KnownBeginning, generate_answers, known_beginning
from uds_lens.metrics.answer_scores import AnswerScores, score_answers
from uds_lens.metrics.declaration import Pass
from uds_lens.metrics.dequantise import dequantised
from uds_lens.metrics.fisher_diagonals import SpilledFisher, spill_fisher
from uds_lens.metrics.lens_readout import lens_logprobs
from uds_lens.metrics.masked_weights import FisherMasks, fisher_masks, masked_fisher
from uds_lens.metrics.session import Session
from uds_lens.models import HookedModel
from uds_lens.results import RunOptions


def measure(session: Session, wanted: Sequence[Pass], model: HookedModel) -> list[Any]:
    """Run passes of one kind: several together where that saves work, else one."""
    with model.running():
        if wanted[0].kind == "answers":
            return _answers(session, wanted, model)
        if wanted[0].kind == "patched":
            return _patched(session, wanted, model)
        run = {
            "generations": _generations,
            "states": _states,
            "lens": _lens,
            "fisher_spill": _fisher_spill,
            "fisher_masks": _fisher_masks,
            "fisher_sums": _fisher_sums,
        }[wanted[0].kind]
        return [run(session, each, model) for each in wanted]


def _answers(session: Session, wanted: Sequence[Pass], model: HookedModel) -> list[AnswerScores]:
    """Sets that ask the same questions run together, so that each question runs once."""
    sets = [session.answer_rows(each.what) for each in wanted]
    scores = score_answers(
        model,
        [row for _, rows in sets for row in rows],
        names=[text.question for texts, _ in sets for text in texts],
        token_budget=session.run.token_budget,
        desc=f"{wanted[0].role}: {', '.join(each.what for each in wanted)}",
        show=session.run.progress,
    )
    ends = list(accumulate(len(rows) for _, rows in sets))
    return [scores.rows(stop - len(rows), stop) for stop, (_, rows) in zip(ends, sets, strict=True)]


def _generations(session: Session, wanted: Pass, model: HookedModel) -> tuple[str, ...]:
    options = session.options
    return tuple(
        generate_answers(
            model,
            [example.question for example in session.data.examples(wanted.what)],
            protocol=session.protocol,
            chat=options.chat,
            start=options.jailbreak_prefix if wanted.start else "",
            max_new_tokens=options.max_new_tokens,
            rows_at_once=options.generation_rows,
            known=_known_beginnings(session, wanted),
            desc=f"{wanted.role}: answer {wanted.what}",
            show=session.run.progress,
        )
    )


def _known_beginnings(session: Session, wanted: Pass) -> list[KnownBeginning | None] | None:
    """Where the references were scored before: how far the model repeats them, it need not generate."""
    scored = session.results.get(Pass(wanted.role, "answers", wanted.what))
    if wanted.start or scored is None:
        return None
    _, rows = session.answer_rows(wanted.what)
    choices = scored.value.first_choices
    return [known_beginning(row, own.tolist()) for row, own in zip(rows, choices, strict=True)]


def _states(session: Session, wanted: Pass, model: HookedModel) -> SourceStates:
    return read_source(
        model.lent(), session.plan, role=wanted.role, config=session.config, options=session.run
    )


def _patched(session: Session, wanted: Sequence[Pass], model: HookedModel) -> list[PatchScores]:
    """All sources at once, since the model's own pass is the same for each of them; one engine for all."""
    others = [
        each for role in ("retain", "model") if (each := Pass("full", "patched", role)) in session.results
    ]
    run = session.run
    if run.engine == "auto" and any(session.results[each].value.engine == "naive" for each in others):
        run = replace(run, engine="naive")
    scores = _scored(session, wanted, model, run)
    for each in others:  # measured for an earlier model by the fast engine, which has failed since
        if session.results[each].value.engine != scores.engine:
            again = _scored(session, [each], model, replace(run, engine=scores.engine))
            session.correct(each, again.sources[0])
    return scores.sources


def _scored(session: Session, wanted: Sequence[Pass], model: HookedModel, run: RunOptions) -> TargetScores:
    sources = [session.results[Pass(each.what, "states")].value for each in wanted]  # type: ignore[arg-type]
    return score_sources(model.lent(), sources, session.plan, config=session.config, options=run)


def _lens(session: Session, wanted: Pass, model: HookedModel) -> Float[Tensor, "example layer"]:
    source: SourceStates = session.results[Pass(wanted.what, "states")].value  # type: ignore[arg-type]
    plan = session.plan
    found = torch.full((len(plan.encoded.rows), model.n_layers), torch.nan, dtype=torch.float64)
    for number in range(len(plan.batches)):
        batch = plan.batch(number)
        states = source.cache(batch).states.to(model.device, model.dtype)
        batch = batch.to(model.device)
        found[list(batch.rows)] = lens_logprobs(model.anatomy, states, batch.targets, batch.scored_mask).cpu()
    return found


def _fisher_spill(session: Session, wanted: Pass, model: HookedModel) -> SpilledFisher:
    return spill_fisher(
        dequantised(model),
        session.plan.encoded.rows,
        memory_gb=session.options.fisher_memory_gb,
        show=session.run.progress,
    )


def _fisher_masks(session: Session, wanted: Pass, model: HookedModel) -> FisherMasks:
    return fisher_masks(
        dequantised(model),
        session.results[Pass("retain", "fisher_spill")].value,
        session.plan.encoded.rows,
        memory_gb=session.options.fisher_memory_gb,
        show=session.run.progress,
    )


def _fisher_sums(session: Session, wanted: Pass, model: HookedModel) -> list[Float[Tensor, "_"]]:
    return masked_fisher(
        dequantised(model),
        session.plan.encoded.rows,
        session.results[Pass("full", "fisher_masks")].value,
        memory_gb=session.options.fisher_memory_gb,
        show=session.run.progress,
    )
