"""Loss on retained facts beside loss on forget facts: by hand, where it is undefined, and what is warned of."""

import dataclasses
import math

import numpy as np
import pytest
import torch
from scipy.stats import t
from synthetic_audits import synthetic_audit, with_control

from uds_lens.errors import ConfigError
from uds_lens.results._intervals import ratio_interval

from .conftest import made

MANY = 40
KNOWN, HALF = [[1.0, 1.0]] * MANY, [[0.5, 0.7]] * MANY


def sound(**changes):
    """40 examples that lose 0.6 nats on the mean over two layers, beside 12 facts that lose 0.3."""
    return with_control(made(KNOWN, HALF), **{"lost": 0.3, **changes})


def test_damage_by_hand():
    found = sound().damage_estimate
    assert (found.forget_loss, found.control_loss, found.retain_loss) == pytest.approx((0.6, 0.3, 0.05))
    assert found.value == pytest.approx(0.5) and found.reason is None
    assert found.interval.low < 0.5 < found.interval.high
    assert sound().damage == found.value
    summary = sound().summary()
    assert (summary["damage"], summary["damage_low"], summary["damage_high"]) == (found.value, *found.interval)
    assert (summary["n_control"], summary["control_loss"]) == (12, found.control_loss)
    more = with_control(made([*KNOWN, [0.0, 0.0]], [*HALF, [9.0, 9.0]]), lost=0.3)
    assert more.n_not_measurable == 1 and more.damage_estimate.forget_loss == pytest.approx(0.6)


def test_probabilities_of_the_entities_by_hand():
    audit = sound()
    before = audit.entity_prob
    assert before.full == pytest.approx(float(audit.s_full.exp().mean())) and math.isnan(before.unlearned)
    own = torch.tensor([math.log(0.2), math.log(0.4)] * (MANY // 2), dtype=torch.float64)
    s_full = torch.tensor([math.log(0.05)] * 4 + [math.log(0.8)] * 8, dtype=torch.float64)  # four are not known
    kept = torch.tensor([0.0] * 4 + [math.log(0.25), math.log(0.75)] * 4, dtype=torch.float64)
    control = dataclasses.replace(audit.control, s_full=s_full)
    audit = dataclasses.replace(audit, s_unlearned=own, control=control, control_s_unlearned=kept)
    assert audit.entity_prob[1:] == pytest.approx((0.3, 0.8, 0.5))
    assert audit.summary()["prob_control_unlearned"] == audit.entity_prob.control_unlearned
    assert "0.300 under the unlearned model itself" in audit._repr_html_()
    assert "on retained facts 0.500 and 0.800" in audit._repr_html_()


def test_only_facts_that_full_knows_count():
    audit = sound()
    s_full = torch.tensor([math.log(0.0999)] * 4 + [math.log(0.1001)] * 8, dtype=torch.float64)
    audit = dataclasses.replace(audit, control=dataclasses.replace(audit.control, s_full=s_full))
    found, known = audit.damage_estimate, audit.control_s2_delta[4:]
    assert found.control_loss == pytest.approx(float(known.mean())) and found.control_loss > 0.31
    assert audit.control_layers_frame()["control_mean"].tolist() == pytest.approx(known.mean(0).tolist())
    assert audit.control_frame()["known"].tolist() == [False] * 8 + [True] * 16
    assert audit.summary()["n_control"] == 8
    unknown = dataclasses.replace(audit.control, s_full=s_full - 1)
    nothing = dataclasses.replace(audit, control=unknown)
    assert "full knows none of these facts" in nothing.damage_estimate.reason
    assert nothing.control_layers_frame()["control_mean"].isna().all()


@pytest.mark.parametrize(
    ("audit", "reason"),
    [
        (lambda: made(KNOWN, HALF), "no control facts were given"),
        (lambda: sound(n=0), "no control fact could be scored"),
        (lambda: with_control(made([[0.0, 0.0]], [[1.0, 1.0]])), "no example is measurable"),
        (
            lambda: with_control(made(KNOWN, [[0.0, 0.1]] * MANY)),
            "cost 0.050 nats per token, which is not more than tau (0.05)",
        ),
    ],
)
def test_undefined_damage_has_a_reason(audit, reason):
    found = audit().damage_estimate
    assert math.isnan(found.value) and all(map(math.isnan, found.interval))
    assert reason in found.reason
    assert audit().summary()["damage_reason"] == found.reason


def test_tables_of_the_control():
    audit = sound()
    long, layers = audit.control_frame(), audit.control_layers_frame()
    assert list(long) == ["example_id", "row", "subject", "layer", "known", "s1_delta", "s2_delta"]
    assert len(long) == 24 and long["example_id"][1] == "kept0" and long["subject"][2] == "person 1"
    assert long["s2_delta"].to_numpy() == pytest.approx(audit.control_s2_delta.flatten().numpy())
    assert layers["forget_mean"].tolist() == pytest.approx([0.5, 0.7])
    assert layers["control_mean"].tolist() == pytest.approx([0.3, 0.3])
    assert layers["control_retain_mean"].tolist() == pytest.approx([0.05, 0.05])
    assert (layers["control_low"] < layers["control_mean"]).all()
    assert layers[["forget_low", "forget_high"]].isna().all(axis=None), "all examples lose the same"
    for table in ("control_frame", "control_layers_frame", "plot_control"):
        with pytest.raises(ConfigError, match=r"has no control: measure it with control=\.\.\."):
            getattr(made(KNOWN, HALF), table)()


def with_facts(audit, **changes):
    return dataclasses.replace(audit, control=dataclasses.replace(audit.control, **changes))


def about(n):
    """The control facts of a sound audit, about so many subjects."""
    facts = sound().control.examples
    return [dataclasses.replace(fact, subject=f"s{i % n}") for i, fact in enumerate(facts)]


SAMPLE = {"limit": 12, "of": 400, "sample": "random", "seed": 0}
FIRST = {**SAMPLE, "sample": "first", "sorted_by": "subject"}
MOSTLY_UNKNOWN = torch.tensor([-3.0] * 7 + [-0.1] * 5, dtype=torch.float64)
FOREIGN = torch.full((12, 2), 0.6, dtype=torch.float64)


@pytest.mark.parametrize(
    ("audit", "level", "words"),
    [
        (lambda: sound(lost=0.4), "caution", "cost 0.40 nats per token on these facts, but retain's states only 0.05."),
        (lambda: with_facts(sound(), s_full=MOSTLY_UNKNOWN), "caution", "full hardly knows the control"),
        (lambda: with_facts(sound(), s1_delta=FOREIGN), "caution", "retain hardly knows the control facts"),
        (lambda: sound(n=0), "caution", "No control fact could be scored (1 were skipped)"),
        (sound, "note", "1 control fact could not be scored (the entity is not in the answer)."),
        (
            lambda: with_facts(sound(), examples=about(3)),
            "caution",
            "The 12 control facts that full knows cover only 3 subjects, so the interval of damage is rough.",
        ),
        (
            lambda: with_facts(sound(), sample=SAMPLE),
            "note",
            "A random sample was measured: 12 of 400 control facts (seed 0).",
        ),
        (
            lambda: with_facts(sound(), sample=FIRST),
            "caution",
            "Only the first 12 of 400 control facts were measured, and the data are or may be sorted",
        ),
        (lambda: with_facts(sound(), sample={**FIRST, "sorted_by": None}), "caution", "a random sample is safer"),
    ],
)
def test_each_warning_about_the_control(audit, level, words):
    (caution,) = (caution for caution in audit().cautions if words in caution.text)
    assert caution.level == level and caution.mark


def test_sound_controls_have_no_caution():
    assert not any(text.startswith("Retained facts are lost") for text in sound(lost=0.24).warnings)
    whole = with_facts(sound(lost=0.24), examples=about(12))
    assert {caution.level for caution in whole.cautions} == {"note"}


def test_it_is_shown_where_an_audit_shows_itself():
    audit = synthetic_audit(n=40)
    assert "damage" not in repr(audit) + audit._repr_html_()
    audit = with_control(audit, lost=0.1)
    assert f"damage={audit.damage:.3f}, warnings=" in repr(audit)
    assert f"{audit.damage:.3f} (" in audit._repr_html_() and "12 retained facts" in audit._repr_html_()


def test_a_ratio_with_two_clusters_each_by_hand():
    """One degree of freedom: Student's quantile is above that of any resample, so that the ends can be written out."""
    top, bottom = torch.tensor([1.0, 2.0, 6.0]), torch.tensor([8.0, 12.0])
    found = ratio_interval(top, bottom, top_clusters=["a", "a", "b"], bottom_clusters=[None, None])
    ratio = 3.0 / 10.0
    top_error = math.sqrt(2 / 1 * ((3 - 2 * 3) ** 2 + (6 - 3) ** 2)) / 3
    bottom_error = math.sqrt(2 / 1 * ((8 - 10) ** 2 + (12 - 10) ** 2)) / 2
    error = math.sqrt(top_error**2 + (ratio * bottom_error) ** 2) / 10
    reach = t.ppf(0.975, 1) * error
    assert found == pytest.approx((ratio - reach, ratio + reach))


def test_intervals_of_ratios_hold_the_truth():
    held = 0
    for seed in range(100):
        chance = np.random.default_rng(seed)
        groups = [np.repeat(np.arange(15), 4), np.repeat(np.arange(12), 5)]
        means = [0.3, 1.0]
        values = [
            torch.tensor(mean + 0.3 * mean * (chance.standard_normal(len(set(g)))[g] + chance.standard_normal(len(g))))
            for mean, g in zip(means, groups, strict=True)
        ]
        low, high = ratio_interval(
            *values, top_clusters=groups[0].tolist(), bottom_clusters=groups[1].tolist(), n_resamples=300, seed=seed
        )
        held += low <= 0.3 <= high
    assert 88 <= held <= 99


def test_ratios_without_an_interval():
    some, none = torch.tensor([1.0, 2.0]), [None, None]
    assert ratio_interval(2 * some, some, top_clusters=none, bottom_clusters=none).low < 2
    same = torch.ones(3)
    equal = ratio_interval(same, 2 * same, top_clusters=[None] * 3, bottom_clusters=[None] * 3)
    assert all(map(math.isnan, equal)), "nothing is known of others"
    for top, bottom, clusters in ((some, some, ["a", "a"]), (some, -some, none)):
        assert all(map(math.isnan, ratio_interval(top, bottom, top_clusters=clusters, bottom_clusters=none)))
    with pytest.raises(ConfigError, match="must have one entry per value"):
        ratio_interval(some, some, top_clusters=["a"], bottom_clusters=none)
    with pytest.raises(ConfigError, match="confidence must lie between 0 and 1"):
        ratio_interval(some, some, top_clusters=none, bottom_clusters=none, confidence=1.0)
