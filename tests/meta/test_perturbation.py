"""Q and R, model by model."""

import math

import numpy as np
import pytest

from uds_lens import meta

NAN = math.nan


def one(form, first, second):
    """The symmetric or one-directional form of one model."""
    values = [np.array([second])] if form.endswith("quantisation") else [second]
    return float(getattr(meta, form)(np.array([first]), *values)[0])


@pytest.mark.parametrize(
    ("kind", "first", "second", "symmetric", "directed"),
    [
        ("quantisation", 0.2, 0.4, 2 / 3, 0.5),
        ("quantisation", 0.4, 0.2, 2 / 3, 1.0),
        ("quantisation", 0.0, 0.0, 1.0, 1.0),  # by the 1e-10
        ("quantisation", 0.0, 0.3, 0.0, 0.0),
        ("quantisation", 0.3, 0.0, 0.0, 1.0),
        ("quantisation", NAN, 0.3, NAN, NAN),
        ("quantisation", 0.3, NAN, NAN, NAN),
        ("quantisation", -0.1, 0.3, 0.0, NAN),  # a ratio of negative values has no meaning
        ("relearning", 0.4, 0.2, 2 / 3, 0.5),
        ("relearning", 0.1, 0.2, 2 / 3, 1.0),
        ("relearning", 0.0, 0.0, 1.0, 1.0),  # by the 1e-10
        ("relearning", 0.0, 0.2, 0.0, 1.0),
        ("relearning", 0.2, 0.2, 1.0, 1.0),
        ("relearning", 0.2, 0.0, 0.0, 0.0),
        ("relearning", 0.2, -0.1, 0.0, 0.0),  # learns although retain does not
        ("relearning", -0.2, 0.1, 0.0, 1.0),  # does not learn at all
        ("relearning", -0.2, -0.1, 2 / 3, 1.0),
        ("relearning", NAN, 0.1, NAN, NAN),
        ("relearning", 0.1, NAN, NAN, NAN),
    ],
)
def test_corners(kind, first, second, symmetric, directed):
    assert one(f"symmetric_{kind}", first, second) == pytest.approx(symmetric, abs=1e-8, nan_ok=True)
    assert one(f"one_directional_{kind}", first, second) == pytest.approx(directed, nan_ok=True)
