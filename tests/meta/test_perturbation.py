"""Q and R, model by model."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from uds_lens.meta import (
    one_directional_quantisation,
    one_directional_relearning,
    symmetric_quantisation,
    symmetric_relearning,
)

share = st.floats(0, 1)
change = st.floats(-1, 1)


def one(form, *values):
    first, second = values
    second = second if form.__name__.endswith("relearning") else np.array([second])
    return float(form(np.array([first]), second)[0])


@given(share, share)
@settings(max_examples=40)
def test_quantisation_lies_between_0_and_1(before, after):
    for form in (symmetric_quantisation, one_directional_quantisation):
        assert 0 <= one(form, before, after) <= 1
    assert one(symmetric_quantisation, before, after) == one(symmetric_quantisation, after, before)
    # A rise from s to l: s / l is at most 2 s / (s + l).
    assert (
        one(one_directional_quantisation, before, max(before, after))
        <= one(symmetric_quantisation, before, max(before, after)) + 1e-9
    )


@given(change, change)
@settings(max_examples=40)
def test_relearning_lies_between_0_and_1(du, dr):
    for form in (symmetric_relearning, one_directional_relearning):
        assert 0 <= one(form, du, dr) <= 1
    assert one(symmetric_relearning, du, dr) == one(symmetric_relearning, dr, du)
    assert one(symmetric_relearning, du, dr) == one(symmetric_relearning, -du, -dr)


@pytest.mark.parametrize(
    ("before", "after", "symmetric", "directed"),
    [
        (0.2, 0.4, 2 / 3, 0.5),
        (0.4, 0.2, 2 / 3, 1.0),
        (0.0, 0.0, 1.0, 1.0),  # by the 1e-10
        (0.0, 0.3, 0.0, 0.0),
        (0.3, 0.0, 0.0, 1.0),
        (math.nan, 0.3, math.nan, math.nan),
        (0.3, math.nan, math.nan, math.nan),
        (-0.1, 0.3, 0.0, math.nan),  # a ratio of negative values has no meaning
    ],
)
def test_corners_of_quantisation(before, after, symmetric, directed):
    assert one(symmetric_quantisation, before, after) == pytest.approx(symmetric, abs=1e-8, nan_ok=True)
    assert one(one_directional_quantisation, before, after) == pytest.approx(directed, nan_ok=True)


@pytest.mark.parametrize(
    ("du", "dr", "symmetric", "directed"),
    [
        (0.4, 0.2, 2 / 3, 0.5),
        (0.1, 0.2, 2 / 3, 1.0),
        (0.0, 0.0, 1.0, 1.0),  # by the 1e-10
        (0.0, 0.2, 0.0, 1.0),
        (0.2, 0.2, 1.0, 1.0),
        (-0.2, 0.1, 0.0, 1.0),  # does not learn at all
        (0.2, 0.0, 0.0, 0.0),
        (0.2, -0.1, 0.0, 0.0),  # learns although retain does not
        (-0.2, -0.1, 2 / 3, 1.0),
        (math.nan, 0.1, math.nan, math.nan),
        (0.1, math.nan, math.nan, math.nan),
    ],
)
def test_corners_of_relearning(du, dr, symmetric, directed):
    assert one(symmetric_relearning, du, dr) == pytest.approx(symmetric, abs=1e-8, nan_ok=True)
    assert one(one_directional_relearning, du, dr) == pytest.approx(directed, nan_ok=True)
