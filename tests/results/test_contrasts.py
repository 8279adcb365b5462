"""Differences over subjects: intervals, tests, and that they do not find what is not there."""

import math

import numpy as np
import pytest
from scipy import stats

from uds_lens.results import contrast, holm
from uds_lens.results._comparing import smallest_p

GROUPS = np.repeat(np.arange(12), 5)


def _clustered(random, *, within=1.0, between=1.0):
    return between * random.normal(size=12)[GROUPS] + within * random.normal(size=60)


def test_mean_and_interval_by_hand():
    found = contrast(np.array([0.0, 0.2, 0.4, 0.6]), np.array([0, 0, 1, 1]))
    assert found.value == pytest.approx(0.3) and found.n == 4 and found.n_subjects == 2
    assert contrast(np.array([0.1, np.nan]), np.array([0, 1])).n == 1


def test_nothing_to_tell_from_one_subject_or_none():
    one = contrast(np.array([0.1, 0.3]), np.array([0, 0]))
    assert one.value == pytest.approx(0.2) and math.isnan(one.p) and math.isnan(one.interval.low)
    none = contrast(np.array([np.nan]), np.array([0]))
    assert math.isnan(none.value) and none.n == 0


def test_equal_differences_vary_in_nothing():
    same = contrast(np.zeros(60), GROUPS)
    assert (same.value, same.p) == (0.0, 1.0) and all(map(math.isnan, same.interval)), "no bounds"
    shifted = contrast(np.full(60, 0.5), GROUPS, bounds=(-1.0, 1.0))
    assert 0 < shifted.interval.low < 0.5 < shifted.interval.high < 0.7 and shifted.p < 0.001


@pytest.mark.parametrize("farthest", [1.0, 2.0, 100.0])
def test_a_rare_kind_of_subject_that_was_missed_has_a_caution(farthest):
    """One subject in 50 that differs by -0.8 makes up for the 0.016 of the others; none of these 12 is of that kind."""
    values, bounds = np.random.default_rng(0).normal(0.016, 0.01, 60), (-farthest, farthest)
    missed = contrast(farthest * values, GROUPS, bounds=bounds)
    assert missed.p < 0.01 and missed.caution.startswith("All but a few subjects have nearly the same difference")
    one_apart = np.where(GROUPS == 11, -0.2, values + 0.034)
    assert contrast(farthest * one_apart, GROUPS, bounds=bounds).caution is not None
    assert contrast(farthest * (values + 0.6), GROUPS, bounds=bounds).caution is None, "too far to be turned"
    assert contrast(farthest * (values + np.linspace(-0.1, 0.2, 12)[GROUPS]), GROUPS, bounds=bounds).caution is None
    assert contrast(0 * values, GROUPS, bounds=bounds).caution is None


def test_all_sign_patterns_are_the_exact_test():
    values = np.random.default_rng(5).normal(0.4, 1, 9)
    found = contrast(values, np.arange(9)).p
    exact = stats.permutation_test(
        (values,), np.mean, permutation_type="samples", n_resamples=np.inf, alternative="two-sided"
    ).pvalue
    assert found == pytest.approx(exact, abs=1e-12)


@pytest.mark.parametrize("spread", [0.0, 1e-3])
def test_many_draws_do_not_go_below_the_exact_test(spread):
    """Of the 2 ** 14 patterns two are as extreme as that of 14 subjects that differ alike, however many are drawn."""
    values = 0.5 + spread * np.linspace(-1, 1, 14)
    assert contrast(values, np.arange(14), n_flips=200_000).p == pytest.approx(2.0**-13, rel=0.5)
    assert contrast(values, np.arange(14), n_flips=2).p >= 1 / 3 and smallest_p(14, 200_000) == 2.0**-13


def test_rows_of_one_subject_are_not_independent():
    random = np.random.default_rng(0)
    values = _clustered(random, within=0.2)
    by_subject = contrast(values, GROUPS).interval
    by_row = contrast(values, np.arange(60)).interval
    assert by_subject.high - by_subject.low > 1.8 * (by_row.high - by_row.low)


def test_under_the_null_few_are_found():
    random = np.random.default_rng(1)
    found = [contrast(_clustered(random), GROUPS, seed=seed, n_resamples=999) for seed in range(80)]
    assert sum(each.p <= 0.05 for each in found) <= 9
    assert sum(each.interval.low <= 0 <= each.interval.high for each in found) >= 70


def test_holm_against_its_definition():
    assert holm([0.01, 0.02, 0.03]) == pytest.approx([0.03, 0.04, 0.04])
    assert holm([0.9, 0.8]) == [1.0, 1.0]
