"""The parts of a study: each part makes a model, measures it in all states, and writes the values."""

from __future__ import annotations

import logging
import os
import shutil
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

import pandas as pd
import torch

from uds_lens._storage.files import atomic_directory, remove_inside, writing
from uds_lens._types import ChatStyleName
from uds_lens.audit import Baseline
from uds_lens.elicitation import ElicitationResults, ElicitData, elicit
from uds_lens.errors import ResultFormatError
from uds_lens.metrics import MetricCache, MetricData, evaluate
from uds_lens.metrics._fisher import dequantised
from uds_lens.models import open_model
from uds_lens.models._checkpoint import load_tokenizer, load_weights, quiet_files
from uds_lens.results import DepthAudit
from uds_lens.study._folder import Part, Row, StudyFolder, as_number
from uds_lens.study._keys import located_source
from uds_lens.study._models import (
    AUDIT,
    ELICITATION,
    StudyModel,
    StudyState,
    read_questions,
    relearn_config,
    training_answers,
)
from uds_lens.study._parts import one_line, told
from uds_lens.study._plan import (
    StudyPlan,
    audit_settings,
    elicitation_settings,
    metric_settings,
    running_settings,
    style_of,
    training_settings,
)
from uds_lens.unlearning import RelearnConfig, quantise, read_record, relearn, unlearn

_LOG = logging.getLogger("uds_lens.study")

Weights = str | os.PathLike[str]  # a directory, or a Hub id


@dataclass(frozen=True)
class Measured:
    """Values of one model in one state."""

    rows: tuple[Row, ...]  # the values
    fingerprint: str  # fingerprint of the weights
    examples: pd.DataFrame | None = None  # values per example: `metric`, `example_id`, `value`


class ModelRunner:
    """Makes, perturbs and measures the models in a plan; measurements of full and retain stay in memory."""

    def __init__(self, plan: StudyPlan, folder: Path) -> None:
        self.plan, self.folder = plan, folder
        self.full, self.retain = (located_source(place) for place in (plan.full, plan.retain))
        self.run, self.training = running_settings(plan), training_settings(plan)

    def make(self, model: StudyModel, place: Path) -> Weights:
        """Return the weights of a model: existing weights, or weights trained into `place`."""
        start = located_source(model.source)
        if model.config is None:
            return start
        forget, config = training_answers(model.forget), model.config
        if isinstance(config, RelearnConfig):
            return relearn(start, forget, out=place, config=config, options=self.training)
        retain = training_answers(model.retain) or None
        return unlearn(start, forget, retain, method=config, out=place, options=self.training)

    def perturb(self, model: StudyModel, state: StudyState, weights: Weights, scratch: Path) -> Weights:
        """Return the weights of a state; perturbed weights are written to `scratch`."""
        if state.state == "before":
            return weights
        place = scratch / state.label
        if state.state == "quantised":
            return unpacked_four_bit(weights, place, offline=self.run.offline, revision=model.revision)
        config = relearn_config(self.plan, int(state.seed or 0))
        rows = training_answers(self.plan.train.forget)
        return relearn(weights, rows, out=place, config=config, options=self.training)

    def measure(self, model: StudyModel, state: StudyState, weights: Weights, items: Sequence[str]) -> Measured:
        """Measure a model's items in a state: metrics, the audit, the elicitation."""
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
        """Return the fingerprint of the model these weights were trained from, if their record names that model."""
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
        return MetricCache()

    @cached_property
    def _baseline(self) -> Baseline:
        config = audit_settings(self.plan.measure)
        return self._with_sample(
            Baseline.measure(self.full, self.retain, self.data.with_entities, config=config, options=self.run)
        )

    def _with_sample(self, result: Any) -> Any:
        """Record in a result how its examples were sampled, in the form that an audit with a `limit` uses."""
        sample = self.data.sample
        if sample is None:
            return result
        of = sample["of"]["forget" if self.data.entities is None else "entities"]
        way = sample["sample"].removesuffix("_of_each")
        record = {**sample, "limit": len(self.data.with_entities), "of": of, "sample": way}
        return replace(result, provenance={**result.provenance, "sample": record})

    def _metrics(self, weights: Weights, metrics: list[str], style: ChatStyleName | None) -> Measured:
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
    """Return the numbers in an elicitation's summary; their names contain `sampled_` for sampled texts."""
    skipped = results.ledger().set_index("probe")["first_reason"].to_dict()
    rows = []
    for line in results.summary().to_dict("records"):
        probe, sampled = line["probe"], line["decoding"] != "greedy"
        name = f"elicitation.{probe}" + (f".{line['decoding']}_{line['statistic']}" if sampled else "")
        why = line["share_reason"] if line["n"] else f"no row was asked: {skipped.get(probe) or 'no text'}"
        why = why if isinstance(why, str) else "too few subjects, or too similar"
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
    """Return the score of an audit with its interval, and the scores of its examples."""
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
    """Quantise a model to NF4 and write it as a plain float32 checkpoint, to be measured like any other."""
    packed = place.with_name(f"{place.name}-packed")
    quantise(weights, out=packed, device="cpu", offline=offline, revision=revision)
    where: Any = {"revision": revision, "offline": offline, "trust_remote_code": False}
    plain = load_weights(weights, dtype=torch.float32, device_map=None, **where)
    with open_model(packed, device="cpu") as model, torch.no_grad():
        values = dequantised(model).hf.state_dict()
        for name, parameter in plain.named_parameters():
            parameter.copy_(values[name])
    tokenizer = load_tokenizer(weights, **where)
    with quiet_files(report=True), writing(place), atomic_directory(place) as folder:
        plain.save_pretrained(folder)
        if tokenizer is not None:
            tokenizer.save_pretrained(folder)
    shutil.rmtree(packed)
    return place


class StudyWork:
    """Makes one model of a study and measures it in each of its states; each model is one part of the study."""

    def __init__(self, folder: StudyFolder, runner: Any = None) -> None:
        self.folder, self._run = folder, uuid.uuid4().hex
        self._models = {model.model_id: model for model in folder.models}
        if runner is not None:
            self.runner = runner

    @cached_property
    def runner(self) -> Any:
        """Makes, perturbs and measures models; full and retain are measured once per process."""
        return ModelRunner(self.folder.plan, self.folder.path)

    def __reduce__(self) -> tuple[Callable[..., StudyWork], tuple[str, str]]:
        return _opened, (str(self.folder.path.resolve()), self._run)

    def __call__(self, name: str) -> None:
        """Measure the remaining states of one model; a state that fails does not stop the others."""
        folder, model, began = self.folder, self._models[name], time.perf_counter()
        for state in model.states:
            self._rescore(model, state)
        if not (states := self._open_states(model)):
            return
        scratch = folder.path / "scratch" / name
        remove_inside(folder.path, scratch)  # a killed process may have left it
        weights = self.runner.make(model, folder.model_place(model))
        for state in states:
            with told(folder.path, f"{name}--{state.label}"):
                try:
                    self._measure(model, state, weights, scratch, began)
                finally:
                    remove_inside(folder.path, scratch)
            began = time.perf_counter()
        self.tidy(model)

    def tidy(self, model: StudyModel) -> None:
        """Remove the weights of a measured model, unless they should be kept."""
        if model.is_made and not self.folder.plan.keep_models and not self._open_states(model):
            remove_inside(self.folder.path, self.folder.model_place(model))

    def _open_states(self, model: StudyModel) -> list[StudyState]:
        return [state for state in model.states if self.folder.missing(model, state)]

    def _measure(self, model: StudyModel, state: StudyState, weights: Weights, scratch: Path, began: float) -> None:
        runner, missing, parent = self.runner, self.folder.missing(model, state), None
        perturbed = runner.perturb(model, state, weights, scratch)
        measured = runner.measure(model, state, perturbed, tuple(missing))
        if state.state == "quantised":
            before = self.folder.parts(model, StudyState("before"))
            parent = before[-1].fingerprint if before else None
        elif model.is_made or state.state != "before":
            parent = runner.parent_of(perturbed)
        self._write(model, state, missing, measured, parent=parent, seconds=time.perf_counter() - began)
        if self.folder.missing(model, state):
            raise ResultFormatError("the values that were written cannot be read back: check the disk.")

    def _rescore(self, model: StudyModel, state: StudyState) -> None:
        """Rescore a saved audit with the plan's settings, if only settings that need no model have changed."""
        audit, config = self.folder.saved_audit(model, state), audit_settings(self.folder.plan.measure)
        if audit is None or config is None:
            return
        prompts = audit.config.protocol if config.protocol == "auto" else config.protocol
        audit = replace(audit, config=replace(config, protocol=prompts))
        parent = next((part.parent for part in self.folder.parts(model, state)), None)
        keys = {AUDIT: self.folder.missing(model, state)[AUDIT]}
        self._write(model, state, keys, audit_values(audit, took=0.0), parent=parent, seconds=0.0)
        audit.save(self.folder.audit_place(model, state))

    def _write(
        self,
        model: StudyModel,
        state: StudyState,
        keys: Mapping[str, str],
        measured: Measured,
        *,
        parent: str | None,
        seconds: float,
    ) -> None:
        part = Part(
            model=model.model_id,
            state=state.label,
            keys=keys,
            rows=tuple(replace(row, reason=row.reason and one_line(row.reason)) for row in measured.rows),
            fingerprint=measured.fingerprint,
            parent=parent,
            seconds=round(seconds, 3),
            sample=self.folder.keys.questions.sample,
        )
        self.folder.write_part(part, measured.examples)
        _LOG.info("%s, %s: %d values in %.1f s", model.model_id, state.label, len(measured.rows), seconds)


@lru_cache(maxsize=1)
def _opened(path: str, run: str) -> StudyWork:
    """Return the worker of a folder, created once per process for all parts of a run."""
    # `run` is only a cache key: a worker process may serve several runs with different plans
    return StudyWork(StudyFolder(path))
