"""Audits against each other: identities, an independent computation, what is left out, what is refused."""

import dataclasses
import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from uds_lens.errors import ConfigError
from uds_lens.results import AuditConfig, compare, compare_all

from .conftest import NAN, made

PLAIN = AuditConfig(n_bootstrap=100, tau=0.05)


def audit(scores, *, subjects=None, order=None, **changes):
    """An audit with these scores: one KE layer of S1 = 1 each, none where the score is NaN."""
    s1 = [[0.0 if math.isnan(score) else 1.0] for score in scores]
    found = made(s1, [[0.0 if math.isnan(score) else score] for score in scores], **changes)
    owners = zip(found.examples, subjects or [None] * len(scores), strict=True)
    found = dataclasses.replace(found, examples=tuple(dataclasses.replace(e, subject=s) for e, s in owners))
    return found if order is None else taken(found, order)


def taken(found, order):
    """Some of the examples, in this order, as an audit of its own."""
    rows = ("n_tokens", "s_full", "s1_delta", "s2_delta")
    more = ("s1_norm_ratio", "s1_cosine", "s2_norm_ratio", "s2_cosine")
    return dataclasses.replace(
        found,
        examples=tuple(found.examples[i] for i in order),
        provenance={**found.provenance, "ids_hash": "f" * 32},
        **{name: getattr(found, name)[list(order)] for name in (*rows, *more)},
    )


SUBJECTS = ["Ada", "Ada", "Bo", "Bo", "Bo", "Cy", "Di", "Di"]
ONE = [0.9, 0.8, 0.7, 0.9, 0.4, 0.6, 0.8, 0.5]
OTHER = [0.2, 0.5, 0.6, 0.3, 0.5, 0.1, 0.6, 0.4]


def test_an_audit_against_itself_differs_in_nothing():
    found = compare(audit(ONE, subjects=SUBJECTS), audit(ONE, subjects=SUBJECTS))
    assert found.difference == 0.0 and found.interval == (0.0, 0.0) and found.p == 1.0
    assert (found.n, found.n_subjects, found.left_out, found.reason) == (8, 4, {}, None)


def test_a_pair_by_hand():
    """Difference, Student's interval under few subjects as a floor, and all 16 sign patterns, written out."""
    found = compare(audit(ONE, subjects=SUBJECTS), audit(OTHER, subjects=SUBJECTS))
    d = np.array(ONE) - np.array(OTHER)
    sums = np.array([d[[i for i, s in enumerate(SUBJECTS) if s == name]].sum() for name in dict.fromkeys(SUBJECTS)])
    counts = np.array([SUBJECTS.count(name) for name in dict.fromkeys(SUBJECTS)])

    def t(values):
        residuals = values - values.sum() / 8 * counts
        return abs(values.sum() / 8) / (math.sqrt(4 / 3 * (residuals**2).sum()) / 8)

    patterns = [t(np.array(signs) * sums) for signs in itertools.product([1, -1], repeat=4)]
    assert found.difference == pytest.approx(d.mean())
    assert found.p == np.mean([pattern >= t(sums) * (1 - 1e-9) for pattern in patterns])
    assert (found.uds_one, found.uds_other) == pytest.approx((np.mean(ONE), np.mean(OTHER)))
    error = d.mean() / t(sums)
    assert found.interval.high - found.difference >= 3.182 * error * 0.999
    assert found.difference - found.interval.low == pytest.approx(found.interval.high - found.difference)


def test_each_option_changes_what_it_names():
    pair = audit(ONE * 3, subjects=SUBJECTS * 3), audit(OTHER[::-1] * 3, subjects=SUBJECTS * 3)
    usual = compare(*pair)
    assert compare(*pair, confidence=0.5).interval.low > usual.interval.low
    close = [value + 0.1 * (-1) ** i for i, value in enumerate(ONE * 3)]
    alone = audit(ONE * 3), audit([value + 0.05 * (i % 3 == 0) for i, value in enumerate(close)])
    by_example = compare(*alone)
    assert by_example.n_subjects == 24 and compare(*alone, seed=1).p != by_example.p
    assert (compare(*alone, n_resamples=99).p * 100) == pytest.approx(round(compare(*alone, n_resamples=99).p * 100))


scores = st.lists(
    st.tuples(st.floats(0, 1), st.floats(0, 1), st.sampled_from([None, "Ada", "Bo", "Cy"])), min_size=2, max_size=12
)


@given(scores, st.randoms(use_true_random=False))
@settings(max_examples=25)
def test_swapped_and_shuffled_only_the_sign_turns(rows, random):
    one, other, subjects = (list(part) for part in zip(*rows, strict=True))
    order = random.sample(range(len(rows)), len(rows))
    a, b = audit(one, subjects=subjects), audit(other, subjects=subjects, order=order)
    there, back = compare(a, b, n_resamples=100), compare(b, a, n_resamples=100)
    assert back.difference == pytest.approx(-there.difference, abs=1e-12)
    assert back.p == pytest.approx(there.p, abs=1e-12, nan_ok=True)
    turned = sorted(-end for end in back.interval)
    assert turned == pytest.approx(list(there.interval), abs=1e-6, nan_ok=True)
    assert -1 <= there.difference <= 1
    assert math.isnan(there.p) == (there.n_subjects < 2) == (there.reason is not None)


def test_differences_that_all_but_a_few_subjects_share_have_a_caution():
    subjects, near = list("abcdefghijkl"), [0.25 + 0.01 * (i % 3) for i in range(12)]
    pair = {"a": audit(near, subjects=subjects), "b": audit([0.2] * 12, subjects=subjects)}
    told = compare(*pair.values()).caution
    assert told.startswith("All but a few subjects have nearly the same difference")
    assert compare_all(pair)["caution"].tolist() == [told]
    far = audit([0.6 + score for score in near], subjects=subjects)
    assert compare(far, pair["b"]).caution is None, "no share of a missed kind could turn its sign"


def test_what_only_one_measured_is_left_out_and_counted():
    a = audit([0.9, 0.8, 0.7, 0.6, NAN, NAN, 0.5, 0.4])
    b = audit([0.1, 0.2, 0.3, 0.4, 0.5, NAN, NAN, 0.4])
    examples, longer, read_otherwise = list(b.examples), b.n_tokens.clone(), b.s_full.clone()
    examples[0] = dataclasses.replace(examples[0], entity="A")
    examples[7] = dataclasses.replace(examples[7], question="Another?")
    longer[1] += 1
    read_otherwise[2] -= 0.5
    told = {**b.provenance, "ids_hash": "1" * 32}
    b = dataclasses.replace(b, examples=examples, n_tokens=longer, s_full=read_otherwise, provenance=told)
    found = compare(a, b)
    assert found.left_out == {
        "scored in the first only": 1,
        "scored in the second only": 1,
        "with a different answer, entity or tokens": 3,
        "not measurable in the first": 1,
        "not measurable in either": 1,
        "not measurable in the second": 1,
    }
    assert found.n == 1 and found.difference == pytest.approx(0.2)
    assert math.isnan(found.p) and "only one example" in found.reason


def test_nothing_in_common_is_nan_with_the_reason():
    found = compare(audit([0.5, NAN]), audit([NAN, 0.5]))
    assert found.n == 0 and found.reason == "no example was measured in both audits"
    assert all(math.isnan(v) for v in (found.difference, *found.interval, found.p, found.uds_one))
    alone = compare(audit(ONE, subjects=["Ada"] * 8), audit(OTHER, subjects=["Ada"] * 8))
    assert alone.difference > 0 and math.isnan(alone.p) and "8 examples of one subject" in alone.reason


def test_twice_the_same_question_is_paired_in_order():
    a = audit([0.9, 0.1])
    twin = dataclasses.replace(a.examples[0])
    a = dataclasses.replace(a, examples=(twin, twin), n_tokens=a.n_tokens[[0, 0]])
    assert compare(a, a).n == 2 and compare(a, a).difference == 0


def test_what_is_not_comparable_is_refused():
    one = audit(ONE)
    with pytest.raises(ConfigError, match=r"differ in site \('resid_post' and 'mlp_out'\), tau \(0.05 and 0.1\)"):
        compare(one, audit(OTHER, config=AuditConfig(site="mlp_out", tau=0.1)))
    with pytest.raises(ConfigError, match="different full models"):
        compare(one, audit(OTHER, prints={"full": "9" * 32}))
    with pytest.raises(ConfigError, match="differ in both the retain and the unlearned model"):
        compare(one, audit(OTHER, prints={"retain": "9" * 32, "unlearned": "8" * 32}))
    with pytest.raises(ConfigError, match="confidence must lie between 0 and 1; got 95"):
        compare(one, one, confidence=95)


def test_every_pair_is_a_row_adjusted_together():
    named = {
        "deep": audit(ONE * 2, subjects=list("abcdefghijklmnop")),
        "shallow": audit(OTHER * 2, subjects=list("abcdefghijklmnop")),
        "again": audit(OTHER * 2, subjects=list("abcdefghijklmnop")),
        "elsewhere": audit(ONE * 2, config=AuditConfig(site="mlp_out")),
    }
    table = compare_all(named, seed=3).set_index(["one", "other"])
    assert len(table) == 6
    row, single = table.loc["deep", "shallow"], compare(named["deep"], named["shallow"], seed=3)
    assert (row["difference"], row["low"], row["high"], row["p"], row["n"], row["n_subjects"]) == (
        *(single.difference, *single.interval, single.p),
        *(16, 16),
    )
    assert row["p_holm"] == pytest.approx(3 * row["p"]), "three pairs have a p-value"
    refused = table.loc["deep", "elsewhere"]
    assert math.isnan(refused["p_holm"]) and refused["reason"].startswith("not comparable: they differ in site")
    assert table.loc["shallow", "again"]["p_holm"] == 1.0
    assert table["p_holm_least"].dropna().to_numpy() == pytest.approx(3 / 10000) and not table["reference"].any()
    names = compare_all([audit(ONE, names={"unlearned": "ckpt/npo"}), audit(OTHER, names={"unlearned": "ckpt/rmu"})])
    assert names[["one", "other"]].to_numpy().tolist() == [["npo", "rmu"]]
    with pytest.raises(ConfigError, match="at least two audits; got 1"):
        compare_all([audit(ONE)])


def reference(role, scores, subjects):
    """An audit of `full` or `retain` itself."""
    plain = audit(scores, subjects=subjects)
    return dataclasses.replace(plain, models={**plain.models, "unlearned": plain.models[role]})


def test_references_are_not_tested_and_do_not_weigh_on_the_others():
    """Six pairs of models; with full and retain they were fifteen, and a p-value that held with six did not."""
    subjects = list("abcdefghijkl")
    models = {name: audit([s + 0.05 * i for s in ONE[:6] * 2], subjects=subjects) for i, name in enumerate("abcd")}
    known = {"full": reference("full", [0.0] * 12, subjects), "again": reference("retain", [1.0] * 12, subjects)}
    table = compare_all({**models, **known}).set_index(["one", "other"])
    alone = compare_all(models).set_index(["one", "other"])
    assert table.loc[alone.index, "p_holm"].to_dict() == alone["p_holm"].to_dict()
    inside = table[table["reference"]]
    assert len(inside) == 9 and inside["p_holm"].isna().all() and inside["p_holm_least"].isna().all()
    row = inside.loc["full", "again"]
    assert row["difference"] == -1.0 and row["p"] == 2.0**-11
    assert row["reason"] == "full and again are reference models, so the difference is not tested"
    named = compare_all(models, references=["a"])
    assert named["reference"].tolist() == [True] * 3 + [False] * 3
    with pytest.raises(ConfigError, match="names of audits; expected some of a, b, c, d; got 'gone'"):
        compare_all(models, references=["gone"])


@pytest.mark.parametrize(
    ("n", "least"),
    [(6, 6 * 2.0**-5), (12, 6 * 2.0**-11), (20, 6 / 2401)],  # 400 random patterns a pair, not the 100 of the interval
)
def test_the_smallest_p_that_could_come_out(n, least):
    """The largest difference there can be reaches it, and nothing falls below it."""
    subjects, shifts = [str(i) for i in range(n)], {"a": 0.0, "b": 0.2, "c": 0.4, "d": 0.6}
    models = {
        name: audit([shift + 0.01 * (i % 3) for i in range(n)], subjects=subjects) for name, shift in shifts.items()
    }
    table = compare_all(models, n_resamples=100)
    assert table["p_holm_least"].iloc[0] == pytest.approx(least)
    assert table["p_holm"].min() == pytest.approx(least) and (table["p_holm"] >= least * (1 - 1e-12)).all()
