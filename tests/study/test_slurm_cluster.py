"""A sweep on a real Slurm of one node: an array, one task requeued, one killed; the same table as here."""

import os
import signal
import subprocess
import threading
import time
from pathlib import Path

import psutil
import pytest
from study.conftest import PLAN as SMALL
from study.one_node_slurm import missing_parts, one_node_slurm

from uds_lens import study
from uds_lens.study import SlurmOptions
from uds_lens.study._folder import StudyFolder
from uds_lens.study._measuring import StudyWork
from uds_lens.study._parts import submit, wait_for

pytest.importorskip("submitit", reason="the extra [slurm] is not installed")
pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(bool(missing_parts()), reason=f"no Slurm here: {', '.join(missing_parts())} not found"),
]


PLAN = {
    **{name: SMALL[name] for name in ("full", "retain", "data", "train")},
    "name": "twelve",
    "pool": [
        {
            "variant": variant,
            "knows": knows,
            "start": "toy:retain",
            "data": [{"source": "toy:forget", "answers": answers}],
            "settings": {"learning_rate": [1e-3, 2e-3, 3e-3, 4e-3, 5e-3], "epochs": 2, "batch_size": 16},
        }
        for variant, knows, answers in (("told", True, "own"), ("misled", False, "wrong"))
    ],
    "perturb": {"quantise": True},
    "measure": {"metrics": ["es", "em", "uds"]},
}
OPTIONS = SlurmOptions(gpus=0, cpus=1, minutes=30, memory_gb=2)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    with one_node_slurm(tmp_path_factory.mktemp("slurm")) as environment, pytest.MonkeyPatch.context() as patch:
        for name, value in environment.items():
            patch.setenv(name, value)
        patch.setenv("OMP_NUM_THREADS", "1")
        yield


@pytest.fixture(scope="module")
def here(tmp_path_factory):
    """The table of a run of this machine alone."""
    place = tmp_path_factory.mktemp("here") / "study"
    assert study.run(PLAN, place).is_complete
    return study.table(place)


def test_a_requeued_and_a_killed_task_leave_the_same_table(cluster, here, tmp_path, caplog):
    folder = StudyFolder.begin(study.plan(PLAN), tmp_path / "study")
    assert len(folder.models) == 12
    names = [model.model_id for model in folder.models]
    jobs = submit(StudyWork(folder), names, place=folder.path, jobs=3, options=OPTIONS)
    requeued, killed, _ = (str(job.job_id) for job in jobs)
    assert [requeued.split("_")[1], killed.split("_")[1]] == ["0", "1"]

    first = _working(folder, requeued, names[0::3])
    second = _working(folder, killed, names[1::3])
    subprocess.run(["scancel", "--signal=USR2", requeued], check=True)  # as a preemption does
    os.kill(second, signal.SIGKILL)
    _start_again(requeued, first)
    with caplog.at_level("INFO", logger="uds_lens.study"):
        wait_for(jobs, lambda: str(study.status(folder.path)), poll=0.5)

    assert not study.status(folder.path).is_complete, "the share of the killed task is left"
    assert study.run(PLAN, folder.path).is_complete
    table = study.table(folder.path)
    assert not table.duplicated(["model_id", "state", "seed", "metric"]).any()
    timeless = [column for column in here if column != "seconds"]
    assert table[timeless].equals(here[timeless])
    assert f"task {killed} ended" in caplog.text
    assert f"task {requeued} ended" not in caplog.text
    assert "Requeued job" in _log_of(folder, requeued)


def test_a_cancelled_task_is_not_waited_for(cluster, tmp_path, caplog):
    folder = StudyFolder.begin(study.plan(PLAN), tmp_path / "study")
    jobs = submit(StudyWork(folder), ["full"], place=folder.path, jobs=1, options=OPTIONS)
    stopper = threading.Timer(1.0, lambda: subprocess.run(["scancel", str(jobs[0].job_id)], check=True))
    stopper.start()
    wait_for(jobs, poll=0.2)
    stopper.join()
    assert "ended without a result: it was cancelled" in caplog.text


def _working(folder: StudyFolder, task: str, names: list[str]) -> int:
    """The process of a task that works on one of its models now."""
    wanted = dict(zip(("SLURM_ARRAY_JOB_ID", "SLURM_ARRAY_TASK_ID"), task.split("_"), strict=True))
    end = time.monotonic() + 120
    while time.monotonic() < end:
        time.sleep(0.05)
        if any((folder.path / "locks" / f"{name}.lock").exists() for name in names):
            for process in psutil.process_iter(["cmdline", "environ"]):
                own, words = process.info["environ"] or {}, process.info["cmdline"] or [""]
                if wanted.items() <= own.items() and Path(words[0]).name.startswith("python"):
                    return process.pid
    raise AssertionError(f"{task} did not begin to work")


def _start_again(task: str, process: int) -> None:
    """Slurm lets a requeued task wait for two minutes; we wait for the end of its process, which it would share."""
    end = time.monotonic() + 60
    while time.monotonic() < end:
        words = ["squeue", "--noheader", "--array", "--states=PENDING", "--format=%i"]
        queued = task in subprocess.run(words, capture_output=True, text=True, check=True).stdout.split()
        if queued and not Path(f"/proc/{process}").exists():
            # a task that starts in the second it was killed in is refused: its credential counts as revoked
            subprocess.run(["scontrol", "update", f"JobId={task}", "StartTime=now+5"], check=True)
            return
        time.sleep(0.2)
    raise AssertionError(f"{task} was not requeued")


def _log_of(folder: StudyFolder, task: str) -> str:
    files = (folder.path / "slurm").rglob(f"{task}*_log.*")
    return "\n".join(file.read_text() for file in files)
