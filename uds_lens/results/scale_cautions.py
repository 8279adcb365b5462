"""Warnings about what 0 and 1 mean: stand-ins for retain, several retain models, and facts that were to be kept."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from uds_lens.results.caution_levels import Caution, caution, note
from uds_lens.results.control_facts import LEAST_KNOWN, of_rows
from uds_lens.results.damage import mean_loss
from uds_lens.results.intervals import FEW_CLUSTERS, interval_basis

if TYPE_CHECKING:
    from uds_lens.results.audit_scores import AuditScores

HARDLY_KNOWN = 0.1
"""Probability per token (geometric mean) that `full` gives the entities, below which it hardly knows them."""

DAMAGED = 0.5
"""Loss on retained facts, as a share of that on forget facts, above which most of the loss is not about the forget
set."""

UNKNOWN_TO_RETAIN = 0.5
"""What retain's states cost on control facts, as a share of what they cost on forget facts, above which retain does not
know the control facts either."""

RETAINS_APART = 0.1
"""Difference of the scores against several retain models that is worth a warning."""


def scale_cautions(audit: AuditScores) -> list[Caution]:
    """All of them that there is reason for."""
    found = (
        _stand_in(audit),
        _damage(audit),
        _control(audit),
        _control_sample(audit),
        _control_skipped(audit),
        _several_retains(audit),
    )
    return [each for each in found if each is not None]


def _stand_in(audit: AuditScores) -> Caution | None:
    if audit.config.stand_in is None:
        return None
    name = audit.models["retain"].name
    return caution(
        f"No retain model: {name!r}, the model before fine-tuning, stands in for it. 1 means as in that model, which "
        "never learnt what was to be kept either. Such scores compare with each other, not with scores against a "
        "retain model."
    )


def _damage(audit: AuditScores) -> Caution | None:
    found = audit.damage_estimate
    if math.isnan(found.value) or found.value <= DAMAGED:
        return None
    return caution(
        f"Mostly damage: on facts that were to be kept the unlearned states cost {found.control_loss:.2f} nats per "
        f"token, {found.value:.0%} of the {found.forget_loss:.2f} that they cost on the forget facts (retain's states: "
        f"{found.retain_loss:.2f}). What the score counts as erased is largely not about the forget set."
    )


def _control(audit: AuditScores) -> Caution | None:
    """Control facts that `full` or `retain` does not know say nothing about damage."""
    control = audit.control
    if control is None:
        return None
    if not len(control.examples):
        return caution(
            f"No control fact could be scored ({len(control.skipped)} were skipped): damage is NaN."
        )
    known, n = int(control.known.sum()), len(control.examples)
    if known < n / 2:
        return caution(
            f"full hardly knows the control facts: it gives {n - known} of {n} entities less than {LEAST_KNOWN:g} per "
            "token, and these do not count. Damage needs facts that full and retain both know."
        )
    here, there = mean_loss(control.s1_delta[control.known]), mean_loss(audit.s1_delta)
    if here > UNKNOWN_TO_RETAIN * there:
        return caution(
            f"retain hardly knows the control facts: its states cost {here:.2f} nats per token there, and {there:.2f} "
            "on the forget facts. Damage needs facts that full and retain both know."
        )
    basis = interval_basis(control.s_full[control.known], of_rows(control.subjects, control.known))
    if (basis.by == "subject" and basis.n < FEW_CLUSTERS) or known == 1:
        return caution(
            f"The control facts that count are {known}, about {basis.n} "
            f"{'subject' if basis.n == 1 else 'subjects'} only: the interval of damage "
            f"{'is missing' if basis.n == 1 else 'is rough'}."
        )
    return None


def _control_sample(audit: AuditScores) -> Caution | None:
    """Which of the control facts were measured."""
    told = audit.control.sample if audit.control is not None else None
    if told is None:
        return None
    part = f"{told['limit']} of {told['of']} control facts"
    if told["sample"] == "random":
        return note(f"A random sample of the control was measured: {part} (seed {told['seed']}).")
    if told.get("sorted_by", "unknown") is None:
        return caution(f"Only the first {part} were measured; a random sample is safer.")
    return caution(
        f"Only the first {part} were measured, of data that are sorted or may be: damage may not hold for the rest."
    )


def _control_skipped(audit: AuditScores) -> Caution | None:
    control = audit.control
    if control is None or not control.skipped or not len(control.examples):
        return None
    n = len(control.skipped)
    first = control.skipped[0].reason.rstrip(".")
    return note(f"{n} control fact{'' if n == 1 else 's'} could not be scored ({first}).")


def _several_retains(audit: AuditScores) -> Caution | None:
    if not audit.retains:
        return None
    low, high, _ = audit.retain_spread
    said = f"Measured against {len(audit.retains)} retain models"
    if math.isnan(low):
        return note(f"{said}; against one of them at least, nothing is measurable.")
    told = f"{said}: against single ones the score runs from {low:.3f} to {high:.3f}."
    return caution(told) if high - low > RETAINS_APART else note(told)
