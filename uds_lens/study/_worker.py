"""One worker: claims a model, makes it, measures its states, and continues until nothing is left."""

from __future__ import annotations

import logging
import os
import shutil
import time
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from uds_lens._storage import atomic_directory, writing
from uds_lens.errors import ResultFormatError
from uds_lens.study._folder import Part, Row, StudyFolder, as_number
from uds_lens.study._models import (
    AUDIT,
    ELICITATION,
    StudyModel,
    StudyState,
    read_questions,
    relearn_config,
    training_answers,
)
from uds_lens.study._plan import (
    StudyPlan,
    audit_settings,
    elicitation_settings,
    metric_settings,
    running_settings,
    training_settings,
)
from uds_lens.study._work_keys import digest, located_source

if TYPE_CHECKING:
    import pandas as pd

    from uds_lens.audit import Baseline
    from uds_lens.metrics import MetricData
    from uds_lens.results import DepthAudit

Weights = str | os.PathLike[str]
"""A directory, or a Hub id."""


@dataclass(frozen=True)
class Measured:
    """Values of one model in one state."""

    rows: tuple[Row, ...]
    """The values."""
    fingerprint: str
    """Of the weights."""
    examples: pd.DataFrame | None = None
    """Values per example: `metric`, `example_id`, `value`."""


class ModelRunner:
    """Makes, perturbs and measures the models of a plan; what it measured of full and retain stays in memory.

    Args:
        plan: The plan.
        folder: Where audits and elicitations are saved.
    """

    def __init__(self, plan: StudyPlan, folder: Path) -> None:
        self.plan, self.folder = plan, folder
        self.full, self.retain = (located_source(place) for place in (plan.full, plan.retain))
        self.run, self.training = running_settings(plan), training_settings(plan)

    def make(self, model: StudyModel, place: Path) -> Weights:
        """Return the weights of a model: where they are, or trained into `place` unless they are there."""
        from uds_lens.unlearning import RelearnConfig, relearn, unlearn

        start = located_source(model.source)
        if model.config is None:
            return start
        forget = training_answers(model.forget)
        if isinstance(model.config, RelearnConfig):
            return relearn(start, forget, out=place, config=model.config, options=self.training)
        retain = training_answers(model.retain) or None
        return unlearn(start, forget, retain, method=model.config, out=place, options=self.training)

    def perturb(self, model: StudyModel, state: StudyState, weights: Weights, scratch: Path) -> Weights:
        """Return the weights of a state; perturbed ones are written into `scratch`."""
        from uds_lens.unlearning import relearn

        if state.state == "before":
            return weights
        place = scratch / state.label
        if state.state == "quantised":
            return unpacked_four_bit(weights, place, offline=self.run.offline, revision=model.revision)
        config = relearn_config(self.plan, int(state.seed or 0))
        rows = training_answers(self.plan.train.forget)
        return relearn(weights, rows, out=place, config=config, options=self.training)

    def measure(
        self, model: StudyModel, state: StudyState, weights: Weights, items: Sequence[str]
    ) -> Measured:
        """Measure items of a model in a state: metrics, the audit, the elicitation."""
        import pandas as pd

        metrics = [item for item in items if item not in (AUDIT, ELICITATION)]
        found = [self._metrics(weights, metrics)] if metrics else []
        if AUDIT in items:
            found.append(self._audit(weights, f"{model.model_id}--{state.label}"))
        if ELICITATION in items:
            found.append(self._elicitation(weights, f"{model.model_id}--{state.label}"))
        frames = [each.examples for each in found if each.examples is not None and len(each.examples)]
        return Measured(
            rows=tuple(row for each in found for row in each.rows),
            fingerprint=found[0].fingerprint,
            examples=pd.concat(frames, ignore_index=True) if frames else None,
        )

    def parent_of(self, weights: Weights) -> str | None:
        """Fingerprint of the model these weights were trained from, if their record says so."""
        from uds_lens.unlearning import read_record

        try:
            return str(read_record(weights)["parent"]["fingerprint"])
        except (ResultFormatError, KeyError, TypeError) as error:
            _LOG.debug("%s tells no parent (%s: %s)", weights, type(error).__name__, error)
            return None

    @cached_property
    def data(self) -> MetricData:
        """Questions of the metrics."""
        from uds_lens.metrics import MetricData

        questions = read_questions(self.plan.data)
        sets: dict[str, Any] = {name: rows or () for name, rows in questions.sets.items()}
        return MetricData(**{**sets, "entities": questions.sets["entities"]}, sample=questions.sample)

    @cached_property
    def _cache(self) -> Any:
        from uds_lens.metrics import MetricCache

        return MetricCache()

    @cached_property
    def _baseline(self) -> Baseline:
        from uds_lens.audit import Baseline

        config = audit_settings(self.plan.measure)
        baseline = Baseline.measure(
            self.full, self.retain, self.data.with_entities, config=config, options=self.run
        )
        if self._sample is None:
            return baseline
        return replace(baseline, provenance={**baseline.provenance, "sample": self._sample})

    @property
    def _sample(self) -> dict[str, Any] | None:
        """How an audit's examples were chosen, as an audit with a limit of its own records it."""
        record = self.data.sample
        if record is None:
            return None
        of = record["of"]["forget" if self.data.entities is None else "entities"]
        way = record["sample"].removesuffix("_of_each")
        return {**record, "limit": len(self.data.with_entities), "of": of, "sample": way}

    def _metrics(self, weights: Weights, metrics: list[str]) -> Measured:
        from uds_lens.metrics import evaluate

        found = evaluate(
            weights,
            self.data,
            metrics=metrics,
            retain=self.retain,
            full=self.full,
            options=metric_settings(self.plan.measure),
            run=self.run,
            cache=self._cache,
        )
        rows = [
            Row(
                metric=name,
                value=as_number(found[name].value),
                reason=found[name].reason,
                n=found[name].n,
                seconds=round(found[name].cost.seconds, 3),
                item=name,
            )
            for name in metrics
        ]
        examples = found.examples_frame()
        return Measured(
            tuple(rows), found.models["model"].fingerprint, examples[examples["metric"].isin(metrics)]
        )

    def _audit(self, weights: Weights, name: str) -> Measured:
        began = time.perf_counter()
        audit = self._baseline.audit(weights, options=self.run)
        audit.save(self.folder / "audits" / name)
        return audit_values(audit, took=round(time.perf_counter() - began, 3))

    def _elicitation(self, weights: Weights, name: str) -> Measured:
        from uds_lens.elicitation import ElicitData, elicit

        chosen = elicitation_settings(self.plan.measure)
        assert chosen is not None
        began = time.perf_counter()
        found = elicit(
            weights,
            ElicitData(forget=self.data.with_entities, retain=self.data.retain),
            retain=self.retain,
            full=self.full,
            probes=chosen[0],
            options=chosen[1],
            run=self.run,
            out=self.folder / "elicitation",
        )
        if self._sample is not None:
            found = replace(found, provenance={**found.provenance, "sample": self._sample})
        found.save(self.folder / "elicitations" / name)
        took = round(time.perf_counter() - began, 3)
        rows = [
            Row(
                metric=f"elicitation.{line['probe']}.{column}",
                value=as_number(value),
                reason=None if as_number(value) == as_number(value) else "undefined for these answers",
                n=int(line.get("n", 0)),
                seconds=took,
                item=ELICITATION,
            )
            for line in found.summary().to_dict("records")
            for column, value in line.items()
            if column not in ("probe", "n") and isinstance(value, int | float)
        ]
        return Measured(tuple(rows), found.models["unlearned"].fingerprint)


def audit_values(audit: DepthAudit, *, took: float) -> Measured:
    """Return the score of an audit with its interval, and the scores of its examples."""
    import pandas as pd

    values = dict(zip(("uds", "uds_low", "uds_high"), (audit.uds, *audit.uds_interval), strict=True))
    rows = [
        Row(
            metric=metric,
            value=as_number(value),
            reason=None if value == value else "no example is measurable",
            n=audit.n_measured,
            seconds=took,
            item=AUDIT,
        )
        for metric, value in values.items()
    ]
    examples = pd.DataFrame(
        {
            "metric": "uds",
            "example_id": [example.id for example in audit.examples],
            "value": audit.uds_per_example.tolist(),
        }
    )
    return Measured(tuple(rows), audit.models["unlearned"].fingerprint, examples)


def unpacked_four_bit(
    weights: Weights, place: Path, *, offline: bool = False, revision: str | None = None
) -> Path:
    """Quantise a model to NF4 and write it as a plain float32 checkpoint: references keep their dtype.

    Args:
        weights: The model.
        place: Directory of the result.
        offline: Use only files already downloaded.
        revision: On the Hub.

    Returns:
        `place`.

    Raises:
        ModelError: The model cannot be opened, or is quantised already.
    """
    import torch

    from uds_lens.metrics._fisher import dequantised
    from uds_lens.models import open_model
    from uds_lens.models._checkpoint import load_tokenizer, load_weights, quiet_files
    from uds_lens.unlearning import quantise

    packed = place.with_name(f"{place.name}-packed")
    quantise(weights, out=packed, device="cpu", offline=offline, revision=revision)
    plain = load_weights(
        weights,
        dtype=torch.float32,
        device="cpu",
        device_map=None,
        revision=revision,
        offline=offline,
        trust_remote_code=False,
    )
    with open_model(packed, device="cpu") as model, torch.no_grad():
        values = dequantised(model).hf.state_dict()
        for name, parameter in plain.named_parameters():
            parameter.copy_(values[name])
    tokenizer = load_tokenizer(weights, revision=revision, offline=offline, trust_remote_code=False)
    with quiet_files(report=True), writing(place), atomic_directory(place) as folder:
        plain.save_pretrained(folder)
        if tokenizer is not None:
            tokenizer.save_pretrained(folder)
    shutil.rmtree(packed)
    return place


_LOG = logging.getLogger("uds_lens.study")

DEATHS = 3
"""Workers that may die over one model in one run before it counts as failed."""


@runtime_checkable
class Runner(Protocol):
    """Protocol of a `ModelRunner`."""

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
    runner: Runner | None = None,
    since: float,
    wait: bool = True,
    poll: float = 1.0,
    only: int | None = None,
) -> None:
    """Make and measure what no other worker has claimed, until nothing is left.

    Args:
        folder: The study.
        runner: Makes and measures the models; default `ModelRunner`.
        since: When this run began: failures from before it are tried again.
        wait: Stay while others work, to take over from who dies.
        poll: Seconds between checks of the others.
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
                if _died_too_often(folder, model, since):
                    continue
                for state in _open_states(folder, model, since):
                    _rescore(folder, model, state)
                if _open_states(folder, model, since):
                    runner = runner or ModelRunner(folder.plan, folder.path)
                    _measure_model(folder, model, runner, since)
                    progress, taken = True, taken + 1
            if only is not None and taken >= only:
                return
        if not progress:
            if not busy or not wait:
                return
            time.sleep(poll)


def _open_states(folder: StudyFolder, model: StudyModel, since: float) -> list[StudyState]:
    """List the states with something left that did not fail in this run."""
    return [
        state
        for state in model.states
        if folder.missing(model, state)
        and ((failure := folder.failure(model, state)) is None or failure.when < since)
    ]


def _died_too_often(folder: StudyFolder, model: StudyModel, since: float) -> bool:
    deaths = folder.claims.deaths(model.model_id, since)
    if deaths < DEATHS:
        return False
    for state in _open_states(folder, model, since):
        reason = (
            f"{deaths} workers died over it: memory may not suffice. Take fewer --jobs, or smaller batches."
        )
        folder.write_failure(model, state, reason, "")
    return True


def _measure_model(folder: StudyFolder, model: StudyModel, runner: Runner, since: float) -> None:
    """Measure what is left of one model; a state that fails does not stop the others."""
    place, scratch = folder.model_place(model), folder.scratch(model)
    began = time.perf_counter()
    try:
        weights = runner.make(model, place)
    except Exception as error:
        for state in _open_states(folder, model, since):
            _failed(folder, model, state, error)
        return
    took = {"making": round(time.perf_counter() - began, 3)}
    try:
        for state in _open_states(folder, model, since):
            try:
                _measure_state(folder, model, state, runner, weights, took)
            except Exception as error:
                _failed(folder, model, state, error)
            took = {"making": 0.0}
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    left = any(folder.missing(model, state) for state in model.states)
    if model.is_made and not folder.plan.keep_models and not left:
        shutil.rmtree(place, ignore_errors=True)


def _rescore(folder: StudyFolder, model: StudyModel, state: StudyState) -> None:
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


def _measure_state(
    folder: StudyFolder,
    model: StudyModel,
    state: StudyState,
    runner: Runner,
    weights: Weights,
    took: Mapping[str, float],
) -> None:
    missing = folder.missing(model, state)
    scratch = folder.scratch(model)
    began = time.perf_counter()
    try:
        perturbed = runner.perturb(model, state, weights, scratch)
        made = time.perf_counter()
        found = runner.measure(model, state, perturbed, tuple(missing))
        parent = _parent(folder, model, state, runner, perturbed)
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
        sample=folder.keys.questions.sample,
    )
    file = folder.write_part(part, found.examples)
    if folder.read_part(file) is None or folder.missing(model, state):
        raise ResultFormatError(f"{file.name} cannot be read again after it was written: is the disk sound?")
    folder.clear_failure(model, state)
    _LOG.info(
        "%s, %s: %d values in %.1f s", model.model_id, state.label, len(part.rows), sum(part.seconds.values())
    )


def _parent(
    folder: StudyFolder, model: StudyModel, state: StudyState, runner: Runner, weights: Weights
) -> str | None:
    if state.state == "quantised":
        before = folder.parts(model, StudyState("before"))
        return before[-1].fingerprint if before else None
    return runner.parent_of(weights) if model.is_made or state.state != "before" else None


def _failed(folder: StudyFolder, model: StudyModel, state: StudyState, error: Exception) -> None:
    reason = f"{type(error).__name__}: {_line(str(error)) or 'without a message'}"
    folder.write_failure(model, state, reason, traceback.format_exc())
    _LOG.warning("%s, %s failed: %s", model.model_id, state.label, reason)


def _line(text: str | None) -> str | None:
    return None if text is None else " ".join(text.split())
