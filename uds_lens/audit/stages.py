"""How audits are measured: stage 1, stage 2 of models against a baseline, or both at once with one pass over `full`."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import PurePath

from uds_lens.audit.asked_facts import AskedFacts, asked_facts, retain_roles
from uds_lens.audit.baseline import Baseline
from uds_lens.audit.memory import require_memory
from uds_lens.audit.plan import Plan, make_plan
from uds_lens.audit.source_states import SourceStates, read_source
from uds_lens.audit.stage_results import baseline_of, joined
from uds_lens.audit.target import PatchScores, Target, score_sources
from uds_lens.checked_settings import as_settings
from uds_lens.data import ExamplesLike
from uds_lens.errors import ModelError
from uds_lens.models import ModelSource, RetainSource, read_checkpoint_info
from uds_lens.progress import about, tell
from uds_lens.results.depth_audit import DepthAudit
from uds_lens.results.records import provenance
from uds_lens.results.settings import AuditConfig, RunOptions


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
