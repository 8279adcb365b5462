"""The verdict in words, the warnings to read before quoting it, and which of them withhold it."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Mapping
from statistics import fmean
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias

from uds_lens.data._examples import entity_span
from uds_lens.data._prompts import space_added
from uds_lens.results._intervals import FEW_CLUSTERS, interval_basis
from uds_lens.results._stage_1 import LEAST_KNOWN, mean_loss, of_rows
from uds_lens.results._words import worded

if TYPE_CHECKING:
    from uds_lens.results._depth_audit import DepthAudit


Level: TypeAlias = Literal["fatal", "caution", "note"]
"""`fatal`: the score does not mean what a score means, so the verdict is withheld. `caution`: it may mislead. `note`:
how it was measured."""

LEVELS: tuple[Level, ...] = ("fatal", "caution", "note")  # all levels, most serious first
FEW = 30  # below this many measurable examples an interval over examples is wide

HARDLY_KNOWN = 0.1
"""Probability per token (geometric mean) that `full` gives the entities, below which it hardly knows them."""

DAMAGED = 0.5
"""Loss on retained facts, as a share of that on forget facts, above which most of the loss is not about the forget
set."""

UNKNOWN_TO_RETAIN = 0.5
"""Loss from retain's states on control facts, as a share of that on forget facts, above which retain does not know the
control facts either."""

RETAINS_APART = 0.1  # difference of the scores against several retain models that deserves a warning
OVER_SHARE = 0.25  # share of over-erased KE layers that deserves a warning
COSINE = 0.5  # mean cosine between patched and original state below which the patch is off-distribution
NORM_FACTOR = 2.0  # mean norm ratio beyond which (either way) the patch is off-distribution


class Caution(NamedTuple):
    """One warning."""

    level: Level
    text: str
    """A sentence or two."""
    mark: str
    """The same in a few words, for a row of a table: "43% over-erased"."""


WITHHELD = "withheld"  # the verdict where a warning is fatal: the number exists but does not mean what a score means

STANDS_IN = {"base": "base", "no_question": "the answer without its question", "other": "another subject"}
"""What 1 is like, in a reading, by the stand-in for a retain model or by what its counterfactuals ask."""

_READINGS = (
    (0.05, "intact, as in full"),
    (0.35, "mostly intact"),
    (0.65, "partly erased"),
    (0.95, "mostly erased"),
    (math.inf, "erased, as in retain"),
)


def reading(uds: float) -> str:
    """Put a score into words.

    >>> [reading(uds) for uds in (0.0, 0.2, 0.5, 0.8, 1.0, float("nan"))]
    ['intact, as in full', 'mostly intact', 'partly erased', 'mostly erased', 'erased, as in retain', 'not measurable']
    """
    if math.isnan(uds):
        return "not measurable"
    return next(words for bound, words in _READINGS if uds < bound)


def cautions(audit: DepthAudit) -> tuple[Caution, ...]:
    """Return all warnings about an audit, most serious first."""
    checks = (
        *_equal_weights(audit),
        _knowledge(audit),
        _other_prompts(audit),
        _sample(audit),
        _measurable(audit),
        _steering(audit),
        _steering_control(audit),
        _stand_in(audit),
        _damage(audit),
        _control(audit),
        _control_sample(audit),
        _control_skipped(audit),
        _several_retains(audit),
        _few_subjects(audit),
        _skipped(audit),
        _space_added(audit),
        _begins_answer(audit),
        _over_erased(audit),
        _negative(audit),
        _off_distribution(audit),
        _precision(audit),
        _engines(audit),
    )
    words = audit.config.words
    found = [Caution(one.level, worded(one.text, words), worded(one.mark, words)) for one in checks if one is not None]
    return tuple(sorted(found, key=lambda caution: LEVELS.index(caution.level)))


# The models and the forget set.


def _equal_weights(audit: DepthAudit) -> list[Caution]:
    """Two references of equal weights make all scores meaningless; the audit of a reference is a known number."""
    return [
        Caution(
            "fatal" if _both_references(a, b) else "note",
            f"{a} and {_THE_UNLEARNED.get(b, b)} have identical weights.",
            f"{a} = {b}",
        )
        for a, b in audit.equal_weights
    ]


_THE_UNLEARNED = {"unlearned": "the audited model"}  # a role that is no name, in a sentence


def _both_references(a: str, b: str) -> bool:
    return a == "full" and b.startswith("retain")


def _knowledge(audit: DepthAudit) -> Caution | None:
    """Warn unless `full` knows what `retain` does not; the other way round, they were probably swapped."""
    if not audit.examples or any(_both_references(a, b) for a, b in audit.equal_weights):
        return None
    probability = math.exp(float(audit.s_full.mean()))
    helped = float((audit.s1_delta.mean(-1) < -audit.config.tau).double().mean())
    if helped > 0.5 and audit.config.stand_in == "counterfactual":
        text = (
            f"On {helped:.0%} of the examples, full's states on {_ASKED[audit.config.counterfactual]} make the entity "
            "more likely in full, not less: they still encode all of it, so there is no scale to measure on."
        )
        return Caution("fatal", text, "no scale")
    if helped > 0.5:
        text = (
            f"Are full and retain swapped? On {helped:.0%} of the examples, retain's states make the answer more "
            f"likely in full, not less: retain knows what full does not (full gives the entities a probability of "
            f"{probability:.2g} per token). A score is meaningful only if full was trained on the forget set and "
            "retain was not."
        )
        return Caution("fatal", text, "full and retain swapped?")
    if probability < HARDLY_KNOWN:
        text = (
            f"full hardly knows the forget set: it gives the entities a probability of {probability:.2g} per token. "
            "Check that it was trained on these examples, with prompts of this form."
        )
        return Caution("caution", text, "hardly known to full")
    return None


_ASKED = {"other": "the same question about another subject", "no_question": "the answer without the question"}


def _count(drawn: Mapping[str, Any]) -> str:
    """How many counterfactuals an example has, from the record."""
    fewest, most = drawn.get("fewest", "?"), drawn.get("draws", "?")
    return f"{most}" if fewest == most else f"{fewest} to {most}"


def _stand_in(audit: DepthAudit) -> Caution | None:
    if audit.config.stand_in is None:
        return None
    if audit.config.stand_in == "counterfactual":
        drawn = audit.provenance.get("counterfactual", {})
        counted = "" if audit.config.counterfactual == "no_question" else f" ({_count(drawn)} for each example)"
        text = (
            f"No retain model: full's own states on {_ASKED[audit.config.counterfactual]} stand in for it{counted}, so "
            "a score of 1 means as little knowledge as in those states. Such scores can be compared with each other, "
            "but not with scores against a retain model."
        )
        return Caution("caution", text, "no retain model")
    text = (
        f"No retain model: {audit.models['retain'].name!r}, the model before fine-tuning, stands in for it. A score "
        "of 1 means as little knowledge as in that model, which never learned the retained facts either. Such scores "
        "can be compared with each other, but not with scores against a retain model."
    )
    return Caution("caution", text, "no retain model")


def _several_retains(audit: DepthAudit) -> Caution | None:
    if not audit.retains:
        return None
    low, high, _ = audit.retain_spread
    text = f"Measured against {len(audit.retains)} retain models"
    if math.isnan(low):
        return Caution("note", f"{text}; against at least one of them nothing is measurable.", "several retain models")
    text += f": the scores against them range from {low:.3f} to {high:.3f}."
    return Caution("caution" if high - low > RETAINS_APART else "note", text, f"{low:.2f}-{high:.2f} by retain model")


# Which examples were measured, and how many can be.


def _sample(audit: DepthAudit) -> Caution | None:
    sample = audit.provenance.get("sample")
    if not sample:
        return None
    part = f"{sample['limit']} of {sample['of']} examples"
    if sample["sample"] == "first":
        by = sample.get("sorted_by", "unknown")
        text = f"Only the first {part} were measured. {about_first_rows(by)}"
        return Caution("caution" if by is None else "fatal", text, f"first {sample['limit']} only")
    spread = ", spread over the subjects" if any(audit.subjects) else ""
    others = "subjects" if audit.interval_basis.by == "subject" else "examples"
    text = (
        f"A random sample was measured: {part}{spread} (seed {sample['seed']}). The estimate "
        f"for all {sample['of']} is given next to the interval; the interval itself shows how the score would vary "
        f"over other {others}."
    )
    return Caution("note", text, f"sample of {sample['limit']}")


def about_first_rows(sorted_by: str | None) -> str:
    """Say what the first rows of a file represent, given what `uds_lens.data` says they are sorted by."""
    if sorted_by is None:
        return "Subjects are mixed in these data, but a random sample is safer."
    if sorted_by == "unknown":
        return "Files are often sorted, by author or by kind, so the first rows may not represent the rest."
    return f"The data are sorted by {sorted_by}: the first rows do not represent the rest."


def _measurable(audit: DepthAudit) -> Caution | None:
    if not audit.examples:
        return Caution("fatal", "No example could be scored.", "no example scored")
    n, missing = audit.n_measured, audit.n_not_measurable
    if n == 0:
        text = (
            "No example is measurable: patching in retain's state never costs more than tau = "
            f"{audit.config.tau:g} nats per token. Either full does not know the forget set, or retain knows it too."
        )
        return Caution("fatal", text, "not measurable")
    if n < FEW:
        text = f"Only {n} example{' is' if n == 1 else 's are'} measurable: the interval is wide."
        return Caution("caution", text, f"{n} measurable")
    if missing > len(audit.examples) / 4:
        text = (
            f"{missing} of {len(audit.examples)} examples are not measurable (no layer where full encodes more than "
            "retain) and do not count."
        )
        return Caution("caution", text, f"{missing / len(audit.examples):.0%} not measurable")
    return None


_LISTED = "listed in depth.json and in the model's configuration"


def _steering(audit: DepthAudit) -> Caution | None:
    n, of = (audit.provenance.get(name, 0) for name in ("n_steering", "steered_by"))
    if not n:
        text = (
            f"The depth of {of} examples about other subjects steered the training of this model: it decided when "
            f"training stopped or which weights were kept ({_LISTED}). None of the examples measured here did."
        )
        return Caution("note", text, "steered by other subjects") if of else None
    text = (
        f"{n} of {len(audit.examples)} examples steered the training of this model (their depth decided when training "
        "stopped or which weights were kept), or are about the same subjects as examples that did "
        f"({_LISTED}). A depth that was optimised in training is not a measurement: score the held-out examples."
    )
    return Caution("fatal", text, f"{n} steered the training")


def _steering_control(audit: DepthAudit) -> Caution | None:
    n = audit.provenance.get("n_steering_control", 0)
    if not n or audit.control is None:
        return None
    text = (
        f"{n} of {len(audit.control.examples)} retained facts steered the training of this model, because their damage "
        f"decided which step was kept, or are about the same subjects as facts that did ({_LISTED}). Damage is lower "
        "on them than on other facts: measure it on the held-out facts."
    )
    return Caution("caution", text, f"{n} retained facts steered")


def _few_subjects(audit: DepthAudit) -> Caution | None:
    basis = audit.interval_basis
    if basis.by == "example" or basis.n >= FEW_CLUSTERS:
        return None
    if basis.n == 1:
        text = (
            "All measurable examples are about one subject: there is no interval, since nothing shows how other "
            "subjects would differ."
        )
        return Caution("caution", text, "1 subject")
    text = f"Only {basis.n} subjects: treat the subject-level interval as rough ({FEW_CLUSTERS} or more are needed)."
    return Caution("caution", text, f"{basis.n} subjects")


def _space_added(audit: DepthAudit) -> Caution | None:
    quoted = [example.id for example in audit.examples if space_added(example)]
    if not quoted:
        return None
    some = ", ".join(quoted[:6]) + (", ..." if len(quoted) > 6 else "")
    text = (
        f"{len(quoted)} of {len(audit.examples)} entities directly follow an opening quote or another character, where "
        f"prompts insert a space that the answer lacks, so full may seem not to know them ({some}; `space_added` in "
        "the table of examples)."
    )
    return Caution("note", text, f"{len(quoted)} after quotes")


def _begins_answer(audit: DepthAudit) -> Caution | None:
    """Raw prompts end in a space where the answer begins with the entity: tokens that no training text has there."""
    if audit.prompts != "raw":
        return None
    by_place: dict[bool, list[float]] = {True: [], False: []}
    counted: list[float] = []
    rows = zip(audit.examples, audit.s_full.exp().tolist(), audit.uds_per_example.tolist(), strict=True)
    for example, probability, score in rows:
        span = entity_span(example)
        begins = not isinstance(span, str) and span.start == 0
        by_place[begins].append(probability)
        counted += [score] if begins and not math.isnan(score) else []
    first, others = by_place[True], by_place[False]
    if not first or not others or not fmean(first) < fmean(others) / 2:
        return None
    text = (
        f"{len(first)} of {len(audit.examples)} entities begin their answer, so the raw prompt before them ends in a "
        f"space that is a token of its own. full gives them a probability of {fmean(first):.3f} and the others "
        f"{fmean(others):.3f}, so it seems not to know them (`prefix` is empty in the table of examples). "
        f"{len(counted)} of them are measurable{f', with a mean UDS of {fmean(counted):.3f}' if counted else ''}."
    )
    return Caution("note", text, f"{len(first)} at the start")


def _skipped(audit: DepthAudit) -> Caution | None:
    n, total = len(audit.skipped), len(audit.examples) + len(audit.skipped)
    if not n:
        return None
    kinds = Counter(_without_specifics(row.reason) for row in audit.skipped).most_common()
    reasons = "; ".join(f"{reason} ({count})" for reason, count in kinds)
    return Caution("note", f"{n} of {total} rows were skipped: {reasons}.", f"{n} skipped")


_QUOTED = re.compile(r"'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\"")
_COUNT = re.compile(r"\b\d+(?= (?:times|tokens))")


def _without_specifics(reason: str) -> str:
    """Replace the quoted texts and the numbers in a reason, so that reasons of one kind are equal.

    >>> _without_specifics("The entity 'Ada' occurs 2 times in the answer and no prefix tells which one is meant.")
    'the entity ... occurs ... times in the answer and no prefix tells which one is meant'
    """
    plain = _COUNT.sub("...", _QUOTED.sub("...", reason)).replace("`", "'")  # a report marks our names by `
    return plain[:1].lower() + plain[1:].rstrip(".")


# What the unlearned states cost, on forget facts and on retained ones.


def _over_erased(audit: DepthAudit) -> Caution | None:
    share = audit.over_erased_share
    is_retain = any(a.startswith("retain") and b == "unlearned" for a, b in audit.equal_weights)
    if math.isnan(share) or share < OVER_SHARE or is_retain:
        return None
    advice = "Check that the model still works on what it should retain."
    if not math.isnan(audit.damage):
        damage = round(audit.damage, 2) + 0.0  # not -0
        advice = f"On retained facts, the unlearned states cost {damage:.0%} of what they cost on the forget facts."
    text = (
        f"Over-erasure: on {share:.0%} of the knowledge-encoding layers, patching in the unlearned state costs more "
        f"log-probability than patching in retain's (raw LER above 1). {advice}"
    )
    return Caution("caution", text, f"{share:.0%} over-erased")


def _other_prompts(audit: DepthAudit) -> Caution | None:
    """Name the models whose records say that they were trained with other prompts than they were audited with."""
    names = {"chat": "the chat template", "raw": "raw prompts"}
    recorded = audit.provenance.get("trained_with")
    trained = {role: word for role, word in recorded.items() if word in names} if isinstance(recorded, dict) else {}
    asked = "chat" if audit.config.protocol == "chat" else "raw"  # as `audit.prompts` has it
    others = [role for role, word in trained.items() if word != asked]
    if not others:
        return None
    who = " and ".join(_THE_UNLEARNED.get(role, role) for role in others)
    were, seem = ("were", "they may seem to know less than they do")
    if len(others) == 1:
        were, seem = "was", "it may seem to know less than it does"
    then = names[trained[others[0]]]
    text = (
        f"According to the records of training, {who} {were} trained with {then}, but audited with {names[asked]}: "
        f"{seem}."
    )
    if len(set(trained.values())) == 1:  # all alike: the prompts were chosen for the audit
        return Caution("note", text, f"trained with {trained[others[0]]} prompts")
    text += " The records of the other models agree with the prompts of this audit."
    text += " Only models that were trained with the same prompts can be compared fairly."
    return Caution("caution", text, f"{', '.join(others)} trained with {trained[others[0]]} prompts")


def _negative(audit: DepthAudit) -> Caution | None:
    share = audit.negative_share
    if math.isnan(share) or share < OVER_SHARE:
        return None
    text = (
        f"On {share:.0%} of the knowledge-encoding layers, patching in the unlearned state helps full to recall the "
        "answer (raw LER below 0)."
    )
    return Caution("caution", text, f"{share:.0%} negative LER")


def _off_distribution(audit: DepthAudit) -> Caution | None:
    if not audit.examples:
        return None
    cosine, ratio = audit.s2_cosine.mean(0), audit.s2_norm_ratio.mean(0)
    off = (cosine < COSINE) | (ratio > NORM_FACTOR) | (ratio < 1 / NORM_FACTOR)
    layers = off.nonzero()[:, 0].tolist()
    if not layers:
        return None
    named = ", ".join(map(str, layers[:6])) + (", ..." if len(layers) > 6 else "")
    text = (
        f"Off-distribution patches at layer{'s' if len(layers) > 1 else ''} {named}: the unlearned states are far from "
        "those they replace (mean cosine below 0.5, or norm off by more than a factor of 2), so a high delta there "
        "may show damage rather than erasure."
    )
    return Caution("caution", text, "off-distribution")


def _damage(audit: DepthAudit) -> Caution | None:
    damage = audit.damage_estimate
    if math.isnan(damage.value) or damage.value <= DAMAGED:
        return None
    text = (
        f"Mostly damage: on retained facts, the unlearned states cost {damage.control_loss:.2f} nats per token, "
        f"{damage.value:.0%} of the {damage.forget_loss:.2f} that they cost on the forget facts (retain's states: "
        f"{damage.retain_loss:.2f}). Much of what the score counts as erased has nothing to do with the forget set."
    )
    return Caution("caution", text, f"{damage.value:.0%} damage")


def _control(audit: DepthAudit) -> Caution | None:
    """Control facts that `full` or `retain` does not know say nothing about damage."""
    control = audit.control
    if control is None:
        return None
    if not len(control.examples):
        text = f"No control fact could be scored ({len(control.skipped)} were skipped): damage is NaN."
        return Caution("caution", text, "no control")
    known, n = int(control.known.sum()), len(control.examples)
    if known < n / 2:
        text = (
            f"full hardly knows the control facts: it gives {n - known} of {n} entities a probability of less than "
            f"{LEAST_KNOWN:g} per token, so they do not count. Damage needs facts that full and retain both know."
        )
        return Caution("caution", text, "weak control")
    here, there = mean_loss(control.s1_delta[control.known]), mean_loss(audit.s1_delta)
    if here > UNKNOWN_TO_RETAIN * there:
        text = (
            f"retain hardly knows the control facts: its states cost {here:.2f} nats per token there, and {there:.2f} "
            "on the forget facts. Damage needs facts that full and retain both know."
        )
        return Caution("caution", text, "weak control")
    basis = interval_basis(control.s_full[control.known], of_rows(control.subjects, control.known))
    if (basis.by == "subject" and basis.n < FEW_CLUSTERS) or known == 1:
        facts = "The one control fact that counts concerns"
        if known > 1:
            facts = f"The {known} control facts that count concern"
        text = (
            f"{facts} only {basis.n} subject{'s' * (basis.n != 1)}: the interval of damage is "
            f"{'missing' if basis.n == 1 else 'rough'}."
        )
        return Caution("caution", text, f"control: {basis}")
    return None


def _control_sample(audit: DepthAudit) -> Caution | None:
    sample = audit.control.sample if audit.control is not None else None
    if sample is None:
        return None
    part = f"{sample['limit']} of {sample['of']} control facts"
    if sample["sample"] == "random":
        text = f"A random sample was measured: {part} (seed {sample['seed']})."
        return Caution("note", text, "sample of control")
    text = f"Only the first {part} were measured"
    if sample.get("sorted_by", "unknown") is None:
        return Caution("caution", f"{text}; a random sample is safer.", "first control facts")
    text += ", from data that are or may be sorted, so damage on the rest may differ."
    return Caution("caution", text, "first control facts")


def _control_skipped(audit: DepthAudit) -> Caution | None:
    control = audit.control
    if control is None or not control.skipped or not len(control.examples):
        return None
    n, first = len(control.skipped), control.skipped[0].reason.rstrip(".")
    return Caution("note", f"{n} control fact{'s' * (n != 1)} could not be scored ({first}).", f"{n} control skipped")


# How it was measured.


def _precision(audit: DepthAudit) -> Caution | None:
    dtype = audit.config.dtype
    if dtype == "float32":
        return None
    text = (
        f"Measured in {dtype}: rounding hardly changes the mean, but it changes individual examples and which of "
        "them are measurable. Use float32 for numbers that you quote."
    )
    return Caution("note", text, dtype)


def _engines(audit: DepthAudit) -> Caution | None:
    stage_1 = audit.provenance.get("stage_1") or {}
    first, second = stage_1.get("engine"), audit.provenance.get("engine")
    if None in (first, second) or first == second:
        return None
    text = (
        f"Stage 1 was measured by the {first} engine and stage 2 by the {second} one. If the fast engine failed in "
        "stage 2, its results in stage 1 may be wrong too: measure both with engine 'naive'."
    )
    return Caution("caution", text, "two engines")
