"""The parts of a study: everything once, failures told, nothing twice, perturbed weights gone; tasks of an array."""

import os
import shutil
import signal
import threading
import time
from subprocess import CalledProcessError

import psutil
import pytest
from filelock import FileLock
from study.conftest import Killing, toy_plan

from uds_lens import study
from uds_lens.errors import ConfigError, ResultFormatError
from uds_lens.study._measuring import StudyWork
from uds_lens.study._parts import KILLED, Task, carry_out, failure_of, submit


def test_a_whole_study(small, fake, tmp_path):
    runner = fake()
    found = study.run(small, tmp_path / "s", runner=runner)
    assert found.is_complete and found.left == 0 and found.failed == ()
    assert found.total == 3 + 5 + 3 + 6 + 6 == len(runner.measured)
    assert len(runner.made) == 8
    assert not any(place.exists() for place in runner.perturbed_at) and len(runner.perturbed_at) == 2 + 4 + 2 + 4
    assert len(list((tmp_path / "s" / "models").iterdir())) == 8
    again = fake()
    assert study.run(small, tmp_path / "s", runner=again).is_complete
    assert again.measured == again.made == []


def test_a_new_metric_is_all_that_is_measured(small, fake, tmp_path):
    study.run(small, tmp_path / "s", runner=fake())
    runner = fake()
    wider = {**small, "measure": {**small["measure"], "metrics": ["es", "uds", "em"]}}
    study.run(wider, tmp_path / "s", runner=runner)
    assert {items for _, _, items in runner.measured} == {("em",)}
    assert set(study.table(tmp_path / "s")["metric"]) >= {"es", "uds", "em"}
    narrow = {**small, "measure": {"metrics": ["em"]}}
    runner = fake()
    study.run(narrow, tmp_path / "s", runner=runner)
    assert runner.measured == []
    assert set(study.table(tmp_path / "s")["metric"]) == {"em"}


def test_one_failure_does_not_stop_the_others(small, fake, tmp_path):
    one = "npo_lr1e-03_beta0.1_alpha1_epoch2"
    runner = fake(broken=[one, ("given", "quantised")])
    found = study.run(small, tmp_path / "s", runner=runner)
    assert (found.done, found.left, len(found.failed)) == (found.total - 4, 0, 4)
    reasons = {(each.model, each.state): each.reason for each in found.failed}
    assert reasons[one, "before"] == f"ValueError: {one} cannot be made"
    assert reasons["given", "quantised"] == "RuntimeError: no value"
    assert not found.is_complete and "4 failed" in str(found)
    mended = fake()
    assert study.run(small, tmp_path / "s", runner=mended).is_complete
    assert len(mended.measured) == 4 and mended.made == [one]
    assert list((tmp_path / "s" / "failures").iterdir()) == []


def test_a_preemption_that_comes_while_a_model_is_measured_is_no_failure_of_it(folder, fake, monkeypatch):
    """submitit asks Slurm to requeue from a signal handler; Slurm may end that call together with the task."""
    runner = fake()
    requeue = CalledProcessError(-15, ["scontrol", "requeue", "1_1"])
    monkeypatch.setattr(runner, "measure", lambda *_: (_ for _ in ()).throw(requeue))
    with pytest.raises(CalledProcessError):
        carry_out(StudyWork(folder, runner), ["full"], place=folder.path)
    assert study.status(folder).failed == ()


def test_weights_of_models_go_where_they_are_not_kept(small, fake, tmp_path):
    runner = fake(broken=[("npo_lr1e-03_beta0.1_alpha1_epoch2", "quantised")])
    study.run({**small, "keep_models": False}, tmp_path / "s", runner=runner)
    (left,) = (tmp_path / "s" / "models").iterdir()  # what has still to be measured stays
    assert left.name.startswith("npo_lr1e-03")


@pytest.mark.long
def test_what_was_altered_is_measured_again(small, fake, tmp_path):
    place = tmp_path / "s"
    study.run(small, place, runner=fake())
    expected = study.examples_table(place)
    for name, spoil in (
        ("manifest.json", lambda f: f.write_bytes(f.read_bytes().replace(b"weights of given", b"weights of taken"))),
        ("values.parquet", lambda file: file.write_bytes(file.read_bytes() + b"x")),
        ("values.parquet", lambda file: file.unlink()),
    ):
        spoil(next((place / "parts").glob("given--before--*")) / name)
        assert not study.status(place).is_complete
        runner = fake()
        assert study.run(small, place, runner=runner).is_complete
        assert [(model, state) for model, state, _ in runner.measured] == [("given", "before")]
        assert study.examples_table(place).equals(expected)


def test_nothing_foreign_is_written_over(small, fake, tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(ResultFormatError, match="not a saved result"):
        study.run(small, tmp_path, runner=fake())
    with pytest.raises(ResultFormatError, match="no study at"):
        study.status(tmp_path)


def test_wrong_ways_to_run(small, fake, tmp_path, monkeypatch):
    for words, given in (
        ("whole number >= 1", {"jobs": 0}),
        ("only in this process", {"jobs": 2, "runner": fake()}),
        ("without Slurm", {"slurm": study.SlurmOptions(), "runner": fake()}),
    ):
        with pytest.raises(ConfigError, match=words):
            study.run(small, tmp_path / "s", **given)
    monkeypatch.setattr("shutil.disk_usage", lambda place: type("Usage", (), {"free": 1000})())
    with pytest.raises(ConfigError, match="keep_models = false"):
        study.run(small, tmp_path / "s", runner=fake())


def test_what_another_process_is_at_comes_last_and_is_not_measured_again(small, fake, tmp_path):
    """It is waited for, and measured here if that process died of it."""
    study.run({**small, "model": []}, tmp_path / "s", runner=fake())
    lock, runner = FileLock(tmp_path / "s" / "locks" / "given.lock", thread_local=False), fake()
    others = {model.model_id for model in study.study_models(study.plan(small))} - {"given"}
    gate = threading.Event()

    def other() -> None:
        with lock:
            gate.set()
            while {model for model, _, _ in runner.measured} < others:
                time.sleep(0.02)

    holder = threading.Thread(target=other)
    holder.start()
    gate.wait()
    wider = {**small, "measure": {**small["measure"], "metrics": ["es", "uds", "em"]}}
    assert study.run(wider, tmp_path / "s", runner=runner).is_complete
    holder.join()
    assert [model for model, _, _ in runner.measured][-3:] == ["given"] * 3


@pytest.mark.long
def test_a_part_that_kills_its_process_is_told_and_the_others_go_on(tmp_path):
    names = [f"part{number}" for number in range(7)]
    call = Killing(tmp_path, deadly="part1", broken="part3")
    carry_out(call, names, place=tmp_path, jobs=2)
    assert {name for name in names if not (tmp_path / name).exists()} == {"part1", "part3"}
    told = {name: failure_of(tmp_path, name) for name in names}
    assert {name: why for name, why in told.items() if why} == {"part1": KILLED, "part3": "ValueError: no value"}
    carry_out(Killing(tmp_path), names, place=tmp_path)
    assert (tmp_path / "part1").exists() and failure_of(tmp_path, "part1") is None


@pytest.mark.long
def test_a_process_that_is_killed_is_replaced_and_nothing_is_lost(tmp_path):
    place = tmp_path / "s"

    def kill_the_first() -> None:
        while not list(place.glob("locks/*.lock")):
            time.sleep(0.05)
        workers = [
            each for each in psutil.Process().children(recursive=True) if "popen_loky" in " ".join(each.cmdline())
        ]
        os.kill(workers[0].pid, signal.SIGKILL)

    killer = threading.Thread(target=kill_the_first, daemon=True)
    killer.start()
    assert study.run(toy_plan(["em", "es"]), place, jobs=2).is_complete
    killer.join()
    assert not study.table(place).duplicated(["model_id", "state", "metric"]).any()


def test_settings_are_checked():
    with pytest.raises(ConfigError, match="minutes"):
        study.SlurmOptions(minutes=0)
    with pytest.raises(ConfigError, match="did you mean 'gpus'"):
        study.SlurmOptions(gpu=1)


def test_without_slurm_it_says_so(tmp_path, monkeypatch):
    pytest.importorskip("submitit", reason="the extra [slurm] is not installed")
    monkeypatch.setattr(shutil, "which", lambda name: None)
    with pytest.raises(ConfigError, match="no `sbatch` on the PATH"):
        submit(Killing(tmp_path), ["a"], place=tmp_path, jobs=1, options=study.SlurmOptions())


def test_a_task_that_is_requeued_is_the_same_task_and_skips_what_is_done(tmp_path):
    pytest.importorskip("submitit", reason="the extra [slurm] is not installed")
    task = Task(Killing(tmp_path, broken="b"), ["a", "b", "c"], tmp_path)
    task()
    assert task.checkpoint().function is task and {"a", "c"} <= {path.name for path in tmp_path.iterdir()}
