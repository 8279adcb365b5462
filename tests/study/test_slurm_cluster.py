"""A sweep on a real Slurm of one node: an array, one task requeued, one killed; the same table as here."""

import os
import signal
import subprocess
import threading
import time
from pathlib import Path

import pytest

from study.conftest import PLAN as SMALL
from study.one_node_slurm import missing_parts, one_node_slurm
from uds_lens import study
from uds_lens.study._folder import StudyFolder
from uds_lens.study._run import SlurmOptions, submit_array, wait_for

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
    jobs = submit_array(folder, jobs=3, options=OPTIONS)
    assert {str(job.job_id).split("_")[1] for job in jobs} == {"0", "1", "2"}

    first = _working(folder, beside=())
    second = _working(folder, beside=(first,))
    requeued, killed = _task_of(first), _task_of(second)
    subprocess.run(["scancel", "--signal=USR2", requeued], check=True)  # as a preemption does
    os.kill(second, signal.SIGKILL)
    _start_again(requeued, first)
    with caplog.at_level("INFO", logger="uds_lens.study"):
        wait_for(jobs, folder, in_queue=True, poll=0.5)

    table = study.table(folder.path)
    assert study.status(folder.path).is_complete
    assert not table.duplicated(["model_id", "state", "seed", "metric"]).any()
    timeless = [column for column in here if column != "seconds"]
    assert table[timeless].equals(here[timeless])
    assert f"task {killed} ended" in caplog.text
    assert f"task {requeued} ended" not in caplog.text
    assert "Requeued job" in _log_of(folder, requeued)


def test_a_cancelled_task_is_not_waited_for(cluster, tmp_path, caplog):
    folder = StudyFolder.begin(study.plan(PLAN), tmp_path / "study")
    jobs = submit_array(folder, jobs=1, options=OPTIONS)
    stopper = threading.Timer(1.0, lambda: subprocess.run(["scancel", str(jobs[0].job_id)], check=True))
    stopper.start()
    wait_for(jobs, folder, in_queue=True, poll=0.2)
    stopper.join()
    assert "ended without a result: it was cancelled" in caplog.text


def _working(folder: StudyFolder, *, beside: tuple[int, ...]) -> int:
    """The process of a task that works on a model now."""
    end = time.monotonic() + 120
    while time.monotonic() < end:
        for model in folder.models:
            holder = folder.claims.holder(model.model_id)
            if holder is not None and holder.process.pid not in beside:
                return holder.process.pid
        time.sleep(0.02)
    raise AssertionError("no task began to work")


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


def _task_of(process: int) -> str:
    """Which task of the array a process is."""
    words = Path(f"/proc/{process}/environ").read_bytes().decode().split("\0")
    found = dict(word.split("=", 1) for word in words if "=" in word)
    return f"{found['SLURM_ARRAY_JOB_ID']}_{found['SLURM_ARRAY_TASK_ID']}"


def _log_of(folder: StudyFolder, task: str) -> str:
    files = (folder.path / "slurm").rglob(f"{task}*_log.*")
    return "\n".join(file.read_text() for file in files)
