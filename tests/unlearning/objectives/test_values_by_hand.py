"""NPO, SimNPO and DPO, the divergences of KL and UNDIAL, distances of RMU: hand-computed values, gradients, limits."""

import math

import pytest
import torch

from tests.unlearning.test_likelihood import LABELS, doubles, odds
from uds_lens.errors import ConfigError
from uds_lens.unlearning import dpo, npo, simnpo
from uds_lens.unlearning._objectives.kl import kl_to_reference
from uds_lens.unlearning._objectives.rmu import state_distance, steering_vector
from uds_lens.unlearning._objectives.undial import undial


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


def test_kl_by_hand_and_its_direction() -> None:
    model = torch.tensor([[odds(0.5), odds(0.5)]])
    full = torch.tensor([[odds(0.75), odds(0.5)]])
    labels = torch.tensor([[-100, 1]])
    expected = 0.25 * math.log(0.25 / 0.5) + 0.75 * math.log(0.75 / 0.5)
    reverse = 0.5 * math.log(0.5 / 0.25) + 0.5 * math.log(0.5 / 0.75)
    assert kl_to_reference(model, full, labels).item() == pytest.approx(expected, abs=1e-6)
    assert kl_to_reference(full, model, labels).item() == pytest.approx(reverse, abs=1e-6)
    assert kl_to_reference(full, full, labels).item() == pytest.approx(0.0, abs=1e-7)


def test_undial_by_hand() -> None:
    model = torch.tensor([[odds(0.2), odds(0.5)]])
    full = torch.tensor([[odds(0.9), odds(0.5)]])
    wanted = 9 * math.exp(-3) / (1 + 9 * math.exp(-3))  # odds 9 to 1, turned down by e^3
    expected = -(wanted * math.log(0.2) + (1 - wanted) * math.log(0.8))
    labels = torch.tensor([[-100, 1]])
    assert undial(model, full, labels, beta=3.0).item() == pytest.approx(expected, abs=1e-6)


def test_undial_without_strength_is_distillation() -> None:
    logits, full = doubles(2, 4, 5), doubles(2, 4, 5).detach() + 1.0
    labels = torch.tensor([[-100, 1, 2, 3], [-100, -100, 4, 0]])
    entropy = -(full.softmax(-1) * full.log_softmax(-1)).sum(-1)[:, :-1][labels[:, 1:] != -100].mean()
    expected = kl_to_reference(logits, full, labels) + entropy
    torch.testing.assert_close(undial(logits, full, labels, beta=0.0), expected)
    assert undial(logits, full, labels, beta=5.0).item() != pytest.approx(expected.item())


def test_gradients_against_a_reference() -> None:
    logits, full = doubles(2, 4, 3), doubles(2, 4, 3).detach().flip(0)
    assert torch.autograd.gradcheck(lambda z: kl_to_reference(z, full, LABELS), logits)
    assert torch.autograd.gradcheck(lambda z: undial(z, full, LABELS, beta=2.0), logits)


def test_distances_by_hand_and_identity() -> None:
    states = torch.tensor([[[1.0, 3.0], [9.0, 9.0]], [[0.0, 0.0], [2.0, 2.0]]])
    mask = torch.tensor([[True, False], [True, True]])
    goal = torch.tensor([1.0, 1.0])
    expected = ((0 + 4) / 2 + (1 + 1) / 2 + (1 + 1) / 2) / 3
    assert state_distance(states, goal, mask).item() == pytest.approx(expected)
    others = torch.tensor([[[4.0, 4.0], [7.0, 7.0]], [[0.0, 1.0], [2.0, 4.0]]])
    expected = ((9 + 1) / 2 + (0 + 1) / 2 + (0 + 4) / 2) / 3
    assert state_distance(states, others, mask).item() == pytest.approx(expected)
    assert state_distance(others, others, mask).item() == 0.0


def test_gradient_of_a_distance() -> None:
    states = torch.randn(1, 3, 4, dtype=torch.float64, requires_grad=True)
    goal, mask = torch.randn(4, dtype=torch.float64), torch.tensor([[True, False, True]])
    assert torch.autograd.gradcheck(lambda h: state_distance(h, goal, mask), states)


def test_steering_vector_has_its_length_and_its_seed() -> None:
    first, again, other = (steering_vector(64, scale=10.0, seed=seed) for seed in (1, 1, 2))
    assert first.norm().item() == pytest.approx(10.0, abs=1e-4)
    assert first.equal(again)
    assert not first.equal(other)
    torch.testing.assert_close(steering_vector(64, scale=5.0, seed=1), first / 2)


def test_what_cannot_be_is_refused() -> None:
    with pytest.raises(ConfigError, match="scale must be > 0"):
        steering_vector(4, scale=0.0, seed=0)
