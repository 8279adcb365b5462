"""From what the passes gave to results: a baseline, and a baseline joined with stage 2 of a model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from uds_lens.audit.asked_facts import AskedFacts
from uds_lens.audit.baseline import Baseline
from uds_lens.audit.plan import Plan
from uds_lens.audit.target import PatchScores, TargetScores
from uds_lens.data import Encoded
from uds_lens.errors import warn_once
from uds_lens.models import ModelSource
from uds_lens.results.control_facts import ControlFacts
from uds_lens.results.depth_audit import DepthAudit
from uds_lens.results.records import ModelRecord, provenance
from uds_lens.results.retain_models import RetainStage1
from uds_lens.results.settings import AuditConfig


def baseline_of(
    scores: TargetScores,
    retains: Sequence[ModelRecord],
    plan: Plan,
    asked: AskedFacts,
    *,
    config: AuditConfig,
    full: ModelSource,
) -> Baseline:
    """Stage 1 as a record.

    Args:
        scores: The pass over `full`; the retain models are its first sources.
        retains: Their records.
        plan: What was run.
        asked: What was asked for.
        config: What is measured.
        full: Where `full` is opened again.
    """
    n, rows = len(plan.encoded.rows), plan.encoded.rows
    each = tuple(
        RetainStage1(
            model=record,
            s1_delta=found.delta[:n],
            s1_norm_ratio=found.norm_ratio[:n],
            s1_cosine=found.cosine[:n],
            control_s1_delta=None if plan.control is None else found.delta[n:],
        )
        for record, found in zip(retains, scores.sources, strict=False)
    )
    told = provenance(
        engine=scores.engine,
        device=scores.device,
        rows=scores.rows,
        rendered_prompt=rows[0].rendered.prompt if rows else None,
        ids_hash=plan.encoded.ids_hash,
    )
    return Baseline(
        config=config,
        models={"full": scores.record, "retain": retains[0]},
        examples=tuple(row.example for row in rows),
        skipped=tuple(plan.encoded.skipped),
        provenance={**told, "sample": asked.forget.sample},
        n_tokens=_n_tokens(plan.encoded),
        s_full=scores.s_full[:n],
        s1_delta=_mean([retain.s1_delta for retain in each]),
        s1_norm_ratio=_mean([retain.s1_norm_ratio for retain in each]),
        s1_cosine=_mean([retain.s1_cosine for retain in each]),
        retains=each if len(each) > 1 else (),
        control=_control(scores, each, plan, asked),
        full=full,
    )


def _control(
    scores: TargetScores, retains: Sequence[RetainStage1], plan: Plan, asked: AskedFacts
) -> ControlFacts | None:
    if plan.control is None:
        return None
    n = len(plan.encoded.rows)
    return ControlFacts(
        examples=tuple(row.example for row in plan.control.rows),
        skipped=tuple(plan.control.skipped),
        ids_hash=plan.control.ids_hash,
        sample=None if asked.control is None else asked.control.sample,
        n_tokens=_n_tokens(plan.control),
        s_full=scores.s_full[n:],
        s1_delta=_mean([r.control_s1_delta for r in retains if r.control_s1_delta is not None]),
    )


def _n_tokens(encoded: Encoded) -> Tensor:
    return torch.tensor([len(row.targets) for row in encoded.rows], dtype=torch.long)


def _mean(parts: Sequence[Tensor]) -> Tensor:
    """The mean of several tensors; a single one as it is, bit for bit."""
    return parts[0] if len(parts) == 1 else torch.stack(list(parts)).mean(0)


def joined(
    baseline: Baseline,
    unlearned: ModelRecord,
    scores: PatchScores | None,
    plan: Plan,
    told: Mapping[str, Any],
) -> DepthAudit:
    """Join the stages; `scores` None means the model is a retain model itself, whose stage 2 is its stage 1."""
    delta, ratio, cosine, control = (
        _of_retain(baseline, unlearned) if scores is None else _split(scores, plan)
    )
    audit = DepthAudit(
        config=baseline.config,
        models={**baseline.models, "unlearned": unlearned},
        examples=baseline.examples,
        skipped=baseline.skipped,
        provenance=told,
        n_tokens=baseline.n_tokens,
        s_full=baseline.s_full,
        s1_delta=baseline.s1_delta,
        s2_delta=delta,
        s1_norm_ratio=baseline.s1_norm_ratio,
        s1_cosine=baseline.s1_cosine,
        s2_norm_ratio=ratio,
        s2_cosine=cosine,
        retains=baseline.retains,
        control=baseline.control,
        control_s2_delta=control,
    )
    _warn_of_nothing(audit, baseline)
    return audit


_Stage2 = tuple[Tensor, Tensor, Tensor, Tensor | None]
"""Delta, norm ratio and cosine on the forget set; delta on the control facts."""


def _split(scores: PatchScores, plan: Plan) -> _Stage2:
    n = len(plan.encoded.rows)
    control = None if plan.control is None else scores.delta[n:]
    return scores.delta[:n], scores.norm_ratio[:n], scores.cosine[:n], control


def _of_retain(baseline: Baseline, record: ModelRecord) -> _Stage2:
    for retain in baseline.retains:
        if retain.model.fingerprint == record.fingerprint:
            return retain.s1_delta, retain.s1_norm_ratio, retain.s1_cosine, retain.control_s1_delta
    control = None if baseline.control is None else baseline.control.s1_delta
    return baseline.s1_delta, baseline.s1_norm_ratio, baseline.s1_cosine, control


def _warn_of_nothing(audit: DepthAudit, baseline: Baseline) -> None:
    """Say that nothing was measured: once for each baseline and tau, since the reason lies there."""
    about = f"{baseline.key} {audit.config.tau}"
    pair = f"full={audit.models['full'].name!r}, retain={audit.models['retain'].name!r}"
    if not audit.examples:
        warn_once(
            f"UDS is NaN: none of the {len(audit.skipped)} rows could be scored, so that nothing was measured. "
            f"`skipped` names the reasons; the first: {audit.skipped[0].reason} ({pair})",
            key=f"no row {about} {[(row.id, row.question, row.reason) for row in audit.skipped]}",
        )
    elif audit.n_measured == 0:
        warn_once(
            "UDS is NaN: no example has a layer where patching retain's state costs more than tau "
            f"({audit.config.tau:g} nats per token). Does `full` know the forget set, and `retain` not? ({pair})",
            key=f"no layer {about}",
        )
