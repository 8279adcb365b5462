"""Q and R, model by model."""

import math

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from uds_lens.meta import (
    one_directional_quantisation,
    one_directional_relearning,
    symmetric_quantisation,
    symmetric_relearning,
)

NAN = math.nan


def one(form, first, second):
    second = second if form.__name__.endswith("relearning") else np.array([second])
    return float(form(np.array([first]), second)[0])


@given(st.floats(0, 1), st.floats(0, 1), st.floats(-1, 1), st.floats(-1, 1))
@settings(max_examples=40)
def test_both_lie_between_0_and_1_and_the_symmetric_forms_are_symmetric(before, after, du, dr):
    q, r = symmetric_quantisation, symmetric_relearning
    for form in (q, one_directional_quantisation):
        assert 0 <= one(form, before, after) <= 1
    for form in (r, one_directional_relearning):
        assert 0 <= one(form, du, dr) <= 1
    assert one(q, before, after) == one(q, after, before)
    assert one(r, du, dr) == one(r, dr, du) == one(r, -du, -dr)
    risen = max(before, after)  # a rise from s to l: s / l is at most 2 s / (s + l)
    assert one(one_directional_quantisation, before, risen) <= one(q, before, risen) + 1e-9


@pytest.mark.parametrize(
    ("before", "after", "symmetric", "directed"),
    [
        (0.2, 0.4, 2 / 3, 0.5),
        (0.4, 0.2, 2 / 3, 1.0),
        (0.0, 0.0, 1.0, 1.0),  # by the 1e-10
        (0.0, 0.3, 0.0, 0.0),
        (0.3, 0.0, 0.0, 1.0),
        (NAN, 0.3, NAN, NAN),
        (0.3, NAN, NAN, NAN),
        (-0.1, 0.3, 0.0, NAN),  # a ratio of negative values has no meaning
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
        (0.2, 0.0, 0.0, 0.0),
        (0.2, -0.1, 0.0, 0.0),  # learns although retain does not
        (-0.2, 0.1, 0.0, 1.0),  # does not learn at all
        (-0.2, -0.1, 2 / 3, 1.0),
        (NAN, 0.1, NAN, NAN),
        (0.1, NAN, NAN, NAN),
    ],
)
def test_corners_of_relearning(du, dr, symmetric, directed):
    assert one(symmetric_relearning, du, dr) == pytest.approx(symmetric, abs=1e-8, nan_ok=True)
    assert one(one_directional_relearning, du, dr) == pytest.approx(directed, nan_ok=True)
