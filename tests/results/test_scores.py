"""The score's arithmetic against numbers worked out by hand, and properties that hold for all numbers."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st
from hypothesis.extra.numpy import arrays
from results.conftest import NAN, made

from uds_lens.results import (
    Interval,
    bootstrap_interval,
    ke_mask,
    layer_erasure_ratio,
    mean_uds,
    output_depth,
    uds_per_example,
)


def t(values):
    return torch.tensor(values, dtype=torch.float64)


def score(s1, s2, tau=0.05):
    ke = ke_mask(s1, tau)
    return uds_per_example(s1, layer_erasure_ratio(s1, s2, ke), ke)


def test_hand_computed():
    s1 = t([[0.04, 0.1, 0.4, 1.5], [2.0, 0.0, -1.0, 0.05], [0.0, 0.01, 0.05, -3.0]])
    s2 = t([[9.0, 0.05, 0.6, -0.3], [0.5, 1.0, 1.0, 1.0], [1.0, 1.0, 1.0, 1.0]])
    ke = ke_mask(s1, 0.05)
    # tau itself is not above tau.
    assert ke.tolist() == [[False, True, True, True], [True, False, False, False], [False] * 4]
    raw = layer_erasure_ratio(s1, s2, ke, clip=False)
    torch.testing.assert_close(raw, t([[NAN, 0.5, 1.5, -0.2], [0.25, NAN, NAN, NAN], [NAN] * 4]), equal_nan=True)
    ler = layer_erasure_ratio(s1, s2, ke)
    torch.testing.assert_close(ler, t([[NAN, 0.5, 1.0, 0.0], [0.25, NAN, NAN, NAN], [NAN] * 4]), equal_nan=True)
    # (0.1 * 0.5 + 0.4 * 1 + 1.5 * 0) / (0.1 + 0.4 + 1.5) = 0.45 / 2
    torch.testing.assert_close(uds_per_example(s1, ler, ke), t([0.225, 0.25, NAN]), equal_nan=True)
    assert mean_uds(t([0.225, 0.25, NAN])) == pytest.approx(0.2375)


def test_an_audit_scores_with_its_own_tau_and_nothing_measurable_is_nan_everywhere():
    audit = made([[0.3, 1.0], [0.02, 0.04]], [[0.3, 0.0], [0.0, 0.0]])
    assert audit.uds == pytest.approx(0.3 / 1.3)
    assert (audit.n_measured, audit.n_not_measurable) == (1, 1)
    assert audit.with_tau(0.5).uds == 0.0
    assert audit.with_tau(0.01).n_measured == 2
    assert audit.config.tau == 0.05
    nothing = audit.with_tau(2.0)
    undefined = (nothing.uds, *nothing.uds_interval, nothing.over_erased_share, nothing.negative_share)
    assert all(map(math.isnan, undefined)) and nothing.ler.isnan().all()
    assert math.isnan(mean_uds(torch.empty(0)))


DELTAS = arrays(np.float64, (3, 4), elements=st.floats(-5, 8, allow_nan=False, width=32))


@settings(max_examples=60)
@given(DELTAS, DELTAS, st.floats(0, 2))
def test_scores_lie_between_zero_and_one_or_are_nan_with_empty_ke(s1, s2, tau):
    s1, s2 = torch.tensor(s1), torch.tensor(s2)
    scores, measurable = score(s1, s2, tau), ke_mask(s1, tau).any(-1)
    assert torch.equal(~scores.isnan(), measurable)
    assert ((scores >= 0) & (scores <= 1))[measurable].all()


@settings(max_examples=60)
@given(DELTAS, DELTAS, DELTAS, st.sampled_from([0.25, 2.0, 1024.0]))
def test_properties_of_the_score(s1, s2, more, scale):
    s1, s2 = torch.tensor(s1), torch.tensor(s2)
    low, high = score(s1, s2), score(s1, s2 + torch.tensor(more).abs())
    assert (high >= low)[~low.isnan()].all(), "more loss never scores lower"
    plain, scaled = score(s1, s2, 0.5), score(scale * s1, scale * s2, 0.5 * scale)
    torch.testing.assert_close(plain, scaled, equal_nan=True, msg="the unit does not matter")
    ke = ke_mask(s1, 0.05)
    assert (score(s1, s1)[ke.any(-1)] == 1.0).all()
    assert (score(s1, torch.zeros_like(s1))[ke.any(-1)] == 0.0).all()
    order = torch.tensor([2, 0, 3, 1])
    torch.testing.assert_close(low, score(s1[:, order], s2[:, order]), equal_nan=True)
    elsewhere = torch.where(ke, s2, s2 + 17.0)
    torch.testing.assert_close(low, score(s1, elsewhere), equal_nan=True, msg="only KE layers count")


def test_the_interval_is_scipys():
    from scipy.stats import bootstrap

    values = np.array([0.1, 0.2, 0.25, 0.6, 0.9])
    expected = bootstrap(
        (values,), np.mean, n_resamples=500, confidence_level=0.9, method="BCa", rng=np.random.default_rng(4)
    ).confidence_interval
    interval = bootstrap_interval(t([*values[:2], NAN, *values[2:]]), confidence=0.9, n_resamples=500, seed=4)
    assert interval == (expected.low, expected.high)


def test_the_interval_is_seeded_and_widens_with_confidence():
    values = torch.rand(40, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    one, again, other = (bootstrap_interval(values, n_resamples=300, seed=seed) for seed in (1, 1, 2))
    assert one == again != other
    wide, narrow = (bootstrap_interval(values, confidence=c, n_resamples=300) for c in (0.99, 0.5))
    assert wide.low < narrow.low < float(values.mean()) < narrow.high < wide.high


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([], (NAN, NAN)),
        ([0.4], (NAN, NAN)),
        ([0.4, NAN, NAN], (NAN, NAN)),
        ([1.0] * 7, (1 - 0.3694, 1.0)),
        ([0.0] * 7, (0.0, 0.3694)),
        ([1.0, 1.0 - 2e-16, 1.0], (1 - 0.6024, 1.0)),
    ],
)
def test_degenerate_intervals(values, expected):
    """Equal scores: the upper quantile of Beta(1, n + 1), as far as others may differ."""
    interval = bootstrap_interval(t(values), n_resamples=200, bounds=(0.0, 1.0))
    assert isinstance(interval, Interval)
    assert interval == pytest.approx(expected, nan_ok=True, abs=1e-3)


def test_output_depth_is_what_the_answers_lack_over_what_retain_lacks():
    full = torch.tensor([-0.2, -0.2, -0.2, -0.2, -0.2], dtype=torch.float64)
    retain = torch.tensor([-4.2, -4.2, -4.2, -0.25, NAN], dtype=torch.float64)
    unlearned = torch.tensor([-1.2, -9.0, -0.1, -1.0, -1.0], dtype=torch.float64)
    expected = torch.tensor([0.25, 1.0, 0.0, NAN, NAN], dtype=torch.float64)  # the fourth is 0.05 short: not above tau
    torch.testing.assert_close(output_depth(full, unlearned, retain, 0.05 + 1e-9), expected, equal_nan=True)
    assert output_depth(full, retain, retain, 0.05)[:3].tolist() == [1.0] * 3
    assert output_depth(full, full, retain, 0.05)[:3].tolist() == [0.0] * 3
