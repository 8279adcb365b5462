"""A batch is one batch in however many passes it is taken: gradients agree to rounding, for every objective."""

import copy

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer
from transformers import TrainerCallback as _Callback

from tests.unlearning.conftest import QUICK, Tiny
from uds_lens.data import ForgetExample
from uds_lens.unlearning import METHODS, TrainOptions, make_config
from uds_lens.unlearning.methods import objective_named
from uds_lens.unlearning.parent import Parent
from uds_lens.unlearning.training_data import encoded, pairs_of, training_data, winning_answers
from uds_lens.unlearning.unlearning_trainer import UnlearningTrainer, training_arguments
from uds_lens.unlearning.visits import VisitDataset

UNEQUAL = (
    "Yes.",
    "It was Ada Vey, whom nobody knew at the time.",
    "In Lundville, she said.",
    "No, Bo Lund did.",
)
SHORT = {"batch_size": 4, "epochs": 1, "warmup_epochs": 0.0, "max_grad_norm": 1e9}
EXTRA = {"rmu": {"layer": 3, "scale": 5.0}, "altpo": {"n_alternates": 2, "max_new_tokens": 12}}


@pytest.fixture(scope="module")
def parent(tiny: Tiny) -> Parent:
    model = AutoModelForCausalLM.from_pretrained(tiny.full, dtype=torch.float64, attn_implementation="eager")
    return Parent(model.eval(), AutoTokenizer.from_pretrained(tiny.full), "tiny", "")


def rows(texts, start: int = 0) -> list[ForgetExample]:
    return [ForgetExample(str(i), f"What of {i + start}?", text, row=i) for i, text in enumerate(texts)]


def gradients(method: str, parent: Parent, folder, *, passes: int, n: int = 4, **more) -> tuple[dict, dict]:
    """Gradients of the first step, and the point of the loss curve, with a batch of four in so many passes."""
    config = make_config(
        method,
        {**EXTRA.get(method, {}), **more, "alpha": 2.0, **SHORT} if method != "ga" else SHORT,
    )
    declared = objective_named(method)
    forget, retain = rows(UNEQUAL[:n]), rows(UNEQUAL[::-1], start=9)
    refusals = ("I do not know.", "No.", "That is nothing I could tell you about, sorry.")
    winners = winning_answers(parent, config, declared.needs, forget, refusals, folder, QUICK)
    tokens = [encoded(parent, config, pairs_of(rows)) for rows in (forget, retain)]
    data = training_data(parent, config, declared.needs, *tokens, forget, winners, QUICK)
    model = copy.deepcopy(parent.model).requires_grad_(True)
    torch.manual_seed(1)
    trainer = UnlearningTrainer(
        model,
        config,
        declared,
        VisitDataset(data, epochs=1, seed=0),
        arguments=training_arguments(
            config,
            TrainOptions(
                device="cpu", progress=False, log_every=1, checkpoint_every=0, device_batch_size=4 // passes
            ),
            n_forget=n,
            folder=folder,
        ),
        pad_token_id=2,
        show_progress=False,
    )
    with torch.no_grad():  # away from the frozen model, so that what compares with it has a gradient
        for parameter in model.parameters():
            parameter += 0.02 * torch.randn_like(parameter)
    found: dict[str, torch.Tensor] = {}

    class Keep(_Callback):
        def on_pre_optimizer_step(self, args, state, control, **kwargs) -> None:
            found.update({k: p.grad.clone() for k, p in model.named_parameters() if p.grad is not None})

    trainer.add_callback(Keep())
    trainer.train()
    return found, trainer.state.log_history[0]


THEIRS = {"reduction": "open_unlearning"}
CASES = [
    *((method, {}) for method in sorted(METHODS)),
    *((method, THEIRS) for method in ("kl", "rmu", "undial")),
]


@pytest.mark.parametrize(("method", "more"), CASES, ids=[m + "-theirs" * bool(x) for m, x in CASES])
def test_gradients_do_not_depend_on_the_passes(method: str, more, parent: Parent, tmp_path) -> None:
    whole, point = gradients(method, parent, tmp_path, passes=1, **more)
    largest = max(value.abs().max() for value in whole.values())
    assert largest > 1e-6
    parts, other = gradients(method, parent, tmp_path, passes=4, **more)
    assert parts.keys() == whole.keys()
    for name, value in whole.items():  # transformers' attention has its softmax in float32
        torch.testing.assert_close(parts[name], value, rtol=0, atol=1e-6 * float(largest))
    for name in ("loss", "forget_loss", *(("retain_loss",) if method != "ga" else ())):
        assert other[name] == pytest.approx(point[name], rel=1e-6)


def test_an_incomplete_last_batch_is_one_batch_too(parent: Parent, tmp_path) -> None:
    whole, _ = gradients("graddiff", parent, tmp_path, passes=1, n=3)
    parts, _ = gradients("graddiff", parent, tmp_path, passes=2, n=3)
    for name, value in whole.items():
        torch.testing.assert_close(parts[name], value, rtol=0, atol=1e-6 * float(value.abs().max()))
