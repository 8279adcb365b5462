"""Where models are made, perturbed and measured: the only file of a study that trains and runs them."""

from __future__ import annotations

import logging
import os
import shutil
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from uds_lens.data import ForgetExample
from uds_lens.errors import ResultFormatError
from uds_lens.storage import atomic_directory, writing
from uds_lens.study.measurement_settings import (
    audit_settings,
    elicitation_settings,
    metric_settings,
    running_settings,
    training_settings,
)
from uds_lens.study.plan_records import StudyPlan
from uds_lens.study.study_folder import Row, as_number
from uds_lens.study.study_models import AUDIT, ELICITATION, StudyModel, StudyState, relearn_config
from uds_lens.study.training_answers import asked_rows, training_answers
from uds_lens.study.work_keys import located_source

if TYPE_CHECKING:
    import pandas as pd

    from uds_lens.audit import Baseline
    from uds_lens.metrics import MetricData
    from uds_lens.results import DepthAudit

_LOG = logging.getLogger("uds_lens.study")

Weights = str | os.PathLike[str]
"""A directory, or a Hub id."""


@dataclass(frozen=True)
class Measured:
    """What was measured of one model in one state."""

    rows: tuple[Row, ...]
    """The values."""
    fingerprint: str
    """Of the weights."""
    examples: pd.DataFrame | None = None
    """Values per example: `metric`, `example_id`, `value`."""


class Workshop:
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
        """The weights of a model: where they are, or trained into `place`. What is there is not trained again."""
        from uds_lens.unlearning import RelearnConfig, relearn, unlearn

        start = located_source(model.source)
        if model.config is None:
            return start
        forget = training_answers(model.forget)
        if isinstance(model.config, RelearnConfig):
            epochs = model.config.epochs
            return relearn(
                start, forget, out=place, epochs=epochs, config=model.config, options=self.training
            )
        retain = training_answers(model.retain) or None
        return unlearn(start, forget, retain, config=model.config, out=place, options=self.training)

    def perturb(self, model: StudyModel, state: StudyState, weights: Weights, scratch: Path) -> Weights:
        """The weights of a state; those made for it lie in `scratch`."""
        from uds_lens.unlearning import relearn

        if state.state == "before":
            return weights
        place = scratch / state.label
        if state.state == "quantised":
            return unpacked_four_bit(weights, place, offline=self.run.offline, revision=model.revision)
        config = relearn_config(self.plan, int(state.seed or 0))
        rows = training_answers(self.plan.train.forget)
        return relearn(weights, rows, out=place, epochs=config.epochs, config=config, options=self.training)

    def measure(
        self, model: StudyModel, state: StudyState, weights: Weights, items: Sequence[str]
    ) -> Measured:
        """Measure some things of a model in a state."""
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
        """What the metrics ask."""
        from uds_lens.metrics import MetricData

        asked = asked_rows(self.plan.data)
        sets: dict[str, Any] = {name: rows or () for name, rows in asked.sets.items()}
        return MetricData(**{**sets, "entities": asked.sets["entities"]}, sample=asked.sample)

    @cached_property
    def _cache(self) -> Any:
        from uds_lens.metrics import MetricCache

        return MetricCache()

    @cached_property
    def _baseline(self) -> Baseline:
        from uds_lens.audit import Baseline

        config = audit_settings(self.plan.measure)
        found = Baseline.measure(self.full, self.retain, self._asked, config=config, options=self.run)
        return (
            found
            if self._sample is None
            else replace(found, provenance={**found.provenance, "sample": self._sample})
        )

    @property
    def _asked(self) -> list[ForgetExample]:
        return self.data.with_entities

    @property
    def _sample(self) -> dict[str, Any] | None:
        """How an audit's examples were chosen, as an audit with a limit of its own records it."""
        told = self.data.sample
        if told is None:
            return None
        of = told["of"]["forget" if self.data.entities is None else "entities"]
        return {
            **told,
            "limit": len(self._asked),
            "of": of,
            "sample": told["sample"].removesuffix("_of_each"),
        }

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
            fluency=self.plan.measure.fluency,
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
        from uds_lens.elicitation import elicit

        chosen = elicitation_settings(self.plan.measure)
        assert chosen is not None
        began = time.perf_counter()
        found = elicit(
            weights,
            self._asked,
            retain=self.retain,
            full=self.full,
            audits=chosen[0],
            retain_examples=self.data.retain,
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
                metric=f"elicitation.{line['audit']}.{column}",
                value=as_number(value),
                reason=None if as_number(value) == as_number(value) else "undefined for these answers",
                n=int(line.get("n", 0)),
                seconds=took,
                item=ELICITATION,
            )
            for line in found.summary().to_dict("records")
            for column, value in line.items()
            if column not in ("audit", "n") and isinstance(value, int | float)
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
    """What NF4 leaves of a model, as a plain float32 checkpoint: references need no other dtype than it has.

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

    from uds_lens.metrics.dequantise import dequantised
    from uds_lens.models import open_model
    from uds_lens.models.checkpoint import load_tokenizer, load_weights
    from uds_lens.models.quiet_files import quiet_files
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
