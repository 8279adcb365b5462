"""A batch is one batch in however many passes it is taken: gradients agree to rounding, for every objective."""

import copy
from dataclasses import dataclass

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import AutoModelForCausalLM, AutoTokenizer
from transformers import TrainerCallback as _Callback

from tests.unlearning.conftest import QUICK, Tiny
from uds_lens.data import AnswerSequence, ForgetExample
from uds_lens.unlearning import (
    METHODS,
    RelearnConfig,
    RetainConfig,
    Terms,
    TrainOptions,
    make_config,
    objective,
    per_answer,
    relearn,
    withdraw_objective,
)
from uds_lens.unlearning import (
    _trainer as unlearning_trainer,
)
from uds_lens.unlearning._data import VisitDataset, encoded, pairs_of, training_data, winning_answers
from uds_lens.unlearning._job import Parent
from uds_lens.unlearning._likelihood import pad_sequences
from uds_lens.unlearning._registry import objective_named
from uds_lens.unlearning._trainer import UnlearningTrainer, length_groups, training_arguments

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


def gradients(
    method: str, parent: Parent, folder, *, passes: int, n: int = 4, steps: int = 1, **more
) -> tuple[dict, dict]:
    """Gradients of the last step, and its point of the loss curve, with a batch of four in so many passes."""
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
        VisitDataset(data, epochs=steps, seed=0),
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
    return found, trainer.state.log_history[steps - 1]


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


@pytest.mark.parametrize(("method", "more"), CASES, ids=[m + "-theirs" * bool(x) for m, x in CASES])
def test_gradients_do_not_depend_on_groups_by_length(
    method: str, more, parent: Parent, tmp_path, groups, monkeypatch
) -> None:
    parts, other = gradients(method, parent, tmp_path, passes=1, steps=2, **more)
    assert groups == ([] if more else [4]), "what counts padding keeps it; the first pass is whole"
    monkeypatch.setattr(unlearning_trainer, "length_groups", lambda batch: [batch])
    whole, point = gradients(method, parent, tmp_path, passes=1, steps=2, **more)
    largest = max(value.abs().max() for value in whole.values())
    for name, value in whole.items():
        torch.testing.assert_close(parts[name], value, rtol=0, atol=1e-6 * float(largest))
    for name in ("loss", "forget_loss", *(("retain_loss",) if method != "ga" else ())):
        assert other[name] == pytest.approx(point[name], rel=1e-6)


@given(st.lists(st.tuples(*[st.integers(2, 9)] * 3), min_size=1, max_size=9), st.integers(1, 4))
def test_groups_hold_each_row_once_and_pairs_stay_together(lengths, rows) -> None:
    batch = {
        side: pad_sequences(
            [
                AnswerSequence((1, *(100 + i for _ in range(n[k] - 1))), n[k] - 1)
                for i, n in enumerate(lengths)
            ],
            pad_token_id=0,
        )
        for k, side in enumerate(("forget", "winner", "retain"))
    }
    batch["forget"]["reference"] = torch.arange(len(lengths)).float()
    groups = length_groups(batch, rows=rows)
    assert len(groups) == 1 or all(len(group["retain"]["labels"]) <= rows for group in groups)
    for side, k in (("forget", 0), ("winner", 1), ("retain", 2)):
        seen = []
        for group in groups:
            real = group[side]["attention_mask"].sum(1)
            assert len(groups) == 1 or int(real.max()) == group[side]["labels"].shape[1]
            rows_of = (group[side]["input_ids"][:, 1] - 100).tolist()
            assert real.tolist() == [lengths[i][k] for i in rows_of]
            assert side != "forget" or group[side]["reference"].tolist() == rows_of
            assert side != "winner" or rows_of == (group["forget"]["input_ids"][:, 1] - 100).tolist()
            seen += rows_of
        assert sorted(seen) == list(range(len(lengths)))
    for side, values in batch.items():
        padding = sum(int((1 - group[side]["attention_mask"]).sum()) for group in groups)
        assert padding <= int((1 - values["attention_mask"]).sum())


@dataclass(frozen=True, kw_only=True)
class MarginConfig(RetainConfig):
    """Each forget answer less likely than the retain answer beside it."""

    method = "margin"


def margin(config, passes):
    apart = passes.answer_log_probs("retain") - passes.answer_log_probs("forget")
    return Terms(per_answer("forget", -torch.nn.functional.logsigmoid(0.2 * apart).mean()))


@pytest.fixture
def groups(monkeypatch) -> list[int]:
    """How many groups each pass was cut into, from the second on; groups have one row."""
    found: list[int] = []

    def one_by_one(batch):
        made = length_groups(batch, rows=1)
        found.append(len(made))
        return made

    monkeypatch.setattr(unlearning_trainer, "length_groups", one_by_one)
    return found


def test_an_objective_of_somebodys_own_sees_its_batches_whole(parent: Parent, tmp_path, groups) -> None:
    objective(MarginConfig, needs=("retain",))(margin)
    try:
        whole, _ = gradients("margin", parent, tmp_path, passes=1, steps=2)
        parts, _ = gradients("margin", parent, tmp_path, passes=4, steps=2)
    finally:
        withdraw_objective("margin")
    assert groups == []
    for name, value in whole.items():
        torch.testing.assert_close(parts[name], value, rtol=0, atol=1e-6 * float(value.abs().max()))


@pytest.mark.parametrize("dropout", [0.0, 0.1])
def test_what_drops_at_random_keeps_its_batches_whole(dropout, tiny, tmp_path, groups) -> None:
    model = AutoModelForCausalLM.from_pretrained(tiny.full, attention_dropout=dropout)
    place = tmp_path / "model"
    model.save_pretrained(place)
    AutoTokenizer.from_pretrained(tiny.full).save_pretrained(place)
    settings = RelearnConfig(batch_size=4, learning_rate=1e-3)
    relearn(place, rows(UNEQUAL * 2), out=tmp_path / "again", epochs=2, config=settings, options=QUICK)
    assert groups == ([] if dropout else [4, 4, 4]), "the first pass is whole: it tells"


def test_an_incomplete_last_batch_is_one_batch_too(parent: Parent, tmp_path) -> None:
    whole, _ = gradients("graddiff", parent, tmp_path, passes=1, n=3)
    parts, _ = gradients("graddiff", parent, tmp_path, passes=2, n=3)
    for name, value in whole.items():
        torch.testing.assert_close(parts[name], value, rtol=0, atol=1e-6 * float(value.abs().max()))
