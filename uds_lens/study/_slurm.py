"""Workers as an array of jobs on a Slurm cluster, by submitit; a task that is preempted resumes when it is requeued."""

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
from uds_lens._settings import validated
from uds_lens._types import NonNegativeInt, PositiveFloat, PositiveInt
from uds_lens.errors import ConfigError
from uds_lens.study._folder import StudyFolder

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
    """How often a task that reached its time limit is submitted again."""

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
        from uds_lens.study._status import status
        from uds_lens.study._worker import work

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
    from uds_lens.study._status import status

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
