"""`run`: everything of a plan that is not done yet, by one or many workers, here or on a cluster."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Mapping
from typing import Any, Literal

from uds_lens.checked_arguments import arguments_checked
from uds_lens.checked_settings import require_whole
from uds_lens.errors import ConfigError, Setting, warn_once
from uds_lens.study.local_workers import work_with_processes
from uds_lens.study.measurement_settings import require_packages_of
from uds_lens.study.plan_file import plan as read_plan
from uds_lens.study.plan_records import StudyPlan
from uds_lens.study.slurm_workers import SlurmOptions, submit_array, wait_for
from uds_lens.study.study_estimate import estimate, require_room
from uds_lens.study.study_folder import StudyFolder
from uds_lens.study.study_status import StudyStatus, status
from uds_lens.study.study_worker import Maker, work
from uds_lens.types import check_choice

_LOG = logging.getLogger("uds_lens.study")


@arguments_checked
def run(
    plan: str | os.PathLike[str] | Mapping[str, Any] | StudyPlan,
    out: str | os.PathLike[str],
    *,
    jobs: int = 1,
    executor: Literal["local", "slurm"] = "local",
    slurm: SlurmOptions | None = None,
    wait: bool = True,
    workshop: Maker | None = None,
) -> StudyStatus:
    """Make and measure what is not there yet.

    May be killed and called again at any time, and by several at once in one directory: what is measured stays, what
    is finished is never done again, and no two workers do the same. A model that fails does not stop the others; it is
    tried once more by the next call. Time, disk and memory are told first, through the logger `uds_lens.study`.

    Args:
        plan: What to make and measure (see `uds_lens.study.plan`).
        out: Directory of the study: parts, models, audits.
        jobs: Workers; with one, this process is the worker.
        executor: "local": processes of this machine; "slurm": an array of tasks.
        slurm: What each task is given; default `SlurmOptions()`.
        wait: Wait for the tasks of the cluster; False returns when they are sent.
        workshop: What makes and measures, to put something else in its place; only with one local job.

    Returns:
        Where the study stands; `failed` names what could not be measured, and why.

    Raises:
        ConfigError: The plan cannot be carried out, or the disk is too small.
        ResultFormatError: Something else stands at `out`.
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
    require_whole("jobs", jobs, at_least=1)
    if slurm is not None and executor == "local":
        raise ConfigError(Setting("slurm"), " is for ", Setting("executor", "slurm"), "; got 'local'.")
    if workshop is not None and (jobs > 1 or executor != "local"):
        raise ConfigError("a workshop of your own works in this process only: take ", Setting("jobs", 1), ".")
    asked = read_plan(plan)
    if workshop is None:
        require_packages_of(asked)
    folder = StudyFolder.begin(asked, out)
    since = time.time()
    if folder.keys.asked.sample is not None:
        about = str(folder.keys.asked.about)
        if asked.data.sample == "random":
            _LOG.info(about)
        else:
            warn_once(about)
    require_room(estimate(folder, jobs=jobs))
    if executor == "slurm":
        options = slurm or SlurmOptions()
        sent = submit_array(folder, jobs=jobs, since=since, options=options)
        _LOG.info("sent as %s", ", ".join(str(job.job_id) for job in sent[:8]))
        if wait:
            wait_for(sent, folder, in_queue=options.cluster == "slurm")
    elif jobs == 1:
        work(folder, workshop=workshop, since=since)
    else:
        work_with_processes(folder, jobs=jobs, since=since)
    return status(folder)
