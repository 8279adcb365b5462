"""Notebook cards of audits and baselines: small HTML tables, readable in light and dark themes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from uds_lens.results._cautions import Caution
    from uds_lens.results._depth_audit import DepthAudit
    from uds_lens.results._stage_1 import Stage1


def number(value: float, *, digits: int = 3) -> str:
    """Format a score, with NaN in words.

    >>> number(0.12345), number(float("nan"))
    ('0.123', 'not measurable')
    """
    return "not measurable" if math.isnan(value) else f"{value:.{digits}f}"


def stage_1_card(stage: Stage1) -> str:
    """Return a card of stage 1: models, examples, and the number of layers where `full` encodes the knowledge."""
    n, measurable = len(stage.examples), int(stage.ke_mask.any(-1).sum())
    layers = f"{float(stage.ke_mask.sum(-1).double().mean()):.1f} of {stage.n_layers}" if n else "none"
    retains = [retain.model.name for retain in stage.retains] or [stage.models["retain"].name]
    roles, control = stage.config.roles, stage.control
    rows = [
        (roles.full, escape(stage.models["full"].name)),
        (roles.retain, escape(", ".join(retains))),
        ("prompts", stage.prompts),
        ("measurable", f"{measurable} of {n + len(stage.skipped)} examples"),
        ("skipped", str(len(stage.skipped))),
        ("KE layers", f"{layers} (mean over examples, S1 &gt; {stage.config.tau:g})"),
    ]
    if control is not None:
        rows.append(("control", f"{int(control.known.sum())} retained facts"))
    return card(rows)


def audit_card(audit: DepthAudit) -> str:
    """Return a card with an audit's score, counts and warnings."""
    low, high = audit.uds_interval
    roles = audit.config.roles
    interval = f"{audit.config.confidence * 100:g}% CI {number(low)} to {number(high)}, {audit.interval_basis}"
    rows = [("UDS", f"<b>{number(audit.uds)}</b> ({interval})")]
    if not math.isnan(audit.output_depth):
        low, high = audit.output_depth_interval
        rows.append(("output depth", f"{number(audit.output_depth)} ({number(low)} to {number(high)})"))
    if audit.transplant is not None:
        found = audit.transplant
        hidden = escape(found.reason) if math.isnan(found.hidden) else number(found.hidden)
        rows += [("host depth", number(found.host_depth)), ("hidden", hidden)]
    rows.append(("verdict", f"{escape(audit.reading)}. {escape(audit.verdict.why)}"))
    if audit.retains:
        least, most, deviation = audit.retain_spread
        spread = f"{number(least)} to {number(most)} over {len(audit.retains)} {roles.retain_model}s"
        rows.append((f"UDS by {roles.retain}", f"{spread} (standard deviation {number(deviation)})"))
    if audit.control is not None:
        damage = audit.damage_estimate
        least, most = damage.interval
        text = damage.reason or f"{damage.value:.3f} ({number(least)} to {number(most)})"
        rows.append(("damage", f"{escape(text)}, from {int(audit.control.known.sum())} retained facts"))
    prob = audit.entity_prob
    if not math.isnan(prob.unlearned):
        text = f"{prob.unlearned:.3f} under the {roles.unlearned} model itself, {prob.full:.3f} under {roles.full}"
        if not math.isnan(prob.control_unlearned):
            text += f"; on retained facts {prob.control_unlearned:.3f} and {prob.control_full:.3f}"
        rows.append(("entity's probability", text))
    rows.append((roles.unlearned, escape(audit.models["unlearned"].name)))
    if audit.sample_error is not None:
        rows.append(("sampling error", f"UDS {audit.sample_error.words}"))
    rows += [
        ("prompts", audit.prompts),
        ("measured", f"{audit.n_measured} of {len(audit.examples) + len(audit.skipped)} examples"),
        ("not measurable", f"{audit.n_not_measurable} (no layer where {roles.full} encodes more than {roles.retain})"),
        ("skipped", str(len(audit.skipped))),
        ("layers", str(audit.n_layers)),
    ]
    return card(rows, audit.cautions)


def card(rows: Sequence[tuple[str, str]], cautions: Sequence[Caution] = ()) -> str:
    """Lay out rows of names and HTML, with the warnings below."""
    cell = "padding:2px 12px 2px 0;text-align:left;vertical-align:top"
    body = "".join(f'<tr><th style="{cell}">{name}</th><td style="{cell}">{value}</td></tr>' for name, value in rows)
    warnings = "".join(
        f"<li>{'<b>Fatal:</b> ' if caution.level == 'fatal' else ''}{escape(caution.text)}</li>" for caution in cautions
    )
    notes = f'<ul style="margin:4px 0 0 0">{warnings}</ul>' if warnings else ""
    return f'<div><table style="border-collapse:collapse">{body}</table>{notes}</div>'
