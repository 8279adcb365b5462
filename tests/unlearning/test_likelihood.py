"""Log-probabilities of labelled tokens: hand-computed values, gradients, masks, labels."""

import math

import pytest
import torch
from tiny_models import build_model

from uds_lens.data._tokens import AnswerSequence
from uds_lens.errors import DataError
from uds_lens.unlearning import answer_log_probs
from uds_lens.unlearning._objectives.ga import gradient_ascent
from uds_lens.unlearning._passes import (
    answer_lengths,
    label_log_probs,
    negative_log_likelihood,
    pad_sequences,
    predicting,
    sequence_log_probs,
)

LABELS = torch.tensor([[-100, 1, 0, -100], [-100, -100, 1, 0]])


def odds(p: float) -> list[float]:
    """Logits over two tokens that give the second one probability p."""
    return [0.0, math.log(p / (1 - p))]


LOGITS = torch.tensor(
    [
        [odds(0.25), odds(0.4), odds(0.9), odds(0.9)],  # p(1) = 0.25 then p(0) = 0.6
        [odds(0.9), odds(0.5), odds(0.2), odds(0.9)],  # p(1) = 0.5 then p(0) = 0.8
    ]
)


def doubles(*shape: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(len(shape))
    return torch.randn(*shape, dtype=torch.float64, generator=generator, requires_grad=True)


def test_log_probs_belong_to_the_next_token() -> None:
    expected = torch.tensor([[0.25, 0.6, 1.0], [1.0, 0.5, 0.8]]).log()
    torch.testing.assert_close(label_log_probs(LOGITS, LABELS), expected)
    torch.testing.assert_close(sequence_log_probs(LOGITS, LABELS), torch.tensor([0.15, 0.4]).log())
    assert answer_lengths(LABELS).tolist() == [2, 2]
    assert predicting(LABELS).tolist() == [[True, True, False, False], [False, True, True, False]]


def test_nll_and_ascent_by_hand() -> None:
    expected = -math.log(0.25 * 0.6 * 0.5 * 0.8) / 4
    assert negative_log_likelihood(LOGITS, LABELS).item() == pytest.approx(expected, abs=1e-6)
    assert gradient_ascent(LOGITS, LABELS).item() == pytest.approx(-expected, abs=1e-6)
    for loss in (negative_log_likelihood, sequence_log_probs):
        assert loss(LOGITS.bfloat16(), LABELS).dtype == torch.float32


@pytest.mark.parametrize("loss", [negative_log_likelihood, gradient_ascent, sequence_log_probs])
def test_gradients_of_likelihoods(loss) -> None:
    logits = doubles(2, 4, 3)
    assert torch.autograd.gradcheck(lambda z: loss(z, LABELS), logits)
    loss(logits, LABELS).sum().backward()
    touched = logits.grad.abs().sum(-1) > 0
    assert touched.equal(predicting(LABELS)), "what predicts no label has no gradient"


def test_no_label_is_an_error() -> None:
    with pytest.raises(DataError, match="the batch has no labelled tokens"):
        negative_log_likelihood(LOGITS, torch.full_like(LABELS, -100))
    with pytest.raises(DataError, match="the batch has no labelled tokens"):
        predicting(torch.full_like(LABELS, -100))


@pytest.mark.parametrize("family", ["longrope", "dynamic"])
def test_a_long_answer_does_not_move_the_others_of_its_batch(family) -> None:
    rows = [AnswerSequence(tuple(range(4, 4 + n)), 3) for n in (60, 12, 30)]
    together = answer_log_probs(build_model(family), rows, pad_token_id=3)
    alone = [answer_log_probs(build_model(family), [row], pad_token_id=3)[0] for row in rows]
    assert together == pytest.approx(alone, abs=1e-4)


def test_labels_are_the_answers_only() -> None:
    rows = [AnswerSequence((1, 5, 6, 2), 2), AnswerSequence((1, 7), 1)]
    batch = pad_sequences(rows, pad_token_id=0)
    assert batch["input_ids"].tolist() == [[1, 5, 6, 2], [1, 7, 0, 0]]
    assert batch["attention_mask"].tolist() == [[1, 1, 1, 1], [1, 1, 0, 0]]
    assert batch["labels"].tolist() == [[-100, -100, 6, 2], [-100, 7, -100, -100]]


@pytest.mark.parametrize("shift", [slice(None, -1), slice(1, None)])
def test_logits_of_other_positions_are_refused(shift: slice, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("jaxtyping.config.jaxtyping_disable", True)  # as it is for users
    with pytest.raises(DataError, match="expected unshifted logits with a label for each position"):
        sequence_log_probs(LOGITS[:, shift], LABELS)
