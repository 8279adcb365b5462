"""NPO, SimNPO and DPO: hand-computed values, gradients, limits."""

import math

import pytest
import torch

from uds_lens.unlearning import dpo, npo, simnpo


def log_sigmoid(x: float) -> float:
    return -math.log(1 + math.exp(-x))


def values(*numbers: float) -> torch.Tensor:
    return torch.tensor(numbers, dtype=torch.float64, requires_grad=True)


@pytest.mark.parametrize(
    ("loss", "expected"),
    [
        (npo(values(-2.0, -5.0), values(-3.0, -3.0), beta=0.5), -4 * (log_sigmoid(-0.5) + log_sigmoid(1.0)) / 2),
        (
            simnpo(values(-2.0, -9.0), torch.tensor([4, 3]), beta=2.0, delta=1.0),
            -(log_sigmoid(2.0 * (2 / 4 - 1.0)) + log_sigmoid(2.0 * (9 / 3 - 1.0))) / 2,
        ),
        (
            dpo(values(-4.0), values(-6.0), values(-3.0), values(-2.0), beta=0.1),
            -20 * log_sigmoid(0.1 * ((-4.0 + 6.0) - (-3.0 + 2.0))),
        ),
    ],
    ids=["npo", "simnpo", "dpo"],
)
def test_by_hand(loss: torch.Tensor, expected: float) -> None:
    assert loss.item() == pytest.approx(expected, abs=1e-12)


def test_npo_becomes_gradient_ascent_for_small_beta() -> None:
    log_probs = values(-2.0, -7.0)
    npo(log_probs, values(-3.0, -3.0), beta=1e-6).backward()
    torch.testing.assert_close(log_probs.grad, torch.full((2,), 0.5, dtype=torch.float64), atol=1e-5, rtol=0)


def test_dpo_without_a_change_in_the_winner_is_npo() -> None:
    winner, loser, reference = values(-4.0, -2.0), values(-3.0, -1.0), values(-2.0, -6.0)
    both = dpo(winner, winner, loser, reference, beta=0.3)
    torch.testing.assert_close(both, npo(loser, reference, beta=0.3))


def test_gradients() -> None:
    a, b, c, d = values(-1.0, -4.0), values(-2.0, -2.0), values(-3.0, -0.5), values(-1.5, -1.0)
    lengths = torch.tensor([2, 5])
    assert torch.autograd.gradcheck(lambda x: npo(x, b, beta=0.1), a)
    assert torch.autograd.gradcheck(lambda x: simnpo(x, lengths, beta=4.5, delta=1.0), a)
    assert torch.autograd.gradcheck(lambda x, y: dpo(x, b, y, d, beta=0.1), (a, c))


@pytest.mark.parametrize("beta", [0.1, 1.0, 4.5])
def test_losses_start_at_two_over_beta_log_two(beta: float) -> None:
    start = pytest.approx(2 / beta * math.log(2))
    a = values(-3.0)
    assert npo(a, a, beta=beta).item() == start
    assert dpo(a, a, a, a, beta=beta).item() == start
    assert simnpo(a, torch.tensor([3]), beta=beta, delta=1.0).item() == start
