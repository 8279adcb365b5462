import base64
import json
import math

import numpy as np
import pytest
import torch
from hypothesis import given, strategies as st

from uds_lens.report._page import deltas, floats, safe_json


@given(st.text())
def test_json_survives_and_holds_no_letter_of_markup(text):
    embedded = safe_json({"question": text})
    assert json.loads(embedded) == {"question": text}
    assert not set(embedded) & set("<>&\u2028\u2029") and embedded.isascii()


def test_undefined_numbers_must_be_made_null_first():
    with pytest.raises(ValueError, match="Out of range"):
        safe_json(math.nan)


def test_floats_are_little_endian_and_keep_nan():
    back = np.frombuffer(base64.b64decode(floats(torch.tensor([[0.5, math.nan]]))), dtype="<f4")
    assert back[0] == 0.5 and np.isnan(back[1])


@pytest.mark.parametrize("tau", [0.05, 0.1, 0.3])
def test_rounding_moves_no_delta_across_tau(tau):
    exact = np.array([[tau, np.nextafter(tau, 1), np.nextafter(tau, 0), tau * (1 + 1e-9), tau * (1 - 1e-9), 2.0]])
    back = np.frombuffer(base64.b64decode(deltas(torch.from_numpy(exact), tau)), dtype="<f4")
    assert ((back > np.float32(tau)) == (exact[0] > tau)).all()
    assert np.allclose(back, exact[0], rtol=1e-6)
