"""Workers as an array of jobs on a Slurm cluster, by submitit; a task that is preempted goes on when it is requeued."""

from __future__ import annotations

import logging
import shutil
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from uds_lens._optional_packages import require_package
from uds_lens._settings import names_checked, require_number, require_whole
from uds_lens.errors import ConfigError
from uds_lens.study._folder import StudyFolder

_LOG = logging.getLogger("uds_lens.study")


@names_checked
@dataclass(frozen=True, kw_only=True)
class SlurmOptions:
    """What each task of the array is given."""

    partition: str | None = None
    """Slurm partition; None takes the cluster's default."""

    gpus: int = 1
    """GPUs of a task; 0 for none."""

    cpus: int = 4
    """CPU cores of a task."""

    minutes: int = 240
    """Longest time of a task; one that is cut off is requeued and resumes."""

    memory_gb: float = 32.0
    """Memory of a task, GB."""

    parallel: int | None = None
    """Slurm tasks at a time; None sets no bound."""

    requeues: int = 10
    """How often a task that ran out of time is sent again."""

    account: str | None = None
    """Account that is charged."""

    cluster: Literal["slurm", "local"] = "slurm"
    """`local` runs the same tasks on this machine, to try out what would be sent."""

    def __post_init__(self) -> None:
        for name, least in (("gpus", 0), ("cpus", 1), ("minutes", 1), ("requeues", 0)):
            require_whole(name, getattr(self, name), at_least=least)
        require_number("memory_gb", self.memory_gb, above=0, words="be a number of gigabytes above 0")
        if self.parallel is not None:
            require_whole("parallel", self.parallel, at_least=1)
        if self.cluster not in ("slurm", "local"):
            raise ConfigError(f"cluster must be 'slurm' or 'local'; got {self.cluster!r}.")


class ArrayTask:
    """One worker of the array; called on a compute node.

    Args:
        folder: Directory of the study.
        since: When the run began.
    """

    def __init__(self, folder: str, since: float) -> None:
        self.folder, self.since = folder, since

    def __call__(self) -> int:
        """Work until nothing is free; returns how many states have failed."""
        from uds_lens.study._status import status
        from uds_lens.study._worker import work

        logging.basicConfig(level=logging.INFO, format="%(message)s")
        folder = StudyFolder(self.folder)
        work(folder, since=self.since, wait=False)
        return len(status(folder).failed)

    def checkpoint(self) -> Any:
        """Called before the time is up or the node is taken: the same task again.

        What it had in hand is given back with its process, and what it finished is there.
        """
        from submitit.helpers import DelayedSubmission

        return DelayedSubmission(ArrayTask(self.folder, self.since))


def submit_array(folder: StudyFolder, *, jobs: int, since: float, options: SlurmOptions) -> list[Any]:
    """Send an array of workers.

    Args:
        folder: The study, on a file system that the nodes share.
        jobs: Tasks.
        since: When the run began.
        options: What each task is given.

    Returns:
        submitit's jobs.

    Raises:
        MissingDependencyError: submitit is not installed.
        ConfigError: There is no Slurm on this machine.
    """
    require_package("submitit", needed_by="Slurm needs")
    import submitit

    if options.cluster == "slurm" and shutil.which("sbatch") is None:
        raise ConfigError(
            "there is no Slurm here (no `sbatch` on the PATH): start the sweep on a login node, or with "
            'executor="local".'
        )
    path = str(Path(folder.path).resolve())
    extra = {} if options.cluster == "local" else {"slurm_max_num_timeout": options.requeues}
    executor = submitit.AutoExecutor(folder=Path(path) / "slurm" / "%j", cluster=options.cluster, **extra)
    executor.update_parameters(**_parameters(options))
    with executor.batch():
        return [executor.submit(ArrayTask(path, since)) for _ in range(jobs)]


def wait_for(jobs: Sequence[Any], folder: StudyFolder, *, in_queue: bool, poll: float = 10.0) -> None:
    """Wait until all tasks are over, telling how far the study is, and tell those that did not end well.

    Args:
        jobs: submitit's jobs.
        folder: The study.
        in_queue: Ask Slurm's queue whether they are over.
        poll: Seconds between looks.
    """
    from uds_lens.study._status import status

    told = ""
    while _are_queued(jobs) if in_queue else not all(job.done() for job in jobs):
        time.sleep(poll)
        if (now := str(status(folder))) != told:
            told = now
            _LOG.info("%s", now)
    for job in jobs:
        why = _how_it_failed(job)
        if why is not None:
            _LOG.warning("task %s %s; what it wrote is in %s", job.job_id, why, job.paths.stderr)


def _are_queued(jobs: Sequence[Any]) -> bool:
    """Whether any task waits or runs.

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
    _LOG.warning("Slurm's queue cannot be asked now (%s); going on", asked.stderr.strip()[-200:])
    return True


def _how_it_failed(job: Any) -> str | None:
    """None where a task ended well."""
    if not job.paths.result_pickle.exists():
        return "ended without a word: it was cancelled, killed or took too much memory"
    error = job.exception()
    return None if error is None else f"ended with {str(error).strip().splitlines()[-1][:200]}"


def _parameters(options: SlurmOptions) -> dict[str, Any]:
    common: dict[str, Any] = {
        "name": "uds-sweep",
        "timeout_min": options.minutes,
        "cpus_per_task": options.cpus,
        "mem_gb": options.memory_gb,
    }
    if options.gpus:
        common["gpus_per_node"] = options.gpus
    if options.cluster == "local":
        return common
    slurm = {
        "slurm_partition": options.partition,
        "slurm_account": options.account,
        "slurm_array_parallelism": options.parallel,
    }
    more = {name: value for name, value in slurm.items() if value is not None}
    return {**common, **more, "slurm_additional_parameters": {"requeue": True}}
