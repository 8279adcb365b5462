"""Workers: everything once, failures reported, nothing twice, perturbed weights gone."""

import json
import os
import signal
import threading
import time
from subprocess import CalledProcessError

import pytest

from study.conftest import toy_plan
from uds_lens import study, toy
from uds_lens.errors import ConfigError, ResultFormatError
from uds_lens.study import _status
from uds_lens.study._folder import StudyFolder
from uds_lens.study._worker import work


def test_a_whole_study(small, fake, tmp_path):
    runner = fake()
    found = study.run(small, tmp_path / "s", runner=runner)
    assert found.is_complete and found.left == 0 and found.failed == () and found.running == ()
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
        work(folder, runner=runner)
    assert study.status(folder).failed == ()


def test_weights_of_models_go_where_they_are_not_kept(small, fake, tmp_path):
    runner = fake(broken=[("npo_lr1e-03_beta0.1_alpha1_epoch2", "quantised")])
    study.run({**small, "keep_models": False}, tmp_path / "s", runner=runner)
    (left,) = (tmp_path / "s" / "models").iterdir()  # what has still to be measured stays
    assert left.name.startswith("npo_lr1e-03")


def test_what_failed_is_tried_again_by_another_run_alone(folder, fake):
    """Runs are told apart by name: clocks of two machines differ."""
    work(folder, runner=fake(broken=["given"]))
    again = fake()
    work(StudyFolder(folder.path, run=folder.run), runner=again)
    assert again.measured == [] and study.status(folder).left == 0
    work(StudyFolder(folder.path), runner=again)
    assert {model for model, _, _ in again.measured} == {"given"}
    assert study.status(folder).is_complete


def test_two_runs_do_not_try_what_failed_in_turns(folder, fake):
    """The file names the run that failed last."""
    tried = []

    class Counted(fake):
        def measure(self, model, state, *rest):
            tried.append((model.model_id, state.label))
            return super().measure(model, state, *rest)

    for run in [folder, StudyFolder(folder.path)] * 3:
        work(run, runner=Counted(broken=[("given", "quantised")]))
    assert tried.count(("given", "quantised")) == 2 and study.status(folder).left == 0


def test_what_another_worker_holds_is_left_to_it(folder, fake):
    with folder.claims.take("given"):
        runner = fake()
        work(folder, runner=runner, wait=False)
        assert "given" not in {model for model, _, _ in runner.measured}
        progress = study.status(folder.path)
        assert progress.running == ("given",) and progress.left == 3
        assert progress.seconds_left > 0
    work(folder, runner=fake())
    assert study.status(folder).is_complete


def test_what_kills_its_workers_counts_as_failed(folder, fake):
    class Killed(BaseException):
        pass

    class Deadly(fake):
        def measure(self, model, *rest):
            if model.model_id == "given":
                raise Killed
            return super().measure(model, *rest)

    claims = folder.path / "claims" / "given"
    for _ in range(3):
        with pytest.raises(Killed):
            work(folder, runner=Deadly())
        for free in claims.glob("*.free"):
            free.unlink()
        for claim in claims.glob("*.claim"):
            claim.write_text(json.dumps({**json.loads(claim.read_text()), "born": 1}))
    work(folder, runner=Deadly())
    progress = study.status(folder)
    assert {each.model for each in progress.failed} == {"given"}
    assert "3 workers died" in progress.failed[0].reason


def test_claims_that_are_broken_stop_no_worker(folder, fake):
    folder.claims.silence = 0.1
    (folder.path / "claims" / "retain").mkdir(parents=True)
    (folder.path / "claims" / "retain" / "1.claim").write_text("[" * 100_000)
    (folder.path / "claims" / "given").write_text("a file in the place of a folder")
    work(folder, runner=fake(), poll=0.05)
    progress = study.status(folder)
    assert {each.model for each in progress.failed} == {"given"} and progress.left == 0
    assert "StorageError: cannot write" in progress.failed[0].reason


def test_what_was_altered_is_measured_again(small, fake, tmp_path):
    place = tmp_path / "s"
    study.run(small, place, runner=fake())
    expected = study.examples_table(place)
    for kind, spoil in (
        ("parts", lambda file: file.write_bytes(file.read_bytes().replace(b"weights of given", b"weights of taken"))),
        ("examples", lambda file: file.write_bytes(file.read_bytes() + b"x")),
        ("examples", lambda file: file.unlink()),
    ):
        spoil(next((place / kind).glob("given--before--*")))
        if kind == "examples":
            with pytest.raises(ResultFormatError, match=r"was altered after it was saved|cannot be read"):
                study.examples_table(place)
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
        ("this process only", {"jobs": 2, "runner": fake()}),
        ("executor='slurm'", {"slurm": study.SlurmOptions()}),
    ):
        with pytest.raises(ConfigError, match=words):
            study.run(small, tmp_path / "s", **given)
    monkeypatch.setattr("shutil.disk_usage", lambda place: type("Usage", (), {"free": 1000})())
    with pytest.raises(ConfigError, match="keep_models = false"):
        study.run(small, tmp_path / "s", runner=fake())


@pytest.mark.long
def test_a_worker_that_is_killed_is_replaced_and_nothing_is_lost(tmp_path):
    def kill_the_first() -> None:
        written = []
        while not written:
            time.sleep(0.05)
            written = [file for file in (tmp_path / "s").glob("claims/*/1.claim") if file.stat().st_size]
        os.kill(json.loads(written[0].read_text())["pid"], signal.SIGKILL)

    killer = threading.Thread(target=kill_the_first, daemon=True)
    killer.start()
    assert study.run(toy_plan(["em", "es"]), tmp_path / "s", jobs=2).is_complete
    killer.join()
    assert any(len(list(claims.glob("*.claim"))) == 2 for claims in (tmp_path / "s" / "claims").iterdir())
    assert not study.table(tmp_path / "s").duplicated(["model_id", "state", "metric"]).any()


def test_the_estimate_counts_what_each_metric_reads(small, tmp_path, monkeypatch):
    monkeypatch.setattr(_status, "_multiplications", lambda device: lambda weights: weights)  # a token takes a second

    def seconds(*metrics, elicitation=None):
        measure = {"metrics": list(metrics), "elicitation": elicitation}
        data = {"forget": "toy:forget", "holdout": "toy:holdout", "limit": 4}
        given = {key: small[key] for key in ("name", "full", "retain", "model")}
        folder = StudyFolder.begin(study.plan({**given, "data": data, "measure": measure}), tmp_path / "s")
        assert f"about {_status.duration(_status.estimate(folder).seconds)}" in str(_status.estimate(folder))
        return _status.estimate(folder).seconds

    prob, texts = seconds("prob"), toy.load().examples[:4]
    assert seconds("prob", "es") == prob  # one pass gives both
    expected = 3 * (0.5 + sum(8 + len(row.question + row.answer) / 4 for row in texts))
    assert prob == pytest.approx(expected, rel=0.3)
    assert 1.5 * prob < seconds("prob", "mia_loss") < 3 * prob  # holdout too
    assert seconds("prob", "uds") > 3 * prob
    plain = seconds("prob", elicitation={"probes": ["plain"], "samples": 0})
    assert seconds("prob", elicitation={"probes": ["plain"], "samples": 9}) - prob == pytest.approx(10 * (plain - prob))
