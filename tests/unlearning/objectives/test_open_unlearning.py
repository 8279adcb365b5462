"""`reduction="open_unlearning"`: equal to Open-Unlearning's formulas, written out here position by position."""

from dataclasses import replace

import pytest
import torch

from tests.unlearning.test_all_objectives import passes  # noqa: F401 - a fixture
from tests.unlearning.test_likelihood import doubles
from uds_lens import unlearning as u
from uds_lens.errors import ConfigError, DataError
from uds_lens.unlearning._objectives.rmu import state_distance, steering_vector, summed_state_distance
from uds_lens.unlearning._registry import objective_named

THEIRS = "open_unlearning"
LABELS = torch.tensor([[-100, -100, 7, 2, 9], [-100, 3, 2, -100, -100], [-100, -100, -100, 1, -100]])


def kl_by_hand(logits, full):
    """Every position of every row counts the same."""
    total = 0.0
    for row in range(logits.shape[0]):
        for pos in range(logits.shape[1]):
            p, q = full[row, pos].log_softmax(-1), logits[row, pos].log_softmax(-1)
            total = total + (p.exp() * (p - q)).sum()
    return total / (logits.shape[0] * logits.shape[1])


def undial_by_hand(logits, full, labels, beta):
    """A label of -100 is an index like any other: from the end."""
    losses = []
    for row in range(logits.shape[0]):
        for pos in range(logits.shape[1] - 1):
            wanted = full[row, pos].clone()
            wanted[int(labels[row, pos + 1])] -= beta
            losses.append(-(wanted.softmax(-1) * logits[row, pos].log_softmax(-1)).sum())
    return torch.stack(losses).mean()


def distance_by_hand(states, goal, labels):
    """Mean over rows of sums, times mean over rows of 1 / n: the shapes of a division gone wrong."""
    sums, lengths = [], []
    for row in range(states.shape[0]):
        marked = [pos for pos in range(states.shape[1]) if labels[row, pos] != -100]
        target = [goal if goal.ndim == 1 else goal[row, pos] for pos in marked]
        sums.append(sum(((states[row, p] - g) ** 2).mean() for p, g in zip(marked, target, strict=True)))
        lengths.append(len(marked))
    table = [[s / n for s in sums] for n in lengths]
    return sum(sum(line) for line in table) / len(sums) ** 2


def agree(ours, theirs, *inputs) -> None:
    torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-12)
    gradients = [torch.autograd.grad(value, inputs, retain_graph=True) for value in (ours, theirs)]
    for one, other in zip(*gradients, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-14)


def test_kl() -> None:
    logits, full = doubles(3, 5, 120), doubles(3, 5, 120).detach().flip(0)
    agree(u.kl_to_reference(logits, full, LABELS, reduction=THEIRS), kl_by_hand(logits, full), logits)
    assert u.kl_to_reference(logits, full, LABELS) != u.kl_to_reference(logits, full, LABELS, reduction=THEIRS)


def test_undial_turns_down_the_hundredth_token_from_the_end() -> None:
    logits, full = doubles(3, 5, 120), doubles(3, 5, 120).detach().flip(0)
    ours = u.undial(logits, full, LABELS, beta=10.0, reduction=THEIRS)
    agree(ours, undial_by_hand(logits, full, LABELS, 10.0), logits)
    moved = full.clone()
    moved[0, 0, 20] += 1.0  # V - 100, where nothing is learnt
    assert u.undial(logits, moved, LABELS, beta=10.0, reduction=THEIRS) != ours
    with pytest.raises(ConfigError, match="must therefore have at least 100 tokens; got 99"):
        u.undial(logits[..., :99], full[..., :99], LABELS, beta=10.0, reduction=THEIRS)


def test_rmu_takes_the_mean_of_sums_times_the_mean_of_inverse_lengths() -> None:
    states, kept = doubles(3, 5, 4), doubles(3, 5, 4).detach().flip(1)
    for goal in (kept, kept[0, 0]):
        ours = summed_state_distance(states, goal, LABELS != -100)
        agree(ours, distance_by_hand(states, goal, LABELS), states)
    even = torch.tensor([[True, True, False, False, False]] * 3)
    torch.testing.assert_close(summed_state_distance(states, kept, even), state_distance(states, kept, even))
    with pytest.raises(DataError, match="a row has an empty mask"):
        summed_state_distance(states, kept, torch.zeros(3, 5, dtype=torch.bool))


def test_their_steering_vectors_lie_in_the_positive_orthant() -> None:
    one, other = (steering_vector(4096, scale=3.0, seed=seed, positive=True) for seed in (0, 1))
    assert bool((one >= 0).all())
    assert one.norm().item() == pytest.approx(3.0, abs=1e-4)
    assert (one @ other).item() / 9 == pytest.approx(0.75, abs=0.02)
    assert bool((steering_vector(64, scale=3.0, seed=0) < 0).any())


@pytest.mark.parametrize("method", ["kl", "rmu", "undial"])
def test_objectives_on_a_model(method: str, passes) -> None:  # noqa: F811
    config = u.make_config(method, {"alpha": 3.0, **({"layer": 2, "scale": 5.0} if method == "rmu" else {})})
    terms = objective_named(method).terms
    with torch.no_grad():
        ours, found = terms(config, passes), terms(replace(config, reduction=THEIRS), passes)
        forget, retain = ours.forget.value, ours.retain.value
        if method == "kl":
            retain = 3.0 * kl_by_hand(passes.logits("retain"), passes.frozen_logits("retain"))
        elif method == "undial":
            forget = undial_by_hand(
                passes.logits("forget"), passes.frozen_logits("forget"), passes.labels("forget"), 10.0
            )
        else:
            goal, kept = steering_vector(64, scale=5.0, seed=0, positive=True), passes.frozen_states("retain", 2)
            forget = distance_by_hand(passes.states("forget", 2), goal, passes.labels("forget"))
            retain = 3.0 * distance_by_hand(passes.states("retain", 2), kept, passes.labels("retain"))
        torch.testing.assert_close(found.forget.value, forget, rtol=1e-4, atol=1e-6)
        torch.testing.assert_close(found.retain.value, retain, rtol=1e-4, atol=1e-6)
    assert found.total.item() != pytest.approx(ours.total.item(), rel=1e-4)
    with pytest.raises(ConfigError, match="reduction must be one of 'answers', 'open_unlearning'"):
        u.make_config(method, {"reduction": "mean"})
