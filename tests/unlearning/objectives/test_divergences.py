"""Divergences from `full`, those of KL and UNDIAL: hand-computed values, limits, gradients."""

import math

import pytest
import torch

from tests.unlearning.test_likelihood import LABELS, doubles, odds
from uds_lens.unlearning._objectives.kl import kl_to_reference
from uds_lens.unlearning._objectives.undial import undial


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
