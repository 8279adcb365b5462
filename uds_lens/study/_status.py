"""Progress of a study: done, running, failed with reasons, left, and the time left; and the estimate before it."""

from __future__ import annotations

import logging
import math
import os
import shutil
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from uds_lens.errors import ConfigError
from uds_lens.study._folder import StudyFolder, folders_of, located_source
from uds_lens.study._models import AUDIT, ELICITATION, StudyModel, StudyState, training_answers
from uds_lens.study._plan import TrainingRows, metric_settings

_LOG = logging.getLogger("uds_lens.study")


@dataclass(frozen=True, kw_only=True)
class StateFailure:
    """A model that could not be measured in a state."""

    model: str
    """Its name."""
    state: str
    """Label of the state."""
    reason: str
    """The error, in a line."""


@dataclass(frozen=True, kw_only=True)
class StudyStatus:
    """Counts of models in states."""

    total: int
    """All of the plan."""
    done: int
    """Measured."""
    running: tuple[str, ...]
    """Models that a worker holds now."""
    failed: tuple[StateFailure, ...]
    """Tried without success."""
    left: int
    """Neither done nor failed; running ones included."""
    seconds_left: float
    """Until all is done at the speed so far; NaN until something was measured."""
    seconds_spent: float
    """Work of all workers so far."""
    sample: str | None = None
    """How the questions were sampled, with a caution for first rows of sorted files; None where all are asked."""

    @property
    def is_complete(self) -> bool:
        """Whether everything was measured."""
        return self.done == self.total

    def to_dict(self) -> dict[str, Any]:
        """Return everything as plain values."""
        return asdict(self)

    def __str__(self) -> str:
        parts = [f"{self.done} of {self.total} done"]
        if self.running:
            parts.append(f"{len(self.running)} running ({', '.join(self.running[:3])})")
        if self.failed:
            parts.append(f"{len(self.failed)} failed")
        if self.left:
            parts.append(f"{self.left} left")
        if self.left and not math.isnan(self.seconds_left):
            parts.append(f"about {duration(self.seconds_left)} to go")
        return ", ".join(parts)


def status(out: str | os.PathLike[str] | StudyFolder) -> StudyStatus:
    """Report the progress of a study, at any time, to anybody who can read the directory.

    Args:
        out: Directory of the study.

    Returns:
        Counts, failures, the time left.

    Raises:
        ResultFormatError: There is no study, or it is broken.
    """
    folder = out if isinstance(out, StudyFolder) else StudyFolder(out)
    running, failed, left = [], [], []
    spent: dict[str, list[float]] = {"before": [], "quantised": [], "relearned": []}
    for model in folder.models:
        holder = folder.claims.holder(model.model_id)
        waiting = []
        for state in model.states:
            if not folder.missing(model, state):
                seconds = [sum(part.seconds.values()) for part in folder.parts(model, state)[-1:]]
                spent[state.state].append(sum(seconds))
                continue
            failure = folder.failure(model, state)
            if failure is None or (holder is not None and failure.run != holder.run):
                waiting.append((model, state))
            else:
                failed.append(StateFailure(model=model.model_id, state=state.label, reason=failure.reason))
        if holder is not None and waiting:
            running.append(model.model_id)
        left += waiting
    return StudyStatus(
        total=sum(len(model.states) for model in folder.models),
        done=sum(map(len, spent.values())),
        running=tuple(running),
        failed=tuple(failed),
        left=len(left),
        seconds_left=_seconds_left(spent, left) / max(1, len(running)),
        seconds_spent=sum(sum(seconds) for seconds in spent.values()),
        sample=folder.keys.questions.about,
    )


def duration(seconds: float) -> str:
    """Return a duration in words.

    >>> duration(42), duration(600), duration(9000)
    ('42 s', '10 min', '2.5 h')
    """
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 6000 else f"{seconds / 3600:.1f} h"


def _seconds_left(spent: dict[str, list[float]], left: list[tuple[StudyModel, StudyState]]) -> float:
    """Mean seconds of the same kind of state, or of all kinds where that was not measured yet."""
    everything = [seconds for times in spent.values() for seconds in times]
    if not everything:
        return math.nan if left else 0.0
    return sum(fmean(spent[state.state] or everything) for _, state in left)


_RATE = {"cpu": 1.2e10, "cuda": 2e13}
"""Multiplications and additions in a second, by device; measured on one busy CPU core (a model of 3.9 million
parameters, training and scoring), guessed for the other."""

_TRAINING_COPIES = 4  # weights, gradients and the two averages of AdamW, each in float32; activations come on top

_PASSES = {"uds": 6, "logit_lens": 2, "cka": 1, "fisher": 3, "rouge": 1}
"""Forward passes over the data that metrics take beyond one that all share, by part of their names."""


@dataclass(frozen=True, kw_only=True)
class StudyEstimate:
    """Rough cost of what is left to do."""

    models_to_make: int
    """Models to train here."""

    measurements: int
    """Models in states still to be measured."""

    disk_bytes: int
    """Most new files at one time."""

    disk_free: int
    """Free disk space."""

    memory_bytes: int
    """Memory of all workers together."""

    memory_free: int
    """Free memory of the machine."""

    seconds: float
    """With the given number of workers; within a factor of three, NaN where a model's size is unknown."""

    from_experience: bool
    """Whether the time comes from what this study has measured already."""

    def __str__(self) -> str:
        gib = 1 << 30
        time = "unknown time" if math.isnan(self.seconds) else f"about {duration(self.seconds)}"
        how = "at the speed so far" if self.from_experience else "within a factor of three"
        return (
            f"{self.measurements} measurements, {self.models_to_make} models to make: {time} ({how}), "
            f"disk {self.disk_bytes / gib:.2g} of {self.disk_free / gib:.3g} GiB free, "
            f"memory {self.memory_bytes / gib:.2g} of {self.memory_free / gib:.3g} GiB free"
        )


def estimate(folder: StudyFolder, *, jobs: int = 1, bytes_of: Callable[[str], int] | None = None) -> StudyEstimate:
    """Estimate models, measurements, disk, memory and time of what is left, for a number of workers."""
    import psutil

    keep, so_far = folder.plan.keep_models, status(folder)
    left = [model for model in folder.models if any(folder.missing(model, state) for state in model.states)]
    made = [model for model in left if model.is_made and not folder.model_place(model).is_dir()]
    sizes = {source: (bytes_of or weight_bytes)(source) for source in {model.source for model in folder.models}}
    largest = max((sizes[model.source] for model in left), default=0)
    perturbed = 2 * largest if any(len(model.states) > 1 for model in left) else 0
    training = 3 * largest if made or perturbed else 0
    kept = sum(sizes[model.source] for model in made) if keep else (jobs * largest if made else 0)
    near = folder.path
    while not near.exists():
        near = near.parent
    known = so_far.done > 0
    seconds = so_far.seconds_left * max(1, len(so_far.running)) if known else _guessed_seconds(folder, left, sizes)
    return StudyEstimate(
        models_to_make=len(made),
        measurements=so_far.left + len(so_far.failed),
        disk_bytes=kept + jobs * (perturbed + training),
        disk_free=shutil.disk_usage(near).free,
        memory_bytes=jobs * largest * (_TRAINING_COPIES + 1 if training else 2) if left else 0,
        memory_free=int(psutil.virtual_memory().available),
        seconds=seconds / jobs,
        from_experience=known,
    )


def require_room(needed: StudyEstimate) -> None:
    """Log the estimate; refuse what the disk cannot hold, warn where memory may be short."""
    _LOG.info("%s", needed)
    if needed.disk_bytes > needed.disk_free:
        gib = 1 << 30
        raise ConfigError(
            f"the study needs about {needed.disk_bytes / gib:.1f} GiB of disk, {needed.disk_free / gib:.1f} are free: "
            "choose another place, set keep_models = false, or use fewer jobs."
        )
    if needed.memory_bytes > needed.memory_free:
        _LOG.warning("memory may be short: use fewer jobs, or set device_batch_size in [training]")


def weight_bytes(place: str) -> int:
    """Size of a checkpoint's weights; 0 where it is not on this machine."""
    source = located_source(place)
    places = folders_of(source) if isinstance(source, Path) else []
    files = [file for place in places if place.exists() for file in (place.iterdir() if place.is_dir() else [place])]
    return sum(file.stat().st_size for file in files if file.suffix in (".safetensors", ".bin", ".gguf"))


def _guessed_seconds(folder: StudyFolder, models: list[StudyModel], sizes: Mapping[str, int]) -> float:
    """Seconds of one worker, from parameters and tokens."""
    import torch

    plan = folder.plan
    device = str(plan.running.get("device", "auto"))
    on_gpu = device.startswith("cuda") or (device == "auto" and torch.cuda.is_available())
    rate = _RATE["cuda" if on_gpu else "cpu"]
    questions = [row for rows in folder.keys.questions.sets.values() for row in rows or ()]
    tokens = sum(_tokens(row.question + row.answer) for row in questions)
    written = metric_settings(plan.measure).max_new_tokens * len(questions) / 4
    lengths = {parts: _length(parts) for model in models for parts in (model.forget, model.retain)}
    relearned = _length(plan.train.forget)
    seconds = 0.0
    for model in models:
        weights = sizes[model.source] / 4
        if not weights:
            return math.nan
        if model.config is not None:
            forget, retain = lengths[model.forget], lengths[model.retain]
            seconds += 3 * weights * (forget + min(forget, retain)) * model.config.epochs / rate
        for state in model.states:
            if not (items := folder.missing(model, state)):
                continue
            if state.state == "relearned":
                seconds += 3 * weights * relearned / rate
            passes = 1 + sum(n for item in items for part, n in _PASSES.items() if part in item)
            passes += 8 * (AUDIT in items) + 40 * (ELICITATION in items)
            texts = sum("rouge" in item for item in items)
            seconds += weights * (passes * tokens + texts * written) / rate + 0.5
    return seconds


def _length(parts: tuple[TrainingRows, ...]) -> float:
    """Tokens to train on."""
    return sum(_tokens(row.question + row.answer) for row in training_answers(parts))


def _tokens(text: str) -> float:
    return 8 + len(text) / 4
