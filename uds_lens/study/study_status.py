"""How far a study is: done, running, failed with reasons, left, and the time left."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

from uds_lens.checked_arguments import arguments_checked
from uds_lens.study.study_folder import StudyFolder
from uds_lens.study.study_models import StudyModel, StudyState


@dataclass(frozen=True, kw_only=True)
class StateFailure:
    """A model that could not be measured in a state."""

    model: str
    """Its name."""
    state: str
    """Label of the state."""
    reason: str
    """Why."""


@dataclass(frozen=True, kw_only=True)
class StudyStatus:
    """Counts are of models in states."""

    total: int
    """All of the plan."""
    done: int
    """Measured."""
    running: tuple[str, ...]
    """Models somebody works on now."""
    failed: tuple[StateFailure, ...]
    """Tried without success."""
    left: int
    """Neither done nor failed; those that run included."""
    seconds_left: float
    """Until all is done at the speed so far; NaN until something was measured."""
    seconds_spent: float
    """Work of all workers so far."""
    sample: str | None = None
    """Which questions are asked, in words, with a caution for the first rows of sorted files; None where all are."""

    @property
    def is_complete(self) -> bool:
        """Whether everything was measured."""
        return self.done == self.total

    def to_dict(self) -> dict[str, Any]:
        """Everything as plain values."""
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
            parts.append(f"about {told_time(self.seconds_left)} to go")
        return ", ".join(parts)


@arguments_checked
def status(out: str | os.PathLike[str] | StudyFolder) -> StudyStatus:
    """How far a study is; may be asked at any time, by anybody who can read the directory.

    Args:
        out: Directory of the study.

    Returns:
        Counts, failures, the time left.

    Raises:
        ResultFormatError: There is no study, or it is broken.
    """
    folder = out if isinstance(out, StudyFolder) else StudyFolder(out)
    done, left, failed, running = [], [], [], []
    for model in folder.models:
        holder = folder.claims.holder(model.model_id)
        open_states = 0
        for state in model.states:
            if not folder.missing(model, state):
                done.append((model, state))
                continue
            failure = folder.failure(model, state)
            again = failure is not None and holder is not None and failure.when < holder.since
            if failure is None or again:
                left.append((model, state))
                open_states += 1
            else:
                failed.append(StateFailure(model=model.model_id, state=state.label, reason=failure.reason))
        if holder is not None and open_states:
            running.append(model.model_id)
    spent = {kind: _seconds(folder, _of(done, kind)) for kind in ("before", "quantised", "relearned")}
    return StudyStatus(
        total=sum(len(model.states) for model in folder.models),
        done=len(done),
        running=tuple(running),
        failed=tuple(failed),
        left=len(left),
        seconds_left=_left(spent, left) / max(1, len(running)),
        seconds_spent=sum(sum(each) for each in spent.values()),
        sample=folder.keys.asked.about,
    )


def told_time(seconds: float) -> str:
    """A duration in words.

    >>> told_time(42), told_time(600), told_time(9000)
    ('42 s', '10 min', '2.5 h')
    """
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 6000 else f"{seconds / 3600:.1f} h"


def _of(done: Iterable[tuple[StudyModel, StudyState]], kind: str) -> list[tuple[StudyModel, StudyState]]:
    return [(model, state) for model, state in done if state.state == kind]


def _seconds(folder: StudyFolder, done: Iterable[tuple[StudyModel, StudyState]]) -> list[float]:
    return [sum(part.seconds.values()) for model, state in done for part in folder.parts(model, state)[-1:]]


def _left(spent: dict[str, list[float]], left: list[tuple[StudyModel, StudyState]]) -> float:
    """Mean seconds of the same kind of state, or of all kinds where that was not measured yet."""
    everything = [seconds for each in spent.values() for seconds in each]
    if not everything:
        return math.nan if left else 0.0
    overall = sum(everything) / len(everything)
    means = {kind: sum(each) / len(each) if each else overall for kind, each in spent.items()}
    return sum(means[state.state] for _, state in left)
