"""A batch is one batch in however many passes it is taken: gradients agree to rounding, for every objective."""

import copy
from dataclasses import dataclass, replace

import pytest
import torch
from tiny_models import build_model, build_tokenizer
from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback

from tests.unlearning.conftest import EXTRA, QUICK, Tiny
from uds_lens import unlearning as u
from uds_lens.data import ForgetExample
from uds_lens.errors import ConfigError
from uds_lens.unlearning import _data, _trainer
from uds_lens.unlearning._job import Job, Parent
from uds_lens.unlearning._registry import objective_named
from uds_lens.unlearning._trainer import UnlearningTrainer, training_arguments

UNEQUAL = ("Yes.", "It was Ada Vey, whom nobody knew at the time.", "In Lundville, she said.", "No, Bo Lund did.")
SHORT = {"batch_size": 4, "epochs": 1, "warmup_epochs": 0.0, "max_grad_norm": 1e9}
REFUSALS = ("I do not know.", "No.", "That is nothing I could tell you about, sorry.")


@pytest.fixture(scope="module")
def parent(tiny: Tiny) -> Parent:
    model = AutoModelForCausalLM.from_pretrained(tiny.full, dtype=torch.float64, attn_implementation="eager")
    return Parent(model.eval(), AutoTokenizer.from_pretrained(tiny.full), "tiny", "")


def rows(texts, start: int = 0) -> tuple[ForgetExample, ...]:
    return tuple(ForgetExample(str(i), f"What of {i + start}?", text, row=i) for i, text in enumerate(texts))


def weighs_retain(method: str) -> bool:
    return issubclass(u.METHODS[method], u.RetainConfig)


def gradients(
    method: str, parent: Parent, folder, *, passes: int, n: int = 4, steps: int = 1, **more
) -> tuple[dict, dict]:
    """Gradients of the last step, and its point of the loss curve, with a batch of four in so many passes."""
    extra = {**EXTRA.get(method, {}), **more, **({"alpha": 2.0} if weighs_retain(method) else {})}
    options = replace(QUICK, device_batch_size=4 // passes)
    job = Job(
        config=u.make_config(method, {**extra, **SHORT}),
        objective=objective_named(method),
        source="tiny",
        forget=rows(UNEQUAL[:n]),
        retain=rows(UNEQUAL[::-1], start=9),
        refusals=REFUSALS,
        options=options,
        out=folder / "out",
        record="unlearning.json",
    )
    tokens = [_data.encoded(parent, job.config, _data.pairs_of(side)) for side in (job.forget, job.retain)]
    data = _data.completed(_data.TrainingData(*tokens), job, parent, _data.preferred_answers(job, parent, folder))
    model = copy.deepcopy(parent.model).requires_grad_(True)
    torch.manual_seed(1)
    trainer = UnlearningTrainer(
        model,
        job.config,
        job.objective,
        _data.PairDataset(data, epochs=steps, seed=0, batch_size=job.config.batch_size),
        arguments=training_arguments(job.config, options, n_forget=n, folder=folder),
        pad_token_id=2,
        show_progress=False,
    )
    with torch.no_grad():  # away from the frozen model, so that what compares with it has a gradient
        for parameter in model.parameters():
            parameter += 0.02 * torch.randn_like(parameter)
    found: dict[str, torch.Tensor] = {}

    class Keep(TrainerCallback):
        def on_pre_optimizer_step(self, args, state, control, **kwargs) -> None:
            found.update({k: p.grad.clone() for k, p in model.named_parameters() if p.grad is not None})

    trainer.add_callback(Keep())
    trainer.train()
    return found, trainer.state.log_history[steps - 1]


THEIRS = {"reduction": "open_unlearning"}
CASES = [*((method, {}) for method in sorted(u.METHODS)), *((method, THEIRS) for method in ("kl", "rmu", "undial"))]
NOW = [(method, {}) for method in ("ceu", "graddiff", "idkdpo", "npo", "rmu", "rr", "undial")] + [("kl", THEIRS)]
"""Those of them in `make test`: a mean over tokens, pairs, a reference model, states, soft targets, a moving weight."""


@dataclass(frozen=True, kw_only=True)
class MarginConfig(u.RetainConfig):
    """Each forget answer less likely than the retain answer beside it."""

    method = "margin"


def margin(config, passes):
    apart = passes.answer_log_probs("retain") - passes.answer_log_probs("forget")
    return u.Terms(u.per_answer("forget", -torch.nn.functional.logsigmoid(0.2 * apart).mean()))


def agree(parts: dict[str, torch.Tensor], whole: dict[str, torch.Tensor], *, by_tensor: bool = False) -> None:
    """To rounding, of the largest gradient or of each: transformers' attention has its softmax in float32."""
    largest = max(float(value.abs().max()) for value in whole.values())
    assert largest > 0 and parts.keys() == whole.keys()
    for name, value in whole.items():
        scale = float(value.abs().max()) if by_tensor else largest
        torch.testing.assert_close(parts[name], value, rtol=0, atol=1e-6 * scale)


@pytest.fixture
def groups(monkeypatch) -> list[int]:
    """How many groups each pass was cut into, from the second on; groups have one row."""
    found: list[int] = []

    def one_by_one(batch):
        made = _data.length_groups(batch, rows=1)
        found.append(len(made))
        return made

    monkeypatch.setattr(_trainer, "length_groups", one_by_one)
    return found


@pytest.mark.parametrize(
    ("method", "more"),
    [
        pytest.param(*case, marks=[] if case in NOW else pytest.mark.long, id=case[0] + "-theirs" * bool(case[1]))
        for case in CASES
    ],
)
def test_gradients_depend_neither_on_passes_nor_on_groups_by_length(
    method: str, more, parent: Parent, tmp_path, groups, monkeypatch
) -> None:
    parts, other = gradients(method, parent, tmp_path, passes=2, steps=2, **more)
    assert groups == ([] if more else [2, 2, 2]), "what counts padding keeps it; the first pass is whole"
    monkeypatch.setattr(_trainer, "length_groups", lambda batch: [batch])
    whole, point = gradients(method, parent, tmp_path, passes=1, steps=2, **more)
    assert max(float(value.abs().max()) for value in whole.values()) > 1e-6
    agree(parts, whole)
    for name in ("loss", "forget_loss", *(("retain_loss",) if "retain" in objective_named(method).needs else ())):
        assert other[name] == pytest.approx(point[name], rel=1e-6)


def test_a_users_own_objective_sees_its_batches_whole(parent: Parent, tmp_path, groups) -> None:
    u.objective(MarginConfig, needs=("retain",))(margin)
    try:
        whole, parts = (gradients("margin", parent, tmp_path, passes=passes, steps=2)[0] for passes in (1, 4))
    finally:
        u.withdraw_objective("margin")
    assert groups == []
    agree(parts, whole, by_tensor=True)


@pytest.mark.parametrize("dropout", [0.0, 0.1])
def test_dropout_keeps_batches_whole(dropout, tiny, tmp_path, groups) -> None:
    place = tmp_path / "model"
    AutoModelForCausalLM.from_pretrained(tiny.full, attention_dropout=dropout).save_pretrained(place)
    AutoTokenizer.from_pretrained(tiny.full).save_pretrained(place)
    config = u.RelearnConfig(batch_size=4, learning_rate=1e-3, epochs=2)
    u.relearn(place, rows(UNEQUAL * 2), out=tmp_path / "again", config=config, options=QUICK)
    assert groups == ([] if dropout else [4, 4, 4]), "the first pass is whole: it tells"


@pytest.mark.parametrize("family", ["longrope", "dynamic"])
def test_rows_past_the_original_maximum_train_alone(family, tmp_path) -> None:
    """Their rotary frequencies depend on the longest row of a batch, and in "dynamic" models on the one before."""
    tokenizer, model = build_tokenizer(), build_model(family)
    model.save_pretrained(tmp_path / "model")
    tokenizer.save_pretrained(tmp_path / "model")
    texts = ("In Orsk, the old town by the sea.", "Yes.", "It was written in Orsk, the old town by the sea.")
    config = {"batch_size": 3, "epochs": 1, "warmup_epochs": 0.0, "protocol": "raw"}
    out = u.unlearn(
        tmp_path / "model",
        rows(texts),
        rows(texts[::-1]),
        method=u.make_config("graddiff", config),
        out=tmp_path / "out",
        options=QUICK,
    )
    point = u.read_record(out)["loss_curve"][0]
    parent = Parent(model, tokenizer, "tiny", "")
    tokens = _data.encoded(parent, u.make_config("graddiff", config), _data.pairs_of(rows(texts)))
    lengths = [len(sequence.ids) for sequence in tokens]
    assert lengths[1] <= 24 < lengths[0] < lengths[2]
    nll = -sum(u.answer_log_probs(build_model(family), [row], pad_token_id=3)[0] for row in tokens)
    nll /= sum(len(sequence.labelled) for sequence in tokens)
    assert point["forget_loss"] == pytest.approx(-nll, rel=1e-5)
    assert point["retain_loss"] == pytest.approx(nll, rel=1e-5)
    theirs = u.make_config("kl", {**config, "reduction": "open_unlearning"})
    with pytest.raises(ConfigError, match=r"pads rows to equal length.*reduction='answers'"):
        u.unlearn(tmp_path / "model", rows(texts), rows(texts), method=theirs, out=tmp_path / "kl", options=QUICK)


def test_an_incomplete_last_batch_is_one_batch_too(parent: Parent, tmp_path) -> None:
    whole, parts = (gradients("graddiff", parent, tmp_path, passes=passes, n=3)[0] for passes in (1, 2))
    agree(parts, whole, by_tensor=True)
