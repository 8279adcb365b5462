"""Depth during training: training stays the same, values are those of the saved checkpoints, steering never scores."""

import json
import math
import random
import shutil
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, Trainer, TrainerCallback, TrainingArguments

import uds_lens as ul
from uds_lens.errors import ConfigError, ModelError, UdsLensWarning
from uds_lens.results._steering import declared_in
from uds_lens.training import DepthCallback, DepthCurve
from uds_lens.training._callback import _split
from uds_lens.unlearning import LoraSettings, TrainOptions, make_config, unlearn
from uds_lens.unlearning._job import open_parent

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
    """The run with it: everything is measured, nothing decided; a checkpoint at each measured step."""
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
    assert watched.callback.score is None and not watched.callback.curve.steers


def test_values_are_those_of_the_saved_checkpoints_to_the_last_digit(world, watched):
    points = watched.callback.curve.points
    assert [point.step for point in points] == [0, 2, 4, 6]
    assert points[0].uds == 0.0 < points[-1].uds
    audits = watched.callback.measured.audit_all(
        [watched.out / f"checkpoint-{p.step}" for p in points[1:]], options=RUN
    )
    for point, audit in zip(points[1:], audits, strict=True):
        assert point.uds == audit.uds and point.damage == pytest.approx(audit.damage, rel=0, abs=0, nan_ok=True)
        assert point.forget_loss == pytest.approx(float(audit.s2_delta.double().mean()), nan_ok=True)
        assert not audit.fatal, "nothing steered"


def test_values_and_their_cost_reach_the_log_and_the_records(watched):
    logged = [row for row in watched.trainer.state.log_history if "depth/uds" in row]
    assert [(row["step"], row["depth/uds"]) for row in logged] == [
        (point.step, point.uds) for point in watched.callback.curve.points
    ]
    assert DepthCurve.load(watched.out).points == watched.callback.curve.points
    early = DepthCurve.load(watched.out / "checkpoint-4")
    assert [point.step for point in early.points] == [0, 2, 4]
    callback = watched.callback
    first, *rest = callback.curve.points
    each = (callback.seconds_estimated - first.seconds) / len(rest)
    assert 0 < each < callback.seconds_estimated, "one estimate for each measurement that followed"


def test_stop_chooses_what_audits_of_all_checkpoints_choose(world, texts, baseline, watched, tmp_path):
    callback = DepthCallback(baseline, every=EVERY, stop=1e-9, options=RUN)
    scores = [callback.measured.audit(watched.out / f"checkpoint-{step}", options=RUN).uds for step in (2, 4, 6)]
    assert scores[0] < scores[1], "else the test shows nothing"
    callback = DepthCallback(baseline, every=EVERY, stop=scores[1], options=RUN)
    trainer, _ = ascended(world, texts, tmp_path / "out", callback)
    assert trainer.state.global_step == callback.curve.stopped == 4
    assert same(trainer.model, watched.out / "checkpoint-4")


@pytest.fixture(scope="module")
def best(world, texts, baseline, watched, tmp_path_factory):
    """A run that keeps its best step under a bound on damage, and audits of all steps that say which one that is."""
    steps = (2, 4, 6)
    chooser = DepthCallback(baseline, every=EVERY, keep_best=True, options=RUN)
    audits = chooser.measured.audit_all([watched.out / f"checkpoint-{step}" for step in steps], options=RUN)
    limit = sorted(audit.damage for audit in audits if not math.isnan(audit.damage))[-2]
    allowed = {step: a.uds for step, a in zip(steps, audits, strict=True) if not a.damage > limit}
    assert len(allowed) == 2, "else the bound chooses nothing"
    settings = {"every": EVERY, "keep_best": True, "max_damage": limit, "options": RUN}
    callback = DepthCallback(baseline, **settings)
    trainer, _ = ascended(world, texts, tmp_path_factory.mktemp("best") / "out", callback)
    step = max(allowed, key=allowed.__getitem__)
    return SimpleNamespace(callback=callback, model=trainer.model, settings=settings, step=step)


def test_keep_best_chooses_what_audits_of_all_checkpoints_choose(best, watched):
    checkpoint = watched.out / f"checkpoint-{best.step}"
    assert best.callback.curve.kept == best.step and same(best.model, checkpoint)
    assert best.callback.score.uds == best.callback.held_out.audit(checkpoint, options=RUN).uds


def test_a_killed_run_resumes_with_its_curve_and_its_best(world, texts, baseline, best, tmp_path):
    out = tmp_path / "out"
    with pytest.raises(KeyboardInterrupt):
        ascended(world, texts, out, DepthCallback(baseline, **best.settings), Ending(at=5))
    callback = DepthCallback(baseline, **best.settings)
    trainer, _ = ascended(world, texts, out, callback, resume=str(out / "checkpoint-4"))
    assert numbers(callback.curve) == numbers(best.callback.curve)
    assert callback.curve.kept == best.step and same(trainer.model, best.model)


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
    steered = DepthCallback(baseline, every=1, stop=1e-9, options=RUN)
    stopped = trained("steered", steered)
    assert steered.curve.stopped and not same(stopped, tmp_path / "with")
    assert DepthCurve.load(stopped).score["uds"] == steered.score.uds
    (stopped / "depth.json").unlink()  # a copy, or the Hub, has the weights and their configuration
    for model in (stopped, AutoModelForCausalLM.from_pretrained(stopped)):
        assert steered.measured.audit(model, options=RUN).reading == "withheld"
        assert not steered.held_out.audit(model, options=RUN).fatal
    written = (stopped / "config.json").read_text()
    assert "uds_lens_steering" in written and not any(x.subject in written for x in steered.measured.examples)
    with pytest.raises(ConfigError, match="another run"):
        trained("with", steered)
    adapted = DepthCallback(baseline, every=5, rows=3, control=0, options=RUN)
    merged = trained("lora", adapted, lora=LoraSettings(rank=2))
    assert adapted.curve.points[-1].uds == pytest.approx(adapted.measured.audit(merged, options=RUN).uds, abs=1e-4)


def test_examples_that_steer_never_score(world, texts, baseline, watched, tmp_path):
    callback = DepthCallback(baseline, every=3, stop=1.0, options=RUN)
    steering, scoring = ({x.subject for x in part.examples} for part in (callback.measured, callback.held_out))
    assert steering and scoring and not steering & scoring
    kept = [{x.subject for x in part.control.examples} for part in (callback.measured, callback.held_out)]
    assert kept[0] and kept[1] and not kept[0] & kept[1]
    model = tmp_path / "model"
    shutil.copytree(watched.out / "checkpoint-6", model)
    callback.curve.save(model)
    audit = baseline.audit(model, options=RUN)
    n = len(callback.measured.examples)
    assert audit.reading == "withheld" and audit.fatal[0].startswith(f"{n} of 8 examples steered the training")
    audit.save(tmp_path / "audit")
    assert ul.DepthAudit.load(tmp_path / "audit").fatal == audit.fatal
    child = open_parent(model, TrainOptions(device="cpu")).model.config  # of what is trained further from here
    assert sum(mark.startswith("row:") for mark in declared_in(child)["rows"]) == n
    held_out = callback.held_out.audit(model, options=RUN)
    assert not held_out.fatal and any("about other subjects steered" in each.text for each in held_out.cautions)
    limited = DepthCallback(baseline, every=3, keep_best=True, max_damage=0.5, options=RUN)
    limited.curve.save(model)
    for part, n in ((baseline, len(limited.measured.control.examples)), (limited.held_out, 0)):
        found = [each.text for each in part.audit(model, options=RUN).cautions if "retained facts steered" in each.text]
        assert [text.startswith(f"{n} of ") for text in found] == [True] * (n > 0)
    record = json.loads((model / "depth.json").read_text())
    record["steers"] = False
    (model / "depth.json").write_text(json.dumps(record))
    with pytest.warns(UdsLensWarning, match=r"depth\.json' cannot be read"):
        baseline.audit(model, options=RUN)


@pytest.mark.parametrize(
    "found", [5, ["row:a"], {"rows": 5}, {"rows": "row:a"}, {"rows": [["row:a"]]}, {"control": {}}]
)
def test_a_configuration_of_strangers_is_not_trusted(found):
    with pytest.warns(UdsLensWarning, match="something else than hashes of examples"):
        assert declared_in(SimpleNamespace(uds_lens_steering=found, _name_or_path=repr(found))) == {}


def test_whole_subjects_are_drawn():
    subjects = ["a", "a", "b", "b", "b", None, "c"]
    usable = [True, False, True, True, True, True, False]
    for seed in range(5):
        kept, rest = _split("rows", subjects, usable, 2, seed=seed, hold_out=True)
        assert {subjects[i] for i in kept}.isdisjoint({subjects[i] for i in rest} - {None})
        assert 2 <= len(kept) <= 4 and all(usable[i] for i in kept)
        assert 6 not in (*kept, *rest), "a subject with nothing measurable"
    assert _split("rows", subjects, usable, None, seed=0, hold_out=False) == ([0, 2, 3, 4, 5], [])
    with pytest.raises(ConfigError, match="all 3 subjects would steer"):
        _split("rows", subjects, usable, 5, seed=0, hold_out=True)


def test_refuses_what_it_cannot_do(world, texts, baseline, tmp_path):
    with pytest.raises(ConfigError, match=r"max_damage=0\.1 needs keep_best=True"):
        DepthCallback(baseline, every=1, max_damage=0.1)
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
