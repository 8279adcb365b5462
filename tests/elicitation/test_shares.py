"""Where a model stands between retain and full, over subjects."""

import math

import numpy as np
import pytest
from scipy.stats import t

from uds_lens.elicitation import share

GROUPS = np.repeat(np.arange(12), 5)


def _clustered(random, *, shift):
    return shift + random.normal(size=12)[GROUPS] + random.normal(size=60)


def test_share_is_one_for_full_and_zero_for_retain():
    power = np.abs(_clustered(np.random.default_rng(2), shift=3))
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
def test_intervals_of_shares_hold_the_truth(n_subjects, correlation):
    """Few subjects recall anything: the percentile bootstrap held 72 and 79 %."""
    held, tries, truth = 0, 80, 0.1
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


def test_power_that_is_equal_everywhere_is_power():
    recall = (np.arange(60) % 3 == 0).astype(float)
    found = share(recall, np.ones(60), GROUPS)
    assert found.value == pytest.approx(1 / 3) and found.interval.low < 1 / 3 < found.interval.high


def test_without_power_there_is_no_share():
    random = np.random.default_rng(3)
    found = share(random.normal(size=60), random.normal(size=60), GROUPS)
    assert math.isnan(found.value) and found.reason.startswith("no power")


def test_what_was_not_asked_is_no_lack_of_power():
    nothing = np.full(60, np.nan)
    assert share(nothing, nothing, GROUPS).reason.startswith("not asked")
