"""Training runs: what comes out, what the record says, and that it is the same again."""

import json
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from tiny_models import some_now
from transformers import AutoModelForCausalLM, AutoTokenizer

from tests.unlearning.conftest import QUICK, Tiny, settings, train, weights
from uds_lens import unlearning as u
from uds_lens.data import answer_sequences
from uds_lens.errors import ConfigError, DataError, MissingDependencyError, ModelError, UdsLensWarning
from uds_lens.models import open_model
from uds_lens.unlearning._data import load_refusals
from uds_lens.unlearning._record import recorded_config
from uds_lens.unlearning._trainer import training_arguments, training_logs


@pytest.mark.parametrize("method", some_now(["idkdpo", "npo", "rmu"], of=sorted(u.METHODS)))
def test_every_method_gives_a_checkpoint_with_its_record(method: str, tiny: Tiny, tmp_path: Path) -> None:
    out = train(tiny, method, tmp_path / method)
    before, after = weights(tiny.full), weights(out)
    changed = {name for name in before if not before[name].equal(after[name])}
    assert changed
    if method == "rmu":
        assert {name.split(".")[2] for name in changed} == {"1", "2", "3"}
    record = u.read_record(out)
    assert recorded_config(record) == settings(method)
    assert (record["steps"], record["seed"], record["resumed_from_step"]) == (4, 0, None)
    assert [point["step"] for point in record["loss_curve"]] == [1, 2, 3, 4]
    assert ("retain_loss" in record["loss_curve"][0]) == (method not in ("ga", "ceu"))
    with open_model(out, device="cpu") as model, open_model(tiny.full, device="cpu") as full:
        assert record["fingerprint"] == model.fingerprint
        assert record["parent"]["fingerprint"] == full.fingerprint
        assert model.tokenizer.get_vocab() == full.tokenizer.get_vocab()
    assert json.loads((out / "config.json").read_text()) == json.loads((tiny.full / "config.json").read_text())
    assert sorted(path.name for path in tmp_path.iterdir()) == [method]
    assert (out / "alternates.json").is_file() == (method == "altpo")
    assert ("refusals" in record["data"]) == method.startswith("idk")


def test_forgetting_forgets_and_relearning_brings_back(tiny: Tiny, tmp_path: Path) -> None:
    gone = train(tiny, "npo", tmp_path / "npo", learning_rate=5e-3, epochs=4, alpha=2.0)
    config = u.RelearnConfig(learning_rate=3e-3, batch_size=2, protocol="raw", epochs=8)
    back = u.relearn(gone, tiny.forget, out=tmp_path / "back", config=config, options=QUICK)
    losses = {path: mean_nll(path, tiny.forget) for path in (tiny.full, gone, back)}
    assert losses[gone] > losses[tiny.full] + 1.0
    assert losses[back] < losses[gone] / 2
    assert mean_nll(gone, tiny.retain) < mean_nll(gone, tiny.forget)
    assert u.read_record(back)["method"] == "relearn"


def mean_nll(path: Path, rows) -> float:
    tokenizer = AutoTokenizer.from_pretrained(path)
    sequences = answer_sequences(tokenizer, [(row.question, row.answer) for row in rows])
    sums = u.answer_log_probs(AutoModelForCausalLM.from_pretrained(path), sequences, pad_token_id=2)
    return -sum(sums) / sum(len(s.ids) - s.n_prompt for s in sequences)


def test_mixed_precision_and_checkpointing_train_too(tiny: Tiny, tmp_path: Path) -> None:
    options = replace(QUICK, mixed_precision="bfloat16", gradient_checkpointing=True, save_dtype="bfloat16")
    out = train(tiny, "graddiff", tmp_path / "out", options=options, epochs=1)
    assert AutoModelForCausalLM.from_pretrained(out, dtype="auto").dtype == torch.bfloat16
    with open_model(out, device="cpu") as model:
        assert u.read_record(out)["fingerprint"] == model.fingerprint


def test_adapters_are_merged(tiny: Tiny, tmp_path: Path) -> None:
    out = train(tiny, "rmu", tmp_path / "out", lora=u.LoraSettings(rank=2))
    before, after = weights(tiny.full), weights(out)
    changed = {name for name in before if not before[name].equal(after[name])}
    assert all("proj" in name for name in changed)
    assert {name.split(".")[2] for name in changed} == {"1", "2", "3"}
    assert u.read_record(out)["lora"]["rank"] == 2


def test_unchanged_weights_are_reported_and_divergence_leaves_nothing(tiny: Tiny, tmp_path: Path) -> None:
    with pytest.warns(UdsLensWarning, match="training changed nothing"):
        train(tiny, "ga", tmp_path / "same", learning_rate=1e-30, weight_decay=0.0, epochs=1)
    with pytest.raises(ModelError, match="training has diverged"):
        train(tiny, "ga", tmp_path / "out", learning_rate=1e30)
    assert not (tmp_path / "out").exists()


def test_refusals_come_from_the_given_file(tiny: Tiny, tmp_path: Path, shared_dir) -> None:
    file = tmp_path / "refusals.txt"
    file.write_text("No idea.\n\nAsk somebody else.\n")
    given = {"method": settings("idknll", epochs=1), "options": QUICK}
    out = u.unlearn(tiny.full, tiny.forget, tiny.retain, out=tmp_path / "o", refusals=file, **given)
    assert u.read_record(out)["data"]["refusals"]["n"] == 2
    file.write_text("\n")
    for place, words in ((file, "contains no refusal"), (tmp_path / "none.txt", r"cannot read .*none\.txt")):
        with pytest.raises(DataError, match=words):
            u.unlearn(tiny.full, tiny.forget, tiny.retain, out=tmp_path / "p", refusals=place, **given)
    ours = load_refusals()
    assert len({text.casefold() for text in ours}) == len(ours) == 100
    assert all(text[-1] == "." and text == text.strip() for text in ours)
    theirs = (shared_dir / "data" / "tofu" / "tofu_idontknow.txt").read_text(encoding="utf-8").splitlines()
    assert not {text.casefold() for text in theirs} & {text.casefold() for text in ours}


def test_what_does_not_fit_is_refused(tiny: Tiny, tmp_path: Path, unchecked) -> None:
    out = tmp_path / "out"
    for error, words, arguments in (
        (ConfigError, "npo needs retain data", {"method": "npo"}),
        (ConfigError, "method='npo' or method=NPOConfig.* was expected, but got dict", {"method": {"beta": 1}}),
        (ConfigError, "call relearn", {"method": u.RelearnConfig()}),
    ):
        with pytest.raises(error, match=words):
            u.unlearn(tiny.full, tiny.forget, out=out, **arguments)
    with pytest.raises(ConfigError, match="there is no layer 5: the model has layers 0 to 4"):
        train(tiny, "rmu", out, layer=5)
    with pytest.raises(ConfigError, match="batch_size 2 is not a multiple of device_batch_size 3"):
        train(tiny, "npo", tmp_path / "cut", options=replace(QUICK, device_batch_size=3))
    with pytest.raises(ModelError, match="needs a directory or a Hub id, but got LlamaForCausalLM"):
        u.unlearn(AutoModelForCausalLM.from_pretrained(tiny.full), tiny.forget, method="ga", out=out)


def test_the_record_is_strict_json(tiny: Tiny, tmp_path: Path, capfd) -> None:
    out = train(tiny, "ga", tmp_path / "out", epochs=1, options=replace(QUICK, progress=None))
    assert capfd.readouterr() == ("", ""), "a run without a terminal is silent"
    file = out / "unlearning.json"
    record = json.loads(file.read_text(), parse_constant=pytest.fail)
    assert record["name"] == "ga_lr2e-03_epoch1_batchsize2_warmupepochs0_protocolraw"
    assert set(record["data"]) == {"forget"}
    assert {"accelerate", "peft", "torch", "transformers", "uds_lens"} <= set(record["versions"])


def test_the_last_loss_is_that_of_the_last_step(tiny: Tiny, tmp_path: Path) -> None:
    every, fifth = (
        u.read_record(train(tiny, "graddiff", tmp_path / str(n), epochs=4, options=replace(QUICK, log_every=n)))
        for n in (1, 5)
    )
    assert [point["step"] for point in fifth["loss_curve"]] == [1, 5, 7, 8]
    assert fifth["loss_curve"][-1] == every["loss_curve"][-1]
    mean = sum(point["loss"] for point in every["loss_curve"][1:5]) / 4
    assert fifth["loss_curve"][1]["loss"] == pytest.approx(mean, rel=1e-5)
    point = every["loss_curve"][3]
    assert point["loss"] == pytest.approx(point["forget_loss"] + point["retain_loss"], rel=1e-5)


def test_the_protocol_is_that_of_the_tokenizer(tiny: Tiny, tmp_path: Path, caplog, monkeypatch) -> None:
    """As for the metrics: the chat template where there is one. `~` is the home directory."""
    caplog.set_level("INFO", logger="uds_lens._progress")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    chat = train(tiny, "ga", Path("~/chat"), protocol="auto", epochs=1)
    assert chat == tmp_path / "chat"
    assert not (tmp_path / "~").exists()
    assert "ga on 4 forget answers of" in caplog.text
    assert "prompts: chat template" in caplog.text
    record = u.read_record("~/chat")
    assert (record["protocol"], record["config"]["protocol"]) == ("chat", "auto")
    assert train(tiny, "ga", chat, protocol="chat", epochs=1) == chat
    with pytest.raises(ConfigError, match=r"protocol 'chat', not 'raw'"):
        train(tiny, "ga", chat, protocol="raw", epochs=1)
    with pytest.raises(ConfigError, match="apply only to chat prompts"):
        settings("ga", protocol="raw", system_prompt="Be kind.")
    with pytest.raises(ConfigError, match="chat_date '26 Jul 2024', not '10 Apr 2025'"):
        train(tiny, "ga", chat, protocol="auto", epochs=1, chat_date="10 Apr 2025")


def test_entities_are_part_of_a_run_that_samples_alternates(tiny: Tiny, tmp_path: Path) -> None:
    out = train(tiny, "altpo", tmp_path / "out", epochs=1, n_alternates=1)
    named = replace(tiny, forget=[replace(row, entity="Ada") for row in tiny.forget])
    with pytest.raises(ConfigError, match=r"another run .*forget data"):
        train(named, "altpo", tmp_path / "out", epochs=1, n_alternates=1)
    assert u.read_record(out)["depends_on"]["device"] == "cpu"


def test_where_a_run_is_logged(tiny: Tiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config, asked = settings("npo"), u.TrainOptions(device="cpu", log_to=["wandb", "csv", "wandb"])
    assert asked.log_to == ("wandb", "csv")
    made = training_arguments(config, asked, n_forget=4, folder=tmp_path, name="npo")
    assert (made.report_to, made.run_name) == (["wandb"], "npo")
    assert training_arguments(config, QUICK, n_forget=4, folder=tmp_path).report_to == []
    for place in ("wandb", "trackio"):
        monkeypatch.setitem(sys.modules, place, None)
        with pytest.raises(MissingDependencyError, match=rf'{place}: pip install "uds-lens\[logging\]"'):
            train(tiny, "npo", tmp_path / place, options=u.TrainOptions(log_to=(place,)))
    ended: list[str] = []
    wandb = SimpleNamespace(run=None, finish=lambda: ended.append("ours"))
    monkeypatch.setitem(sys.modules, "wandb", wandb)
    first = SimpleNamespace(is_world_process_zero=True)
    (ours,) = training_logs(u.TrainOptions(log_to="wandb"), Path("npo"))
    wandb.run = "begun by the Trainer"
    ours.on_train_end(None, first, None)
    (theirs,) = training_logs(u.TrainOptions(log_to="wandb"), Path("npo"))  # begun by the user, before
    theirs.on_train_end(None, first, None)
    assert ended == ["ours"]


def test_a_warm_up_that_never_ends_is_reported(tmp_path: Path) -> None:
    long = settings("npo", warmup_epochs=2.0)
    with pytest.warns(UdsLensWarning, match=r"warm-up takes 4 of 4 training steps, so .* never reaches 0\.002"):
        training_arguments(long, QUICK, n_forget=4, folder=tmp_path)
    with pytest.warns(UdsLensWarning, match="warm-up takes 4 of 4 training steps"):
        training_arguments(long, QUICK, n_forget=3, folder=tmp_path)  # each epoch ends with a short batch
    made = training_arguments(settings("npo", warmup_epochs=1.5), QUICK, n_forget=4, folder=tmp_path)
    assert made.warmup_steps == 3


def test_an_epoch_is_a_pass_and_a_training_of_few_steps_is_reported(tiny: Tiny, tmp_path: Path) -> None:
    """Three epochs of four rows, 32 to a step, were one step: the batches spanned epochs."""
    n = len(tiny.forget)
    assert n == 4
    with pytest.warns(UdsLensWarning, match=rf"only 3 optimiser steps were made \(3 epochs of {n} rows, 32 per"):
        out = train(tiny, "npo", tmp_path / "a", epochs=3, batch_size=32)
    record = u.read_record(out)
    assert record["steps"] == 3 and record["depends_on"]["epochs"] == "whole"
    # batches of 3: every epoch ends with one row; in passes of one row, the same to rounding
    out = train(tiny, "npo", tmp_path / "b", epochs=3, batch_size=3)
    one_by_one = replace(QUICK, device_batch_size=1)
    again = train(tiny, "npo", tmp_path / "c", epochs=3, batch_size=3, options=one_by_one)
    assert [u.read_record(place)["steps"] for place in (out, again)] == [6, 6]
    one, other = weights(out), weights(again)
    start = AutoModelForCausalLM.from_pretrained(tiny.full, dtype=torch.float32).state_dict()
    apart = sum(float((one[k] - other[k]).norm() ** 2) for k in one)
    assert apart < 1e-4 * sum(float((one[k] - start[k]).norm() ** 2) for k in one)
    with pytest.warns(UdsLensWarning, match="hardly changed the weights .relative change .*e-.*: raise"):
        train(tiny, "npo", tmp_path / "d", epochs=10, batch_size=4, learning_rate=1e-10)
    whole = u.read_record(train(tiny, "npo", tmp_path / "e", epochs=2, batch_size=n))
    assert "epochs" not in whole["depends_on"], "its key is that of earlier versions"
