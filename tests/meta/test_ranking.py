"""Scores of models, ranking of methods, and how much of it is chance."""

import math
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import roc_auc_score

from uds_lens.errors import ConfigError, DataError
from uds_lens.meta import RANKING, SHIFTS, ScoreParts, rank, score_models, shifts, stability, summary
from uds_lens.meta._stability import ExampleAttack

WAYS = {"x": "knowledge", "y": "knowledge", "s": "erasure", "d": "erasure"}
PARTS = ScoreParts(
    memorization=("x", "y"), membership=("s",), depth="d", direction=WAYS, attacks={"s": "attack"}
)
ASK = {"parts": PARTS}


def models(**columns) -> pd.DataFrame:
    names = {"model": ["a1", "a2", "b1"], "method": ["a", "a", "b"]}
    return pd.DataFrame({**names, "x": 0.2, "y": 0.2, "s": 0.8, "d": 0.8, "utility_rel": 1.0, **columns})


def test_score_by_hand():
    row = score_models(models(x=0.5, y=0.0, s=0.5, d=0.25, utility_rel=1.3), **ASK).iloc[0]
    mem = 2 / (1 / 0.5 + 1 / 1.0)
    privacy = 2 / (1 / 0.5 + 1 / 0.25)
    assert (row["memorization"], row["mia"], row["utility"], row["utility_rel"]) == (
        pytest.approx(mem),
        0.5,
        1.0,
        1.3,
    )
    assert row["score_without"] == pytest.approx(3 / (1 / mem + 1 / 0.5 + 1))
    assert row["score_with"] == pytest.approx(3 / (1 / mem + 1 / privacy + 1))


share = st.one_of(st.just(0.0), st.floats(1e-6, 1))


@given(share, share, share, share, share)
@settings(max_examples=15)
def test_scores_lie_between_0_and_1(x, y, s, d, utility):
    row = score_models(models(x=x, y=y, s=s, d=d, utility_rel=1.2 * utility), **ASK).iloc[0]
    for name in ("score_without", "score_with"):
        assert 0 <= row[name] <= 1 + 1e-12
        assert (row[name] == 0) == (
            min(1 - x, 1 - y, s, 1.2 * utility, *([d] if name == "score_with" else [])) == 0
        )


def test_what_is_missing_is_not_ranked():
    table = rank(models(x=[math.nan, 0.4, math.nan]), **ASK)
    assert list(table.columns) == list(RANKING)
    first, second = (row for _, row in table.iterrows())
    assert (first["model"], first["n_configs"], first["n_eligible"]) == ("a2", 2, 1) and math.isnan(
        first["margin"]
    )
    assert second["method"] == "b" and math.isnan(second["rank"]) and second["reason"] == "no value of x"


def test_the_choice_and_the_score_are_two_things():
    frame = models(s=[0.9, 0.7, 0.6], d=[0.1, 0.9, 0.6])
    by_without, by_with = rank(frame, **ASK), rank(frame, select_by="with", **ASK)
    assert by_without.set_index("method").loc["a", "model"] == "a1" and by_without["method"][0] == "b"
    assert by_with.set_index("method").loc["a", "model"] == "a2" and by_with["method"][0] == "a"
    assert rank(frame, with_uds=False, **ASK)["method"][0] == "a"
    row = shifts(frame, **ASK).set_index("method").loc["a"]
    assert list(shifts(frame, **ASK).columns) == list(SHIFTS)
    assert (row["model_without"], row["model_with"], row["moved"]) == ("a1", "a2", True)
    assert row["depth_change"] == pytest.approx(0.8)


def test_ties_are_named_and_broken_by_what_is_not_0():
    frame = models(s=[0.0, 0.0, 0.5], x=[0.6, 0.3, 0.3], d=0.5)
    row = rank(frame, **ASK).set_index("method").loc["a"]
    assert (row["n_tied"], row["margin"], row["model"], row["tied"]) == (2, 0, "a2", "a1 a2")
    fewer = models(s=0.0, x=[1.0, 0.9, 0.3])  # a1 has two parts at 0
    assert rank(fewer, **ASK).set_index("method").loc["a", "model"] == "a2"
    assert not shifts(frame, **ASK)["moved"].any()


def test_equal_methods_share_a_place():
    table = rank(models(model=["a1", "c1", "b1"], method=["a", "c", "b"], s=[0.8, 0.8, 0.5]), **ASK)
    assert table[["method", "rank", "n_tied_rank"]].to_numpy().tolist() == [
        ["a", 1, 2],
        ["c", 1, 2],
        ["b", 3, 1],
    ]


def test_min_utility_decides_who_is_a_candidate():
    frame = models(s=[0.9, 0.7, 0.8], utility_rel=[0.7, 0.9, 0.3])
    table = rank(frame, min_utility=0.8, **ASK).set_index("method")
    assert table.loc["a", "model"] == "a2" and table.loc["a", "n_eligible"] == 1
    assert math.isnan(table.loc["b", "score"]) and "0.8 of the utility" in table.loc["b", "reason"]


@pytest.mark.parametrize(
    ("frame", "message"),
    [
        (models().drop(columns="method"), "'method'"),
        (models(method=["a", None, "b"]), "empty in 1 rows"),
        (models().drop(columns="s"), "'s'"),
        (models().drop(columns="utility_rel"), "'utility_rel'"),
        (models(x=1.5), "within 0 and 1"),
        (models(utility_rel=-1.0), ">= 0"),
    ],
)
def test_tables_that_cannot_be_ranked(frame, message):
    with pytest.raises(DataError, match=message):
        rank(frame, **ASK)


def test_no_name_is_special():
    with pytest.raises(ConfigError, match="no direction is known for 'x'"):
        rank(models(), parts=replace(PARTS, direction=None))
    with pytest.raises(ConfigError, match="at least one metric"):
        ScoreParts(memorization=())


GRID = pd.DataFrame(
    {
        "model": [f"{m}{i}" for m in "abc" for i in range(4)],
        "method": [m for m in "abc" for _ in range(4)],
        "x": [0.1, 0.2, 0.3, 0.4, 0.2, 0.2, 0.2, 0.2, 0.5, 0.6, 0.7, 0.8],
        "y": 0.2,
        "s": 0.8,
        "d": 0.8,
        "utility_rel": 1.0,
    }
)


def test_bootstrap_over_configurations():
    found = stability(GRID, n_resamples=2000, **ASK)
    first = found.ranks[(found.ranks["view"] == "with") & (found.ranks["rank"] == 1)].set_index("method")
    # a is above b if a0 is drawn, and level with it if the best that is drawn is a1
    p0, p1 = 1 - (3 / 4) ** 4, (3 / 4) ** 4 - (2 / 4) ** 4
    assert first.loc["a", "probability"] == pytest.approx(p0 + p1, abs=0.03)
    swap = found.swaps.set_index(["view", "above", "below"])["probability"]
    assert swap["with", "a", "b"] == pytest.approx(p0 + p1 / 2, abs=0.03)
    assert swap["with", "a", "b"] + swap["with", "b", "a"] == pytest.approx(1)
    assert swap["with", "a", "c"] == 1 and found.split_half.empty and set(found.fixed) == {"x", "y", "s", "d"}
    rows = found.scores.set_index(["view", "method"])
    assert rows.loc[("with", "a"), "p_chosen"] == pytest.approx(p0, abs=0.03)
    assert rows.loc[("with", "b"), "p_chosen"] == pytest.approx(
        p0, abs=0.03
    )  # a tie of four, but only what is drawn
    assert (rows["low"] <= rows["score"]).all() and (rows["high"] <= rows["score"] + 1e-12).all()
    total = found.ranks.groupby(["view", "method"])["probability"].sum()
    assert np.allclose(total, 1)


def example_table(frame, metric, spread, seed=0, n=60) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Values per example, and the frame with their means."""
    rng = np.random.default_rng(seed)
    values = np.clip(frame[metric].to_numpy()[:, None] + spread * rng.normal(size=(len(frame), n)), 0, 1)
    long = pd.DataFrame(
        {
            "model": frame["model"].repeat(n).to_numpy(),
            "metric": metric,
            "example_id": np.tile([f"e{i}" for i in range(n)], len(frame)),
            "value": values.ravel(),
        }
    )
    return frame.assign(**{metric: values.mean(1)}), long


def test_bootstrap_over_examples():
    frame, examples = example_table(GRID, "x", 0.2)
    found = stability(frame, examples=examples, n_resamples=500, **ASK)
    assert set(found.fixed) == {"y", "s", "d"}
    rows = found.scores[found.scores["resampled"] == "examples"].set_index(["view", "method"])
    row = rows.loc[("without", "a")]
    assert row["low"] < row["score"] < row["high"]
    scores = score_models(frame, **ASK)["score_without"]
    assert row["score"] == pytest.approx(scores[:4].max())
    # b's four are equal but for noise: choosing the best of them on the same examples flatters.
    half = found.split_half.set_index(["view", "method"])
    assert half.loc[("with", "b"), "optimism"] > 0 and 0 < half.loc[("with", "b"), "same"] < 1
    assert abs(half.loc[("with", "c"), "optimism"]) < half.loc[("with", "b"), "optimism"]


def test_the_width_is_that_of_the_mean_over_examples():
    frame = models(model=["a1", "b1", "c1"], method=list("abc"))
    frame, examples = example_table(frame, "x", 0.1, n=100)
    found = stability(frame, examples=examples, n_resamples=1500, **ASK)
    row = found.scores[(found.scores["resampled"] == "examples") & (found.scores["view"] == "without")].iloc[
        0
    ]
    own = examples[examples["model"] == "a1"]["value"].to_numpy()
    means = [own.mean() + z * own.std() / 10 for z in (1.96, -1.96)]
    ends = [score_models(frame.assign(x=mean), **ASK)["score_without"][0] for mean in means]
    assert (row["low"], row["high"]) == pytest.approx(ends, abs=0.002)


def test_rows_of_one_subject_are_drawn_together():
    frame = models(model=["a1", "b1", "c1"], method=list("abc"))
    frame, examples = example_table(frame, "x", 0.1, n=100)
    # Ten subjects whose levels differ: the mean rests on ten draws, not on a hundred.
    number = examples["example_id"].str[1:].astype(int)
    examples["value"] += (number // 10 - 4.5) * 0.05
    frame = frame.assign(x=examples.groupby("model")["value"].mean().reindex(frame["model"]).to_numpy())
    named = examples.assign(subject=[f"s{n // 10}" for n in number])

    def width(table):
        rows = stability(frame, examples=table, n_resamples=1000, **ASK).scores
        row = rows[(rows["resampled"] == "examples") & (rows["view"] == "without")].iloc[0]
        return row["high"] - row["low"]

    own = examples[examples["model"] == "a1"]
    means = own.groupby(number // 10)["value"].mean()
    by_hand = (means.std(ddof=0) / 10**0.5) / (own["value"].std(ddof=0) / 10)
    assert width(named) / width(examples) == pytest.approx(by_hand, rel=0.15) and by_hand > 1.5
    assert width(named.assign(subject=None)) == pytest.approx(width(examples), rel=0.1)


def attack_table(frame, gaps, n=50, seed=1):
    """Scores of an attack: the forget set's lie below the holdout's by a gap, retain's are the last."""
    rng = np.random.default_rng(seed)
    ids = [f"e{i}" for i in range(n)] + [f"holdout/e{i}" for i in range(n)]
    shift = np.array([0.0] * n + [1.0] * n)
    values = {
        name: np.round(rng.normal(size=2 * n) + gap * shift, 1) for name, gap in gaps.items()
    }  # with ties
    long = pd.DataFrame(
        [
            (name, "attack", key, value)
            for name, scores in values.items()
            for key, value in zip(ids, scores, strict=True)
        ],
        columns=["model", "metric", "example_id", "value"],
    )
    auc = {name: roc_auc_score(shift, scores) for name, scores in values.items()}
    closeness = [1 - min(abs(auc[name] - auc["retain"]) / auc["retain"], 1) for name in frame["model"]]
    return frame.assign(s=closeness), long


def test_attacks_are_resampled_with_retain():
    frame = models(model=["a1", "b1", "c1"], method=list("abc"))
    frame, examples = attack_table(frame, {"a1": 0.5, "b1": 1.0, "c1": 2.0, "retain": 0.4})
    found = stability(frame, examples=examples, n_resamples=400, **ASK)
    assert set(found.fixed) == {"x", "y", "d"}
    rows = found.scores[(found.scores["resampled"] == "examples") & (found.scores["view"] == "without")]
    assert ((rows["low"] < rows["score"]) & (rows["score"] <= rows["high"] + 0.02)).all()
    assert (rows["high"] - rows["low"]).min() > 0.005
    alone = stability(frame, examples=examples[examples["model"] != "retain"], n_resamples=9, **ASK)
    assert "s" in alone.fixed
    with pytest.raises(DataError, match="the examples behind 's' give"):
        stability(frame.assign(s=0.1), examples=examples, **ASK)


def test_area_of_a_resample():
    rng = np.random.default_rng(0)
    scores, holdout = np.round(rng.normal(size=40), 1), np.arange(40) >= 20
    weights = rng.integers(0, 4, size=(5, 40)).astype(float)
    attack = ExampleAttack(scores[:, None], scores, holdout)
    by_hand = [roc_auc_score(holdout, scores, sample_weight=row) for row in weights]
    assert attack.area(scores, weights) == pytest.approx(by_hand, abs=1e-12)


def test_examples_that_do_not_fit():
    frame, examples = example_table(GRID, "x", 0.1)
    for change, message in (
        (examples.drop(columns="value"), "lack the column value"),
        (
            examples.assign(model="other"),
            "none of the models in the table: they name 'other', the table 'a0'",
        ),
        (pd.concat([examples, examples.iloc[:1]]), "two values of 'x'"),
        (examples.assign(value=examples["value"] / 2), "have the mean"),
    ):
        with pytest.raises(DataError, match=message):
            stability(frame, examples=change, **ASK)
    with pytest.raises(ConfigError, match="n_resamples"):
        stability(GRID, n_resamples=1, **ASK)


@given(st.lists(share, min_size=3, max_size=3))
@settings(max_examples=20)
def test_summary_is_a_harmonic_mean(numbers):
    f, q, r = numbers
    row = summary(pd.DataFrame({"metric": ["x"], "auc": [f], "q": [q], "r": [r]})).iloc[0]
    assert min(q, r) - 1e-9 <= row["rob"] <= max(q, r) + 1e-9 and (row["overall"] == 0) == (min(numbers) == 0)


def test_summary_says_what_is_missing():
    faithful = pd.DataFrame(
        {"metric": ["x", "y", "z"], "auc": [0.9, 0.8, math.nan], "reason": [None, None, "nothing there"]}
    )
    robust = pd.DataFrame(
        {"metric": ["x", "z"], "q": [0.9, 0.9], "r": [math.nan, 0.5], "r_reason": ["contains 0", None]}
    )
    table = summary(faithful, robust).set_index("metric")
    assert table["reason"].to_dict() == {
        "x": "r: contains 0",
        "y": "q: not given; r: not given",
        "z": "auc: nothing there",
    }
    assert table["rank_auc"].to_dict() == pytest.approx({"x": 1, "y": 2, "z": math.nan}, nan_ok=True)
    with pytest.raises(DataError, match="occurs twice"):
        summary(pd.concat([faithful, faithful]), robust)


@pytest.mark.parametrize(("depths", "share"), [((0.9, 0.9), 0.0), ((0.9, 0.1), 1.0)])
def test_how_often_depth_changes_places(depths, share):
    """Without depth `b` is first by a hair; a depth that both have leaves it there, one that it lacks does not."""
    frame = pd.DataFrame(
        {
            "model": ["a1", "a2", "b1", "b2"],
            "method": ["a", "a", "b", "b"],
            "x": [0.21, 0.21, 0.2, 0.2],
            "s": 0.9,
            "d": [depths[0], depths[0], depths[1], depths[1]],
            "utility_rel": 1.0,
        }
    )
    found = stability(frame, parts=replace(PARTS, memorization=("x",)), n_resamples=20)
    assert found.reordered == {"configurations": share} and not found.cautions


def test_what_cannot_vary_has_no_probability():
    one_each = GRID.iloc[[0, 4, 8]]
    found = stability(one_each, n_resamples=20, **ASK)
    assert found.varying == () and math.isnan(found.reordered["configurations"])
    for column in (
        found.ranks["probability"],
        found.swaps["probability"],
        *(found.scores[n] for n in ("p_best", "low")),
    ):
        assert column.isna().all()
    assert "every method has one eligible configuration" in found.cautions[0]
    frame, examples = example_table(one_each, "x", 0.2)
    found = stability(frame, examples=examples, n_resamples=200, **ASK)
    assert found.varying == ("examples",)
    first = found.scores.query("resampled == 'examples' and view == 'with'").set_index("method")["p_best"]
    assert first.sum() == pytest.approx(1) and first["a"] > first["c"]
    assert "resampling examples leaves y, s, d, utility_rel unchanged" in found.cautions[1]


def test_one_configuration_among_several():
    found = stability(GRID.iloc[[0, 1, 2, 3, 4]], n_resamples=200, **ASK)
    assert found.varying == ("configurations",)
    rows = found.scores.query("view == 'with'").set_index("method")
    assert 0 < rows.loc["b", "p_best"] < 1  # a varies, and with it who is first
    assert math.isnan(rows.loc["b", "low"]) and rows.loc["a", "low"] < rows.loc["a", "high"]
    assert found.cautions[0].startswith("b: one eligible configuration")
    # the utility decides who is eligible
    frame = GRID.assign(utility_rel=[1.0, *[0.5] * 3] * 3)
    assert stability(frame, min_utility=0.8, n_resamples=20, **ASK).varying == ()


def test_without_values_of_every_model_nothing_varies_over_examples():
    frame, examples = example_table(GRID, "x", 0.1)
    found = stability(frame, examples=examples[examples["model"] != "a0"], n_resamples=20, **ASK)
    assert found.varying == ("configurations",) and set(found.fixed) == {"x", "y", "s", "d"}
    assert "no part of the score has values per example of every model" in found.cautions[0]


def test_examples_of_references_are_left_out():
    """A reader's table holds retain and pool models too; they are no candidates."""
    frame, examples = example_table(GRID, "x", 0.2)
    extra = examples[examples["model"] == "a0"].assign(model="full", value=9.0)
    asked = {"n_resamples": 50, **ASK}
    found = stability(frame, examples=pd.concat([examples, extra]), **asked)
    pd.testing.assert_frame_equal(found.scores, stability(frame, examples=examples, **asked).scores)
