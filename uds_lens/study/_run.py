"""Run a plan: make and measure everything that is not done yet, and report progress and failures."""

from __future__ import annotations

import logging
import math
import os
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

import psutil

from uds_lens._progress import duration
from uds_lens._settings import check_value
from uds_lens._types import PositiveInt
from uds_lens.errors import ConfigError, Setting, warn_once
from uds_lens.study._folder import StudyFolder
from uds_lens.study._keys import folders_of, located_source
from uds_lens.study._measuring import StudyWork
from uds_lens.study._parts import SlurmOptions, carry_out
from uds_lens.study._plan import StudyPlan, plan as read_plan, require_packages_of

_LOG = logging.getLogger("uds_lens.study")

_TRAINING_COPIES = 4  # weights, gradients and AdamW's two averages, each in float32; activations are not counted


@dataclass(frozen=True, kw_only=True)
class StateFailure:
    """A model that could not be measured in a state."""

    model: str
    """Its name."""
    state: str
    """Label of the state."""
    reason: str
    """The error, in one line."""


@dataclass(frozen=True, kw_only=True)
class StudyStatus:
    """Counts of models in states."""

    total: int
    """All model states of the plan."""
    done: int
    """Model states that are measured."""
    failed: tuple[StateFailure, ...]
    """Model states that failed at the last attempt."""
    left: int
    """Model states that are neither done nor failed."""
    seconds_left: float
    """Estimated seconds of remaining work, from the mean time per state so far; NaN until something is measured."""
    sample: str | None = None
    """How the questions were sampled, with a caution for the first rows of sorted files; None if all are asked."""

    @property
    def is_complete(self) -> bool:
        """Whether everything was measured."""
        return self.done == self.total

    def __str__(self) -> str:
        parts = [f"{self.done} of {self.total} done"]
        if self.failed:
            parts.append(f"{len(self.failed)} failed")
        if self.left:
            parts.append(f"{self.left} left")
        if self.left and not math.isnan(self.seconds_left):
            parts.append(f"about {duration(self.seconds_left)} of work")
        return ", ".join(parts)


def status(out: str | os.PathLike[str] | StudyFolder) -> StudyStatus:
    """Report the progress of a study; works at any time, for anyone who can read the directory.

    Args:
        out: Directory of the study.

    Returns:
        Counts, failures and the time left.

    Raises:
        ResultFormatError: There is no study, or it is broken.
    """
    folder = out if isinstance(out, StudyFolder) else StudyFolder(out)
    failed, left = [], []
    spent: list[float] = []
    for model in folder.models:
        for state in model.states:
            if not folder.missing(model, state):
                spent += [part.seconds for part in folder.parts(model, state)[-1:]]
            elif (reason := folder.failure(model, state)) is None:
                left.append(state)
            else:
                failed.append(StateFailure(model=model.model_id, state=state.label, reason=reason))
    return StudyStatus(
        total=len(spent) + len(failed) + len(left),
        done=len(spent),
        failed=tuple(failed),
        left=len(left),
        seconds_left=len(left) * fmean(spent or [math.nan]),
        sample=folder.keys.about_sample,
    )


def free_bytes(place: Path) -> int:
    """Return the free space on the disk that holds a path, which need not exist yet."""
    while not place.exists():
        place = place.parent
    return shutil.disk_usage(place).free


def weight_bytes(place: str) -> int:
    """Size of a checkpoint's weights; 0 if it is not on this machine."""
    source = located_source(place)
    places = folders_of(source) if isinstance(source, Path) else []
    files = [file for place in places if place.exists() for file in (place.iterdir() if place.is_dir() else [place])]
    return sum(file.stat().st_size for file in files if file.suffix in (".safetensors", ".bin", ".gguf"))


def require_room(folder: StudyFolder, *, jobs: int = 1, bytes_of: Callable[[str], int] = weight_bytes) -> None:
    """Log the remaining work and its needs; raise an error if the disk is too small, and warn if memory may run out."""
    left, gib = folder.left(), 1 << 30
    made = [model for model in left if model.is_made and not folder.model_place(model).is_dir()]
    sizes = {source: bytes_of(source) for source in {model.source for model in left}}
    largest = max(sizes.values(), default=0)
    perturbed = any(len(model.states) > 1 for model in left)
    kept = [sizes[model.source] for model in made] if folder.plan.keep_models else jobs * [largest] * bool(made)
    disk = sum(kept) + jobs * largest * (2 * perturbed + 3 * bool(made or perturbed))
    memory = jobs * largest * (_TRAINING_COPIES + 1 if made or perturbed else 2)
    free, free_memory = free_bytes(folder.path), psutil.virtual_memory().available
    _LOG.info(
        "%s; %d models to make, disk %.2g of %.3g GiB free, memory %.2g of %.3g GiB free",
        *(status(folder), len(made), disk / gib, free / gib, memory / gib, free_memory / gib),
    )
    if disk > free:
        raise ConfigError(
            f"the study needs about {disk / gib:.1f} GiB of disk, but only {free / gib:.1f} GiB are free: choose "
            "another directory, set keep_models = false, or use fewer jobs."
        )
    if memory > free_memory:
        _LOG.warning("memory may run out: use fewer jobs, or set device_batch_size in [training]")


def run(
    plan: str | os.PathLike[str] | Mapping[str, Any] | StudyPlan,
    out: str | os.PathLike[str],
    *,
    jobs: int = 1,
    slurm: SlurmOptions | None = None,
    wait: bool = True,
    runner: Any = None,
) -> StudyStatus:
    """Make and measure the models in a plan that are not done yet.

    Each model is a part, which writes its values state by state. The call may be killed and repeated at any time, even
    with several processes in one directory: finished states are kept and never measured twice. A model that fails does
    not stop the others, and the next call retries it.

    Args:
        plan: What to make and measure (see `uds_lens.study.plan`).
        out: Directory of the study: parts, models, audits.
        jobs: Number of models to run at a time; 1 runs them in this process. On Slurm, number of tasks in the array,
            each of which gets a share of the models.
        slurm: Resources of each task in a Slurm array; None runs the models on this machine.
        wait: Whether to wait for the Slurm tasks; if False, return once they are submitted.
        runner: Object that makes and measures the models, in place of the default runner; cannot be used with several
            jobs or Slurm.

    Returns:
        Progress of the study; `failed` names the models that could not be measured, and why.

    Raises:
        ConfigError: The plan cannot be run, or the disk is too small.
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
    check_value("jobs", jobs, PositiveInt)
    if runner is not None and (jobs > 1 or slurm is not None):
        raise ConfigError("a custom runner works only in this process: use ", Setting("jobs", 1), ", without Slurm.")
    wanted = read_plan(plan)
    if runner is None:
        require_packages_of(wanted)
    folder = StudyFolder.begin(wanted, out)
    if (about := folder.keys.about_sample) is not None:
        if wanted.data.sample == "random":
            _LOG.info(about)
        else:
            warn_once(about)
    require_room(folder, jobs=jobs, bytes_of=getattr(runner, "bytes_of", weight_bytes))
    work, progress = StudyWork(folder, runner), lambda: str(status(folder))
    for model in folder.models:  # an earlier process may have been killed before it cleaned up
        work.tidy(model)
    names = [model.model_id for model in folder.left()]
    carry_out(work, names, place=folder.path, jobs=jobs, slurm=slurm, wait=wait, progress=progress)
    return status(folder)
