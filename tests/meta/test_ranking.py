"""Scores of models, ranking of methods, and how much of it is chance."""

import math
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from sklearn.metrics import roc_auc_score

from uds_lens.errors import ConfigError, DataError
from uds_lens.meta import ScoreParts, rank, score_models, shifts, stability, summary
from uds_lens.meta._columns import RANKING, SHIFTS
from uds_lens.meta._stability import ExampleAttack

WAYS = {"x": "knowledge", "y": "knowledge", "s": "erasure", "d": "erasure"}
PARTS = ScoreParts(memorization=("x", "y"), membership=("s",), depth="d", direction=WAYS, attacks={"s": "attack"})
ASK = {"parts": PARTS}


def models(**columns) -> pd.DataFrame:
    names = {"model": ["a1", "a2", "b1"], "method": ["a", "a", "b"]}
    return pd.DataFrame({**names, "x": 0.2, "y": 0.2, "s": 0.8, "d": 0.8, "utility_rel": 1.0, **columns})


def test_score_by_hand():
    row = score_models(models(x=0.5, y=0.0, s=0.5, d=0.25, utility_rel=1.3), **ASK).iloc[0]
    mem, privacy = 2 / (1 / 0.5 + 1 / 1.0), 2 / (1 / 0.5 + 1 / 0.25)
    assert (row["memorization"], row["mia"]) == (pytest.approx(mem), 0.5)
    assert (row["utility"], row["utility_rel"]) == (1.0, 1.3)
    assert row["score_without"] == pytest.approx(3 / (1 / mem + 1 / 0.5 + 1))
    assert row["score_with"] == pytest.approx(3 / (1 / mem + 1 / privacy + 1))
    for gone in ({"x": 1.0}, {"y": 1.0}, {"s": 0.0}, {"d": 0.0}, {"utility_rel": 0.0}):
        row = score_models(models(**gone), **ASK).iloc[0]
        assert row["score_with"] == 0 and (row["score_without"] == 0) == ("d" not in gone)


def test_what_is_missing_or_of_too_little_use_is_not_ranked():
    table = rank(models(x=[math.nan, 0.4, math.nan]), **ASK)
    assert list(table.columns) == list(RANKING)
    first, second = (row for _, row in table.iterrows())
    assert (first["model"], first["n_configs"], first["n_eligible"]) == ("a2", 2, 1)
    assert math.isnan(first["margin"])
    assert second["method"] == "b" and math.isnan(second["rank"]) and second["reason"] == "no value of x"
    frame = models(s=[0.9, 0.7, 0.8], utility_rel=[0.7, 0.9, 0.3])  # min_utility decides who is a candidate
    table = rank(frame, min_utility=0.8, **ASK).set_index("method")
    assert table.loc["a", "model"] == "a2" and table.loc["a", "n_eligible"] == 1
    assert math.isnan(table.loc["b", "score"]) and "0.8 of the utility" in table.loc["b", "reason"]


def test_the_choice_and_the_score_are_two_things():
    frame = models(s=[0.9, 0.7, 0.6], d=[0.1, 0.9, 0.6])
    by_without, by_with = rank(frame, **ASK), rank(frame, select_by="with", **ASK)
    assert by_without.set_index("method").loc["a", "model"] == "a1" and by_without["method"][0] == "b"
    assert by_with.set_index("method").loc["a", "model"] == "a2" and by_with["method"][0] == "a"
    assert rank(frame, with_uds=False, **ASK)["method"][0] == "a"
    table = shifts(frame, **ASK)
    row = table.set_index("method").loc["a"]
    assert list(table.columns) == list(SHIFTS)
    assert (row["model_without"], row["model_with"], row["moved"]) == ("a1", "a2", True)
    assert row["depth_change"] == pytest.approx(0.8)


def test_ties_are_named_and_broken_by_what_is_not_0():
    frame = models(s=[0.0, 0.0, 0.5], x=[0.6, 0.3, 0.3], d=0.5)
    row = rank(frame, **ASK).set_index("method").loc["a"]
    assert (row["n_tied"], row["margin"], row["model"], row["tied"]) == (2, 0, "a2", "a1 a2")
    fewer = models(s=0.0, x=[1.0, 0.9, 0.3])  # a1 has two parts at 0
    assert rank(fewer, **ASK).set_index("method").loc["a", "model"] == "a2"
    assert not shifts(frame, **ASK)["moved"].any()
    equal = rank(models(model=["a1", "c1", "b1"], method=["a", "c", "b"], s=[0.8, 0.8, 0.5]), **ASK)
    assert equal["rank"].tolist() == [1, 1, 3] and equal["n_tied_rank"].tolist() == [2, 2, 1]


@pytest.mark.parametrize(
    ("frame", "message"),
    [
        (models().drop(columns="method"), "'method'"),
        (models(method=["a", None, "b"]), "empty in 1 rows"),
        (models().drop(columns="s"), "'s'"),
        (models().drop(columns="utility_rel"), "'utility_rel'"),
        (models(x=1.5), "between 0 and 1"),
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


GRID = pd.DataFrame({"model": [f"{m}{i}" for m in "abc" for i in range(4)], "method": [*"aaaabbbbcccc"]})
GRID = GRID.assign(x=[0.1, 0.2, 0.3, 0.4, *[0.2] * 4, 0.5, 0.6, 0.7, 0.8], y=0.2, s=0.8, d=0.8, utility_rel=1.0)


def test_bootstrap_over_configurations():
    found = stability(GRID, n_resamples=4000, **ASK)
    first = found.ranks[(found.ranks["view"] == "with") & (found.ranks["rank"] == 1)].set_index("method")
    # a is above b if a0 is drawn, and level with it if the best that is drawn is a1
    p0, p1 = 1 - (3 / 4) ** 4, (3 / 4) ** 4 - (2 / 4) ** 4
    assert first.loc["a", "probability"] == pytest.approx(p0 + p1, abs=0.03)
    swap = found.swaps.set_index(["view", "above", "below"])["probability"]
    assert swap["with", "a", "b"] == pytest.approx(p0 + p1 / 2, abs=0.03)
    assert swap["with", "a", "b"] + swap["with", "b", "a"] == pytest.approx(1)
    assert swap["with", "a", "c"] == 1 and set(found.fixed) == {"x", "y", "s", "d"}
    rows = found.scores.set_index(["view", "method"])
    chosen = rows["p_chosen"]["with"]
    assert chosen[["a", "b"]].tolist() == pytest.approx([p0, p0], abs=0.03)  # b is a tie of what is drawn
    assert (rows["low"] <= rows["score"]).all() and (rows["high"] <= rows["score"] + 1e-12).all()
    assert np.allclose(found.ranks.groupby(["view", "method"])["probability"].sum(), 1)


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


def of_examples(found, view="without"):
    """Scores over resamples of examples, by method."""
    rows = found.scores
    return rows[(rows["resampled"] == "examples") & (rows["view"] == view)].set_index("method")


def test_bootstrap_over_examples():
    frame, examples = example_table(GRID, "x", 0.2)
    extra = examples[examples["model"] == "a0"].assign(model="full", value=9.0)  # no candidate
    found = stability(frame, examples=pd.concat([examples, extra]), n_resamples=500, **ASK)
    assert set(found.fixed) == {"y", "s", "d"}
    row = of_examples(found).loc["a"]
    assert row["low"] < row["score"] < row["high"]
    assert row["score"] == pytest.approx(score_models(frame, **ASK)["score_without"][:4].max())


def test_the_width_is_that_of_the_mean_over_examples_or_subjects():
    frame = models(model=["a1", "b1", "c1"], method=list("abc"))
    frame, examples = example_table(frame, "x", 0.1, n=100)
    # Ten subjects whose levels differ: the mean rests on ten draws, not on a hundred.
    number = examples["example_id"].str[1:].astype(int) // 10
    examples["value"] += (number - 4.5) * 0.05
    frame = frame.assign(x=examples.groupby("model")["value"].mean().reindex(frame["model"]).to_numpy())
    values = examples[examples["model"] == "a1"]["value"]
    errors = {"example": values.std(ddof=0) / 10, "subject": values.groupby(number).mean().std(ddof=0) / 10**0.5}
    assert errors["subject"] > 1.5 * errors["example"]
    named = examples.assign(subject=[f"s{n}" for n in number])
    for table, error in (
        (examples, errors["example"]),
        (named.assign(subject=None), errors["example"]),
        (named, errors["subject"]),
    ):
        row = of_examples(stability(frame, examples=table, n_resamples=1000, **ASK)).loc["a"]
        means = [values.mean() + z * error for z in (1.96, -1.96)]
        ends = [score_models(frame.assign(x=mean), **ASK)["score_without"][0] for mean in means]
        assert [row["low"], row["high"]] == pytest.approx(ends, abs=0.007)


def attack_table(frame, gaps, n=50, seed=1):
    """Scores of an attack: the forget set's lie below the holdout's by a gap, retain's are the last."""
    rng = np.random.default_rng(seed)
    ids = [f"e{i}" for i in range(n)] + [f"holdout/e{i}" for i in range(n)]
    shift = np.repeat([0.0, 1.0], n)
    values = {name: np.round(rng.normal(size=2 * n) + gap * shift, 1) for name, gap in gaps.items()}  # ties
    rows = {"metric": "attack", "example_id": ids}
    long = pd.concat([pd.DataFrame({"model": name, **rows, "value": v}) for name, v in values.items()])
    auc = {name: roc_auc_score(shift, scores) for name, scores in values.items()}
    closeness = [1 - min(abs(auc[name] - auc["retain"]) / auc["retain"], 1) for name in frame["model"]]
    return frame.assign(s=closeness), long


def test_attacks_are_resampled_with_retain():
    frame = models(model=["a1", "b1", "c1"], method=list("abc"))
    frame, examples = attack_table(frame, {"a1": 0.5, "b1": 1.0, "c1": 2.0, "retain": 0.4})
    found = stability(frame, examples=examples, n_resamples=400, **ASK)
    assert set(found.fixed) == {"x", "y", "d"}
    rows = of_examples(found)
    assert ((rows["low"] < rows["score"]) & (rows["score"] <= rows["high"] + 0.02)).all()
    assert (rows["high"] - rows["low"]).min() > 0.005
    alone = stability(frame, examples=examples[examples["model"] != "retain"], n_resamples=9, **ASK)
    assert "s" in alone.fixed
    with pytest.raises(DataError, match="the examples of 's' give"):
        stability(frame.assign(s=0.1), examples=examples, **ASK)


def test_area_of_a_resample():
    rng = np.random.default_rng(0)
    scores, holdout = np.round(rng.normal(size=40), 1), np.arange(40) >= 20
    weights = rng.integers(0, 4, size=(5, 40)).astype(float)
    by_hand = [roc_auc_score(holdout, scores, sample_weight=row) for row in weights]
    attack = ExampleAttack(scores[:, None], scores, holdout)
    assert attack.area(scores, weights) == pytest.approx(by_hand, abs=1e-12)


def test_examples_that_do_not_fit():
    frame, examples = example_table(GRID, "x", 0.1)
    for change, message in (
        (examples.drop(columns="value"), "lack the column value"),
        (examples.assign(model="other"), "none of the models in the table: they name 'other', but the table has 'a0'"),
        (pd.concat([examples, examples.iloc[:1]]), "two values of 'x'"),
        (examples.assign(value=examples["value"] / 2), "have the mean"),
    ):
        with pytest.raises(DataError, match=message):
            stability(frame, examples=change, **ASK)
    with pytest.raises(ConfigError, match="n_resamples"):
        stability(GRID, n_resamples=1, **ASK)


@pytest.mark.parametrize(("depths", "share"), [((0.9, 0.9), 0.0), ((0.9, 0.1), 1.0)])
def test_how_often_depth_changes_places(depths, share):
    """Without depth `b` is first by a hair; a depth that both have leaves it there, one that it lacks does not."""
    frame = pd.DataFrame({"model": ["a1", "a2", "b1", "b2"], "method": [*"aabb"], "x": [0.21, 0.21, 0.2, 0.2]})
    frame = frame.assign(s=0.9, d=np.repeat(depths, 2), utility_rel=1.0)
    found = stability(frame, parts=replace(PARTS, memorization=("x",)), n_resamples=20)
    assert found.reordered == {"configurations": share} and not found.cautions


def test_what_cannot_vary_has_no_probability():
    one_each = GRID.iloc[[0, 4, 8]]
    found = stability(one_each, n_resamples=20, **ASK)
    assert found.varying == () and math.isnan(found.reordered["configurations"])
    assert found.ranks["probability"].isna().all() and found.swaps["probability"].isna().all()
    assert found.scores[["p_best", "low"]].isna().all(axis=None)
    assert "every method has one eligible configuration" in found.cautions[0]
    frame, examples = example_table(one_each, "x", 0.2)
    found = stability(frame, examples=examples, n_resamples=200, **ASK)
    assert found.varying == ("examples",)
    first = of_examples(found, "with")["p_best"]
    assert first.sum() == pytest.approx(1) and first["a"] > first["c"]
    assert "resampling examples leaves y, s, d, utility_rel unchanged" in found.cautions[1]
    frame, examples = example_table(GRID, "x", 0.1)  # no values per example of a0
    found = stability(frame, examples=examples[examples["model"] != "a0"], n_resamples=20, **ASK)
    assert found.varying == ("configurations",) and set(found.fixed) == {"x", "y", "s", "d"}
    assert "no part of the score has per-example values for every model" in found.cautions[0]


def test_one_configuration_among_several():
    found = stability(GRID.iloc[[0, 1, 2, 3, 4]], n_resamples=200, **ASK)
    assert found.varying == ("configurations",)
    rows = found.scores.query("view == 'with'").set_index("method")
    assert 0 < rows.loc["b", "p_best"] < 1  # a varies, and with it who is first
    assert math.isnan(rows.loc["b", "low"]) and rows.loc["a", "low"] < rows.loc["a", "high"]
    assert found.cautions[0].startswith("b: one eligible configuration")
    frame = GRID.assign(utility_rel=[1.0, *[0.5] * 3] * 3)  # the utility decides who is eligible
    assert stability(frame, min_utility=0.8, n_resamples=20, **ASK).varying == ()


def test_summary_says_what_is_missing():
    faithful = pd.DataFrame({"metric": [*"xyz"], "auc": [0.9, 0.8, math.nan], "reason": [None, None, "nothing"]})
    robust = pd.DataFrame({"metric": [*"xz"], "q": 0.9, "r": [math.nan, 0.5], "r_reason": ["contains 0", None]})
    table = summary(faithful, robust).set_index("metric")
    assert table["reason"].tolist() == ["r: contains 0", "q: not given; r: not given", "auc: nothing"]
    assert table["rank_auc"].tolist() == pytest.approx([1, 2, math.nan], nan_ok=True)
    with pytest.raises(DataError, match="occurs twice"):
        summary(pd.concat([faithful, faithful]), robust)
