"""Verdicts: from UDS alone nobody is erased; each word has its evidence, with the numbers of measured models."""

import dataclasses
import math

import numpy as np
import pytest
import torch
from synthetic_audits import with_control

from uds_lens.results import ReturnEvidence, TransplantEvidence, bootstrap_interval, contrast, output_depth, verdict
from uds_lens.results._cautions import damage_signs
from uds_lens.results._intervals import sample_error

from .conftest import made

MANY = 40
S1 = [[1.0, 1.0]] * MANY


def scored(uds, **changes):
    return made(S1, [[uds, uds]] * MANY, **changes)


def transplant(h, hidden_low, **more):
    return TransplantEvidence(host_depth=h, hidden_low=hidden_low, **more)


@pytest.mark.parametrize(
    ("name", "uds", "found", "word"),
    [
        ("half, toy", 0.46, transplant(0.48, -0.05), "partly erased"),
        ("idkdpo, toy", 0.43, transplant(0.20, 0.19), "hidden"),
        ("npo, toy", 0.82, transplant(0.32, 0.40), "hidden"),
        ("noise in block 0, toy", 0.977, transplant(0.09, 0.80, localisation=1.0), "hidden"),
        ("rmu-1, SmolLM2", 0.88, transplant(0.06, 0.70), "hidden"),
        ("npo-1, SmolLM2, in doubt", 0.55, transplant(0.56, -0.02), "partly erased"),
        ("as far apart as references", 0.60, transplant(0.50, 0.14, hidden_reference=0.15), "partly erased"),
        ("retain-1, SmolLM2", 0.92, transplant(0.91, -0.03, localisation=0.30), "erased as far as tested"),
        ("exact removal", 0.95, transplant(0.95, -0.05, localisation=1.0), "undecided"),
        ("transplant withheld", 0.10, transplant(math.nan, math.nan), "undecided"),
        ("no transplant", 0.977, None, "undecided"),
        ("control facts lost", 0.977, transplant(0.9, 0.0, control_lost=True), "damaged"),
        ("full", 0.0, None, "intact"),
    ],
)
def test_models_with_the_numbers_that_were_measured(name, uds, found, word):
    assert verdict(scored(uds), transplant=found).word == word, name


@pytest.mark.parametrize("uds", [0.03, 0.2, 0.97])
@pytest.mark.parametrize("found", [None, transplant(0.1, math.nan, reason="the model still answers")])
def test_a_model_that_still_answers_is_intact_or_partly_erased(uds, found):
    """Nothing can be called hidden that it says; no transplant is missing."""
    s_full = torch.full((MANY,), -0.1, dtype=torch.float64)
    answers = {"s_full": s_full, "s_retain": s_full - 4}
    answering, mute = (scored(uds, **answers, s_unlearned=s_full - 4 * lost) for lost in (0.14, 0.16))
    assert verdict(answering, transplant=found).word == ("intact" if uds < 0.05 else "partly erased")
    assert verdict(mute, transplant=found).word == "undecided"


@pytest.mark.parametrize("found", [None, transplant(0.68, -0.05)])
def test_a_changed_head_that_no_state_shows_is_not_called_intact(found):
    """`full` of the toy world with half of its final norm turned round: UDS 0, output depth .65, host depth .68."""
    s_full = torch.full((MANY,), -0.1, dtype=torch.float64)
    said = verdict(scored(0.0, s_full=s_full, s_retain=s_full - 4, s_unlearned=s_full - 2.6), transplant=found)
    assert said.word == "undecided"
    assert "answers are gone (output depth 0.65)" in said.why


def test_an_audit_takes_its_transplant_and_a_reason_why_there_is_none():
    audit = scored(0.977, transplant=transplant(0.09, 0.80))
    assert audit.verdict.word == "hidden" and "transplant" in audit.verdict.tested
    assert verdict(audit, transplant=transplant(0.95, -0.1)).word == "erased as far as tested"
    none = scored(0.977, transplant=transplant(math.nan, math.nan, reason="no candidate is admitted"))
    assert none.reading == "undecided" and "no result (no candidate is admitted)" in none.verdict.why
    assert "no candidate is admitted" in none._repr_html_()


@pytest.mark.parametrize("uds", [0.0, 0.04, 0.06, 0.46, 0.93, 1.0])
def test_nobody_is_erased_from_uds_alone(uds):
    audit = scored(uds)
    assert audit.verdict.word == ("intact" if uds < 0.05 else "undecided")
    assert audit.verdict.tested == ("states",) and len(audit.verdict.not_tested) == 3
    assert audit.reading == audit.verdict.word


def test_an_erased_model_names_its_tests_and_those_not_run():
    audit, found = scored(0.95), transplant(0.95, -0.1, localisation=1.0)
    nothing, back = ReturnEvidence(low=0.1, reference=0.2), ReturnEvidence(low=0.9, reference=0.2)
    said = verdict(audit, transplant=found, relearning=nothing)
    assert str(said) == "erased as far as tested (states, transplant, relearning; not elicitation)"
    returned = verdict(audit, transplant=found, relearning=back)
    assert (returned.word, returned.why) == (
        "undecided",
        "Relearning brings back at least 0.70 more in this model than in retain.",
    )
    assert verdict(audit, transplant=found, relearning=nothing, elicitation=back).word == "undecided"
    unknown = verdict(audit, transplant=found, relearning=ReturnEvidence(math.nan))
    assert unknown.word == "undecided" and "relearning" in unknown.not_tested, "a test without a result is none"


def test_the_ceiling_is_what_other_retain_models_reach():
    """One retain model reaches .8 on the other's scale, by hand; with one nobody knows, and the sentence says so."""
    from uds_lens.results._stage_1 import RetainStage1

    audit, found = scored(0.85), transplant(0.85, -0.1)
    alone = verdict(audit, transplant=found)
    assert alone.word == "partly erased" and "other retain seeds reached in our studies" in alone.why
    assert math.isnan(audit.retain_ceiling)
    one, other = torch.full((MANY, 2), 1.0, dtype=torch.float64), torch.full((MANY, 2), 0.8, dtype=torch.float64)
    more = {"model": audit.models["retain"], "s1_norm_ratio": one, "s1_cosine": one}
    several = dataclasses.replace(
        audit, retains=(RetainStage1(s1_delta=one, **more), RetainStage1(s1_delta=other, **more))
    )
    assert several.retain_ceiling == pytest.approx(0.8)
    reached = verdict(several, transplant=found)
    assert reached.word == "erased as far as tested" and "0.80, which the retain models reach" in reached.why


def test_without_a_retain_model_nobody_is_erased():
    config = dataclasses.replace(scored(0.5).config, stand_in="base")
    assert verdict(scored(0.99, config=config), transplant=transplant(0.99, -0.1)).word == "undecided"


# Damage: numbers of studies/smollm2 (control loss of the unlearned model and of retain, nats per token).


def controlled(lost, retain, *, said=0.98, full=0.988):
    audit = with_control(scored(0.9), lost=1.0)
    n = len(audit.control.examples)
    level = torch.ones(n, 2, dtype=torch.float64)
    s_full = torch.full((n,), math.log(full), dtype=torch.float64)
    return dataclasses.replace(
        audit,
        control=dataclasses.replace(audit.control, s1_delta=retain * level, s_full=s_full),
        control_s2_delta=lost * level,
        control_s_unlearned=torch.full((n,), math.log(said), dtype=torch.float64),
    )


@pytest.mark.parametrize(
    ("model", "lost", "said", "damaged"),
    [
        ("graddiff-1", 0.600, 0.019, True),
        ("rmu-1", 0.759, 0.379, True),
        ("rmu-2", 0.165, 0.597, True),
        ("retain-1", 0.017, 0.985, False),
        ("simnpo-1", 0.019, 0.964, False),
        ("idknll-1", 0.018, 0.948, False),
        ("npo-1", 0.017, 0.930, False),
    ],
)
def test_destroyed_models_are_damaged_and_others_are_not(model, lost, said, damaged):
    audit = controlled(lost, 0.010, said=said)
    assert (audit.verdict.word == "damaged") == damaged, model
    assert [caution.mark for caution in audit.cautions].count("damaged") == damaged
    assert bool(damage_signs(controlled(lost, 0.010))) == damaged, "by the states alone"
    assert bool(damage_signs(controlled(0.01, 0.010, said=said))) == damaged, "by what the model says alone"


def test_a_tiny_loss_on_retained_facts_is_no_damage_though_that_of_retain_is_tinier():
    assert not damage_signs(controlled(0.03, 0.001)), "rmu of the toy world"


def test_retrained_models_that_exceed_each_other_half_of_the_time_get_no_caution():
    """Over-erasure of retain-1 is 47% of the layers, of retain-2 58%: it is no sign by itself."""
    s2 = [[1.2, 0.8]] * MANY
    audit = made(S1, s2)
    assert audit.over_erased_share == 0.5 and audit.cautions == ()


# Output depth.


def test_output_depth_by_hand():
    s_full = torch.tensor([-0.1, -0.1, -0.1, -0.1], dtype=torch.float64)
    s_retain = torch.tensor([-4.1, -2.1, -0.12, -1.1], dtype=torch.float64)
    s_unlearned = torch.tensor([-1.1, -9.0, -5.0, -0.05], dtype=torch.float64)
    audit = made(S1[:4], S1[:4], s_full=s_full, s_retain=s_retain, s_unlearned=s_unlearned)
    assert audit.output_depth_per_example.tolist() == pytest.approx([0.25, 1.0, math.nan, 0.0], nan_ok=True)
    assert audit.output_depth == pytest.approx(1.25 / 3) and audit.output_depth_reason is None
    assert audit.output_depth_interval == audit.interval_of(
        output_depth(s_full, s_unlearned, s_retain, 0.05), audit.subjects
    )
    summary = audit.summary()
    assert summary["output_depth"] == audit.output_depth and summary["output_depth_low"] < audit.output_depth
    assert f"output_depth={audit.output_depth:.3f}" in repr(audit) and "output depth" in audit._repr_html_()
    nothing = made(S1[:4], S1[:4], s_full=s_full, s_retain=s_full, s_unlearned=s_unlearned)
    assert math.isnan(nothing.output_depth) and "by more than 0.05 nats per token" in nothing.output_depth_reason


@pytest.mark.parametrize(("uds", "said"), [(0.45, True), (0.55, True), (0.57, False), (0.43, False)])
def test_a_depth_that_says_what_the_answers_say_is_called_that(uds, said):
    """Output depth is .50."""
    s_full = torch.full((MANY,), -0.1, dtype=torch.float64)
    audit = scored(uds, s_full=s_full, s_retain=s_full - 2, s_unlearned=s_full - 1)
    texts = [text for text in audit.warnings if "adds little to the unpatched answers" in text]
    assert len(texts) == said


# Other cautions that were found wrong.


def test_one_subject_with_half_of_the_rows_counts_as_few_subjects():
    """Ten subjects, one with half of 40 examples: 40^2 / (20^2 + 2 * 3^2 + 7 * 2^2) = 3.6; coverage is 82% there."""
    audit = scored(0.5)
    sizes = [20, 3, 3, *[2] * 7]
    owners = [f"s{g}" for g, size in enumerate(sizes) for _ in range(size)]
    examples = [dataclasses.replace(e, subject=o) for e, o in zip(audit.examples, owners, strict=True)]
    uneven = dataclasses.replace(audit, examples=examples)
    assert uneven.interval_basis.n == 10 and uneven.interval_basis.effective == pytest.approx(1600 / 446)
    (text,) = uneven.warnings
    assert "10 subjects, which count as 3.6 since some have more" in text
    even = [dataclasses.replace(e, subject=f"s{i % 10}") for i, e in enumerate(audit.examples)]
    assert dataclasses.replace(audit, examples=even).cautions == ()


@pytest.mark.parametrize(("spread", "said"), [(0.01, True), (0.2, False)])
def test_subjects_that_score_alike_say_that_another_kind_was_not_asked(spread, said):
    """One of 20 that scores 0 where all others score about .5 moves the mean by .025, out of a narrow interval."""
    scores = 0.5 + spread * torch.linspace(-1, 1, 20).repeat_interleave(2)
    audit = made([[1.0] * 3] * 40, scores[:, None].expand(-1, 3).tolist())
    owned = [dataclasses.replace(e, subject=f"s{i // 2}") for i, e in enumerate(audit.examples)]
    marks = [caution.mark for caution in dataclasses.replace(audit, examples=owned).cautions]
    assert ("subjects alike" in marks) is said
    itself = dataclasses.replace(audit, examples=owned, models={**audit.models, "unlearned": audit.models["retain"]})
    assert "subjects alike" not in [caution.mark for caution in itself.cautions]


def test_equal_scores_of_a_sample_leave_room_for_rows_that_were_not_drawn():
    """36 equal rows of 400: the rest may be of another kind, as in the interval. All rows leave none."""
    values = torch.zeros(36, dtype=torch.float64)
    found = sample_error(values, of=400, drawn=36, bounds=(0.0, 1.0))
    interval = bootstrap_interval(values, bounds=(0.0, 1.0))
    assert found.interval.low == 0.0 and found.interval.high == pytest.approx(interval.high * (1 - 36 / 400))
    assert found.interval.high == pytest.approx(0.091 * 0.91, abs=0.01) and found.standard_error > 0.01
    assert sample_error(values, of=36, drawn=36, bounds=(0.0, 1.0)).interval == (0.0, 0.0)


def test_a_quantised_model_is_not_compared_with_plain_ones_silently():
    plain = scored(0.5)

    def stored(**storage):
        models = {role: dataclasses.replace(m, storage=storage.get(role)) for role, m in plain.models.items()}
        return [c.mark for c in dataclasses.replace(plain, models=models).cautions]

    nf4 = "4 bits (nf4)"
    assert stored(unlearned=nf4) == stored(unlearned=nf4, full=nf4) == ["quantised"]
    assert stored() == stored(full=nf4, retain=nf4, unlearned=nf4) == []


def test_differences_that_are_alike_are_not_called_small():
    """Six subjects, all .43: what is said must hold there."""
    said = contrast(np.full(6, 0.43) + np.linspace(-0.01, 0.01, 6), np.arange(6)).caution
    assert said is not None and "the difference is small" not in said
