"""Resuming: intact checkpoints are told from damaged ones, kills lose nothing saved, one process runs at a time."""

import csv
import errno
import os
import pickle
import shutil
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from filelock import FileLock, SoftFileLock
from tiny_models import some_now
from transformers import TrainerCallback

from tests.unlearning.conftest import QUICK, Tiny, settings, train, weights
from uds_lens import unlearning
from uds_lens.errors import ConfigError, ResultFormatError, StorageError, UdsLensWarning
from uds_lens.unlearning import TrainOptions, read_record, unlearn
from uds_lens.unlearning._run_folder import CONTENTS, RunFolder, checkpoints, damage, last_intact, seal
from uds_lens.unlearning._trainer import UnlearningTrainer


def made(folder: Path, step: int) -> Path:
    path = folder / f"checkpoint-{step}"
    (path / "inner").mkdir(parents=True)
    for name in ("model.safetensors", "optimizer.pt", "inner/state.json"):
        (path / name).write_bytes(f"{name} {step}".encode())
    seal(path)
    return path


@pytest.mark.parametrize(
    ("name", "content", "problem"),
    [
        ("optimizer.pt", b"", "optimizer.pt has 0 bytes instead of 14"),
        ("inner/state.json", None, "inner/state.json is missing"),
        (CONTENTS, b"[]", "cannot be read"),
        (CONTENTS, b"[" * 10**5, "cannot be read"),
        (CONTENTS, None, "incomplete"),
    ],
)
def test_damage_is_described(name: str, content: bytes | None, problem: str, tmp_path: Path) -> None:
    path = made(tmp_path, 3)
    if content is None:
        (path / name).unlink()
    else:
        (path / name).write_bytes(content)
    assert problem in damage(path)
    with pytest.warns(UdsLensWarning, match="the run starts over"):
        assert last_intact(tmp_path) is None
    assert checkpoints(tmp_path) == []


def test_a_damaged_newest_gives_way_to_the_last_intact_one(tmp_path: Path) -> None:
    elsewhere, new = made(tmp_path / "elsewhere", 2), made(tmp_path, 4)
    old = elsewhere.rename(tmp_path / elsewhere.name)
    (new / "model.safetensors").write_bytes(b"x")
    with pytest.warns(UdsLensWarning, match=r"checkpoint-4: model\.safetensors .*resumes from checkpoint-2"):
        assert last_intact(tmp_path) == old


class Killed(BaseException):
    """Stands for a signal: no `except Exception` holds it."""


def killed(method: str, tiny: Tiny, out: Path, options: TrainOptions, **changes) -> None:
    """Start a run that dies in its third step."""

    class Kill(TrainerCallback):
        def on_step_end(self, args, state, control, **kwargs) -> None:
            if state.global_step == 3:
                raise Killed

    with pytest.raises(Killed):
        train(tiny, method, out, options=replace(options, callbacks=(Kill(),)), **changes)


def rows_of(file: Path) -> list[dict[str, str]]:
    with file.open(newline="") as lines:
        return list(csv.DictReader(lines))


@pytest.mark.parametrize("method", some_now(["idkdpo"], of=["idkdpo", "altpo"]))
def test_a_killed_run_resumes(method: str, tiny: Tiny, tmp_path: Path, capfd) -> None:
    options = replace(QUICK, checkpoint_every=1, log_to="csv")
    whole = weights(train(tiny, method, tmp_path / "whole", options=QUICK))
    killed(method, tiny, tmp_path / "out", options)
    assert not (tmp_path / "out").exists()
    left = next(tmp_path.glob(".out.run/checkpoint-*"))
    assert [row["step"] for row in rows_of(tmp_path / "out.csv")] == ["1", "2"]
    (left.parent / "checkpoint-9").mkdir()  # a checkpoint the kill left half-written
    (left.parent / ".run.json.abcdefgh.uds_lens.part").write_text("{")  # and another
    out = train(tiny, method, tmp_path / "out", options=options)
    record = read_record(out)
    assert record["resumed_from_step"] == 2
    assert [point["step"] for point in record["loss_curve"]] == [1, 2, 3, 4]
    assert all(value.equal(whole[name]) for name, value in weights(out).items())
    assert "missing keys" not in capfd.readouterr().err
    assert sorted(path.name for path in tmp_path.glob("[!.]*")) == ["out", "out.csv", "whole"]
    curve = [{name: str(value) for name, value in point.items()} for point in record["loss_curve"]]
    logged = [{name: text for name, text in row.items() if text} for row in rows_of(tmp_path / "out.csv")]
    assert logged == curve
    (tmp_path / "foreign.csv").write_text("my,own\n1,2\n")
    with pytest.raises(ResultFormatError, match=r"foreign\.csv"):
        train(tiny, method, tmp_path / "foreign", options=options)


def test_a_run_killed_while_it_wrote_its_first_file_starts_again(tiny: Tiny, tmp_path: Path) -> None:
    folder, part = tmp_path / ".out.run", "01234567.uds_lens.part"
    folder.mkdir()
    for name in ("run.json", "alternates.json"):
        (folder / f".{name}.{part}").write_text("{")
    (folder / "run.json").write_text('{"key":' + "[" * 10**5)
    train(tiny, "ga", tmp_path / "out", epochs=1)
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_a_finished_run_is_not_repeated(tiny: Tiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = train(tiny, "ga", tmp_path / "out")
    monkeypatch.setattr(UnlearningTrainer, "train", lambda *args, **kwargs: pytest.fail("ran again"))
    assert train(tiny, "ga", tmp_path / "out") == out
    rows = [{"question": row.question, "answer": row.answer} for row in tiny.forget]
    assert unlearn(tiny.full, rows, method=settings("ga"), out=out, options=QUICK) == out
    with pytest.raises(ConfigError, match=r"the result of another run \(seed '0', not '1'\)"):
        train(tiny, "ga", tmp_path / "out", seed=1)
    for name, value in (("mixed_precision", "bfloat16"), ("device_batch_size", 1), ("save_dtype", "bfloat16")):
        with pytest.raises(ConfigError, match=rf"another run \({name} '.*', not '{value}'"):
            train(tiny, "ga", tmp_path / "out", options=replace(QUICK, **{name: value}))
    monkeypatch.undo()
    (out / "notes.txt").write_text("mine")
    again = unlearning.relearn(tiny.full, rows, out=out, options=replace(QUICK, redo=True))
    assert read_record(again)["method"] == "relearn" and not (out / "unlearning.json").exists()
    assert (out / "notes.txt").read_text() == "mine"


def test_a_run_that_another_process_has_just_finished_is_not_repeated(tiny: Tiny, tmp_path: Path, monkeypatch) -> None:
    """It was not there when this process looked, and is there once the folder is free."""
    done = train(tiny, "ga", tmp_path / "done", epochs=1)
    look, seen = RunFolder.is_finished, []

    def late(self) -> bool:
        seen.append(look(self))
        if len(seen) == 1:
            shutil.copytree(done, self.out)
        return seen[-1]

    monkeypatch.setattr(RunFolder, "is_finished", late)
    monkeypatch.setattr(UnlearningTrainer, "train", lambda *args, **kwargs: pytest.fail("ran again"))
    train(tiny, "ga", tmp_path / "out", epochs=1)
    assert seen == [False, True]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["done", "out"]


def test_checkpoints_that_are_damaged_or_pickled_are_not_resumed(tiny: Tiny, tmp_path: Path) -> None:
    options = replace(QUICK, checkpoint_every=2)
    killed("ga", tiny, tmp_path / "out", options)
    checkpoint = tmp_path / ".out.run" / "checkpoint-2"

    class Payload:
        def __reduce__(self):
            return (os.mkdir, (str(tmp_path / "ran"),))

    optimizer = (checkpoint / "optimizer.pt").read_bytes()
    torch.save({"state": Payload()}, checkpoint / "optimizer.pt", pickle_module=pickle)
    seal(checkpoint)  # whoever can write a pickle there can write its hash
    with pytest.raises(ResultFormatError, match=r"checkpoint-2' holds pickled objects .* never loaded"):
        train(tiny, "ga", tmp_path / "out", options=options)
    assert not (tmp_path / "ran").exists()
    (checkpoint / "optimizer.pt").write_bytes(optimizer)
    seal(checkpoint)
    file = checkpoint / "model.safetensors"
    content = bytearray(file.read_bytes())
    content[-5] ^= 1  # one bit of a weight
    file.write_bytes(content)
    with pytest.warns(UdsLensWarning, match=r"checkpoint-2: model.safetensors .*: the run starts over"):
        out = train(tiny, "ga", tmp_path / "out", options=options)
    assert read_record(out)["resumed_from_step"] is None


def shorten(out: Path) -> None:
    file = out / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-100])


def alter_the_record(out: Path) -> None:
    file = out / "unlearning.json"
    file.write_bytes(file.read_bytes().replace(b'"ga"', b'"gb"'))


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (shorten, r"changed since it was saved \(model.safetensors .*\): training"),
        (lambda out: (out / "model.safetensors").unlink(), r"changed since it was saved \(model.safetensors"),
        (alter_the_record, r"unlearning.json' was altered .*: training again"),
    ],
)
def test_a_damaged_result_is_made_again(spoil, words: str, tiny: Tiny, tmp_path: Path) -> None:
    out = train(tiny, "ga", tmp_path / "out", epochs=1)
    (out / "notes.txt").write_text("mine")
    content = (out / "model.safetensors").read_bytes()
    spoil(out)
    with pytest.warns(UdsLensWarning, match=words):
        train(tiny, "ga", tmp_path / "out", epochs=1)
    assert (out / "model.safetensors").read_bytes() == content
    assert read_record(out)["method"] == "ga"
    assert (out / "notes.txt").read_text() == "mine"


def test_a_run_killed_while_it_tidies_up_is_no_stranger(tiny: Tiny, tmp_path: Path, monkeypatch) -> None:
    unlink, left = Path.unlink, tmp_path / ".out.run"

    def kill(path: Path, **more: bool) -> None:
        unlink(path, **more)
        if path == left / "alternates.json":
            raise KeyboardInterrupt

    monkeypatch.setattr(Path, "unlink", kill)
    with pytest.raises(KeyboardInterrupt):
        train(tiny, "altpo", tmp_path / "out", epochs=1)
    monkeypatch.undo()
    assert (tmp_path / "out").exists() and (left / "run.json").exists()
    train(tiny, "altpo", tmp_path / "out", epochs=1, options=replace(QUICK, redo=True))
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


@pytest.mark.parametrize("checkpoint_every", [2, 0])
def test_a_full_disk_is_one_sentence_and_the_run_resumes_later(
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
    with pytest.warns(UdsLensWarning, match="the run starts over") if checkpoint_every else nullcontext():
        train(tiny, "ga", tmp_path / "out", options=options)
    assert {path.name for path in tmp_path.iterdir()} == {"out"}


def test_foreign_folders_are_never_touched(tiny: Tiny, tmp_path: Path, monkeypatch) -> None:
    for place, error, words in (
        (tmp_path / ".out.run", ConfigError, r"\.out\.run.* holds other files"),
        (tmp_path / "out", ResultFormatError, "is not a saved result"),
    ):
        place.mkdir()
        (place / "my_run.json").write_text("mine")
        with pytest.raises(error, match=words):
            train(tiny, "ga", tmp_path / "out")
        assert (place / "my_run.json").read_text() == "mine"
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    with pytest.raises(StorageError, match="contains the working directory"):
        train(tiny, "ga", Path("."))


@pytest.mark.parametrize("code", [None, errno.ENOSYS, errno.ENOTSUP, errno.ENOLCK])
def test_one_process_at_a_time(code: int | None, tiny: Tiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a file system without locks and hard links as well, and there a killed run resumes, too."""
    fcntl = pytest.importorskip("fcntl")

    def refuse(*args: object, **kwargs: object) -> None:
        raise OSError(code, os.strerror(code))

    folder = tmp_path / ".out.run"
    folder.mkdir()
    lock, words = FileLock(folder / "lock"), "another process is training"
    if code is not None:
        monkeypatch.setattr(fcntl, "flock", refuse)
        monkeypatch.setattr(os, "link", refuse)
        name = "lock" if code == errno.ENOSYS else "soft.lock"
        lock, words = SoftFileLock(folder / name), rf"another process .* remove '.*{name}'"
    with lock, pytest.raises(ConfigError, match=words):
        train(tiny, "ga", tmp_path / "out", epochs=1)
    with monkeypatch.context() as broken:
        broken.setattr(UnlearningTrainer, "train", lambda *args, **kwargs: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            train(tiny, "ga", tmp_path / "out", epochs=1)
    assert [path.name for path in tmp_path.iterdir()] == [".out.run"]
    train(tiny, "ga", tmp_path / "out", epochs=1)
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
