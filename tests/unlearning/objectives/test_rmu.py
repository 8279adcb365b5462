"""RMU: distances by hand, the steering vector."""

import pytest
import torch

from uds_lens.errors import ConfigError
from uds_lens.unlearning._objectives.rmu import state_distance, steering_vector


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


def test_gradient() -> None:
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
