"""How audits are measured: stage 1, stage 2 of models against a baseline, or both at once with one pass over `full`."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import PurePath
from typing import Any

import torch
from torch import Tensor

from uds_lens._progress import about, tell
from uds_lens._settings import as_settings
from uds_lens.audit._baseline import Baseline
from uds_lens.audit._inputs import AskedFacts, Plan, asked_facts, make_plan, retain_roles
from uds_lens.audit._memory import require_memory
from uds_lens.audit._runner import (
    PatchScores,
    SourceStates,
    Target,
    TargetScores,
    read_source,
    score_sources,
)
from uds_lens.data import Encoded, ExamplesLike
from uds_lens.errors import ModelError, warn_once
from uds_lens.models import (
    CheckpointInfo,
    ModelSource,
    RetainSource,
    check_compatible,
    read_checkpoint_info,
)
from uds_lens.results._depth_audit import DepthAudit
from uds_lens.results._records import ModelRecord, provenance
from uds_lens.results._settings import AuditConfig, RunOptions
from uds_lens.results._stage_1 import ControlFacts, RetainStage1

# From what the passes gave to results: a baseline, and a baseline joined with stage 2 of a model.


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


def audit_from_scratch(
    full: ModelSource,
    retain: RetainSource,
    unlearned: ModelSource,
    examples: ExamplesLike,
    *,
    control: ExamplesLike | None = None,
    config: AuditConfig | None = None,
    options: RunOptions | None = None,
) -> DepthAudit:
    """Both stages with one pass over `full`: retain is read, unlearned is read, then both are patched in."""
    config, options = (
        as_settings(AuditConfig, config, name="config"),
        as_settings(RunOptions, options, name="options"),
    )
    roles = {**retain_roles(retain), "unlearned": unlearned}
    asked = asked_facts(examples, control, config)
    plan = _plan({"full": full, **roles}, asked, config, options)
    *retains, last = _read(full, roles, plan, config, options)
    known = last.record.fingerprint in {source.record.fingerprint for source in retains}
    baseline, scores = _stage_1(full, retains, [] if known else [last], plan, config, options, asked)
    return joined(baseline, last.record, None if known else scores[0], plan, baseline.provenance)


def measure_baseline(
    full: ModelSource,
    retain: RetainSource,
    examples: ExamplesLike,
    *,
    control: ExamplesLike | None = None,
    config: AuditConfig | None = None,
    options: RunOptions | None = None,
) -> Baseline:
    """Stage 1 alone."""
    config, options = (
        as_settings(AuditConfig, config, name="config"),
        as_settings(RunOptions, options, name="options"),
    )
    roles, asked = retain_roles(retain), asked_facts(examples, control, config)
    plan = _plan({"full": full, **roles}, asked, config, options)
    retains = _read(full, roles, plan, config, options)
    return _stage_1(full, retains, [], plan, config, options, asked)[0]


def audit_models(
    baseline: Baseline, models: Sequence[ModelSource], *, options: RunOptions | None = None
) -> list[DepthAudit]:
    """Stage 2 of several models: all are read, then patched into one recording of `full`."""
    config, options, full = (
        baseline.config,
        stage_2_options(baseline, options),
        full_of(baseline),
    )
    names = ["unlearned"] if len(models) == 1 else [f"unlearned {i}" for i in range(1, len(models) + 1)]
    roles = dict(zip(names, models, strict=True))
    plan = stage_2_plan(baseline, roles, options)
    sources = _read(full, roles, plan, config, options)
    with Target(full, plan, config=config, options=options) as target:
        return stage_2(baseline, sources, target)


def _plan(
    models: Mapping[str, ModelSource], asked: AskedFacts, config: AuditConfig, options: RunOptions
) -> Plan:
    return make_plan(
        models, asked.forget.examples, control=asked.control_examples, config=config, options=options
    )


def _read(
    full: ModelSource,
    roles: Mapping[str, ModelSource],
    plan: Plan,
    config: AuditConfig,
    options: RunOptions,
) -> list[SourceStates]:
    """The states of all sources, if there is memory for them; where fast reading fails on one, all are read again."""
    require_memory(full, plan, n_sources=len(roles), config=config, options=options)
    while True:
        n_fallen = len(plan.fallen)
        found = _read_each(roles, plan, config, options)
        if len(plan.fallen) == n_fallen or len(found) == 1:
            return found


def _read_each(
    roles: Mapping[str, ModelSource], plan: Plan, config: AuditConfig, options: RunOptions
) -> list[SourceStates]:
    found = []
    for number, (role, model) in enumerate(roles.items(), start=1):
        called = _called(model) if role == f"unlearned {number}" else ""
        with about(f"{called} ({number} of {len(roles)})") if called else nullcontext():
            word = "unlearned" if called else role
            found.append(
                read_source(model, plan, role=word, config=config, options=options, share=len(roles))
            )
    return found


def _called(model: ModelSource) -> str:
    """The last part of a model's path or Hub id; nothing for a live one."""
    return PurePath(model).name if isinstance(model, str | os.PathLike) else ""


def full_of(baseline: Baseline) -> ModelSource:
    """Where `full` is opened."""
    return baseline.full if baseline.full is not None else baseline.models["full"].name


def stage_2_options(baseline: Baseline, options: RunOptions | None) -> RunOptions:
    """Return how stage 2 is run: by the engine of stage 1 where that was the reference, unless one is named."""
    options = as_settings(RunOptions, options, name="options")
    if options.engine == "auto" and baseline.provenance.get("engine") == "naive":
        tell("stage 2 is measured by the naive engine, as stage 1 was")
        return replace(options, engine="naive")
    return options


def stage_2_plan(baseline: Baseline, models: Mapping[str, ModelSource], options: RunOptions) -> Plan:
    """Tokens and batches again, checked against those stage 1 was measured on."""
    full = full_of(baseline)
    where = {"offline": options.offline, "trust_remote_code": options.trust_remote_code}
    try:
        read_checkpoint_info(full, revision=options.revision, **where)
    except ModelError as error:
        if baseline.full is not None:
            raise
        raise ModelError(
            f"the `full` this baseline was measured with, {baseline.models['full'].name!r}, cannot be opened from "
            f"here: {error} Say where it is: baseline.with_full(directory)."
        ) from error
    control = None if baseline.control is None else baseline.control.examples
    plan = make_plan(
        {"full": full, **models}, baseline.examples, control=control, config=baseline.config, options=options
    )
    hashes = plan.encoded.ids_hash, None if plan.control is None else plan.control.ids_hash
    known = None if baseline.control is None else baseline.control.ids_hash
    if hashes != (baseline.provenance.get("ids_hash"), known):
        raise ModelError(
            "the tokenizer of `full` no longer gives the tokens this baseline was measured on: measure it again."
        )
    return plan


def stage_2(baseline: Baseline, sources: Sequence[SourceStates], target: Target) -> list[DepthAudit]:
    """Stage 2 of sources that were read, in a target that must be the `full` of stage 1."""
    if (now := target.fingerprint) != baseline.models["full"].fingerprint:
        raise ModelError(
            f"{target.record.name!r} is not the `full` this baseline was measured with (weights "
            f"{now}, expected {baseline.models['full'].fingerprint}). Measure the baseline "
            "again, or set its `full`."
        )
    retains = {record.fingerprint for role, record in baseline.roles.items() if role != "full"}
    own = [s for s in sources if s.record.fingerprint not in retains]
    scores = target.score(own).sources if own else []
    by_source = dict(zip(map(id, own), scores, strict=True))
    told = {
        **provenance(
            engine=target.engine,
            device=str(target.model.device),
            rows=target.rows,
            rendered_prompt=baseline.provenance.get("first_prompt"),
            ids_hash=baseline.provenance["ids_hash"],
        ),
        "sample": baseline.provenance.get("sample"),
        "stage_1": dict(baseline.provenance),
    }
    return [joined(baseline, s.record, by_source.get(id(s)), target.plan, told) for s in sources]


def _stage_1(
    full: ModelSource,
    retains: list[SourceStates],
    others: list[SourceStates],
    plan: Plan,
    config: AuditConfig,
    options: RunOptions,
    asked: AskedFacts,
) -> tuple[Baseline, list[PatchScores]]:
    """Patch the retain models and the others into `full`: the baseline, and the scores of each of the others."""
    scores = score_sources(full, [*retains, *others], plan, config=config, options=options)
    records = [source.record for source in retains]
    baseline = baseline_of(scores, records, plan, asked, config=config, full=full)
    return baseline, scores.sources[len(retains) :]


# Stage 1 with `full` kept open and recorded: each further unlearned model costs one pass and its variants.


@dataclass(frozen=True, eq=False)
class RecordedBaseline:
    """A baseline whose `full` is open and recorded; made by `Baseline.recorded`."""

    baseline: Baseline
    """Stage 1."""

    plan: Plan
    """Rows and batches."""

    target: Target
    """`full`, open."""

    options: RunOptions
    """How it is run."""

    def audit(self, unlearned: ModelSource) -> DepthAudit:
        """Stage 2 of one model: one pass over it, and its patched variants.

        Raises:
            IncompatibleModelsError: The model does not fit `full`.
            ModelError: The model cannot be opened, or gives NaN.
        """
        where = {"offline": self.options.offline, "trust_remote_code": self.options.trust_remote_code}
        info = read_checkpoint_info(unlearned, revision=self.options.revision, **where)
        check_compatible({"full": self._full, "unlearned": info})
        source = read_source(
            unlearned, self.plan, role="unlearned", config=self.baseline.config, options=self.options
        )
        return stage_2(self.baseline, [source], self.target)[0]

    @cached_property
    def _full(self) -> CheckpointInfo:
        return read_checkpoint_info(self.target.model)


@contextmanager
def recorded(baseline: Baseline, *, options: RunOptions | None = None) -> Iterator[RecordedBaseline]:
    """Open and record `full`; see `Baseline.recorded`."""
    config, options, full = (
        baseline.config,
        stage_2_options(baseline, options),
        full_of(baseline),
    )
    plan = stage_2_plan(baseline, {}, options)
    require_memory(full, plan, n_sources=1, config=config, options=options, keep=True)
    with Target(full, plan, config=config, options=options, keep=True) as target:
        yield RecordedBaseline(baseline, plan, target, options)
