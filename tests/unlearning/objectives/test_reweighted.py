"""WGA, SatImp, CE-U and PDU: equal to their formulas, written out token by token; the dual variable."""

import math
from dataclasses import replace

import pytest
import torch

from tests.unlearning.conftest import QUICK, Tiny, train
from tests.unlearning.objectives.test_open_unlearning import LABELS, agree
from tests.unlearning.test_all_objectives import passes  # noqa: F401 - a fixture
from tests.unlearning.test_likelihood import doubles
from tests.unlearning.test_resuming import killed
from uds_lens import unlearning as u
from uds_lens.errors import ConfigError, DataError
from uds_lens.unlearning._objectives.ceu import without_true_token
from uds_lens.unlearning._objectives.pdu import dual_ascent, logit_margin
from uds_lens.unlearning._objectives.wga import weighted_ascent
from uds_lens.unlearning._passes import Passes
from uds_lens.unlearning._registry import objective_named


def tokens(logits, labels):
    """Row, logits and true token of each prediction."""
    for row in range(len(labels)):
        for pos in range(1, labels.shape[1]):
            if labels[row, pos] != -100:
                yield row, logits[row, pos - 1], int(labels[row, pos])


@pytest.mark.parametrize(("likely", "unlikely"), [(1.0, 0.0), (5.0, 1.0), (0.0, 2.0)])
def test_weighted_ascent(likely: float, unlikely: float) -> None:
    logits = doubles(3, 5, 12)
    total, n = 0.0, 0
    for _, z, true in tokens(logits, LABELS):
        p = float(z.softmax(-1)[true].detach())
        total, n = total + p**likely * (1 - p) ** unlikely * z.log_softmax(-1)[true], n + 1
    agree(weighted_ascent(logits, LABELS, likely=likely, unlikely=unlikely), total / n, logits)


def test_methods_turn_into_one_another(passes) -> None:  # noqa: F811
    def total(method: str, **settings) -> torch.Tensor:
        return objective_named(method).terms(u.make_config(method, settings), passes).total

    with torch.no_grad():
        torch.testing.assert_close(total("wga", beta=0.0), total("graddiff"))
        torch.testing.assert_close(total("satimp", beta1=1.0, beta2=0.0, alpha=1.0), total("wga"))
        assert total("satimp", alpha=1.0) != total("wga")


def test_the_true_token_is_left_out() -> None:
    logits = doubles(3, 5, 12)
    for skipped in (0, 1):
        expected, seen = [torch.zeros((), dtype=torch.float64)] * 3, [0, 0, 0]
        for row, z, true in tokens(logits, LABELS):
            seen[row] += 1
            if seen[row] > skipped:
                others = [v for v in range(12) if v != true]
                target = z.detach()[others].exp() / z.detach()[others].exp().sum()
                expected[row] = expected[row] - (target * z.log_softmax(-1)[others]).sum()
        found = without_true_token(logits, LABELS, skipped=skipped)
        torch.testing.assert_close(found, torch.stack(expected), rtol=1e-12, atol=1e-12)
        agree(found.sum(), torch.stack(expected).sum(), logits)
    assert found[2] == 0.0, "its only token is the first"


def test_its_mean_is_over_the_tokens_that_count(passes) -> None:  # noqa: F811
    terms, labels = objective_named("ceu").terms, passes.labels("forget")
    with torch.no_grad():
        logits = passes.logits("forget")
        for skipped in (0, 1):
            found = terms(u.make_config("ceu", {"skipped_tokens": skipped}), passes).total
            n = int((labels[:, 1:] != -100).sum()) - skipped * len(labels)
            expected = without_true_token(logits, labels, skipped=skipped).sum() / n
            torch.testing.assert_close(found, expected)
    one = passes.batch["forget"] | {"labels": torch.full_like(labels, -100).index_fill(1, torch.tensor([3]), 5)}
    with pytest.raises(DataError, match="set skipped_tokens to 0"):
        terms(u.CEUConfig(), Passes(passes._model, {"forget": one}))


def test_logit_margin() -> None:
    logits = doubles(3, 5, 12)
    each = [(z.max() - z.sum() / 12) ** 2 for _, z, _ in tokens(logits, LABELS)]
    agree(logit_margin(logits, LABELS), sum(each) / len(each), logits)
    assert logit_margin(torch.full((3, 5, 12), 2.5), LABELS) == 0.0


def test_the_dual_variable_ascends_on_the_constraint() -> None:
    config = u.PDUConfig(alpha=2.0, epsilon=0.5, dual_step=3.0, dual_warmup_epochs=2.0, epochs=10)
    assert dual_ascent(config, None, 9.0, 0.1) == 2.0, "it waits"
    assert dual_ascent(config, None, 0.75, 0.2) == pytest.approx(2.75)
    assert dual_ascent(config, 2.75, 0.25, 0.3) == pytest.approx(2.0)
    assert dual_ascent(config, 0.5, 0.0, 0.3) == 0.0
    with pytest.raises(ConfigError, match="must be below the 5 epochs of training, or the dual variable never"):
        u.PDUConfig(epochs=5)


@pytest.mark.parametrize("method", ["pdu", "rr"])
def test_the_weight_follows_the_batches_and_survives_a_kill(method: str, tiny: Tiny, tmp_path) -> None:
    """Recomputed from the loss curve, whose retain term is the weight of its batch times what the weight ascends on."""
    changes = {"pdu": {"alpha": 2.0, "epsilon": 0.01, "dual_step": 4.0, "dual_warmup_epochs": 1.0}, "rr": {}}[method]
    record = u.read_record(train(tiny, method, tmp_path / "whole", options=QUICK, **changes))
    curve = record["loss_curve"]
    assert [point["step"] for point in curve] == [1, 2, 3, 4]
    if method == "pdu":
        expected = 2.0
        for step, point in enumerate(curve, 1):
            loss = point["retain_loss"] / expected
            expected = max(0.0, expected + 4.0 * (loss - 0.01)) if step >= 2 else expected
            assert point["weight"] == pytest.approx(expected, rel=1e-5)
        assert not math.isclose(expected, 2.0)
    else:
        assert [point["weight"] for point in curve] == [0.125, 0.25, 0.375, 0.5]
        assert curve[0]["retain_loss"] == 0.0
    often = replace(QUICK, checkpoint_every=1)
    killed(method, tiny, tmp_path / "again", often, **changes)
    again = u.read_record(train(tiny, method, tmp_path / "again", options=often, **changes))
    assert again["resumed_from_step"] == 2 and again["fingerprint"] == record["fingerprint"]
    assert again["loss_curve"] == curve
