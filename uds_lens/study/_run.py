"""Run a plan: make and measure what is not done yet, by one or many workers, here or on a cluster."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, Literal

from uds_lens._settings import check_value
from uds_lens._types import PositiveInt, check_choice
from uds_lens.errors import ConfigError, Setting, warn_once
from uds_lens.study._folder import StudyFolder
from uds_lens.study._plan import StudyPlan, plan as read_plan, require_packages_of
from uds_lens.study._slurm import SlurmOptions, submit_array, wait_for
from uds_lens.study._status import StudyStatus, estimate, require_room, status
from uds_lens.study._worker import DEATHS, Runner, work

_LOG = logging.getLogger("uds_lens.study")


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
    if (about := folder.keys.questions.about) is not None:
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
