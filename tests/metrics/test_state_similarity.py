import math

import pytest
import torch

from uds_lens.metrics import cka_erasure, linear_cka
from uds_lens.metrics._white_box import weighted_erasure


def by_gram_matrices(x, y):
    """HSIC of linear kernels: trace(K H L H), normalised."""
    n = len(x)
    centre = torch.eye(n, dtype=torch.float64) - torch.ones(n, n, dtype=torch.float64) / n
    k, m = (centre @ (z.double() @ z.double().T) @ centre for z in (x, y))
    return float((k * m).sum() / (k.square().sum() * m.square().sum()).sqrt())


@pytest.mark.parametrize("n", [5, 40])
def test_linear_cka_against_hsic(n):
    torch.manual_seed(0)
    x, y = torch.randn(n, 12), torch.randn(n, 8)
    assert linear_cka(x, y) == pytest.approx(by_gram_matrices(x, y), abs=1e-12)


def test_rotation_scale_and_shift_do_not_matter():
    torch.manual_seed(0)
    x = torch.randn(30, 6, dtype=torch.float64)
    rotation = torch.linalg.qr(torch.randn(6, 6, dtype=torch.float64)).Q
    assert linear_cka(x, 3 * x @ rotation + 1) == pytest.approx(1)
    assert linear_cka(x, torch.randn(30, 6)) < 0.9


def test_states_that_do_not_vary_have_no_cka():
    assert math.isnan(linear_cka(torch.ones(4, 2), torch.randn(4, 2)))


def test_erasure_identities_and_clip():
    c_fr = torch.tensor([0.2, 0.5, 0.9], dtype=torch.float64)
    assert torch.allclose(
        cka_erasure(c_fr, torch.ones(3, dtype=torch.float64)), torch.ones(3, dtype=torch.float64)
    )
    assert cka_erasure(c_fr, c_fr).tolist() == [0, 0, 0]
    assert cka_erasure(c_fr, c_fr - 0.1).tolist() == [0, 0, 0]
    half = cka_erasure(c_fr, (1 + c_fr) / 2)
    assert torch.allclose(half, torch.full_like(half, 0.5))


def test_weights():
    erasure = torch.tensor([1.0, 0.25, math.nan])
    assert weighted_erasure(erasure, torch.tensor([1.0, 3.0, 0.0])) == pytest.approx(0.4375)
    assert math.isnan(weighted_erasure(erasure, torch.zeros(3)))
    assert weighted_erasure(erasure, torch.tensor([1.0, -3.0, math.nan])) == 1.0
