"""One worker: takes a model that nobody else has, makes it, measures its states, and goes on until nothing is left."""

from __future__ import annotations

import logging
import shutil
import time
import traceback
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Protocol, runtime_checkable

from uds_lens.errors import ResultFormatError
from uds_lens.study.measurement_settings import audit_settings
from uds_lens.study.study_folder import Part, StudyFolder
from uds_lens.study.study_models import AUDIT, StudyModel, StudyState
from uds_lens.study.work_keys import digest
from uds_lens.study.workshop import Measured, Weights, Workshop, audit_values

_LOG = logging.getLogger("uds_lens.study")

DEATHS = 3
"""Workers that may die over one model in one run before it counts as failed."""


@runtime_checkable
class Maker(Protocol):
    """What a worker needs of a `Workshop`."""

    def make(self, model: StudyModel, place: Path) -> Weights:
        """The weights of a model."""

    def perturb(self, model: StudyModel, state: StudyState, weights: Weights, scratch: Path) -> Weights:
        """The weights of a state."""

    def measure(
        self, model: StudyModel, state: StudyState, weights: Weights, items: tuple[str, ...]
    ) -> Measured:
        """The values."""

    def parent_of(self, weights: Weights) -> str | None:
        """Fingerprint of the parent."""


def work(
    folder: StudyFolder,
    *,
    workshop: Maker | None = None,
    since: float,
    wait: bool = True,
    poll: float = 1.0,
    only: int | None = None,
) -> None:
    """Do what nobody else does, until nothing is left.

    Args:
        folder: The study.
        workshop: What makes and measures; default `Workshop`.
        since: When this run began: failures from before it are tried again.
        wait: Stay while others work, to take over from who dies.
        poll: Seconds between looks at the others.
        only: Stop after this many models.
    """
    taken = 0
    while only is None or taken < only:
        progress = busy = False
        for model in folder.models:
            if not _open_states(folder, model, since):
                continue
            claim = folder.claims.take(model.model_id)
            if claim is None:
                busy = True
                continue
            with claim:
                if _gave_up(folder, model, since):
                    continue
                for state in _open_states(folder, model, since):
                    _score_again(folder, model, state)
                if _open_states(folder, model, since):
                    workshop = workshop or Workshop(folder.plan, folder.path)
                    _do(folder, model, workshop, since)
                    progress, taken = True, taken + 1
            if only is not None and taken >= only:
                return
        if not progress:
            if not busy or not wait:
                return
            time.sleep(poll)


def _open_states(folder: StudyFolder, model: StudyModel, since: float) -> list[StudyState]:
    """States with something left that did not fail in this run."""
    return [
        state
        for state in model.states
        if folder.missing(model, state)
        and ((failure := folder.failure(model, state)) is None or failure.when < since)
    ]


def _gave_up(folder: StudyFolder, model: StudyModel, since: float) -> bool:
    deaths = folder.claims.deaths(model.model_id, since)
    if deaths < DEATHS:
        return False
    for state in _open_states(folder, model, since):
        reason = (
            f"{deaths} workers died over it: memory may not suffice. Take fewer --jobs, or smaller batches."
        )
        folder.write_failure(model, state, reason, "")
    return True


def _do(folder: StudyFolder, model: StudyModel, workshop: Maker, since: float) -> None:
    """Everything that is left of one model; a state that fails does not stop the others."""
    place, scratch = folder.model_place(model), folder.scratch(model)
    began = time.perf_counter()
    try:
        weights = workshop.make(model, place)
    except Exception as error:
        for state in _open_states(folder, model, since):
            _failed(folder, model, state, error)
        return
    took = {"making": round(time.perf_counter() - began, 3)}
    try:
        for state in _open_states(folder, model, since):
            try:
                _measure(folder, model, state, workshop, weights, took)
            except Exception as error:
                _failed(folder, model, state, error)
            took = {"making": 0.0}
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    left = any(folder.missing(model, state) for state in model.states)
    if model.is_made and not folder.plan.keep_models and not left:
        shutil.rmtree(place, ignore_errors=True)


def _score_again(folder: StudyFolder, model: StudyModel, state: StudyState) -> None:
    """Score a saved audit with the settings of the plan, where only those differ that need no model."""
    audit, config = folder.saved_audit(model, state), audit_settings(folder.plan.measure)
    if audit is None or config is None:
        return
    audit = replace(audit, config=config)
    keys = {AUDIT: folder.missing(model, state)[AUDIT]}
    found = audit_values(audit, took=0.0)
    name = f"{model.model_id}--{state.label}--{digest(keys)[:12]}"
    part = Part(
        model=model.model_id,
        state=state.label,
        keys=keys,
        rows=found.rows,
        fingerprint=found.fingerprint,
        parent=next((part.parent for part in folder.parts(model, state)), None),
        seconds={},
        examples=f"examples/{name}.parquet",
    )
    folder.write_part(part, found.examples)
    audit.save(folder.audit_place(model, state))
    _LOG.info("%s, %s: the saved audit is scored with the settings of this plan", model.model_id, state.label)


def _measure(
    folder: StudyFolder,
    model: StudyModel,
    state: StudyState,
    workshop: Maker,
    weights: Weights,
    took: Mapping[str, float],
) -> None:
    missing = folder.missing(model, state)
    scratch = folder.scratch(model)
    began = time.perf_counter()
    try:
        perturbed = workshop.perturb(model, state, weights, scratch)
        made = time.perf_counter()
        found = workshop.measure(model, state, perturbed, tuple(missing))
        parent = _parent(folder, model, state, workshop, perturbed)
    finally:
        if state.state != "before":
            shutil.rmtree(scratch, ignore_errors=True)
    name = f"{model.model_id}--{state.label}--{digest(missing)[:12]}"
    part = Part(
        model=model.model_id,
        state=state.label,
        keys=missing,
        rows=tuple(replace(row, reason=_line(row.reason)) for row in found.rows),
        fingerprint=found.fingerprint,
        parent=parent,
        seconds={
            **took,
            "perturbing": round(made - began, 3),
            "measuring": round(time.perf_counter() - made, 3),
        },
        examples=None if found.examples is None else f"examples/{name}.parquet",
        sample=folder.keys.asked.sample,
    )
    file = folder.write_part(part, found.examples)
    if folder.read_part(file) is None or folder.missing(model, state):
        raise ResultFormatError(f"{file.name} cannot be read again after it was written: is the disk sound?")
    folder.forgive(model, state)
    _LOG.info(
        "%s, %s: %d values in %.1f s", model.model_id, state.label, len(part.rows), sum(part.seconds.values())
    )


def _parent(
    folder: StudyFolder, model: StudyModel, state: StudyState, workshop: Maker, weights: Weights
) -> str | None:
    if state.state == "quantised":
        before = folder.parts(model, StudyState("before"))
        return before[-1].fingerprint if before else None
    return workshop.parent_of(weights) if model.is_made or state.state != "before" else None


def _failed(folder: StudyFolder, model: StudyModel, state: StudyState, error: Exception) -> None:
    reason = f"{type(error).__name__}: {_line(str(error)) or 'without a message'}"
    folder.write_failure(model, state, reason, traceback.format_exc())
    _LOG.warning("%s, %s failed: %s", model.model_id, state.label, reason)


def _line(text: str | None) -> str | None:
    return None if text is None else " ".join(text.split())
