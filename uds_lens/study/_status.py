"""Progress of a study: done, running, failed with reasons, left, and the time left; and the estimate before it."""

from __future__ import annotations

import logging
import math
import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

from uds_lens.data import ForgetExample
from uds_lens.errors import ConfigError
from uds_lens.metrics._catalogue import resolve
from uds_lens.study._folder import StudyFolder, folders_of, located_source
from uds_lens.study._models import AUDIT, ELICITATION, StudyModel, StudyState, relearn_config, training_answers
from uds_lens.study._plan import TrainingRows, elicitation_settings, metric_settings

if TYPE_CHECKING:
    from uds_lens.metrics import MetricData
    from uds_lens.metrics._declaration import Pass

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
        sample=folder.keys.about_sample,
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


_CUDA_RATE = 2e13  # multiply-adds per second, guessed, where the GPU is not at hand to be timed

_SMALL = 1.5e7
"""Weights of a model that keeps a CPU busy with products half of the time; larger ones come near the rate of plain
products. Measured on one core with 3.9 and 135 million weights."""

_TRAINING_COPIES = 4  # weights, gradients and the two averages of AdamW, each in float32; activations come on top

_PASSES = {
    "patched": 2.5,
    "lens": 1.0,
    "transplanted": 22.0,
    "fisher_spill": 3.0,
    "fisher_masks": 3.0,
    "fisher_sums": 3.0,
}
"""Forward passes over its texts that a pass takes, by kind; 1 for others. `patched` runs `full` too."""

_AUDIT_PASSES = 4  # `full`, the unlearned model and its patched variants, with whatever control there is


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
        how = "at the speed so far" if self.from_experience else "within a factor of three"
        time = "time unknown" if math.isnan(self.seconds) else f"about {duration(self.seconds)} ({how})"
        return (
            f"{self.measurements} measurements, {self.models_to_make} models to make: {time}, "
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
    known = so_far.done > 0
    seconds = so_far.seconds_left * max(1, len(so_far.running)) if known else _guessed_seconds(folder, left, sizes)
    return StudyEstimate(
        models_to_make=len(made),
        measurements=so_far.left + len(so_far.failed),
        disk_bytes=kept + jobs * (perturbed + training),
        disk_free=free_bytes(folder.path),
        memory_bytes=jobs * largest * (_TRAINING_COPIES + 1 if training else 2) if left else 0,
        memory_free=int(psutil.virtual_memory().available),
        seconds=seconds / jobs,
        from_experience=known,
    )


def free_bytes(place: Path) -> int:
    """Return the free space of the disk on which a place is, or will be."""
    while not place.exists():
        place = place.parent
    return shutil.disk_usage(place).free


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
    """Seconds of one worker, from parameters and the tokens of each pass; passes over references are left out."""
    from uds_lens.elicitation._run import chosen_probes

    plan = folder.plan
    options, asked = metric_settings(plan.measure), elicitation_settings(plan.measure)
    data = folder.keys.questions
    facts = data.entities or data.forget
    by_items: dict[frozenset[str], float] = {}

    def tokens_of(items: frozenset[str]) -> float:
        """Tokens that a model reads and writes for some items."""
        specs = resolve(items - {AUDIT, ELICITATION} or ["prob"], options=options)
        passes = {each for spec in specs for each in spec.passes if "model" in (each.role, each.what)}
        total = sum(_PASSES.get(p.kind, 1.0) * _tokens_of(p, data, facts, options.max_new_tokens) for p in passes)
        if AUDIT in items:
            total += _AUDIT_PASSES * sum(map(_tokens, facts))
        if ELICITATION in items and asked is not None:
            n_probes, (_, ways) = len(chosen_probes(asked[0])), asked
            texts = sum(ways.samples if way == "sampled" else 1 for way in ways.decodings)
            total += n_probes * texts * sum(2 * _tokens(row) + ways.max_new_tokens for row in data.forget)
        return total

    lengths = {parts: _length(parts) for model in models for parts in (model.forget, model.retain)}
    relearned = relearn_config(plan, 0).epochs * _length(plan.train.forget) if plan.perturb.relearn else 0.0
    rate_of, seconds = _multiplications(str(plan.running.get("device", "auto"))), 0.0
    for model in models:
        weights = sizes[model.source] / 4
        if not weights:
            return math.nan
        rate = rate_of(weights)
        if model.config is not None:
            forget, retain = lengths[model.forget], lengths[model.retain]
            seconds += 3 * weights * (forget + min(forget, retain)) * model.config.epochs / rate
        for state in model.states:
            if not (items := frozenset(folder.missing(model, state))):
                continue
            if items not in by_items:
                by_items[items] = tokens_of(items)
            trained = 3 * relearned * (state.state == "relearned")
            seconds += weights * (trained + by_items[items]) / rate + 0.5
    return seconds


def _tokens_of(measured: Pass, data: MetricData, facts: Sequence[ForgetExample], max_new_tokens: int) -> float:
    """Tokens of the texts that a pass runs over."""
    name, _, answers = measured.set_name.partition("/")
    rows = facts if name == "entities" else data.examples(name)
    if measured.kind == "generations":
        return sum(_tokens(row) + max_new_tokens for row in rows)
    others = [getattr(row, f"{answers}_answers", ()) if answers else (row.answer,) for row in rows]
    return sum(_tokens(row) * len(texts) for row, texts in zip(rows, others, strict=True))


def _multiplications(device: str) -> Callable[[float], float]:
    """Return a function from a model's weights to the multiply-adds per second of its passes; times one product."""
    import torch

    from uds_lens.models import pick_device
    from uds_lens.patching._costs import product_rate

    if device.startswith("cuda") and not torch.cuda.is_available():
        return lambda weights: _CUDA_RATE
    device = pick_device(device)
    rate, small = product_rate("float32", device) / 2, _SMALL if device == "cpu" else 0.0
    return lambda weights: rate * weights / (weights + small)


def _length(parts: tuple[TrainingRows, ...]) -> float:
    """Tokens to train on."""
    return sum(map(_tokens, training_answers(parts)))


def _tokens(row: ForgetExample) -> float:
    return 8 + len(row.question + row.answer) / 4
