"""Whether models and a forget set would do for an audit, found out without opening any weights."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from uds_lens.checked_arguments import arguments_checked
from uds_lens.doctor.finding import Finding
from uds_lens.errors import UdsLensError
from uds_lens.results import AuditConfig, RunOptions

if TYPE_CHECKING:
    from uds_lens.data import ForgetExample
    from uds_lens.models import CheckpointInfo

_LONGEST = 200


@arguments_checked
def examine_inputs(
    models: Mapping[str, str],
    examples: str | None = None,
    *,
    config: AuditConfig | None = None,
    options: RunOptions | None = None,
) -> list[Finding]:
    """Look at models and a forget set as an audit would, up to the point where weights are opened.

    Args:
        models: Directories or Hub ids by role, `full` first.
        examples: What `load_examples` reads; None looks at models only.
        config: What would be measured; default `AuditConfig()`.
        options: How it would be run; default `RunOptions()`.

    Returns:
        What was found: each model, whether they fit together, the tokenizer and its chat template, the examples and
        their entities, the memory that an audit would need.

    Example:
        >>> import uds_lens as ul
        >>> world = ul.toy.load()
        >>> [finding.verdict for finding in examine_inputs({"full": str(world.full)})]
        ['ok', 'ok', 'ok']
    """
    config, options = config or AuditConfig(), options or RunOptions()
    found: list[Finding] = []
    infos: dict[str, CheckpointInfo] = {}
    for role, model in models.items():
        found.append(_model(role, model, options, infos))
    if infos:
        found += _together(infos)
    rows: list[ForgetExample] = []
    if examples is not None:
        found.append(_data(examples, rows))
    if rows and "full" in infos:
        found += _entities(models["full"], rows, config, options)
    return found


def _model(role: str, model: str, options: RunOptions, infos: dict[str, CheckpointInfo]) -> Finding:
    from uds_lens.models import read_checkpoint_info

    try:
        infos[role] = read_checkpoint_info(
            model,
            revision=options.revision,
            offline=options.offline,
            trust_remote_code=options.trust_remote_code,
        )
    except UdsLensError as error:
        return Finding(role, "problem", _short(error))
    shape = infos[role].shape
    told = f"{shape['architecture']}, {shape['depth (layers)']} layers, width {shape['width (d_model)']}"
    return Finding(role, "ok", f"{model}: {told}")


def _together(infos: Mapping[str, CheckpointInfo]) -> Iterator[Finding]:
    from uds_lens.models import check_compatible

    try:
        tokenizer = check_compatible(infos)
    except UdsLensError as error:
        yield Finding("together", "problem", _short(error), "name models of one family with one tokenizer")
        return
    if len(infos) > 1:
        yield Finding("together", "ok", f"{', '.join(infos)} fit together")
    yield Finding("tokenizer", "ok", f"{type(tokenizer).__name__}, {len(tokenizer)} tokens")
    if getattr(tokenizer, "chat_template", None):
        yield Finding("chat template", "ok", "there: --protocol chat works")
    else:
        yield Finding("chat template", "note", "none: --protocol chat will not work, --protocol raw does")


def _data(examples: str, rows: list[ForgetExample]) -> Finding:
    from uds_lens.data import load_examples

    try:
        rows += load_examples(examples)
    except UdsLensError as error:
        return Finding("examples", "problem", _short(error))
    return Finding("examples", "ok", f"{examples}: {len(rows)} rows")


def _entities(
    full: str, rows: list[ForgetExample], config: AuditConfig, options: RunOptions
) -> Iterator[Finding]:
    from uds_lens.audit.memory import memory_of_audit
    from uds_lens.audit.plan import make_plan

    try:
        plan = make_plan({"full": full}, rows, config=config, options=options)
    except UdsLensError as error:
        yield Finding("entities", "problem", _short(error))
        return
    usable, skipped = len(plan.encoded.rows), plan.encoded.skipped
    reasons = Counter(row.reason for row in skipped).most_common(3)
    told = f"found in {usable} of {len(rows)} answers"
    if not usable:
        fix = "give each row an `entity` that occurs in its `answer` (docs: Audit your checkpoints)"
        yield Finding("entities", "problem", f"{told}; {reasons[0][0]}", fix)
        return
    left = "; ".join(f"{reason} ({count})" for reason, count in reasons)
    yield Finding("entities", "note" if skipped else "ok", f"{told}{f'; skipped: {left}' if left else ''}")
    estimate = memory_of_audit(full, plan, n_sources=2, config=config, options=options)
    if estimate is None:
        yield Finding("audit", "note", "its memory is not estimated")
    elif estimate.total > estimate.available:
        fix = "--dtype bfloat16, a lower --token-budget, --device-map auto, or another device"
        yield Finding("audit", "problem", str(estimate), fix)
    else:
        yield Finding("audit", "ok", str(estimate))


def _short(error: UdsLensError) -> str:
    text = " ".join(str(error).split())
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]} ..."
