"""Run a plan: make and measure what is not done yet, by one or many workers, here or on a cluster.

On a Slurm cluster the workers are an array of jobs, by submitit; a task that is preempted resumes when it is requeued.
"""

from __future__ import annotations

import logging
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from uds_lens._optional_packages import require_package
from uds_lens._settings import check_value, validated
from uds_lens._types import NonNegativeInt, PositiveFloat, PositiveInt, check_choice
from uds_lens.errors import ConfigError, Setting, warn_once
from uds_lens.study._folder import StudyFolder
from uds_lens.study._plan import StudyPlan, plan as read_plan, require_packages_of
from uds_lens.study._status import StudyStatus, estimate, require_room, status
from uds_lens.study._worker import DEATHS, Runner, work

_LOG = logging.getLogger("uds_lens.study")


@validated
@dataclass(frozen=True, kw_only=True)
class SlurmOptions:
    """Resources of each task of the array."""

    partition: str | None = None
    """Partition of the cluster; None is the cluster's default."""

    gpus: NonNegativeInt = 1
    """GPUs per task; 0 for none."""

    cpus: PositiveInt = 4
    """CPU cores per task."""

    minutes: PositiveInt = 240
    """Time limit of a task; one that reaches it is requeued and resumes."""

    memory_gb: PositiveFloat = 32.0
    """Memory per task, GiB."""

    parallel: PositiveInt | None = None
    """Maximum number of tasks at a time; None is no limit."""

    requeues: NonNegativeInt = 10
    """Maximum number of times that a task is resubmitted after it has reached its time limit."""

    account: str | None = None
    """Account to charge."""

    cluster: Literal["slurm", "local"] = "slurm"
    """"local" runs the same tasks on this machine, for a trial."""


class ArrayTask:
    """One worker of the array; called on a compute node."""

    def __init__(self, folder: str, run: str) -> None:
        self.folder, self.run = folder, run

    def __call__(self) -> int:
        """Work until nothing is free, and return how many states have failed."""
        logging.basicConfig(level=logging.INFO, format="%(message)s")
        folder = StudyFolder(self.folder, run=self.run)
        work(folder, wait=False)
        return len(status(folder).failed)

    def checkpoint(self) -> Any:
        """Return the same task, before the time is up or the node is taken: finished work is saved."""
        from submitit.helpers import DelayedSubmission

        return DelayedSubmission(ArrayTask(self.folder, self.run))


def submit_array(folder: StudyFolder, *, jobs: int, options: SlurmOptions) -> list[Any]:
    """Submit an array of workers, and return submitit's jobs."""
    require_package("submitit", needed_by="Slurm needs")
    import submitit

    local = options.cluster == "local"
    if not local and shutil.which("sbatch") is None:
        raise ConfigError(
            "there is no Slurm here (no `sbatch` on the PATH): start the sweep on a login node, or with "
            'executor="local".'
        )
    path = str(Path(folder.path).resolve())
    extra = {} if local else {"slurm_max_num_timeout": options.requeues}
    executor = submitit.AutoExecutor(folder=Path(path) / "slurm" / "%j", cluster=options.cluster, **extra)
    parameters: dict[str, Any] = {
        "name": "uds-sweep",
        "timeout_min": options.minutes,
        "cpus_per_task": options.cpus,
        "mem_gb": options.memory_gb,
        "gpus_per_node": options.gpus or None,
    }
    if not local:
        parameters |= {
            "slurm_partition": options.partition,
            "slurm_account": options.account,
            "slurm_array_parallelism": options.parallel,
            "slurm_additional_parameters": {"requeue": True},
        }
    executor.update_parameters(**{name: value for name, value in parameters.items() if value is not None})
    with executor.batch():
        return [executor.submit(ArrayTask(path, folder.run)) for _ in range(jobs)]


def wait_for(jobs: Sequence[Any], folder: StudyFolder, *, in_queue: bool, poll: float = 10.0) -> None:
    """Wait until all tasks are over, logging progress and the tasks that failed."""
    last = ""
    while _are_queued(jobs) if in_queue else not all(job.done() for job in jobs):
        time.sleep(poll)
        if (now := str(status(folder))) != last:
            last = now
            _LOG.info("%s", now)
    for job in jobs:
        if not job.paths.result_pickle.exists():
            why = "ended without a result: it was cancelled, killed or used too much memory"
        elif (error := job.exception()) is not None:
            why = f"ended with {str(error).strip().splitlines()[-1][:200]}"
        else:
            continue
        _LOG.warning("task %s %s; its output is in %s", job.job_id, why, job.paths.stderr)


def _are_queued(jobs: Sequence[Any]) -> bool:
    """Check whether any task waits or runs.

    The queue is asked, not the accounting (submitit's way): a cluster may keep none, and a task that was cancelled
    would be waited for forever.
    """
    arrays = ",".join(sorted({str(job.job_id).split("_")[0] for job in jobs}))
    words = ["squeue", "--noheader", "--array", "--format=%i", f"--jobs={arrays}"]
    asked = subprocess.run(words, capture_output=True, text=True, check=False)
    if asked.returncode == 0:
        return bool(asked.stdout.strip())
    if "Invalid job id" in asked.stderr:  # so long over that Slurm has forgotten it
        return False
    _LOG.warning("Slurm's queue cannot be queried now (%s); still waiting", asked.stderr.strip()[-200:])
    return True


def run(
    plan: str | os.PathLike[str] | Mapping[str, Any] | StudyPlan,
    out: str | os.PathLike[str],
    *,
    jobs: int = 1,
    executor: Literal["local", "slurm"] = "local",
    slurm: SlurmOptions | None = None,
    wait: bool = True,
    runner: Runner | None = None,
) -> StudyStatus:
    """Make and measure the models of a plan that are not done yet.

    The call may be killed and repeated at any time, also by several processes in one directory: finished work is kept
    and never done twice. A model that fails does not stop the others; the next call tries it again.

    Args:
        plan: What to make and measure (see `uds_lens.study.plan`).
        out: Directory of the study: parts, models, audits.
        jobs: Workers; with one, this process is the worker.
        executor: "local": processes of this machine; "slurm": an array of tasks.
        slurm: Resources of each task; default `SlurmOptions()`.
        wait: Wait for the tasks of the cluster; False returns when they are submitted.
        runner: Makes and measures the models in place of the default; only with one local job.

    Returns:
        Progress of the study; `failed` names what could not be measured, and why.

    Raises:
        ConfigError: The plan cannot be carried out, or the disk is too small.
        ResultFormatError: `out` holds something else.
        MissingDependencyError: The plan needs a package that is not installed.

    Example:
        >>> import tempfile
        >>> tiny = {"name": "tiny", "full": "toy:full", "retain": "toy:retain",
        ...         "data": {"forget": "toy:forget", "limit": 4}, "measure": {"metrics": ["em"]}}
        >>> with tempfile.TemporaryDirectory() as place:
        ...     print(run(tiny, place))
        2 of 2 done
    """
    check_choice("executor", executor, Literal["local", "slurm"])
    check_value("jobs", jobs, PositiveInt)
    if slurm is not None and executor == "local":
        raise ConfigError(Setting("slurm"), " is for ", Setting("executor", "slurm"), "; got 'local'.")
    if runner is not None and (jobs > 1 or executor != "local"):
        raise ConfigError("a custom runner works in this process only: use ", Setting("jobs", 1), ".")
    wanted = read_plan(plan)
    if runner is None:
        require_packages_of(wanted)
    folder = StudyFolder.begin(wanted, out)
    if (about := folder.keys.about_sample) is not None:
        if wanted.data.sample == "random":
            _LOG.info(about)
        else:
            warn_once(about)
    require_room(estimate(folder, jobs=jobs, bytes_of=getattr(runner, "bytes_of", None)))
    if executor == "slurm":
        options = slurm or SlurmOptions()
        sent = submit_array(folder, jobs=jobs, options=options)
        _LOG.info("submitted as %s", ", ".join(str(job.job_id) for job in sent[:8]))
        if wait:
            wait_for(sent, folder, in_queue=options.cluster == "slurm")
    elif jobs == 1:
        work(folder, runner=runner)
    else:
        _work_with_processes(folder, jobs=jobs)
    return status(folder)


def _work_with_processes(folder: StudyFolder, *, jobs: int) -> None:
    """Run several worker processes: those that die are replaced, and all end with this process."""
    # Not by `-m`: the package has imported this file by then, and Python would warn of it.
    program = "from uds_lens.study._run import main; main()"
    words = [sys.executable, "-c", program, str(folder.path), folder.run, str(os.getpid())]
    environment = {"OMP_NUM_THREADS": str(max(1, (os.cpu_count() or 1) // jobs)), **os.environ}
    workers = [subprocess.Popen(words, env=environment) for _ in range(jobs)]
    replaced = 0
    try:
        while workers:
            time.sleep(0.2)
            for worker in [candidate for candidate in workers if candidate.poll() is not None]:
                workers.remove(worker)
                if worker.returncode != 0 and replaced < DEATHS * (len(folder.models) + jobs):
                    replaced += 1
                    _LOG.warning("a worker died (%s); starting another", _cause_of_death(worker.returncode))
                    workers.append(subprocess.Popen(words, env=environment))
    finally:
        for worker in workers:
            with suppress(ProcessLookupError):
                worker.terminate()
        for worker in workers:
            worker.wait()


def _cause_of_death(code: int) -> str:
    if code >= 0:
        return f"exit code {code}"
    with suppress(ValueError):
        return signal.Signals(-code).name
    return f"signal {-code}"


def main() -> None:
    """Run one worker process: of a folder, for a run, until its parent process ends."""
    path, run_name, parent = sys.argv[1:]

    def end_with_parent() -> None:  # nobody would see what comes after
        while os.getppid() == int(parent):
            time.sleep(0.5)
        os._exit(1)

    threading.Thread(target=end_with_parent, daemon=True).start()
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("%(message)s"))
    _LOG.addHandler(handler)
    _LOG.setLevel(logging.INFO)
    _LOG.propagate = False  # some package puts a handler on the root logger, which would repeat it
    work(StudyFolder(path, run=run_name))
