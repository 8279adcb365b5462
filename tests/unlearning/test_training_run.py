"""Training runs: what comes out, that it is the same again, and that a killed run goes on."""

import csv
import errno
import json
import os
import shutil
import sys
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback

from tests.unlearning.conftest import QUICK, Tiny
from uds_lens._storage.claims import Claims
from uds_lens.errors import (
    ConfigError,
    DataError,
    MissingDependencyError,
    ModelError,
    ResultFormatError,
    StorageError,
    UdsLensWarning,
)
from uds_lens.models import open_model
from uds_lens.unlearning import (
    METHODS,
    LoraSettings,
    RelearnConfig,
    TrainOptions,
    make_config,
    read_record,
    relearn,
    unlearn,
)
from uds_lens.unlearning._record import recorded_config
from uds_lens.unlearning._run_folder import RunFolder
from uds_lens.unlearning._trainer import UnlearningTrainer, training_arguments, training_logs

SETTINGS = {"learning_rate": 2e-3, "epochs": 2, "batch_size": 2, "warmup_epochs": 0.0, "protocol": "raw"}
EXTRA = {"rmu": {"layer": 3, "scale": 5.0}, "altpo": {"n_alternates": 2, "max_new_tokens": 12}}


def weights(path: Path) -> dict[str, torch.Tensor]:
    return AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32).state_dict()


def settings(method: str, **changes):
    return make_config(method, {**SETTINGS, **EXTRA.get(method, {}), **changes})


def train(tiny: Tiny, method: str, out: Path, *, options=QUICK, lora=None, **changes) -> Path:
    config = settings(method, **changes)
    return unlearn(tiny.full, tiny.forget, tiny.retain, config=config, out=out, options=options, lora=lora)


@pytest.mark.parametrize("method", sorted(METHODS))
def test_every_method_gives_a_checkpoint_with_its_record(method: str, tiny: Tiny, tmp_path: Path) -> None:
    out = train(tiny, method, tmp_path / method)
    before, after = weights(tiny.full), weights(out)
    changed = {name for name in before if not before[name].equal(after[name])}
    assert changed
    if method == "rmu":
        assert {name.split(".")[2] for name in changed} == {"1", "2", "3"}
    record = read_record(out)
    assert recorded_config(record) == settings(method)
    assert (record["steps"], record["seed"], record["resumed_from_step"]) == (4, 0, None)
    assert [point["step"] for point in record["loss_curve"]] == [1, 2, 3, 4]
    assert ("retain_loss" in record["loss_curve"][0]) == (method != "ga")
    with open_model(out, device="cpu") as model, open_model(tiny.full, device="cpu") as full:
        assert (record["fingerprint"], record["parent"]["fingerprint"]) == (
            model.fingerprint,
            full.fingerprint,
        )
        assert model.tokenizer.get_vocab() == full.tokenizer.get_vocab()
    assert json.loads((out / "config.json").read_text()) == json.loads(
        (tiny.full / "config.json").read_text()
    )
    assert sorted(path.name for path in tmp_path.iterdir()) == [method]
    assert (out / "alternates.json").is_file() == (method == "altpo")
    assert ("refusals" in record["data"]) == method.startswith("idk")


def test_forgetting_forgets_and_relearning_brings_back(tiny: Tiny, tmp_path: Path) -> None:
    gone = train(tiny, "npo", tmp_path / "npo", learning_rate=3e-3, epochs=6, alpha=2.0)
    pushed = RelearnConfig(learning_rate=3e-3, batch_size=2, protocol="raw")
    back = relearn(gone, tiny.forget, out=tmp_path / "back", epochs=12, config=pushed, options=QUICK)
    losses = {path: mean_nll(path, tiny.forget) for path in (tiny.full, gone, back)}
    assert losses[gone] > losses[tiny.full] + 1.0
    assert losses[back] < losses[gone] / 2
    assert mean_nll(gone, tiny.retain) < mean_nll(gone, tiny.forget)
    assert read_record(back)["method"] == "relearn"


def mean_nll(path: Path, rows) -> float:
    from uds_lens.data import answer_sequences
    from uds_lens.unlearning import answer_log_probs

    tokenizer = AutoTokenizer.from_pretrained(path)
    sequences = answer_sequences(tokenizer, [(row.question, row.answer) for row in rows])
    sums = answer_log_probs(AutoModelForCausalLM.from_pretrained(path), sequences, pad_token_id=2)
    return -sum(sums) / sum(len(s.ids) - s.n_prompt for s in sequences)


def test_one_seed_gives_the_same_weights(tiny: Tiny, tmp_path: Path) -> None:
    first, again = (weights(train(tiny, "altpo", tmp_path / name)) for name in ("a", "b"))
    other = weights(train(tiny, "altpo", tmp_path / "c", seed=1))
    assert all(first[name].equal(again[name]) for name in first)
    assert not all(first[name].equal(other[name]) for name in first)


def rows_of(file: Path) -> list[dict[str, str]]:
    with file.open(newline="") as lines:
        return list(csv.DictReader(lines))


class Killed(BaseException):
    """Stands for a signal: no `except Exception` holds it."""


def killed(method: str, tiny: Tiny, out: Path, monkeypatch: pytest.MonkeyPatch, options) -> None:
    """Start a run that dies in its third step."""

    class Kill(TrainerCallback):
        def on_step_end(self, args, state, control, **kwargs) -> None:
            if state.global_step == 3:
                raise Killed

    start = UnlearningTrainer.__init__

    def doomed(self, *args, **kwargs) -> None:
        start(self, *args, **kwargs)
        self.add_callback(Kill())

    with monkeypatch.context() as patch:
        patch.setattr(UnlearningTrainer, "__init__", doomed)
        with pytest.raises(Killed):
            train(tiny, method, out, options=options)


@pytest.mark.parametrize("method", ["idkdpo", "altpo"])
def test_a_killed_run_goes_on_where_it_was(
    method: str, tiny: Tiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd
) -> None:
    options = replace(QUICK, checkpoint_every=1, log_to="csv")
    whole = weights(train(tiny, method, tmp_path / "whole", options=QUICK))

    killed(method, tiny, tmp_path / "out", monkeypatch, options)
    assert not (tmp_path / "out").exists()
    left = next(tmp_path.glob(".out.run/checkpoint-*"))
    assert [row["step"] for row in rows_of(tmp_path / "out.csv")] == ["1", "2"]
    (left.parent / "checkpoint-9").mkdir()  # a checkpoint the kill left half-written
    out = train(tiny, method, tmp_path / "out", options=options)
    record = read_record(out)
    assert record["resumed_from_step"] == 2
    assert [point["step"] for point in record["loss_curve"]] == [1, 2, 3, 4]
    assert all(value.equal(whole[name]) for name, value in weights(out).items())
    assert "missing keys" not in capfd.readouterr().err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out", "out.csv", "whole"]
    told = [{name: str(value) for name, value in point.items()} for point in record["loss_curve"]]
    assert [
        {name: text for name, text in row.items() if text} for row in rows_of(tmp_path / "out.csv")
    ] == told
    (tmp_path / "foreign.csv").write_text("my,own\n1,2\n")
    with pytest.raises(ResultFormatError, match=r"foreign\.csv"):
        train(tiny, method, tmp_path / "foreign", options=options)


def test_a_finished_run_is_not_run_again(tiny: Tiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = train(tiny, "ga", tmp_path / "out")
    monkeypatch.setattr(UnlearningTrainer, "train", lambda *args, **kwargs: pytest.fail("ran again"))
    assert train(tiny, "ga", tmp_path / "out") == out
    rows = [{"question": row.question, "answer": row.answer} for row in tiny.forget]
    assert unlearn(tiny.full, rows, config=settings("ga"), out=out, options=QUICK) == out
    with pytest.raises(ConfigError, match=r"the result of another run \(seed '0', not '1'\)"):
        train(tiny, "ga", tmp_path / "out", seed=1)
    for name, value in (
        ("mixed_precision", "bfloat16"),
        ("device_batch_size", 1),
        ("save_dtype", "bfloat16"),
    ):
        with pytest.raises(ConfigError, match=rf"another run \({name} '.*', not '{value}'"):
            train(tiny, "ga", tmp_path / "out", options=replace(QUICK, **{name: value}))


def test_accumulated_passes_are_one_batch(tiny: Tiny, tmp_path: Path) -> None:
    whole = weights(train(tiny, "graddiff", tmp_path / "whole"))
    parts = train(tiny, "graddiff", tmp_path / "parts", options=replace(QUICK, device_batch_size=1))
    for name, value in weights(parts).items():
        torch.testing.assert_close(value, whole[name], atol=2e-4, rtol=0)
    with pytest.raises(ConfigError, match="batch_size 2 is no multiple of device_batch_size 3"):
        train(tiny, "npo", tmp_path / "x", options=replace(QUICK, device_batch_size=3))


def test_mixed_precision_and_checkpointing_train_too(tiny: Tiny, tmp_path: Path) -> None:
    options = replace(QUICK, mixed_precision="bfloat16", gradient_checkpointing=True, save_dtype="bfloat16")
    out = train(tiny, "graddiff", tmp_path / "out", options=options)
    saved = AutoModelForCausalLM.from_pretrained(out, dtype="auto")
    assert saved.dtype == torch.bfloat16
    with open_model(out, device="cpu") as model:
        assert read_record(out)["fingerprint"] == model.fingerprint


@pytest.mark.parametrize("method", ["kl", "rmu"])
def test_adapters_are_merged(method: str, tiny: Tiny, tmp_path: Path) -> None:
    out = train(tiny, method, tmp_path / "out", lora=LoraSettings(rank=2))
    before, after = weights(tiny.full), weights(out)
    changed = {name for name in before if not before[name].equal(after[name])}
    assert changed
    assert all("proj" in name for name in changed)
    if method == "rmu":
        assert {name.split(".")[2] for name in changed} == {"1", "2", "3"}
    assert read_record(out)["lora"]["rank"] == 2


def test_unchanged_weights_are_said(tiny: Tiny, tmp_path: Path) -> None:
    with pytest.warns(UdsLensWarning, match="training changed nothing"):
        train(tiny, "ga", tmp_path / "out", learning_rate=1e-30, weight_decay=0.0)


def test_divergence_is_an_error_and_leaves_nothing(tiny: Tiny, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="training has diverged"):
        train(tiny, "ga", tmp_path / "out", learning_rate=1e30, epochs=4)
    assert not (tmp_path / "out").exists()


def test_refusals_come_from_the_file_given(tiny: Tiny, tmp_path: Path) -> None:
    file = tmp_path / "refusals.txt"
    file.write_text("No idea.\n\nAsk somebody else.\n")
    out = unlearn(
        tiny.full,
        tiny.forget,
        tiny.retain,
        config=settings("idknll"),
        out=tmp_path / "o",
        refusals=file,
        options=QUICK,
    )
    assert read_record(out)["data"]["refusals"]["n"] == 2
    file.write_text("\n")
    with pytest.raises(DataError, match="holds no refusal"):
        unlearn(tiny.full, tiny.forget, tiny.retain, method="idknll", out=tmp_path / "p", refusals=file)


def test_what_does_not_fit_is_refused(tiny: Tiny, tmp_path: Path, unchecked) -> None:
    out = tmp_path / "out"
    with pytest.raises(ConfigError, match="npo needs retain data"):
        unlearn(tiny.full, tiny.forget, method="npo", out=out)
    with pytest.raises(ConfigError, match="say which method"):
        unlearn(tiny.full, tiny.forget, tiny.retain, out=out)
    with pytest.raises(ConfigError, match="method='npo' does not go with GAConfig"):
        unlearn(tiny.full, tiny.forget, method="npo", config=make_config("ga"), out=out)
    with pytest.raises(ConfigError, match="layer 5 is not there: the model has 5, 0 to 4"):
        train(tiny, "rmu", out, layer=5)
    with pytest.raises(
        ModelError, match="training starts from a directory or a Hub id, got LlamaForCausalLM"
    ):
        unlearn(AutoModelForCausalLM.from_pretrained(tiny.full), tiny.forget, method="ga", out=out)
    out.mkdir()
    (out / "notes.txt").write_text("mine")
    with pytest.raises(ResultFormatError, match="is no saved result"):
        train(tiny, "ga", out)
    assert (out / "notes.txt").read_text() == "mine"


def test_the_record_is_strict_json(tiny: Tiny, tmp_path: Path) -> None:
    out = train(tiny, "ga", tmp_path / "out")
    record = json.loads((out / "unlearning.json").read_text(), parse_constant=pytest.fail)
    assert record["name"] == "ga_lr2e-03_epoch2_batchsize2_warmupepochs0_protocolraw"
    assert set(record["data"]) == {"forget"}
    assert {"accelerate", "peft", "torch", "transformers", "uds_lens"} <= set(record["versions"])
    for before, after in (
        ('"seed": 0', '"seed": 1'),
        ('"steps": 4', '"steps": 5'),
        ('"version": 2', '"version": 3'),
    ):
        text = (out / "unlearning.json").read_text()
        assert before in text
        (out / "unlearning.json").write_text(text.replace(before, after))
        with pytest.raises(ResultFormatError, match=r"altered|version 3"):
            read_record(out)
        (out / "unlearning.json").write_text(text)
    older = {
        name: value
        for name, value in record.items()
        if name not in ("protocol", "depends_on", "files", "sha256")
    }
    (out / "unlearning.json").write_text(json.dumps({**older, "version": 1}))
    assert read_record(out)["method"] == "ga"
    (out / "unlearning.json").write_text(json.dumps({**older, "version": 1, "steps": "many"}))
    with pytest.raises(ResultFormatError, match="steps must be a valid integer"):
        read_record(out)


def test_a_run_without_a_terminal_is_silent(
    tiny: Tiny, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    train(tiny, "kl", tmp_path / "out", options=replace(QUICK, progress=None))
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize(
    ("file", "content"),
    [("trainer_state.json", b""), ("model.safetensors", None)],
)
def test_a_damaged_checkpoint_is_not_gone_on_from(
    file: str, content: bytes | None, tiny: Tiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = replace(QUICK, checkpoint_every=2)
    killed("ga", tiny, tmp_path / "out", monkeypatch, options)
    target = tmp_path / ".out.run" / "checkpoint-2" / file
    if content is None:  # one bit of a weight
        data = bytearray(target.read_bytes())
        data[-5] ^= 1
        content = bytes(data)
    target.write_bytes(content)
    with pytest.warns(UdsLensWarning, match=rf"checkpoint-2: {file} .*: the run starts again"):
        out = train(tiny, "ga", tmp_path / "out", options=options)
    assert read_record(out)["resumed_from_step"] is None
    whole = weights(train(tiny, "ga", tmp_path / "whole", options=options))
    assert all(value.equal(whole[name]) for name, value in weights(out).items())


@pytest.mark.parametrize("left", [-100, None])
def test_a_damaged_result_is_made_again(left: int | None, tiny: Tiny, tmp_path: Path) -> None:
    """Cut, or gone."""
    out = train(tiny, "ga", tmp_path / "out")
    (out / "notes.txt").write_text("mine")
    file = out / "model.safetensors"
    content = file.read_bytes()
    if left is None:
        file.unlink()
    else:
        file.write_bytes(content[:left])
    with pytest.warns(
        UdsLensWarning, match=r"not as it was saved \(model.safetensors .*\): the run is done again"
    ):
        train(tiny, "ga", tmp_path / "out")
    assert file.read_bytes() == content
    assert (out / "notes.txt").read_text() == "mine"


@pytest.mark.parametrize("checkpoint_every", [2, 0])
def test_a_full_disk_is_one_sentence_and_the_run_goes_on_later(
    checkpoint_every: int, tiny: Tiny, tmp_path: Path
) -> None:
    """While a checkpoint is written, and while the result is: no file may grow beyond some bytes."""
    resource = pytest.importorskip("resource")
    options = replace(QUICK, checkpoint_every=checkpoint_every)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, hard))
    try:
        with pytest.raises(StorageError, match=r"cannot write .*out.*: .*(large|fail|error)"):
            train(tiny, "ga", tmp_path / "out", options=options)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert {path.name for path in tmp_path.iterdir()} == {".out.run"}
    with pytest.warns(UdsLensWarning, match="the run starts again") if checkpoint_every else nullcontext():
        train(tiny, "ga", tmp_path / "out", options=options)
    assert {path.name for path in tmp_path.iterdir()} == {"out"}


def test_foreign_folders_are_never_touched(tiny: Tiny, tmp_path: Path) -> None:
    foreign = tmp_path / ".out.run"
    foreign.mkdir()
    (foreign / "thesis.txt").write_text("mine")
    with pytest.raises(ConfigError, match=r"\.out\.run.* holds something else"):
        train(tiny, "ga", tmp_path / "out")
    assert (foreign / "thesis.txt").read_text() == "mine"


def test_one_process_at_a_time(tiny: Tiny, tmp_path: Path) -> None:
    fcntl = pytest.importorskip("fcntl")
    folder = tmp_path / ".out.run"
    folder.mkdir()
    with open(folder / "lock", "w") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        with pytest.raises(ConfigError, match="another process is making"):
            train(tiny, "ga", tmp_path / "out")
    train(tiny, "ga", tmp_path / "out")
    assert not folder.exists()


@pytest.fixture
def no_locks(monkeypatch: pytest.MonkeyPatch) -> None:
    """A file system without locks and hard links."""
    fcntl = pytest.importorskip("fcntl")

    def refuse(*args: object, **kwargs: object) -> None:
        raise OSError(errno.ENOSYS, "Function not implemented")

    monkeypatch.setattr(fcntl, "flock", refuse)
    monkeypatch.setattr(os, "link", refuse)


def test_one_process_at_a_time_without_locks(tiny: Tiny, tmp_path: Path, no_locks: None) -> None:
    """It was refused for another process that was not there."""
    folder = tmp_path / ".out.run"
    with Claims(folder).take("claim"), pytest.raises(ConfigError, match=r"another process .* no locks"):
        train(tiny, "ga", tmp_path / "out")
    train(tiny, "ga", tmp_path / "out")
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_a_killed_run_goes_on_without_locks(
    tiny: Tiny, tmp_path: Path, no_locks: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as broken:
        broken.setattr(UnlearningTrainer, "train", lambda *args, **kwargs: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            train(tiny, "ga", tmp_path / "out")
    assert [path.name for path in tmp_path.iterdir()] == [".out.run"]
    train(tiny, "ga", tmp_path / "out")
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_a_run_that_another_process_has_just_finished_is_not_run_again(
    tiny: Tiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was not there when this process looked, and is there once the folder is free."""
    done = train(tiny, "ga", tmp_path / "done")
    look, seen = RunFolder.is_finished, []

    def late(self) -> bool:
        seen.append(look(self))
        if len(seen) == 1:
            shutil.copytree(done, self.out)
        return seen[-1]

    monkeypatch.setattr(RunFolder, "is_finished", late)
    monkeypatch.setattr(UnlearningTrainer, "train", lambda *args, **kwargs: pytest.fail("ran again"))
    train(tiny, "ga", tmp_path / "out")
    assert seen == [False, True]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["done", "out"]


def test_the_last_loss_is_that_of_the_last_step(tiny: Tiny, tmp_path: Path) -> None:
    every, fifth = (
        read_record(train(tiny, "graddiff", tmp_path / str(n), epochs=4, options=replace(QUICK, log_every=n)))
        for n in (1, 5)
    )
    assert [point["step"] for point in fifth["loss_curve"]] == [1, 5, 7, 8]
    assert fifth["loss_curve"][-1] == every["loss_curve"][-1]
    mean = sum(point["loss"] for point in every["loss_curve"][1:5]) / 4
    assert fifth["loss_curve"][1]["loss"] == pytest.approx(mean, rel=1e-5)
    point = every["loss_curve"][3]
    assert point["loss"] == pytest.approx(point["forget_loss"] + point["retain_loss"], rel=1e-5)


def test_the_protocol_is_that_of_the_tokenizer(tiny: Tiny, tmp_path: Path, caplog) -> None:
    """As for the metrics: the chat template where there is one."""
    caplog.set_level("INFO", logger="uds_lens._progress")
    chat = train(tiny, "ga", tmp_path / "chat", protocol="auto", epochs=1)
    assert "ga on 4 forget answers of" in caplog.text
    assert "prompts: chat template" in caplog.text
    record = read_record(chat)
    assert (record["protocol"], record["config"]["protocol"]) == ("chat", "auto")
    assert train(tiny, "ga", tmp_path / "chat", protocol="chat", epochs=1) == chat
    with pytest.raises(ConfigError, match=r"protocol 'chat', not 'raw'"):
        train(tiny, "ga", tmp_path / "chat", protocol="raw", epochs=1)
    with pytest.raises(ConfigError, match="belong to chat prompts"):
        settings("ga", protocol="raw", system_prompt="Be kind.")
    with pytest.raises(ConfigError, match="chat_date '26 Jul 2024', not '10 Apr 2025'"):
        train(tiny, "ga", tmp_path / "chat", protocol="auto", epochs=1, chat_date="10 Apr 2025")


def test_what_tells_alternates_from_the_truth_is_part_of_the_run(tiny: Tiny, tmp_path: Path) -> None:
    out = train(tiny, "altpo", tmp_path / "out", epochs=1)
    named = replace(tiny, forget=[replace(row, entity="Ada") for row in tiny.forget])
    with pytest.raises(ConfigError, match=r"another run .*forget data"):
        train(named, "altpo", tmp_path / "out", epochs=1)
    assert read_record(out)["depends_on"]["device"] == "cpu"


def test_the_home_directory_is_meant_by_a_tilde(
    tiny: Tiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "full").symlink_to(tiny.full)
    config = settings("ga", epochs=1)
    out = unlearn("~/full", tiny.forget, config=config, out="~/out", options=QUICK)
    assert out == tmp_path / "out"
    assert read_record("~/out")["method"] == "ga"
    assert not (tmp_path / "~").exists()


def test_where_a_run_is_logged(tiny: Tiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config, asked = settings("npo"), TrainOptions(device="cpu", log_to=["wandb", "csv", "wandb"])
    assert asked.log_to == ("wandb", "csv")
    made = training_arguments(config, asked, n_forget=4, folder=tmp_path, name="npo")
    assert (made.report_to, made.run_name) == (["wandb"], "npo")
    assert training_arguments(config, QUICK, n_forget=4, folder=tmp_path).report_to == []
    with pytest.raises(
        ConfigError, match="log_to must be a list, each one of 'csv', 'wandb', 'trackio'; got 'tensorboard'"
    ):
        TrainOptions(log_to=("csv", "tensorboard"))
    for place in ("wandb", "trackio"):
        monkeypatch.setitem(sys.modules, place, None)
        with pytest.raises(MissingDependencyError, match=rf'{place}: pip install "uds-lens\[logging\]"'):
            train(tiny, "npo", tmp_path / place, options=TrainOptions(log_to=(place,)))


def test_a_run_at_weights_and_biases_ends_with_its_training(monkeypatch: pytest.MonkeyPatch) -> None:
    ended: list[str] = []
    wandb = SimpleNamespace(run=None, finish=lambda: ended.append("ours"))
    monkeypatch.setitem(sys.modules, "wandb", wandb)
    first = SimpleNamespace(is_world_process_zero=True)
    (ours,) = training_logs(TrainOptions(log_to="wandb"), Path("npo"))
    wandb.run = "begun by the Trainer"
    ours.on_train_end(None, first, None)
    assert ended == ["ours"]
    (theirs,) = training_logs(TrainOptions(log_to="wandb"), Path("npo"))  # begun by the user, before
    theirs.on_train_end(None, first, None)
    assert ended == ["ours"]


def test_a_warm_up_that_never_ends_is_said(tmp_path: Path) -> None:
    long = settings("npo", warmup_epochs=2.0)
    with pytest.warns(
        UdsLensWarning, match=r"warm-up takes 4 steps and the training 4: .* never reaches 0\.002"
    ):
        training_arguments(long, QUICK, n_forget=4, folder=tmp_path)
    with pytest.warns(UdsLensWarning, match="warm-up takes 3 steps and the training 3: "):
        training_arguments(long, QUICK, n_forget=3, folder=tmp_path)  # one batch is of both epochs
    made = training_arguments(settings("npo", warmup_epochs=1.5), QUICK, n_forget=4, folder=tmp_path)
    assert made.warmup_steps == 3
