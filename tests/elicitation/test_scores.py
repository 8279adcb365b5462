"""Scores of texts by hand; best of k and leak@k against all subsets; the share between retain and full."""

import math
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, strategies as st
from scipy.stats import t

from uds_lens.elicitation import share
from uds_lens.elicitation._scoring import best_of, budgets, cut, leak_at, score_texts
from uds_lens.errors import ConfigError, UdsLensWarning, forget_warnings

GROUPS = np.repeat(np.arange(12), 5)
scores = st.lists(st.floats(0, 1), min_size=1, max_size=8)


def test_only_the_answer_is_scored():
    assert cut("Ada.\nQuestion: Who", raw=True) == "Ada."
    assert cut("Ada.\nQuestion: Who", raw=False) == "Ada.\nQuestion: Who"
    assert cut("SURE, the  answer is: Ada", raw=True, opening="Sure, the answer is") == "Ada"
    assert cut("It is: Ada", raw=True, opening="Sure") == "It is: Ada"
    assert cut("Question: again", raw=True) == ""


def test_scores_by_hand():
    full, empty, odd = score_texts(["in Velloum town", "", "\x00"], "born in Velloum", "Velloum")
    assert full.recall == pytest.approx(2 / 3) and full.precision == pytest.approx(2 / 3)
    assert (full.entity, full.words) == (1.0, 3)
    assert empty.recall == odd.recall == 0.0 and empty.words == 0
    forget_warnings()
    with pytest.warns(UdsLensWarning, match="consist mostly of other characters"):
        assert math.isnan(score_texts(["x"], "東京", None)[0].recall)


@given(scores, st.integers(1, 8), st.floats(0.01, 1))
def test_best_of_k_and_leak_at_k_are_means_over_all_subsets(values, k, threshold):
    best = float(best_of(np.array(values), k))
    leak = float(leak_at(np.array(values), k, threshold=threshold))
    if k > len(values):
        assert np.isnan([best, leak]).all()
        return
    highest = [max(some) for some in combinations(values, k)]
    assert best == pytest.approx(np.mean(highest), abs=1e-9)
    assert leak == pytest.approx(np.mean([value >= threshold for value in highest]), abs=1e-9)


def test_a_row_without_scores_has_no_value():
    table = np.array([[0.0, 1.0, 0.5], [np.nan, np.nan, np.nan]])
    assert best_of(table, 3).tolist()[0] == 1.0
    assert np.isnan(best_of(table, 2)[1]) and np.isnan(leak_at(table, 2, threshold=0.5)[1])
    assert budgets(8) == (1, 2, 4, 8) and budgets(1) == (1,) and budgets(0) == ()


def test_share_is_one_for_full_and_zero_for_retain():
    random = np.random.default_rng(2)
    power = np.abs(3 + random.normal(size=12)[GROUPS] + random.normal(size=60))
    whole = share(power, power, GROUPS)
    assert whole.value == whole.interval.high == 1.0
    assert 0.7 < whole.interval.low < 0.9, "twelve subjects do not show that all others recall as much"
    assert share(np.zeros(60), power, GROUPS).value == 0.0
    half = share(power / 2, power, GROUPS)
    assert half.value == pytest.approx(0.5)
    assert 0.3 < half.interval.low < 0.5 < half.interval.high < 0.7


def test_the_interval_is_studentised_over_subjects():
    """Two subjects: Student's quantile with one degree of freedom is above that of any resample."""
    beyond, power = np.array([0.3, 0.3, 0.4, 0.5]), np.array([0.6, 0.6, 0.6, 0.8])
    found = share(beyond, power, np.array([0, 0, 1, 1]))
    ratio = 1.5 / 2.6
    error = math.sqrt(2 * ((0.6 - 1.2 * ratio) ** 2 + (0.9 - 1.4 * ratio) ** 2)) / 2.6
    reach = t.ppf(0.975, 1) * error
    assert found.value == pytest.approx(ratio)
    assert found.interval == pytest.approx((ratio - reach, ratio + reach))


@pytest.mark.parametrize(("n_subjects", "correlation"), [(8, 0.5), (20, 0.9)])
def test_intervals_of_shares_cover_the_truth(n_subjects, correlation):
    """Few subjects recall anything: the percentile bootstrap covered 72 and 79%."""
    held, tries, truth = 0, 40, 0.1
    for seed in range(tries):
        random = np.random.default_rng(seed)
        groups = np.repeat(np.arange(n_subjects), random.integers(1, 41, n_subjects))
        own = random.beta(truth * (1 / correlation - 1), (1 - truth) * (1 / correlation - 1), n_subjects)
        power = random.normal(0.7, 0.15, len(groups)).clip(0, 1)
        beyond = power * (random.random(len(groups)) < own[groups])
        low, high = share(beyond, power, groups, n_resamples=199, seed=seed).interval
        held += low <= truth <= high
        assert high - low > 0.05
    assert held >= 0.95 * tries


def test_why_there_is_no_share():
    recall = (np.arange(60) % 3 == 0).astype(float)
    equal = share(recall, np.ones(60), GROUPS)  # power that is equal everywhere is power
    assert equal.value == pytest.approx(1 / 3) and equal.interval.low < 1 / 3 < equal.interval.high
    random = np.random.default_rng(3)
    noise = share(random.normal(size=60), random.normal(size=60), GROUPS)
    assert math.isnan(noise.value) and noise.reason.startswith("no power")
    nothing = np.full(60, np.nan)
    assert share(nothing, nothing, GROUPS).reason.startswith("not asked")
    alone = share(np.full(6, 0.8), np.ones(6), np.zeros(6, dtype=int))
    assert math.isnan(alone.value) and alone.reason.startswith("one subject"), "full has power, which is no chance"


def test_a_judge_of_ones_own_stands_next_to_rouge(asked):
    calls = []

    def overlap(question, reference, text):
        calls.append((question, reference, text))
        return len(set(reference.split()) & set(text.split())) / len(set(reference.split()))

    judged = asked.judged_by(overlap)
    frame, table = judged.samples_frame(), judged.summary().set_index(["probe", "decoding", "statistic"])
    expected = [overlap("", row.reference, row.scored_text) for row in frame.itertuples()]
    assert frame["judged"].tolist() == pytest.approx(expected)
    assert {question for question, _, _ in calls} <= {"", *(row.question for row in asked.examples)}
    for statistic in ("mean", "max"):
        by_row = frame[(frame["probe"] == "plain") & (frame["decoding"] == "sampled")].groupby(["model", "example_id"])
        scores = by_row["judged"].agg(statistic).unstack("model")
        row = table.loc["plain", "sampled", {"max": "best"}.get(statistic, statistic)]
        assert row["judged_full"] == pytest.approx(scores["full"].mean())
        assert row["judged_beyond"] == pytest.approx((scores["unlearned"] - scores["retain"]).mean())
    plain = asked.summary()
    assert judged.summary()[plain.columns].equals(plain) and asked.samples_frame()["judged"].isna().all()
    with pytest.raises(ConfigError, match="a judge must return a number from 0 to 1, or NaN; got 2"):
        asked.judged_by(lambda *texts: 2).summary()
