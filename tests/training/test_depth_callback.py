"""Depth during training: training stays the same, values are those of checkpoints, and a Trainer chooses by them."""

import math
import random
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    EarlyStoppingCallback,
    Trainer,
    TrainerCallback,
    TrainingArguments,
)

import uds_lens as ul
from uds_lens.errors import ConfigError, ModelError
from uds_lens.training import DepthCallback, DepthCurve, DepthPoint
from uds_lens.training._callback import _drawn
from uds_lens.unlearning import LoraSettings, TrainOptions, make_config, unlearn

RUN = ul.RunOptions(device="cpu", engine="wavefront", progress=False)
STEPS, EVERY = 6, 2
pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def baseline(world):
    return toy_baseline(world)


@pytest.fixture(scope="module")
def texts(world):
    return toy_texts(world)


def toy_baseline(world):
    """Stage 1 on eight forget facts and eight retained ones, of several people each."""
    forget, kept = (ul.data.sample_examples(rows, 8) for rows in (world.examples, world.retain_examples))
    return ul.Baseline.measure(world.full, world.retain, forget, control=kept, options=RUN)


def toy_texts(world):
    """The forget facts as a language model trains on them."""
    tokenizer = AutoTokenizer.from_pretrained(world.full)
    rows = [f"Question: {x.question}\nAnswer: {x.answer}" for x in world.examples[:8]]
    batch = tokenizer(rows, padding=True, return_tensors="pt")
    labels = batch["input_ids"].masked_fill(batch["attention_mask"] == 0, -100)
    return [{**{k: v[i] for k, v in batch.items()}, "labels": labels[i]} for i in range(len(rows))]


class Ending(TrainerCallback):
    """Notes what a callback could have disturbed; may end the run as a kill does."""

    def __init__(self, *, at: int | None = None) -> None:
        self.at, self.random = at, None

    def on_step_end(self, args, state, control, model=None, **kwargs) -> None:
        assert model.training and all(module.training for module in model.modules())
        assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())
        assert all(parameter.requires_grad and parameter.dtype == torch.float32 for parameter in model.parameters())
        self.random = (random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist())
        if state.global_step == self.at:
            raise KeyboardInterrupt


def ascent(outputs, labels, num_items_in_batch=None):
    """Return minus the loss of a language model."""
    return -torch.nn.functional.cross_entropy(outputs.logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten())


def ascended(world, texts, out: Path, *callbacks, resume=None, **settings):
    """Gradient ascent by a plain Trainer, with dropout, so that random numbers matter; returns it and its note."""
    model = AutoModelForCausalLM.from_pretrained(world.full, dtype=torch.float32, attention_dropout=0.2)
    arguments = TrainingArguments(
        **{
            "output_dir": str(out),
            "max_steps": STEPS,
            "per_device_train_batch_size": 4,
            "learning_rate": 1e-3,
            "lr_scheduler_type": "constant",
            "logging_steps": 1,
            "save_steps": EVERY,
            "use_cpu": True,
            "disable_tqdm": True,
            "report_to": "none",
            "seed": 3,
            **settings,
        }
    )
    ending = next((each for each in callbacks if isinstance(each, Ending)), Ending())
    trainer = Trainer(
        model=model,
        args=arguments,
        train_dataset=texts,
        eval_dataset=texts[:1],
        compute_loss_func=ascent,
        processing_class=AutoTokenizer.from_pretrained(world.full),
        callbacks=[*callbacks, ending],
    )
    trainer.train(resume_from_checkpoint=resume)
    return trainer, ending


def weights(model) -> dict[str, torch.Tensor]:
    model = AutoModelForCausalLM.from_pretrained(model) if isinstance(model, Path) else model
    return {name: parameter.detach() for name, parameter in model.named_parameters()}


def same(one, other) -> bool:
    one, other = weights(one), weights(other)
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def numbers(curve: DepthCurve) -> list[tuple]:
    """A curve without its times; NaN as None."""
    rows = curve.to_frame().drop(columns="seconds").astype(object)
    return [tuple(row) for row in rows.where(rows.notna(), None).itertuples(index=False)]


@pytest.fixture(scope="module")
def plain(world, texts, tmp_path_factory):
    """The run without the callback."""
    return ascended(world, texts, tmp_path_factory.mktemp("plain") / "out")


@pytest.fixture(scope="module")
def watched(world, texts, baseline, tmp_path_factory):
    """The run with it: a checkpoint at each measured step."""
    callback = DepthCallback(baseline, every=EVERY, options=RUN)
    trainer, ending = ascended(world, texts, tmp_path_factory.mktemp("watched") / "out", callback)
    return SimpleNamespace(callback=callback, trainer=trainer, ending=ending, out=Path(trainer.args.output_dir))


def test_training_is_bit_identical(plain, watched):
    trainer, ending = plain
    assert same(trainer.model, watched.trainer.model)
    assert ending.random == watched.ending.random
    timing = ("train_runtime", "train_samples_per_second", "train_steps_per_second")
    losses = [
        [{k: v for k, v in row.items() if k not in timing} for row in each.state.log_history if "depth/uds" not in row]
        for each in (trainer, watched.trainer)
    ]
    assert losses[0] == losses[1]


def test_values_are_those_of_the_saved_checkpoints_to_the_last_digit(world, watched):
    points = watched.callback.curve.points
    assert [point.step for point in points] == [0, 2, 4, 6]
    assert points[0].uds == 0.0 < points[-1].uds
    audits = watched.callback.measured.audit_all(
        [watched.out / f"checkpoint-{p.step}" for p in points[1:]], options=RUN
    )
    for point, audit in zip(points[1:], audits, strict=True):
        assert (point.uds, point.output_depth) == (audit.uds, audit.output_depth)
        assert point.damage == pytest.approx(audit.damage, rel=0, abs=0, nan_ok=True)
        assert point.forget_loss == pytest.approx(float(audit.s2_delta.double().mean()), nan_ok=True)


def test_values_and_their_cost_reach_the_log_and_the_records(watched):
    logged = [row for row in watched.trainer.state.log_history if "depth/uds" in row]
    assert [(row["step"], row["depth/uds"]) for row in logged] == [
        (point.step, point.uds) for point in watched.callback.curve.points
    ]
    assert DepthCurve.load(watched.out).points == watched.callback.curve.points
    early = DepthCurve.load(watched.out / "checkpoint-4")
    assert [point.step for point in early.points] == [0, 2, 4]
    assert all(point.seconds > 0 for point in watched.callback.curve.points)


def test_an_evaluation_has_both_depths_and_what_is_undefined_is_left_out(baseline):
    callback = DepthCallback(baseline, every=EVERY, options=RUN)
    point = DepthPoint(
        step=4, uds=0.5, output_depth=0.25, damage=math.nan, forget_loss=1.0, control_loss=math.nan, seconds=0.1
    )
    callback._trainer, callback._points = object(), [point]
    metrics = {"eval_loss": 1.0}
    callback.on_evaluate(None, SimpleNamespace(global_step=4), None, metrics=metrics)
    assert metrics == {"eval_loss": 1.0, "eval_depth": 0.5, "eval_output_depth": 0.25}


CHOOSING = {
    "eval_strategy": "steps",
    "eval_steps": EVERY,
    "load_best_model_at_end": True,
    "metric_for_best_model": "eval_depth",
    "greater_is_better": True,
}


@pytest.mark.long
def test_the_trainer_keeps_what_audits_of_its_checkpoints_call_deepest(world, texts, baseline, watched, tmp_path):
    callback = DepthCallback(baseline, every=EVERY, options=RUN)
    trainer, _ = ascended(world, texts, tmp_path / "out", callback, learning_rate=3e-3, **CHOOSING)
    audits = callback.measured.audit_all([tmp_path / f"out/checkpoint-{step}" for step in (2, 4, 6)], options=RUN)
    depths = {step: audit.uds for step, audit in zip((2, 4, 6), audits, strict=True)}
    assert len(set(depths.values())) == 3, "else the test shows nothing"
    best = max(depths, key=depths.__getitem__)
    assert trainer.state.best_metric == depths[best] and trainer.state.best_global_step == best
    assert same(trainer.model, tmp_path / f"out/checkpoint-{best}")
    assert len(callback.curve.points) == 4, "each step is measured once"
    assert trainer.evaluate()["eval_loss"] < 0, "an evaluation after the training measures nothing"


@pytest.mark.long
def test_the_trainer_stops_where_depth_no_longer_grows(world, texts, baseline, tmp_path):
    """With a threshold that no step can reach, patience ends the run at the second evaluation."""
    stopping = EarlyStoppingCallback(early_stopping_patience=1, early_stopping_threshold=2.0)
    callback = DepthCallback(baseline, every=100, options=RUN)
    trainer, _ = ascended(world, texts, tmp_path / "out", callback, stopping, **CHOOSING)
    assert trainer.state.global_step == 4
    assert [point.step for point in callback.curve.points] == [0, 2, 4]


@pytest.mark.long
def test_a_killed_run_resumes_with_its_curve(world, texts, baseline, watched, tmp_path):
    out = tmp_path / "out"
    with pytest.raises(KeyboardInterrupt):
        ascended(world, texts, out, DepthCallback(baseline, every=EVERY, options=RUN), Ending(at=5))
    callback = DepthCallback(baseline, every=EVERY, options=RUN)
    trainer, _ = ascended(world, texts, out, callback, resume=str(out / "checkpoint-4"))
    assert numbers(callback.curve) == numbers(watched.callback.curve)
    assert same(trainer.model, watched.trainer.model)


@pytest.mark.long
def test_unlearn_gives_the_same_weights_with_it(world, baseline, tmp_path):
    config = make_config(
        "npo", {"epochs": 1, "batch_size": 4, "learning_rate": 1e-3, "warmup_epochs": 0.0, "protocol": "raw"}
    )

    def trained(name: str, *callbacks, **more) -> Path:
        options = TrainOptions(device="cpu", progress=False, callbacks=callbacks)
        rows = world.examples[:12], world.retain_examples[:12]
        return unlearn(world.full, *rows, method=config, out=tmp_path / name, options=options, **more)

    callback = DepthCallback(baseline, every=2, options=RUN)
    assert same(trained("without"), trained("with", callback))
    assert callback.measured.audit(tmp_path / "with", options=RUN).uds == callback.curve.points[-1].uds
    adapted = DepthCallback(baseline, every=5, rows=3, control=0, options=RUN)
    merged = trained("lora", adapted, lora=LoraSettings(rank=2))
    assert adapted.curve.points[-1].uds == pytest.approx(adapted.measured.audit(merged, options=RUN).uds, abs=1e-4)


def test_whole_subjects_are_drawn():
    subjects = ["a", "a", "b", "b", "b", None, "c"]
    usable = [True, False, True, True, True, True, False]
    for seed in range(5):
        drawn = _drawn(subjects, usable, 2, seed)
        assert 2 <= len(drawn) <= 4 and all(usable[i] for i in drawn), "and no subject with nothing measurable"
        assert all(set(rows) <= set(drawn) or set(rows).isdisjoint(drawn) for rows in ((0,), (2, 3, 4), (5,)))
    assert _drawn(subjects, usable, None, 0) == [0, 2, 3, 4, 5]


def test_refuses_what_it_cannot_do(world, texts, baseline, tmp_path):
    with pytest.raises(ConfigError, match="every must be"):
        DepthCallback(baseline, every=0)
    sharded = torch.nn.Linear(1, 1)
    sharded.weight.ds_id = 0
    state = SimpleNamespace(is_world_process_zero=True, log_history=[], global_step=0, max_steps=1)
    callback = DepthCallback(baseline, every=1, options=RUN)
    with pytest.raises(ModelError, match="sharded"):
        callback.on_train_begin(TrainingArguments(str(tmp_path), use_cpu=True), state, None, model=sharded)
    other = DepthCallback(replace(baseline, full=world.retain), every=1, options=RUN)
    with pytest.raises(ModelError, match="is not the `full`"):
        ascended(world, texts, tmp_path / "out", other)


@pytest.mark.filterwarnings("ignore")  # those of TRL are not ours
def test_trl_trains_with_it(world, texts, baseline, tmp_path):
    trl = pytest.importorskip("trl")
    from datasets import Dataset

    rows = Dataset.from_dict({"text": [f"Question: {x.question}\nAnswer: {x.answer}" for x in world.examples[:8]]})
    settings = {"max_steps": 2, "save_steps": 2, "use_cpu": True, "bf16": False, "report_to": "none"}
    callback = DepthCallback(baseline, every=1, options=RUN)
    trainer = trl.SFTTrainer(
        model=AutoModelForCausalLM.from_pretrained(world.full, dtype=torch.float32),
        args=trl.SFTConfig(output_dir=str(tmp_path / "out"), logging_steps=1, disable_tqdm=True, **settings),
        train_dataset=rows,
        processing_class=AutoTokenizer.from_pretrained(world.full),
        callbacks=[callback],
    )
    trainer.train()
    logged = [row for row in trainer.state.log_history if "loss" in row]
    assert len(callback.curve.points) == 3 and all("mean_token_accuracy" in row for row in logged)
    assert callback.measured.audit(tmp_path / "out/checkpoint-2", options=RUN).uds == callback.curve.points[-1].uds
