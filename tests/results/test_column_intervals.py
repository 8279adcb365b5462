"""Intervals of many means at once: those of `bootstrap_interval` by subject, and where values are missing."""

import math

import numpy as np
import pytest
import torch

from uds_lens.results import bootstrap_interval
from uds_lens.results._intervals import column_intervals

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
    whole = column_intervals(values(), clusters=SUBJECTS, n_resamples=4000)
    assert (low[0], high[0]) == (whole.low[0], whole.high[0])
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
    assert math.isnan(column_intervals(data, clusters=["a"] * 4, n_resamples=200).low[0])
    assert all(map(math.isnan, column_intervals(torch.empty(0, 2), clusters=[]).low))
