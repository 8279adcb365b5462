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
from subprocess import CalledProcessError
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from uds_lens._storage import atomic_directory, remove_inside, writing
from uds_lens._types import ChatStyleName
from uds_lens.errors import ResultFormatError, StorageError
from uds_lens.study._folder import PART, Part, Row, StudyFolder, as_number, located_source, read_record
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
    style_of,
    training_settings,
)
from uds_lens.unlearning import RelearnConfig

if TYPE_CHECKING:
    import pandas as pd

    from uds_lens.audit import Baseline
    from uds_lens.elicitation import ElicitationResults
    from uds_lens.metrics import MetricCache, MetricData
    from uds_lens.results import DepthAudit

_LOG = logging.getLogger("uds_lens.study")

DEATHS = 3  # workers that may die over one model in one run before it counts as failed

Weights = str | os.PathLike[str]  # a directory, or a Hub id


@dataclass(frozen=True)
class Measured:
    """Values of one model in one state."""

    rows: tuple[Row, ...]  # the values
    fingerprint: str  # fingerprint of the weights
    examples: pd.DataFrame | None = None  # values per example: `metric`, `example_id`, `value`


@runtime_checkable
class Runner(Protocol):
    """Makes, perturbs and measures the models of a plan, as `ModelRunner` does."""

    def make(self, model: StudyModel, place: Path) -> Weights:
        """Return the weights of a model: existing ones, or trained into `place`."""

    def perturb(self, model: StudyModel, state: StudyState, weights: Weights, scratch: Path) -> Weights:
        """Return the weights of a state; perturbed ones are written into `scratch`."""

    def measure(self, model: StudyModel, state: StudyState, weights: Weights, items: tuple[str, ...]) -> Measured:
        """Measure items of a model in a state."""

    def parent_of(self, weights: Weights) -> str | None:
        """Return the fingerprint of the model these weights were trained from, where their record names it."""


class ModelRunner:
    """Makes, perturbs and measures the models of a plan; what it measured of full and retain stays in memory."""

    def __init__(self, plan: StudyPlan, folder: Path) -> None:
        self.plan, self.folder = plan, folder
        self.full, self.retain = (located_source(place) for place in (plan.full, plan.retain))
        self.run, self.training = running_settings(plan), training_settings(plan)

    def make(self, model: StudyModel, place: Path) -> Weights:
        """Return the weights of a model: existing ones, or trained into `place`."""
        from uds_lens.unlearning import relearn, unlearn

        start = located_source(model.source)
        if model.config is None:
            return start
        forget, config = training_answers(model.forget), model.config
        if isinstance(config, RelearnConfig):
            return relearn(start, forget, out=place, config=config, options=self.training)
        retain = training_answers(model.retain) or None
        return unlearn(start, forget, retain, method=config, out=place, options=self.training)

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

    def measure(self, model: StudyModel, state: StudyState, weights: Weights, items: Sequence[str]) -> Measured:
        """Measure items of a model in a state: metrics, the audit, the elicitation."""
        import pandas as pd

        name, done = f"{model.model_id}--{state.label}", []
        if metrics := [item for item in items if item not in (AUDIT, ELICITATION)]:
            styles = {item: style_of(self.plan.measure, item, model.role, state.state) for item in metrics}
            for style in dict.fromkeys(styles.values()):
                done.append(self._metrics(weights, [item for item in metrics if styles[item] == style], style))
        if AUDIT in items:
            began = time.perf_counter()
            audit = self._baseline.audit(weights, options=self.run)
            audit.save(self.folder / "audits" / name)
            done.append(audit_values(audit, took=round(time.perf_counter() - began, 3)))
        if ELICITATION in items:
            done.append(self._elicitation(weights, name))
        frames = [part.examples for part in done if part.examples is not None and len(part.examples)]
        return Measured(
            rows=tuple(row for part in done for row in part.rows),
            fingerprint=done[0].fingerprint,
            examples=pd.concat(frames, ignore_index=True) if frames else None,
        )

    def parent_of(self, weights: Weights) -> str | None:
        """Return the fingerprint of the model these weights were trained from, where their record names it."""
        from uds_lens.unlearning import read_record

        try:
            return str(read_record(weights)["parent"]["fingerprint"])
        except (ResultFormatError, KeyError, TypeError) as error:
            _LOG.debug("%s names no parent (%s: %s)", weights, type(error).__name__, error)
            return None

    @cached_property
    def data(self) -> MetricData:
        """Questions of the metrics."""
        return read_questions(self.plan.data)

    @cached_property
    def _cache(self) -> MetricCache:
        from uds_lens.metrics import MetricCache

        return MetricCache()

    @cached_property
    def _baseline(self) -> Baseline:
        from uds_lens.audit import Baseline

        config = audit_settings(self.plan.measure)
        return self._with_sample(
            Baseline.measure(self.full, self.retain, self.data.with_entities, config=config, options=self.run)
        )

    def _with_sample(self, result: Any) -> Any:
        """Record in a result how its examples were sampled, as one with a limit does."""
        sample = self.data.sample
        if sample is None:
            return result
        of = sample["of"]["forget" if self.data.entities is None else "entities"]
        way = sample["sample"].removesuffix("_of_each")
        record = {**sample, "limit": len(self.data.with_entities), "of": of, "sample": way}
        return replace(result, provenance={**result.provenance, "sample": record})

    def _metrics(self, weights: Weights, metrics: list[str], style: ChatStyleName | None) -> Measured:
        from uds_lens.metrics import evaluate

        results = evaluate(
            weights,
            self.data,
            metrics=metrics,
            retain=self.retain,
            full=self.full,
            options=metric_settings(self.plan.measure, style),
            run=self.run,
            cache=self._cache,
        )
        rows = [
            Row(
                metric=name,
                value=as_number(results[name].value),
                reason=results[name].reason,
                n=results[name].n,
                seconds=round(results[name].cost.seconds, 3),
                item=name,
            )
            for name in metrics
        ]
        examples = results.examples_frame()
        examples = examples[examples["metric"].isin(metrics)]
        return Measured(tuple(rows), results.models["model"].fingerprint, examples)

    def _elicitation(self, weights: Weights, name: str) -> Measured:
        from uds_lens.elicitation import ElicitData, elicit

        chosen = elicitation_settings(self.plan.measure)
        assert chosen is not None
        began = time.perf_counter()
        results = elicit(
            weights,
            ElicitData(forget=self.data.with_entities, retain=self.data.retain),
            retain=self.retain,
            full=self.full,
            probes=chosen[0],
            options=chosen[1],
            run=self.run,
            out=self.folder / "elicitation",
        )
        results = self._with_sample(results)
        results.save(self.folder / "elicitations" / name)
        return elicitation_values(results, took=round(time.perf_counter() - began, 3))


def elicitation_values(results: ElicitationResults, *, took: float) -> Measured:
    """Return the numbers of an elicitation's summary; those of sampled texts have `sampled_mean` or `sampled_best`."""
    skipped = results.ledger().set_index("probe")["first_reason"].to_dict()
    rows = []
    for line in results.summary().to_dict("records"):
        probe, sampled = line["probe"], line["decoding"] != "greedy"
        name = f"elicitation.{probe}" + (f".{line['decoding']}_{line['statistic']}" if sampled else "")
        why = line["share_reason"] if line["n"] else f"asked of no row: {skipped.get(probe) or 'no text'}"
        why = why if isinstance(why, str) else "too few subjects, or too much alike"
        rows += [
            Row(
                metric=f"{name}.{column}",
                value=as_number(value),
                reason=None if value == value else why,
                n=line["n"],
                seconds=took,
                item=ELICITATION,
            )
            for column, value in line.items()
            if column not in ("n", "share_reason") and isinstance(value, int | float)
        ]
    return Measured(tuple(rows), results.models["unlearned"].fingerprint)


def audit_values(audit: DepthAudit, *, took: float) -> Measured:
    """Return the score of an audit with its interval and those of its examples."""
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
    ids = [example.id for example in audit.examples]
    examples = pd.DataFrame({"metric": "uds", "example_id": ids, "value": audit.uds_per_example.tolist()})
    return Measured(tuple(rows), audit.models["unlearned"].fingerprint, examples)


def unpacked_four_bit(weights: Weights, place: Path, *, offline: bool = False, revision: str | None = None) -> Path:
    """Quantise a model to NF4 and write it as a plain float32 checkpoint: references keep their dtype."""
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


def work(folder: StudyFolder, *, runner: Runner | None = None, wait: bool = True, poll: float = 1.0) -> None:
    """Make and measure what no other worker has claimed, until nothing is left."""
    while True:
        progress = busy = unsure = False
        for model in folder.models:
            name = model.model_id
            if not (states := _open_states(folder, model)):
                continue
            try:
                claim = folder.claims.take(name)
            except StorageError as error:  # a file is in its place
                for state in states:
                    _failed(folder, model, state, error)
                continue
            if claim is None:
                busy, unsure = True, unsure or not folder.claims.is_alive(name)
                continue
            with claim:
                if (deaths := folder.claims.deaths(name, folder.run)) >= DEATHS:
                    reason = f"{deaths} workers died on it: memory may be short. Use fewer --jobs, or smaller batches."
                    for state in _open_states(folder, model):
                        folder.write_failure(model, state, reason, "")
                    continue
                for state in _open_states(folder, model):
                    _rescore(folder, model, state)
                if _open_states(folder, model):
                    runner = runner or ModelRunner(folder.plan, folder.path)
                    _measure_model(folder, model, runner)
                    progress = True
        if not progress:
            if not busy or not (wait or unsure):
                return
            time.sleep(poll)


def _open_states(folder: StudyFolder, model: StudyModel) -> list[StudyState]:
    """List the states with missing items that did not fail in this run."""
    return [state for state in model.states if folder.missing(model, state) and not folder.has_failed(model, state)]


def _rescore(folder: StudyFolder, model: StudyModel, state: StudyState) -> None:
    """Score a saved audit with the settings of the plan, where only those differ that need no model."""
    audit, config = folder.saved_audit(model, state), audit_settings(folder.plan.measure)
    if audit is None or config is None:
        return
    prompts = audit.config.protocol if config.protocol == "auto" else config.protocol
    audit = replace(audit, config=replace(config, protocol=prompts))
    parent = next((part.parent for part in folder.parts(model, state)), None)
    keys = {AUDIT: folder.missing(model, state)[AUDIT]}
    _write(folder, model, state, keys, audit_values(audit, took=0.0), parent=parent, seconds={})
    audit.save(folder.audit_place(model, state))
    _LOG.info("%s, %s: scored the saved audit with this plan's settings", model.model_id, state.label)


def _measure_model(folder: StudyFolder, model: StudyModel, runner: Runner) -> None:
    """Measure what is left of one model; a state that fails does not stop the others."""
    place, scratch = folder.model_place(model), folder.scratch(model)
    began = time.perf_counter()
    try:
        weights = runner.make(model, place)
    except Exception as error:
        for state in _open_states(folder, model):
            _failed(folder, model, state, error)
        return
    took = {"making": round(time.perf_counter() - began, 3)}
    try:
        for state in _open_states(folder, model):
            try:
                _measure_state(folder, model, state, runner, weights, took)
            except Exception as error:
                _failed(folder, model, state, error)
            took = {"making": 0.0}
    finally:
        remove_inside(folder.path, scratch)
    left = any(folder.missing(model, state) for state in model.states)
    if model.is_made and not folder.plan.keep_models and not left:
        remove_inside(folder.path, place)


def _measure_state(
    folder: StudyFolder,
    model: StudyModel,
    state: StudyState,
    runner: Runner,
    weights: Weights,
    took: Mapping[str, float],
) -> None:
    missing, scratch = folder.missing(model, state), folder.scratch(model)
    began = time.perf_counter()
    try:
        perturbed = runner.perturb(model, state, weights, scratch)
        made = time.perf_counter()
        measured = runner.measure(model, state, perturbed, tuple(missing))
        parent = None
        if state.state == "quantised":
            before = folder.parts(model, StudyState("before"))
            parent = before[-1].fingerprint if before else None
        elif model.is_made or state.state != "before":
            parent = runner.parent_of(perturbed)
    finally:
        if state.state != "before":
            remove_inside(folder.path, scratch)
    times = {"perturbing": made - began, "measuring": time.perf_counter() - made}
    seconds = {**took, **{name: round(value, 3) for name, value in times.items()}}
    file = _write(folder, model, state, missing, measured, parent=parent, seconds=seconds)
    if read_record(file, PART, Part) is None or folder.missing(model, state):
        raise ResultFormatError(f"{file.name} cannot be read back after it was written: is the disk sound?")
    folder.clear_failure(model, state)
    _LOG.info("%s, %s: %d values in %.1f s", model.model_id, state.label, len(measured.rows), sum(seconds.values()))


def _write(
    folder: StudyFolder,
    model: StudyModel,
    state: StudyState,
    keys: Mapping[str, str],
    measured: Measured,
    *,
    parent: str | None,
    seconds: Mapping[str, float],
) -> Path:
    part = Part(
        model=model.model_id,
        state=state.label,
        keys=keys,
        rows=tuple(replace(row, reason=row.reason and _line(row.reason)) for row in measured.rows),
        fingerprint=measured.fingerprint,
        parent=parent,
        seconds=seconds,
        sample=folder.keys.questions.sample,
    )
    return folder.write_part(part, measured.examples)


def _failed(folder: StudyFolder, model: StudyModel, state: StudyState, error: Exception) -> None:
    if isinstance(error, CalledProcessError) and list(error.cmd)[:2] == ["scontrol", "requeue"]:
        raise error  # submitit's answer to a preemption, raised in whatever was running: no fault of the model
    reason = f"{type(error).__name__}: {_line(str(error)) or 'without a message'}"
    folder.write_failure(model, state, reason, "".join(traceback.format_exception(error)))
    _LOG.warning("%s (%s) failed: %s", model.model_id, state.label, reason)


def _line(text: str) -> str:
    return " ".join(text.split())
