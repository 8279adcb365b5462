"""Warnings to read before quoting a score; the fatal ones withhold the verdict."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from statistics import fmean
from typing import TYPE_CHECKING, Literal, NamedTuple, TypeAlias

from uds_lens.data._examples import entity_span, given_away
from uds_lens.data._prompts import spaces_added
from uds_lens.results._comparing import differing_settings, score_settings
from uds_lens.results._conditions import QUESTIONS, conditions_of, differing
from uds_lens.results._intervals import FEW_CLUSTERS, interval_basis, left_by_one
from uds_lens.results._stage_1 import LEAST_KNOWN, mean_loss, of_rows

if TYPE_CHECKING:
    from uds_lens.results._depth_audit import DepthAudit


Level: TypeAlias = Literal["fatal", "caution", "note"]
"""`fatal`: the number cannot be read as a score, so the verdict is withheld. `caution`: it may mislead. `note`:
how it was measured."""

LEVELS: tuple[Level, ...] = ("fatal", "caution", "note")  # most serious first
FEW = 30  # measurable examples below which an interval over examples is called wide

HARDLY_KNOWN = 0.1
"""Probability per token (geometric mean) below which `full` is said to hardly know the entities."""

DAMAGED = 5.0
"""Retained facts count as lost if the unlearned states cost more than this many times as much as retain's states. In
our SmolLM2 study, the factor was 16 to 75 for the three damaged models, and at most 1.9 for the others."""

LEAST_LOSS = 0.01  # lower bound for the cost of retain's states in this ratio, in nats per token

LEAST_SAID = 0.8
"""Whatever the patched states show, the model is damaged if the retained entities have less than this share of their
probability under `full`."""

AS_ANSWERS = 0.06  # UDS and output depth agree if they differ by at most this

UNKNOWN_TO_RETAIN = 0.5
"""`retain` is said to hardly know the control facts if its states cost more than this share of what they cost on forget
facts."""

RETAINS_APART = 0.1  # range of scores against several retain models above which a warning is given
NEGATIVE_SHARE = 0.25  # share of KE layers with negative LER from which a warning is given
MANY_GIVEN_AWAY = 0.05  # share of entities in their question or prefix above which the level is caution
COSINE = 0.5  # mean cosine between patched and original state below which the patch is off-distribution
NORM_FACTOR = 2.0  # factor between mean norms beyond which the patch is off-distribution


class Caution(NamedTuple):
    """One warning."""

    level: Level
    text: str
    """One or two sentences."""
    mark: str
    """The warning in a few words, for a table: "off-distribution"."""


def cautions(audit: DepthAudit) -> tuple[Caution, ...]:
    """Return all warnings about an audit, most serious first."""
    return tuple(
        sorted((found for check in _CHECKS for found in check(audit)), key=lambda caution: LEVELS.index(caution.level))
    )


# The models and the forget set.


def _equal_weights(audit: DepthAudit) -> Iterator[Caution]:
    """Equal weights of `full` and `retain` make all scores meaningless; other equal weights are worth a note."""
    for a, b in audit.equal_weights:
        level: Level = "fatal" if _both_references(a, b) else "note"
        yield Caution(level, f"{_named(audit, a)} and {_named(audit, b)} have identical weights.", f"{a} = {b}")


def _named(audit: DepthAudit, role: str) -> str:
    """Return a model's name for use in a sentence; several retain models are numbered."""
    first, _, number = role.partition(" ")
    if first == "unlearned":
        return "the audited model"
    return f"{audit.config.roles._asdict().get(first, first)} {number}".rstrip()


def _both_references(a: str, b: str) -> bool:
    return a == "full" and b.startswith("retain")


def _knowledge(audit: DepthAudit) -> Iterator[Caution]:
    """Warn unless `full` knows what `retain` does not; in the reverse case, the two models were probably swapped."""
    if not audit.examples or any(_both_references(a, b) for a, b in audit.equal_weights):
        return
    probability, (full, retain, *_) = math.exp(float(audit.s_full.mean())), audit.config.roles
    helped = float((audit.s1_delta.mean(-1) < -audit.config.tau).double().mean())
    if helped > 0.5 and audit.config.stand_in == "counterfactual":
        yield Caution(
            "fatal",
            f"On {helped:.0%} of the examples, {full}'s states on {_ASKED[audit.config.counterfactual]} make the "
            f"entity more likely in {full}, not less: these states still encode the entity, so there is no scale.",
            "no scale",
        )
    elif helped > 0.5:
        first = f"{_about_added(audit)}. " if spaces_added(audit.examples, audit.config.entity_space) else ""
        yield Caution(
            "fatal",
            f"{first}Are {full} and {retain} swapped? On {helped:.0%} of the examples, {retain}'s states make the "
            f"answer more likely in {full}, not less: {retain} knows what {full} does not (entities have a probability "
            f"of {probability:.2g} per token under {full}). A score is meaningful only if {full} was trained on the "
            f"forget set and {retain} was not.",
            f"{full} and {retain} swapped?",
        )
    elif probability < HARDLY_KNOWN:
        yield Caution(
            "caution",
            f"{full} hardly knows the forget set: it gives the entities a probability of {probability:.2g} per token. "
            f"Check that {full} was trained on these examples and with the prompts of this audit.",
            f"hardly known to {full}",
        )


_ASKED = {"other": "the same question about another subject", "no_question": "the answer without the question"}


def _stand_in(audit: DepthAudit) -> Iterator[Caution]:
    roles = audit.config.roles
    if audit.config.stand_in == "counterfactual":
        drawn, counted = audit.provenance.get("counterfactual", {}), ""
        if audit.config.counterfactual != "no_question":
            fewest, most = drawn.get("fewest", "?"), drawn.get("draws", "?")
            counted = f" ({most if fewest == most else f'{fewest} to {most}'} subjects for each example)"
        yield Caution(
            "caution",
            f"There is no {roles.retain_model}, so {roles.full}'s own states on "
            f"{_ASKED[audit.config.counterfactual]}{counted} are used instead, and a score of 1 means as little "
            "knowledge as in those states. Such scores can be compared with each other, but not with scores against "
            f"{roles.a_retain_model}.",
            f"no {roles.retain_model}",
        )
    elif audit.config.stand_in == "base":
        yield Caution(
            "caution",
            f"There is no {roles.retain_model}, so {audit.models['retain'].name!r}, the model before fine-tuning, is "
            "used instead. A score of 1 means as little knowledge as in that model, which never learned the retained "
            "facts either. Such scores can be compared with each other, but not with scores against "
            f"{roles.a_retain_model}.",
            f"no {roles.retain_model}",
        )


def _several_retains(audit: DepthAudit) -> Iterator[Caution]:
    low, high, _ = audit.retain_spread
    one = audit.config.roles.retain_model
    text = f"Measured against {len(audit.retains)} {one}s"
    if audit.retains and math.isnan(low):
        yield Caution("note", f"{text}; against at least one of them, nothing is measurable.", f"several {one}s")
    elif audit.retains:
        text += f": the scores range from {low:.3f} to {high:.3f}."
        level: Level = "caution" if high - low > RETAINS_APART else "note"
        yield Caution(level, text, f"{low:.2f}-{high:.2f} by {one}")


# Which examples were measured, and how many are measurable.


def _sample(audit: DepthAudit) -> Iterator[Caution]:
    sample = audit.provenance.get("sample")
    if not sample:
        return
    part = f"{sample['limit']} of {sample['of']} examples"
    if sample["sample"] == "first":
        by = sample.get("sorted_by", "unknown")
        yield Caution(
            "caution" if by is None else "fatal",
            f"Only the first {part} were measured. {about_first_rows(by)}",
            f"first {sample['limit']} only",
        )
    else:
        spread = ", spread over the subjects" if any(audit.subjects) else ""
        others = "subjects" if audit.interval_basis.by == "subject" else "examples"
        yield Caution(
            "note",
            f"A random sample was measured: {part}{spread} (seed {sample['seed']}). An estimate "
            f"for all {sample['of']} is given next to the interval; the interval shows how much the score would vary "
            f"with other {others}.",
            f"sample of {sample['limit']}",
        )


def about_first_rows(sorted_by: str | None) -> str:
    """Say how representative a file's first rows are, given the order that `uds_lens.data` reports."""
    if sorted_by is None:
        return "Subjects are mixed in these data, but a random sample is safer."
    if sorted_by == "unknown":
        return "Files are often sorted (by author, by type of question), so the first rows may not be representative."
    return f"The data are sorted by {sorted_by}, so the first rows are not representative."


def _measurable(audit: DepthAudit) -> Iterator[Caution]:
    n, missing, (full, retain, *_) = audit.n_measured, audit.n_not_measurable, audit.config.roles
    if not audit.examples:
        yield Caution("fatal", "No example could be scored.", "no example scored")
    elif n == 0:
        yield Caution(
            "fatal",
            f"No example is measurable: patching in {retain}'s state never costs more than tau = "
            f"{audit.config.tau:g} nats per token. Either {full} does not know the forget set, or {retain} knows it "
            "too.",
            "not measurable",
        )
    elif n < FEW:
        yield Caution(
            "caution",
            f"Only {n} example{' is' if n == 1 else 's are'} measurable: the interval is wide.",
            f"{n} measurable",
        )
    elif missing > len(audit.examples) / 4:
        yield Caution(
            "caution",
            f"{missing} of {len(audit.examples)} examples are not measurable (there is no layer where {full} encodes "
            f"more than {retain}) and are left out of the score.",
            f"{missing / len(audit.examples):.0%} not measurable",
        )


def _few_subjects(audit: DepthAudit) -> Iterator[Caution]:
    basis = audit.interval_basis
    if basis.by == "subject" and basis.n == 1:
        yield Caution(
            "caution",
            "All measurable examples are about one subject: there is no interval, since other subjects may differ.",
            "1 subject",
        )
    elif basis.few:
        yield Caution(
            "caution",
            f"Only {basis.counted}: treat the subject-level interval as rough ({FEW_CLUSTERS} or more subjects are "
            "needed).",
            str(basis),
        )


def _subjects_alike(audit: DepthAudit) -> Iterator[Caution]:
    """Warn if one additional subject that differs could move the score out of its interval."""
    basis = audit.interval_basis
    follows = any(b == "unlearned" for _, b in audit.equal_weights)  # scores follow from the definition
    enough = basis.effective >= FEW_CLUSTERS  # with fewer, the interval is called rough in any case
    if enough and not follows and left_by_one(audit.uds_interval, audit.uds, basis.n):
        yield Caution(
            "note",
            f"The {basis.by}s' scores are so similar that the mean would leave its interval if one of {basis.n} had a "
            f"very different score: the interval does not cover kinds of {basis.by} that the sample lacks.",
            f"{basis.by}s alike",
        )


def _space_added(audit: DepthAudit) -> Iterator[Caution]:
    if quoted := spaces_added(audit.examples, audit.config.entity_space):
        yield Caution(
            "note",
            f"{_about_added(audit)} ({_some(quoted)}; `space_added` in the table of examples).",
            f"{len(quoted)} after quotes",
        )


def _about_added(audit: DepthAudit) -> str:
    added = len(spaces_added(audit.examples, audit.config.entity_space))
    return (
        f"{added} of {len(audit.examples)} entities directly follow an opening quote or a similar character, where "
        f"entity_space='always' inserts a space that the answer lacks, so {audit.config.roles.full} may seem not to "
        "know these entities"
    )


def _prefix_ends_in_space(audit: DepthAudit) -> Iterator[Caution]:
    if spaced := [example.id for example in audit.examples if (example.prefix or "").endswith(" ")]:
        yield Caution(
            "caution",
            f"{len(spaced)} of {len(audit.examples)} prefixes end in a space, which becomes a separate token that "
            f"models hardly ever see, so {audit.config.roles.full} may seem not to know these entities "
            f"({_some(spaced)}): end each prefix with its last word.",
            f"{len(spaced)} spaces before",
        )


def _given_away(audit: DepthAudit) -> Iterator[Caution]:
    if copied := [example.id for example in audit.examples if given_away(example)]:
        text = (
            f"{len(copied)} of {len(audit.examples)} entities already occur in the question or earlier in the answer, "
            f"so a model can copy these entities without knowing them ({_some(copied)}). Choose other words as "
            "entities, or leave these rows out."
        )
        level: Level = "caution" if len(copied) > MANY_GIVEN_AWAY * len(audit.examples) else "note"
        yield Caution(level, text, f"{len(copied)} given away")


def _some(names: Sequence[object]) -> str:
    """List the first six."""
    return ", ".join(map(str, names[:6])) + (", ..." if len(names) > 6 else "")


def _begins_answer(audit: DepthAudit) -> Iterator[Caution]:
    """Warn about raw prompts that, unlike training texts, end in a space because the entity comes first."""
    if audit.prompts != "raw":
        return
    by_place: dict[bool, list[float]] = {True: [], False: []}
    counted: list[float] = []
    rows = zip(audit.examples, audit.s_full.exp().tolist(), audit.uds_per_example.tolist(), strict=True)
    for example, probability, score in rows:
        span = entity_span(example)
        begins = not isinstance(span, str) and span.start == 0
        by_place[begins].append(probability)
        counted += [score] if begins and not math.isnan(score) else []
    first, others = by_place[True], by_place[False]
    if first and others and fmean(first) < fmean(others) / 2:
        yield Caution(
            "note",
            f"{len(first)} of {len(audit.examples)} entities come first in their answer, so the raw prompt ends in a "
            f"space that is a separate token. {audit.config.roles.full} gives these entities a probability of "
            f"{fmean(first):.3f}, and all other entities one of {fmean(others):.3f}, so it seems not to know the "
            f"former (`prefix` is empty in their rows of the table of examples). {len(counted)} of these examples are "
            f"measurable{f', with a mean UDS of {fmean(counted):.3f}' if counted else ''}.",
            f"{len(first)} at the start",
        )


def _skipped(audit: DepthAudit) -> Iterator[Caution]:
    if n := len(audit.skipped):
        kinds = Counter(_without_specifics(row.reason) for row in audit.skipped).most_common()
        reasons = "; ".join(f"{reason} ({count})" for reason, count in kinds)
        yield Caution("note", f"{n} of {len(audit.examples) + n} rows were skipped: {reasons}.", f"{n} skipped")


_QUOTED = re.compile(r"'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\"")
_COUNT = re.compile(r"\b\d+(?= (?:times|tokens))")


def _without_specifics(reason: str) -> str:
    """Replace quoted texts and numbers in a reason, so that similar reasons become equal.

    >>> _without_specifics("The entity 'Ada' occurs 2 times in the answer and no prefix says which one is meant.")
    'the entity ... occurs ... times in the answer and no prefix says which one is meant'
    """
    # reports treat text in backticks as names in this package
    plain = _COUNT.sub("...", _QUOTED.sub("...", reason)).replace("`", "'")
    return plain[:1].lower() + plain[1:].rstrip(".")


# The cost of the unlearned states on forget facts and on retained facts.


def _negative(audit: DepthAudit) -> Iterator[Caution]:
    roles = audit.config.roles
    if (negative := audit.negative_share) >= NEGATIVE_SHARE:
        yield Caution(
            "caution",
            f"On {negative:.0%} of the knowledge-encoding layers, patching in the {roles.unlearned} state helps "
            f"{roles.full} to recall the answer (raw LER below 0).",
            f"{negative:.0%} negative LER",
        )


def _other_prompts(audit: DepthAudit) -> Iterator[Caution]:
    """Warn about models that, according to their training records, were trained with other prompts."""
    names = {"chat": "the chat template", "raw": "raw prompts"}
    recorded = audit.provenance.get("trained_with")
    trained = {role: word for role, word in recorded.items() if word in names} if isinstance(recorded, dict) else {}
    asked = "chat" if audit.config.protocol == "chat" else "raw"  # as in `audit.prompts`
    others = [role for role, word in trained.items() if word != asked]
    if not others:
        return
    who = " and ".join(_named(audit, role) for role in others)
    were, seem = ("were", "they may seem to know less than they do")
    if len(others) == 1:
        were, seem = "was", "it may seem to know less than it does"
    then = trained[others[0]]
    text = (
        f"According to the training records, {who} {were} trained with {names[then]}, but audited with {names[asked]}, "
        f"so {seem}."
    )
    if len(set(trained.values())) == 1:  # all models agree, so the prompts were chosen for the audit
        yield Caution("note", text, f"trained with {then} prompts")
    else:
        text += " The records of the other models match the prompts of this audit."
        text += " Only models trained with the same prompts can be compared fairly."
        yield Caution("caution", text, f"{', '.join(others)} trained with {then} prompts")


def _answers_opened(audit: DepthAudit) -> Iterator[Caution]:
    """Warn if the chat template opens an answer to be generated differently from one that is given."""
    if opened := audit.provenance.get("answers_opened"):
        asked, written = map(repr, opened)
        yield Caution(
            "caution",
            f"The chat template begins an answer to be generated with {asked}, but a given answer with {written}. The "
            "entities were scored after the beginning of a given answer, as in training on whole conversations. A "
            "model trained with another beginning may seem to know less than it does (template_kwargs sets template "
            "options such as enable_thinking).",
            "answers opened in two ways",
        )


def _off_distribution(audit: DepthAudit) -> Iterator[Caution]:
    cosine, ratio = audit.s2_cosine.mean(0), audit.s2_norm_ratio.mean(0)  # NaN (without examples) never exceeds a bound
    off = (cosine < COSINE) | (ratio > NORM_FACTOR) | (ratio < 1 / NORM_FACTOR)
    if layers := off.nonzero()[:, 0].tolist():
        yield Caution(
            "caution",
            f"Off-distribution patches at layer{'s' if len(layers) > 1 else ''} {_some(layers)}: the "
            f"{audit.config.roles.unlearned} states are far from the states that they replace (mean cosine below 0.5, "
            "or norm different by more than a factor of 2), so a high delta at such a layer may show damage rather "
            "than erasure.",
            "off-distribution",
        )


def damage_signs(audit: DepthAudit) -> tuple[str, ...]:
    """Return the signs that the model lost retained facts; empty if there are none, or no control facts."""
    damage, prob, roles, signs = audit.damage_estimate, audit.entity_prob, audit.config.roles, []
    if damage.control_loss > DAMAGED * max(damage.retain_loss, LEAST_LOSS):
        signs.append(
            f"the {roles.unlearned} states cost {damage.control_loss:.2f} nats per token on these facts, but "
            f"{roles.retain}'s states only {damage.retain_loss:.2f}"
        )
    if prob.control_unlearned < LEAST_SAID * prob.control_full:
        signs.append(
            f"the model itself gives the retained entities a probability of {prob.control_unlearned:.3f}, but "
            f"{roles.full} gives them one of {prob.control_full:.3f}"
        )
    return tuple(signs)


def _damage(audit: DepthAudit) -> Iterator[Caution]:
    if signs := damage_signs(audit):
        yield Caution(
            "caution",
            f"Retained facts are lost: {'; '.join(signs)}. The score may show damage rather than forgetting.",
            "damaged",
        )


def _control(audit: DepthAudit) -> Iterator[Caution]:
    """Warn about control facts that say nothing about damage because `full` or `retain` does not know them."""
    control, (full, retain, *_) = audit.control, audit.config.roles
    if control is None:
        return
    known, n, n_skipped = int(control.known.sum()), len(control.examples), len(control.skipped)
    here, there = mean_loss(control.s1_delta[control.known]), mean_loss(audit.s1_delta)
    basis = interval_basis(control.s_full[control.known], of_rows(control.subjects, control.known))
    if not n:
        yield Caution(
            "caution", f"No control fact could be scored ({n_skipped} were skipped), so damage is NaN.", "no control"
        )
    elif known < n / 2:
        yield Caution(
            "caution",
            f"{full} hardly knows the control facts: it gives {n - known} of {n} entities a probability below "
            f"{LEAST_KNOWN:g} per token, so these facts are left out. Damage can only be measured on facts known to "
            f"both {full} and {retain}.",
            "weak control",
        )
    elif here > UNKNOWN_TO_RETAIN * there:
        yield Caution(
            "caution",
            f"{retain} hardly knows the control facts: its states cost {here:.2f} nats per token on them, and "
            f"{there:.2f} on the forget facts. Damage can only be measured on facts known to both {full} and {retain}.",
            "weak control",
        )
    elif basis.few or known == 1:
        facts = f"The only control fact that {full} knows covers"
        if known > 1:
            facts = f"The {known} control facts that {full} knows cover"
        yield Caution(
            "caution",
            f"{facts} only {basis.counted}, so the interval of damage is {'missing' if basis.n == 1 else 'rough'}.",
            f"control: {basis}",
        )
    if (sample := control.sample) is not None:
        part = f"{sample['limit']} of {sample['of']} control facts"
        if sample["sample"] == "random":
            yield Caution("note", f"A random sample was measured: {part} (seed {sample['seed']}).", "sample of control")
        else:
            more = ", and the data are or may be sorted, so damage on the other facts may differ."
            if sample.get("sorted_by", "unknown") is None:
                more = "; a random sample is safer."
            yield Caution("caution", f"Only the first {part} were measured{more}", "first control facts")
    if n and n_skipped:
        reason = control.skipped[0].reason.rstrip(".")
        yield Caution(
            "note",
            f"{n_skipped} control fact{'s' * (n_skipped != 1)} could not be scored ({reason}).",
            f"{n_skipped} control skipped",
        )


# How it was measured.


def _as_the_answers(audit: DepthAudit) -> Iterator[Caution]:
    reference = any(b == "unlearned" for _, b in audit.equal_weights)  # both scores are fixed by definition
    if not reference and abs(audit.uds - audit.output_depth) <= AS_ANSWERS:
        yield Caution(
            "note",
            "The depth score adds little to the unpatched answers: it differs from output depth by at most "
            f"{AS_ANSWERS:g}.",
            "as the answers",
        )


def _quantised(audit: DepthAudit) -> Iterator[Caution]:
    roles = audit.config.roles
    stored = {role: record.storage for role, record in audit.roles.items()}
    unlike = [_named(audit, role) for role, storage in stored.items() if storage != stored["unlearned"]]
    if stored["unlearned"] and unlike:
        yield Caution(
            "caution",
            f"The audited model is quantised ({stored['unlearned']}), but {' and '.join(unlike)} "
            f"{'is' if len(unlike) == 1 else 'are'} not quantised in the same way. Quantisation alone changes the "
            f"score (in our study, quantisation to 4 bits raised {roles.full}'s own score by 0.09). For comparison, "
            f"also audit {roles.full} and {roles.retain}, quantised in the same way.",
            "quantised",
        )


def _precision(audit: DepthAudit) -> Iterator[Caution]:
    if (dtype := audit.config.dtype) != "float32":
        yield Caution(
            "note",
            f"Measured in {dtype}: rounding hardly changes the mean, but it changes individual scores and which "
            "examples are measurable. Use float32 for numbers that you quote.",
            dtype,
        )


def _engines(audit: DepthAudit) -> Iterator[Caution]:
    first, second = (audit.provenance.get("stage_1") or {}).get("engine"), audit.provenance.get("engine")
    if first != second and None not in (first, second):
        yield Caution(
            "caution",
            f"Stage 1 was measured with the {first} engine and stage 2 with the {second} engine. If the fast engine "
            "failed in stage 2, its stage 1 results may also be wrong: measure both stages with engine 'naive'.",
            "two engines",
        )


_CHECKS: tuple[Callable[[DepthAudit], Iterator[Caution]], ...] = (  # in this order within a level
    _equal_weights,
    _knowledge,
    _other_prompts,
    _sample,
    _measurable,
    _stand_in,
    _damage,
    _control,
    _several_retains,
    _few_subjects,
    _subjects_alike,
    _skipped,
    _space_added,
    _prefix_ends_in_space,
    _given_away,
    _begins_answer,
    _answers_opened,
    _negative,
    _off_distribution,
    _quantised,
    _as_the_answers,
    _precision,
    _engines,
)


def cautions_between(audits: Mapping[str, DepthAudit]) -> Iterator[tuple[tuple[str, ...], str]]:
    """Yield warnings about several audits together: the names of the audits concerned (empty if all) and a sentence."""
    same: dict[tuple[object, ...], list[str]] = {}
    for name, audit in audits.items():  # a model measured with several settings may appear more than once
        same.setdefault((audit.models["unlearned"].fingerprint, *score_settings(audit)), []).append(name)
    for names in same.values():
        if len(names) > 1:
            yield tuple(names), "The audited models have identical weights."
    unlike = differing((name, conditions_of(audit)) for name, audit in audits.items())
    for role in ("full", "retain"):
        if role in unlike:
            yield (), f"The audits use different {role} models, so their scores are on different scales."
    if settings := differing_settings(audits.values()):
        yield (), f"The audits differ in {', '.join(settings)}, so their scores are not comparable."
    if QUESTIONS in unlike:
        yield (), "The audits were measured on different examples, or on differently tokenised ones."
