"""How much a warning weighs."""

from __future__ import annotations

import math
import re
from collections import Counter
from typing import TYPE_CHECKING, Literal, NamedTuple, TypeAlias

from uds_lens.results._intervals import FEW_CLUSTERS, interval_basis
from uds_lens.results._stage_1 import LEAST_KNOWN, mean_loss, of_rows

if TYPE_CHECKING:
    from uds_lens.results._depth_audit import AuditScores


Level: TypeAlias = Literal["fatal", "caution", "note"]
"""How much a warning weighs, most serious first."""

LEVELS: tuple[Level, ...] = ("fatal", "caution", "note")
"""All levels, most serious first."""


class Caution(NamedTuple):
    """One warning."""

    level: Level
    """`fatal`: the score does not mean what a score means, so that no words for it are given. `caution`: it may
    mislead. `note`: how it was measured."""
    text: str
    """The sentence."""


def fatal(text: str) -> Caution:
    """A warning that forbids a reading."""
    return Caution("fatal", text)


def caution(text: str) -> Caution:
    """A warning that the score may mislead."""
    return Caution("caution", text)


def note(text: str) -> Caution:
    """How it was measured."""
    return Caution("note", text)


# Warnings about what 0 and 1 mean: stand-ins for retain, several retain models, and facts that were to be
# kept.

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


# Warnings in words: what a careful reader must know before quoting a score, and which of them forbid a
# reading.

FEW = 30
"""Below this many measurable examples an interval over examples is wide."""

OVER_SHARE = 0.25
"""Share of over-erased KE layers worth a warning."""

COSINE = 0.5
"""Mean cosine between patched and original state below which the patch is off-distribution."""

NORM_FACTOR = 2.0
"""Mean norm ratio beyond which (either way) the patch is off-distribution."""

_TEXT = re.compile(r"'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\"")
_COUNT = re.compile(r"\b\d+(?= (?:times|tokens))")


def cautions(audit: AuditScores) -> tuple[Caution, ...]:
    """Sentences with their levels, most serious first; empty if there is nothing to say."""
    found = [
        *_weights(audit),
        _knowledge(audit),
        _sample(audit),
        _measurable(audit),
        *scale_cautions(audit),
        _few_subjects(audit),
        _skipped(audit),
        _over_erased(audit),
        _negative(audit),
        _off_distribution(audit),
        _precision(audit),
        _engines(audit),
    ]
    return tuple(sorted(filter(None, found), key=lambda each: LEVELS.index(each.level)))


def _weights(audit: AuditScores) -> list[Caution]:
    """Of the two references the same model makes all scores meaningless; an audit of a reference is a known number."""
    return [
        (fatal if a == "full" and b.startswith("retain") else note)(f"{a} and {b} have identical weights.")
        for a, b in audit.equal_weights
    ]


def _knowledge(audit: AuditScores) -> Caution | None:
    """Does `full` know what `retain` does not? If it is the other way round, they were probably swapped."""
    if not audit.examples or any(a == "full" and b.startswith("retain") for a, b in audit.equal_weights):
        return None
    probability = math.exp(float(audit.s_full.mean()))
    helped = float((audit.s1_delta.mean(-1) < -audit.config.tau).double().mean())
    if helped > 0.5:
        return fatal(
            f"Are full and retain swapped? On {helped:.0%} of the examples the states of retain make the answer more "
            f"likely in full, not less: retain knows what full does not (full gives their entities a probability of "
            f"{probability:.2g} per token). A score means something only where full was trained on the forget set and "
            "retain was not."
        )
    if probability < HARDLY_KNOWN:
        return caution(
            f"full hardly knows the forget set: it gives the entities a probability of {probability:.2g} per token. "
            "Check that it was trained on these examples, and on prompts of this form."
        )
    return None


def _sample(audit: AuditScores) -> Caution | None:
    """Not all of the examples were asked."""
    told = audit.provenance.get("sample")
    if not told:
        return None
    part = f"{told['limit']} of {told['of']} examples"
    if told["sample"] == "first":
        return _first_rows(part, told.get("sorted_by", "unknown"))
    spread = ", spread over the subjects" if any(audit.subjects) else ""
    others = "subjects" if audit.interval_basis.by == "subject" else "examples"
    return note(
        f"A random sample was measured: {part}{spread} (seed {told['seed']}). How far its score may lie from that of "
        f"all {told['of']} stands beside the interval, which answers another question: what other {others} than those "
        "of the data would give."
    )


def _first_rows(part: str, sorted_by: str | None) -> Caution:
    """The first rows of a file: of a sorted one they stand for nothing but themselves."""
    said = f"Only the first {part} were measured."
    return (caution if sorted_by is None else fatal)(f"{said} {about_first_rows(sorted_by)}")


def about_first_rows(sorted_by: str | None) -> str:
    """Return what the first rows of a file stand for, by what `uds_lens.data._readers.sorted_by` found."""
    if sorted_by is None:
        return "The subjects of the data are mixed, but a random sample is safer."
    if sorted_by == "unknown":
        why = "Files are often sorted, by author or by kind, and nothing in these data tells whether they are"
    else:
        why = f"The data are sorted by {sorted_by}"
    return f"{why}: the first stand for themselves, not for the rest."


def _engines(audit: AuditScores) -> Caution | None:
    """Return a caution where the two stages were measured by different engines."""
    stage_2, stage_1 = audit.provenance, audit.provenance.get("stage_1") or {}
    engines = stage_1.get("engine"), stage_2.get("engine")
    if None in engines or engines[0] == engines[1]:
        return None
    return caution(
        f"Stage 1 was measured by the {engines[0]} engine and stage 2 by the {engines[1]} one. Where the fast engine "
        "failed in stage 2, what it gave in stage 1 may be wrong too: measure both with engine 'naive'."
    )


def _measurable(audit: AuditScores) -> Caution | None:
    if not audit.examples:
        return fatal("No example could be scored.")
    if audit.n_measured == 0:
        return fatal(
            f"No example is measurable: patching retain's state never costs more than tau = {audit.config.tau:g} "
            "nats per token. Either full does not know the forget set, or retain knows it too."
        )
    if audit.n_measured < FEW:
        examples = "1 example is" if audit.n_measured == 1 else f"{audit.n_measured} examples are"
        return caution(f"Only {examples} measurable: the score rests on few.")
    if audit.n_not_measurable > len(audit.examples) / 4:
        return caution(
            f"{audit.n_not_measurable} of {len(audit.examples)} examples are not measurable (no layer holds the "
            "knowledge) and do not count."
        )
    return None


def _few_subjects(audit: AuditScores) -> Caution | None:
    basis = audit.interval_basis
    if basis.by == "example" or basis.n >= FEW_CLUSTERS:
        return None
    if basis.n == 1:
        return caution(
            "All measurable examples are about one subject: how much others would differ cannot be told, "
            "so there is no interval."
        )
    return caution(
        f"The measurable examples are about {basis.n} subjects only. The interval goes by subject, and from so few "
        "it is rough."
    )


def _skipped(audit: AuditScores) -> Caution | None:
    total = len(audit.examples) + len(audit.skipped)
    if not audit.skipped:
        return None
    kinds = Counter(_kind(row.reason) for row in audit.skipped).most_common()
    reasons = "; ".join(f"{reason} ({count})" for reason, count in kinds)
    return note(f"{len(audit.skipped)} of {total} rows were skipped: {reasons}.")


def _kind(reason: str) -> str:
    """A reason without the texts and numbers of its row.

    >>> _kind("The entity 'Ada' occurs 2 times in the answer and no prefix tells which one is meant.")
    'the entity ... occurs ... times in the answer and no prefix tells which one is meant'
    """
    plain = _TEXT.sub("...", reason)
    plain = _COUNT.sub("...", plain).replace("`", "'")  # in a report that marks names of ours
    return plain[:1].lower() + plain[1:].rstrip(".")


def _over_erased(audit: AuditScores) -> Caution | None:
    share = audit.over_erased_share
    own = any(a.startswith("retain") and b == "unlearned" for a, b in audit.equal_weights)
    if math.isnan(share) or share < OVER_SHARE or own:
        return None
    return caution(
        f"Over-erasure: on {share:.0%} of the knowledge-encoding layers the unlearned state costs more than retain's "
        f"(raw LER above 1). {_kept(audit)}"
    )


def _kept(audit: AuditScores) -> str:
    """What is known of the facts that were to be kept."""
    damage = audit.damage
    if math.isnan(damage):
        return "Check that the model still works on what it should retain."
    share = round(damage, 2) + 0.0  # not -0
    return f"On facts that were to be kept it costs {share:.0%} of what it costs on the forget facts."


def _negative(audit: AuditScores) -> Caution | None:
    share = audit.negative_share
    if math.isnan(share) or share < OVER_SHARE:
        return None
    return caution(
        f"On {share:.0%} of the knowledge-encoding layers the unlearned state helps full recall (raw LER below 0)."
    )


def _off_distribution(audit: AuditScores) -> Caution | None:
    if not audit.examples:
        return None
    cosine, ratio = audit.s2_cosine.mean(0), audit.s2_norm_ratio.mean(0)
    off = (cosine < COSINE) | (ratio > NORM_FACTOR) | (ratio < 1 / NORM_FACTOR)
    layers = off.nonzero()[:, 0].tolist()
    if not layers:
        return None
    named = ", ".join(map(str, layers[:6])) + (", ..." if len(layers) > 6 else "")
    return caution(
        f"Off-distribution patches at layer{'s' if len(layers) > 1 else ''} {named}: the unlearned states are far from "
        "those they replace (mean cosine below 0.5, or norm off by more than a factor of 2), so a high delta there "
        "may show damage rather than erasure."
    )


def _precision(audit: AuditScores) -> Caution | None:
    if audit.config.dtype == "float32":
        return None
    return note(
        f"Measured in {audit.config.dtype}: rounding hardly moves the mean, but single examples, and which of them are "
        "measurable. Use float32 for numbers to quote."
    )
