"""Parts of a study: each part is a call that writes its result, and does nothing if the result exists.

A killed part is therefore simply called again. On one machine, joblib calls the parts. On a cluster, submitit runs
them as an array of Slurm tasks, with Slurm's requeueing and time limits.
"""

from __future__ import annotations

import logging
import shutil
import subprocess
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import BrokenExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from uds_lens._optional_packages import require_package
from uds_lens._settings import validated
from uds_lens._storage.files import atomic_write_text, read_file
from uds_lens._storage.locks import hold
from uds_lens._types import NonNegativeInt, PositiveFloat, PositiveInt
from uds_lens.errors import ConfigError, ResultFormatError, Setting

_LOG = logging.getLogger("uds_lens.study")

Call: TypeAlias = Callable[[str], None]  # makes the part with a given name

KILLED = "its process was killed, possibly for lack of memory: use fewer jobs or smaller batches."


@validated
@dataclass(frozen=True, kw_only=True)
class SlurmOptions:
    """Resources of each task in the array."""

    partition: str | None = None
    """Partition of the cluster; None means the cluster's default."""

    gpus: NonNegativeInt = 1
    """GPUs per task; 0 for none."""

    cpus: PositiveInt = 4
    """CPU cores per task."""

    minutes: PositiveInt = 240
    """Time limit of a task; a task that reaches it is requeued and resumes."""

    memory_gb: PositiveFloat = 32.0
    """Memory per task, GiB."""

    parallel: PositiveInt | None = None
    """Maximum number of tasks at a time; None means no limit."""

    requeues: NonNegativeInt = 10
    """Maximum number of times a task is resubmitted after reaching its time limit."""

    account: str | None = None
    """Account to charge."""


def carry_out(
    call: Call,
    names: Iterable[str],
    *,
    place: Path,
    jobs: int = 1,
    slurm: SlurmOptions | None = None,
    wait: bool = True,
    progress: Callable[[], str] = str,
) -> None:
    """Call every part; a failure is recorded, and the other parts continue (see `failure_of`).

    Args:
        call: Makes one part. With several jobs or on Slurm, `call` is pickled.
        names: Names of the parts, valid as file names, in order.
        place: Folder of the results; locks and failures are kept there.
        jobs: Number of processes on this machine (1 means this process) or of Slurm tasks, each of which gets a share
            of the parts.
        slurm: Resources of each task; None runs the parts on this machine.
        wait: Whether to wait for the tasks.
        progress: Returns a description of the progress, which is logged while waiting for tasks.
    """
    waiting = list(names)
    if slurm is not None and waiting:
        sent = submit(call, waiting, place=place, jobs=jobs, options=slurm)
        if wait:
            wait_for(sent, progress)
        return
    for patience in (0, -1):  # free parts first, then parts held by other processes, which may have been killed
        waiting = _on_this_machine(call, waiting, place, jobs, patience)


def _on_this_machine(call: Call, names: Sequence[str], place: Path, jobs: int, patience: int) -> list[str]:
    """Run parts; return the parts that another process is working on."""
    waiting, busy = list(names), []
    while waiting:
        try:
            for name, was_free in _spread(call, tuple(waiting), place, jobs, patience):
                waiting.remove(name)
                _LOG.info("%s: %d left", name, len(waiting))
                busy += [] if was_free else [name]
        except BrokenExecutor:
            # a worker was killed, so joblib ended the others; the part that caused this is among the first
            alone, waiting = waiting[:jobs], waiting[jobs:]
            for name in alone:
                try:
                    busy += [name for name, was_free in _spread(call, [name], place, jobs, patience) if not was_free]
                except BrokenExecutor:
                    _tell(place, name, KILLED)
    return busy


def _spread(call: Call, names: Sequence[str], place: Path, jobs: int, patience: int) -> Iterator[tuple[str, bool]]:
    from joblib import Parallel, delayed

    how = {"batch_size": 1, "pre_dispatch": "n_jobs", "max_nbytes": None, "return_as": "generator_unordered"}
    return Parallel(n_jobs=jobs, **how)(delayed(_carry_out)(call, name, place, patience) for name in names)


def _carry_out(call: Call, name: str, place: Path, patience: int) -> tuple[str, bool]:
    """Run a part unless another process is working on it; return the part's name and whether it was free."""
    lock = hold(place / "locks" / f"{name}.lock", timeout=patience)
    if lock is None:
        _LOG.info(
            "another process is working on %s (if no process is, remove the lock file of this part in %s)",
            name,
            place / "locks",
        )
    else:
        try:
            with told(place, name):
                call(name)
        finally:
            lock.release()
    return name, lock is not None


# Failures: a file for each part, with the error in the first line and the traceback below.


@contextmanager
def told(place: Path, name: str) -> Iterator[None]:
    """Record a failure and continue; a later success removes the record."""
    try:
        yield
    except Exception as error:
        if isinstance(error, subprocess.CalledProcessError) and list(error.cmd)[:2] == ["scontrol", "requeue"]:
            raise  # submitit raises this error on preemption, which is not a failure of the part
        reason = f"{type(error).__name__}: {one_line(str(error)) or 'without a message'}"
        _tell(place, name, reason, "".join(traceback.format_exception(error)))
    else:
        _failure(place, name).unlink(missing_ok=True)


def _tell(place: Path, name: str, reason: str, trace: str = "") -> None:
    _LOG.warning("%s failed: %s", name, reason)
    atomic_write_text(_failure(place, name), f"{reason}\n\n{trace}")


def failure_of(place: Path, name: str) -> str | None:
    """Return why the last attempt at a part failed; None if it did not."""
    try:
        text = read_file(_failure(place, name)).decode("utf-8", "replace")
    except ResultFormatError:
        return None
    return text.partition("\n")[0][:1000]


def _failure(place: Path, name: str) -> Path:
    return place / "failures" / f"{name}.txt"


def one_line(text: str) -> str:
    """Return text without line breaks."""
    return " ".join(text.split())


# Slurm.


class Task:
    """A share of the parts, run on a compute node."""

    def __init__(self, call: Call, names: Sequence[str], place: Path) -> None:
        self.call, self.names, self.place = call, names, place

    def __call__(self) -> None:
        """Run the unfinished parts of this task."""
        logging.basicConfig(level=logging.INFO, format="%(message)s")
        for name in self.names:
            _carry_out(self.call, name, self.place, 0)

    def checkpoint(self) -> Any:
        """Return this task, to be requeued when it times out or is preempted; finished work is saved."""
        from submitit.helpers import DelayedSubmission

        return DelayedSubmission(self)


def submit(call: Call, names: Sequence[str], *, place: Path, jobs: int, options: SlurmOptions) -> list[Any]:
    """Submit parts as an array of tasks; return submitit's jobs."""
    require_package("submitit", needed_by="Slurm needs")
    import submitit

    if shutil.which("sbatch") is None:
        raise ConfigError(
            "there is no Slurm here (no `sbatch` on the PATH): start this command on a login node, or without ",
            Setting("slurm"),
            ".",
        )
    place = place.resolve()
    executor = submitit.SlurmExecutor(folder=place / "slurm" / "%j", max_num_timeout=options.requeues)
    given = {
        "partition": options.partition,
        "account": options.account,
        "gpus_per_node": options.gpus or None,
        "array_parallelism": options.parallel,
    }
    executor.update_parameters(
        job_name="uds-lens",
        time=options.minutes,
        cpus_per_task=options.cpus,
        mem=f"{round(1024 * options.memory_gb)}M",
        additional_parameters={"requeue": True},
        **{name: value for name, value in given.items() if value is not None},
    )
    with executor.batch():
        sent = [executor.submit(Task(call, names[first::jobs], place)) for first in range(min(jobs, len(names)))]
    _LOG.info("submitted as %s", ", ".join(str(job.job_id) for job in sent[:8]))
    return sent


def wait_for(jobs: Sequence[Any], progress: Callable[[], str] = str, *, poll: float = 10.0) -> None:
    """Wait until all tasks have ended, logging progress and the tasks that failed."""
    last = ""
    while jobs and _are_queued(jobs):
        time.sleep(poll)
        if (now := progress()) != last:
            last = now
            _LOG.info("%s", now)
    for job in jobs:
        if not job.paths.result_pickle.exists():
            why = "ended without a result: it was cancelled or killed, or used too much memory"
        elif (error := job.exception()) is not None:
            why = f"ended with {str(error).strip().splitlines()[-1][:200]}"
        else:
            continue
        _LOG.warning("task %s %s; its output is in %s", job.job_id, why, job.paths.stderr)


def _are_queued(jobs: Sequence[Any]) -> bool:
    """Check whether any task is waiting or running.

    This asks Slurm's queue. submitit asks the accounting database instead, which not every cluster has; without it,
    submitit would wait forever for a cancelled task.
    """
    arrays = ",".join(sorted({str(job.job_id).split("_")[0] for job in jobs}))
    words = ["squeue", "--noheader", "--array", "--format=%i", f"--jobs={arrays}"]
    asked = subprocess.run(words, capture_output=True, text=True, check=False)
    if asked.returncode == 0:
        return bool(asked.stdout.strip())
    if "Invalid job id" in asked.stderr:  # the jobs ended so long ago that Slurm no longer lists them
        return False
    _LOG.warning("Slurm's queue cannot be queried now (%s); still waiting", asked.stderr.strip()[-200:])
    return True
