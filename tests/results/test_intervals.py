"""Clustered intervals: against a plain loop, their limits, their coverage, many at once, and where they are used."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from results.conftest import NAN, made
from scipy.stats import beta, betabinom, bootstrap, t as student

from uds_lens.errors import ConfigError
from uds_lens.results import _intervals, bootstrap_interval
from uds_lens.results._intervals import IntervalBasis, column_intervals, share_interval


def t(values):
    return torch.tensor(values, dtype=torch.float64)


def plain_interval(values, clusters, *, n_resamples, seed, confidence=0.95):
    """The definition, one resample at a time."""
    names = list(dict.fromkeys(clusters))
    groups = [np.array([v for v, c in zip(values, clusters, strict=True) if c == name]) for name in names]
    n = len(groups)

    def mean_and_error(parts):
        size = sum(map(len, parts))
        mean = sum(part.sum() for part in parts) / size
        spread = sum((part.sum() - len(part) * mean) ** 2 for part in parts)
        return mean, math.sqrt(n / (n - 1) * spread) / size

    mean, error = mean_and_error(groups)
    chance, ratios = np.random.default_rng(seed), []
    for times in chance.multinomial(n, np.full(n, 1 / n), size=n_resamples):
        m, e = mean_and_error([g for g, k in zip(groups, times, strict=True) for _ in range(k)])
        ratios.append(abs(m - mean) / max(e, 0.3 * error))
    reach = max(np.quantile(ratios, confidence), student.ppf((1 + confidence) / 2, n - 1)) * error
    return mean - reach, mean + reach


def test_it_is_the_symmetric_studentised_bootstrap_over_clusters():
    chance = np.random.default_rng(3)
    clusters = [name for name, size in zip("abcdef", (3, 1, 5, 2, 2, 4), strict=True) for _ in range(size)]
    values = chance.random(len(clusters)).tolist()
    expected = plain_interval(values, clusters, n_resamples=300, seed=7)
    assert bootstrap_interval(t(values), clusters=clusters, n_resamples=300, seed=7) == pytest.approx(expected)
    with_gaps = bootstrap_interval(t([NAN, *values]), clusters=["a", *clusters], n_resamples=300, seed=7)
    assert with_gaps == pytest.approx(expected)
    narrow = bootstrap_interval(t(values), clusters=clusters, n_resamples=300, seed=7, confidence=0.8)
    assert narrow == pytest.approx(plain_interval(values, clusters, n_resamples=300, seed=7, confidence=0.8))


def test_few_clusters_and_bounds():
    values = t([0.2, 0.3, 0.8, 0.9])
    low, high = bootstrap_interval(values, clusters=list("aabb"), n_resamples=300)
    error = math.sqrt(2 * (2 * (0.5 - 1.1) ** 2)) / 4  # Student's t with one degree of freedom reaches 12.706
    assert (low, high) == pytest.approx((0.55 - 12.706 * error, 0.55 + 12.706 * error), rel=1e-3)
    assert bootstrap_interval(values, clusters=list("aabb"), bounds=(0.0, 1.0)) == (0.0, 1.0)
    assert all(map(math.isnan, bootstrap_interval(values, clusters=["a"] * 4)))
    with pytest.raises(ConfigError, match="one entry per value: 4 values, 1 clusters"):
        bootstrap_interval(values, clusters=["a"])


def test_a_few_clusters_that_differ_do_not_make_it_endless():
    clusters = [place // 18 for place in range(360)]
    values = t([0.9 if cluster < 2 else 0.03 + 0.001 * (place % 18) for place, cluster in enumerate(clusters)])
    low, high = bootstrap_interval(values, clusters=clusters, bounds=(0.0, 1.0))
    assert low == 0.0 and 0.3 < high < 0.6  # 2 of 20: between 0.01 and 0.32 of all, were they coins


def test_scores_that_vary_have_an_interval_though_subjects_agree():
    """No subject differs from another, which says nothing of how much others would: examples are resampled."""
    values, clusters = t([0.2, 0.8] * 6), [place // 2 for place in range(12)]
    found = bootstrap_interval(values, clusters=clusters, n_resamples=300)
    assert found == bootstrap_interval(values, n_resamples=300)
    assert found.low < 0.4 and found.high > 0.6


@pytest.mark.parametrize("score", [0.0, 0.03, 0.5, 1.0])
def test_equal_scores_are_no_proof_that_all_others_score_alike(score):
    few, many = (
        bootstrap_interval(t([score] * 3 * n), clusters=[place // 3 for place in range(3 * n)], bounds=(0.0, 1.0))
        for n in (5, 40)
    )
    assert few.low <= many.low <= score <= many.high <= few.high
    assert few.high - few.low > 0.3 and 0.02 < many.high - many.low < 0.08
    assert all(map(math.isnan, bootstrap_interval(t([score] * 6), clusters=list("aabbcc")))), "no bounds"


def test_of_single_examples_the_share_has_a_beta_posterior():
    for n, ones in ((20, 0), (8, 8), (2, 2), (300, 300), (30, 7)):
        count = np.array([1.0] * ones + [0.0] * (n - ones))
        found = share_interval(count, np.ones(n, dtype=int), 0.95)
        assert found == pytest.approx(beta.ppf([0.025, 0.975], 1 + ones, 1 + n - ones), abs=2e-3)


def test_the_posterior_is_that_of_the_beta_binomial():
    size, count = np.array([12, 3, 30, 8, 1, 20]), np.array([0, 3, 2, 0, 1, 0])
    p, part = ((np.arange(n) + 0.5) / n for n in (2000, 200))
    rho = beta.ppf(part, 0.5, 0.5)
    a, b = (np.outer(each, 1 / rho - 1) for each in (p, 1 - p))
    density = np.prod([betabinom.pmf(k, n, a, b) for k, n in zip(count, size, strict=True)], 0).sum(1)
    below = np.cumsum(density) / density.sum()
    expected = np.interp([0.05, 0.95], below, p)
    assert share_interval(count.astype(float), size, 0.9) == pytest.approx(expected, abs=5e-3)


@pytest.mark.parametrize("n_subjects", [8, 20])
@pytest.mark.parametrize("flipped", [False, True])
def test_it_covers_where_few_subjects_are_of_the_other_kind(n_subjects, flipped):
    """Scores of .03 and .97 that go together within a subject, mean .11: the bootstrap alone covers 56 and 76%."""
    held, alone, tries, truth = 0, 0, 60, 0.89 if flipped else 0.11
    for seed in range(tries):
        chance = np.random.default_rng(seed)
        clusters = np.repeat(np.arange(n_subjects), chance.integers(1, 41, n_subjects))
        own = chance.beta(0.08 / 0.94 / 9, 0.86 / 0.94 / 9, n_subjects)  # correlation 0.9
        kinds = chance.random(len(clusters)) < own[clusters]
        values = t(np.where(kinds != flipped, 0.97, 0.03))
        settings = {"clusters": clusters.tolist(), "n_resamples": 199, "seed": seed}
        low, high = bootstrap_interval(values, **settings, bounds=(0.0, 1.0))
        held += low <= truth <= high
        assert high - low > 0.05 and 0 <= low <= high <= 1
        low, high = bootstrap_interval(values, **settings)
        alone += low <= truth <= high
    assert held >= 0.95 * tries and alone < 0.9 * tries


def test_scores_between_the_bounds_are_left_to_the_bootstrap():
    chance = np.random.default_rng(0)
    values, clusters = t(chance.normal(0.4, 0.05, 200).clip(0, 1)), [place // 10 for place in range(200)]
    within = bootstrap_interval(values, clusters=clusters, n_resamples=300, bounds=(0.0, 1.0))
    assert within == bootstrap_interval(values, clusters=clusters, n_resamples=300)


@pytest.mark.parametrize("correlation", [0.0, 0.8])
def test_it_covers_what_it_says(correlation):
    """95% of 200 tries, give or take; by example, correlated scores are covered in less than two thirds."""
    held, by_example, tries = 0, 0, 200
    clusters = np.repeat(np.arange(20), 15)
    for seed in range(tries):
        chance = np.random.default_rng(seed)
        latent = math.sqrt(correlation) * chance.standard_normal(20)[clusters]
        latent = latent + math.sqrt(1 - correlation) * chance.standard_normal(300)
        values = torch.sigmoid(t(4 * latent))  # mostly near 0 and 1, mean 0.5
        low, high = bootstrap_interval(values, clusters=clusters.tolist(), n_resamples=199, seed=seed)
        held += low <= 0.5 <= high
        by_example += abs(float(values.mean()) - 0.5) < 1.96 * float(values.std()) / math.sqrt(300)
    assert 0.91 <= held / tries <= 0.985
    assert (by_example / tries < 0.67) == (correlation > 0)


def with_subjects(audit, subjects):
    examples = [replace(e, subject=s) for e, s in zip(audit.examples, subjects, strict=True)]
    return replace(audit, examples=examples)


def test_an_audit_goes_by_subject_where_examples_share_one():
    s1 = [[1.0, 1.0, 1.0]] * 12
    s2 = [[score] * 3 for score in (0.1, 0.15, 0.2, 0.1, 0.5, 0.55, 0.5, 0.6, 0.9, 0.8, 0.85, 0.9)]
    audit = made(s1, s2, types=["Name", "Place"] * 6)
    clustered = with_subjects(audit, [f"s{i // 4}" for i in range(12)])
    assert audit.interval_basis == IntervalBasis("example", 12, 12.0)
    assert clustered.interval_basis == IntervalBasis("subject", 3, 3.0)
    assert str(clustered.interval_basis) == "3 subjects"
    assert clustered.summary()["interval_by"] == "subject"
    assert clustered.summary()["interval_degrees_of_freedom"] == 2
    assert clustered.uds == audit.uds
    assert clustered.uds_interval == (0.0, 1.0) != audit.uds_interval
    wide, narrow = (a.types_frame().set_index("type").loc["Name"] for a in (clustered, audit))
    assert wide["uds_high"] - wide["uds_low"] > narrow["uds_high"] - narrow["uds_low"]
    assert "Only 3 subjects: treat the subject-level interval as rough" in " ".join(clustered.warnings)
    assert "subject" not in " ".join(audit.warnings)
    single = with_subjects(audit, ["Ada"] * 12)
    assert all(map(math.isnan, single.uds_interval))
    assert "All measurable examples are about one subject" in " ".join(single.warnings)


def test_the_score_of_a_reference_follows_from_its_definition():
    whole = [[1.0, 1.0, 1.0]] * 12
    people = [f"s{i // 2}" for i in range(12)]
    other = with_subjects(made(whole, whole), people)
    assert other.uds == 1.0 and other.uds_interval.low < 0.9
    itself = with_subjects(made(whole, whole, prints={"unlearned": "r" * 32}), people)
    assert itself.equal_weights == [("retain", "unlearned")] and itself.uds_interval == (1.0, 1.0)


def test_many_examples_are_resampled_alike(monkeypatch):
    """Above MANY units the draws take another way: the same intervals up to chance."""
    chance = np.random.default_rng(0)
    values = t(np.where(chance.random(300) < 0.1, 0.9, chance.random(300) * 0.2))
    columns = torch.stack([values, values**2], 1)
    few = column_intervals(columns, clusters=[None] * 300)
    monkeypatch.setattr(_intervals, "MANY", 10)
    _intervals._kept.cache_clear()
    many = column_intervals(columns, clusters=[None] * 300)
    for one, other in zip(few, many, strict=True):
        assert one == pytest.approx(other, abs=3e-3) and one != other


@pytest.mark.parametrize("n", [3, 40, 1500])
def test_intervals_over_examples_are_those_of_scipy(n):
    chance = np.random.default_rng(n)
    for scores in (chance.random(n), chance.normal(0.8, 0.4, n).clip(0, 1), np.arange(n) % 3 / 2):
        assert bootstrap_interval(t(scores)) == pytest.approx(scipy_bca(scores), abs=1e-12)


def scipy_bca(scores):
    options = {"method": "BCa", "batch": 2_000_000 // len(scores), "rng": np.random.default_rng(0)}
    return tuple(bootstrap((scores,), np.mean, **options).confidence_interval)


SUBJECTS = [f"person {i // 4}" for i in range(24)]


def values(columns=3, n=24):
    return torch.rand(n, columns, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


def test_a_whole_column_has_the_interval_of_bootstrap_interval():
    data = values(4)
    data[:, 2] = torch.where(torch.arange(24) < 4, 0.97, 0.03)
    data[:, 3] = 0.0
    low, high = column_intervals(data, clusters=SUBJECTS, n_resamples=500, seed=3, bounds=[(0.0, 1.0)] * 4)
    for place in range(4):
        one = bootstrap_interval(data[:, place], clusters=SUBJECTS, n_resamples=500, seed=3, bounds=(0.0, 1.0))
        assert (low[place], high[place]) == pytest.approx(one, abs=1e-12)


def test_a_missing_value_is_left_out_of_its_column_only():
    data = values()
    data[:4, 1] = torch.nan  # a whole subject
    data[7, 2] = torch.nan
    low, high = column_intervals(data, clusters=SUBJECTS, n_resamples=4000)
    lows, highs = column_intervals(values(), clusters=SUBJECTS, n_resamples=4000)
    assert (low[0], high[0]) == (lows[0], highs[0])
    for place, kept in ((1, slice(4, None)), (2, [i for i in range(24) if i != 7])):
        names = np.array(SUBJECTS)[kept].tolist()
        one = bootstrap_interval(data[kept, place], clusters=names, n_resamples=4000)
        assert (low[place], high[place]) == pytest.approx(one, abs=0.02)
        assert (low[place] + high[place]) / 2 == pytest.approx(float(data[:, place].nanmean()))


def test_columns_without_an_interval():
    data = torch.full((4, 4), 0.5, dtype=torch.float64)
    data[:, 1] = torch.nan
    data[1:, 2] = torch.nan
    data[:2, 3] = torch.tensor([0.1, 0.9], dtype=torch.float64)
    low, high = column_intervals(data, clusters=["a", "a", "b", "c"], n_resamples=200)
    assert all(math.isnan(x) for ends in (low, high) for x in ends[:3])
    assert low[3] < 0.4 and high[3] > 0.6, "each subject has the same mean, but examples differ"
    low, high = column_intervals(data, clusters=["a", "a", "b", "c"], n_resamples=200, bounds=[(0.0, 1.0)] * 4)
    assert low[0] < 0.4 and high[0] > 0.6, "equal values of three subjects"
    assert math.isnan(column_intervals(data, clusters=["a"] * 4, n_resamples=200)[0][0])
    assert all(map(math.isnan, column_intervals(torch.empty(0, 2), clusters=[])[0]))
