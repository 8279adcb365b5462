"""How an audit shows itself in a notebook: a small table, readable in light and dark themes."""

from __future__ import annotations

import math
from html import escape
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from uds_lens.results.audit_scores import AuditScores


def audit_card(audit: AuditScores) -> str:
    """HTML of an audit's headline, counts and warnings; every text from outside is escaped."""
    low, high = audit.uds_interval
    interval = f"{audit.config.confidence * 100:g} % interval {number(low)} to {number(high)}, {audit.interval_basis}"
    rows = [
        ("UDS", f"<b>{number(audit.uds)}</b> ({interval})"),
        ("reading", escape(audit.reading)),
        *_beside(audit),
        ("unlearned", escape(audit.models["unlearned"].name)),
        *_sampled(audit),
        ("measured", f"{audit.n_measured} of {len(audit.examples) + len(audit.skipped)} examples"),
        ("not measurable", f"{audit.n_not_measurable} (no layer holds the knowledge)"),
        ("skipped", str(len(audit.skipped))),
        ("layers", str(audit.n_layers)),
    ]
    cell = "padding:2px 12px 2px 0;text-align:left;vertical-align:top"
    body = "".join(
        f'<tr><th style="{cell}">{name}</th><td style="{cell}">{value}</td></tr>' for name, value in rows
    )
    warnings = "".join(
        f"<li>{'<b>Fatal:</b> ' if level == 'fatal' else ''}{escape(text)}</li>"
        for level, text in audit.cautions
    )
    notes = f'<ul style="margin:4px 0 0 0">{warnings}</ul>' if warnings else ""
    return f'<div><table style="border-collapse:collapse">{body}</table>{notes}</div>'


def _sampled(audit: AuditScores) -> list[tuple[str, str]]:
    found = audit.sample_error
    return [] if found is None else [("if all asked", f"UDS {found.words} examples (error of the sample)")]


def _beside(audit: AuditScores) -> list[tuple[str, str]]:
    """What only some audits have: the score against single retain models, and damage."""
    rows = []
    if audit.retains:
        low, high, deviation = audit.retain_spread
        told = f"{number(low)} to {number(high)} over {len(audit.retains)} retain models"
        rows.append(("against each", f"{told} (standard deviation {number(deviation)})"))
    if audit.control is not None:
        found = audit.damage_estimate
        low, high = found.interval
        told = (
            f"{found.value:.3f} ({number(low)} to {number(high)})" if found.reason is None else found.reason
        )
        rows.append(("damage", f"{escape(told)}, from {int(audit.control.known.sum())} retained facts"))
    return rows


def number(value: float, *, digits: int = 3) -> str:
    """A score as text; NaN in words.

    >>> number(0.12345), number(float("nan"))
    ('0.123', 'not measurable')
    """
    return "not measurable" if math.isnan(value) else f"{value:.{digits}f}"
