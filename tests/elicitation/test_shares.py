"""Where a model stands between retain and full, over subjects."""

import math

import numpy as np
import pytest

from uds_lens.elicitation import share

GROUPS = np.repeat(np.arange(12), 5)


def _clustered(random, *, shift):
    return shift + random.normal(size=12)[GROUPS] + random.normal(size=60)


def test_share_is_one_for_full_and_zero_for_retain():
    power = np.abs(_clustered(np.random.default_rng(2), shift=3))
    assert share(power, power, GROUPS)[:2] == (1.0, (1.0, 1.0))
    assert share(np.zeros(60), power, GROUPS).value == 0.0
    half = share(power / 2, power, GROUPS)
    assert half.value == pytest.approx(0.5) and half.interval.low == pytest.approx(0.5)


def test_without_power_there_is_no_share():
    random = np.random.default_rng(3)
    found = share(random.normal(size=60), random.normal(size=60), GROUPS)
    assert math.isnan(found.value) and found.reason.startswith("no power")


def test_what_was_not_asked_is_no_lack_of_power():
    nothing = np.full(60, np.nan)
    assert share(nothing, nothing, GROUPS).reason.startswith("not asked")
