"""`evaluate`: measure metrics of one model."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Sequence
from typing import Any

from uds_lens._settings import as_settings
from uds_lens.data._prompts import announce_protocol
from uds_lens.data._readers import as_examples
from uds_lens.errors import ModelError
from uds_lens.metrics._catalogue import METRICS, require_packages, resolve
from uds_lens.metrics._data import MetricData, data_hash
from uds_lens.metrics._declaration import OF_TEXTS, Evidence, MetricSpec, Outcome, Pass, Undefined
from uds_lens.metrics._fluency import scorer_named
from uds_lens.metrics._options import MetricOptions
from uds_lens.metrics._passes import MetricCache, Session
from uds_lens.metrics._results import Cost, MetricResults, MetricValue
from uds_lens.models._hooked import ModelSource
from uds_lens.results import RunOptions
from uds_lens.results._records import provenance


def evaluate(
    model: ModelSource,
    data: MetricData | Iterable[Any] | str | os.PathLike[str],
    *,
    metrics: Iterable[str] | None = None,
    retain: ModelSource | None = None,
    full: ModelSource | None = None,
    options: MetricOptions | None = None,
    run: RunOptions | None = None,
    cache: MetricCache | None = None,
) -> MetricResults:
    """Measure metrics of one model, with only one model in memory at a time.

    Metrics that need the same pass share it, and each question is processed once for all its answers. A metric that
    cannot be computed is NaN with a reason; all other metrics still run.

    Args:
        model: The model to evaluate, as a directory, Hub id, transformers model, `TransformerBridge` or `HookedModel`.
        data: A `MetricData` (see `load_tofu_data`), or only a forget set, in any form that `load_examples` reads.
        metrics: Names from `METRICS`. Metrics from which these are computed are also measured. None measures all
            metrics.
        retain: Model that never saw the forget set; needed for normalised attacks and white-box metrics.
        full: Model trained on all data; needed for white-box metrics and relative utility.
        options: Metric settings; default `MetricOptions()`.
        run: Device and memory settings; default `RunOptions()`.
        cache: Measurements of `full` and `retain`, reused from earlier calls and kept for later calls.

    Returns:
        The results, including values per example, reasons for NaN, costs and provenance.

    Raises:
        ConfigError: A metric or option does not exist, or no metric was requested.
        ModelError: A checkpoint cannot be opened, or the model outputs NaN or infinite logits (the message names the
            first example).
        IncompatibleModelsError: The checkpoints differ in architecture, size or tokenizer.
        MissingDependencyError: A metric needs a package that is not installed. Raised before any measurement.

    Example:
        >>> import uds_lens as ul
        >>> world = ul.toy.load()
        >>> results = ul.metrics.evaluate(world.full, world.examples[:4], metrics=["em", "mia_loss"])
        >>> 0 <= results["em"].value <= 1, results["mia_loss"].reason
        (True, 'there is no holdout set (questions of the same kind that no model has seen)')
    """
    options = as_settings(MetricOptions, options, name="options")
    run = as_settings(RunOptions, run, name="run")
    cache = as_settings(MetricCache, cache, name="cache")
    data = data if isinstance(data, MetricData) else MetricData(forget=as_examples(data))
    specs = resolve(metrics, options=options)
    sources: dict[str, ModelSource] = {"model": model}
    sources |= {role: source for role, source in (("retain", retain), ("full", full)) if source is not None}
    session = Session(sources, data, options=options, run=run, cache=cache)
    missing = {spec.name: _missing(spec, session) for spec in specs}
    require_packages(spec for spec in specs if missing[spec.name] is None)
    passes = {
        spec.name: [p for p in spec.passes if not p.optional or data.missing(p.set_name) is None]
        for spec in specs
        if missing[spec.name] is None
    }
    if passes:
        announce_protocol(
            options.protocol, session.protocol, session.recorded, tokenizer=session.tokenizer, chat=options.chat
        )
    session.perform([p for several in passes.values() for p in several])
    evidence = Evidence(session, scorer_named(options.fluency, offline=run.offline))
    for spec in specs:
        reason = missing[spec.name]
        evidence.outcomes[spec.name] = _score(spec, evidence) if reason is None else Outcome(math.nan, reason)
    values = {}
    for spec in specs:
        behind = {p for used in resolve([spec.name], options=options) for p in passes.get(used.name, [])}
        values[spec.name] = _value(spec, evidence.outcomes[spec.name], session, _cost(behind, session))
    return MetricResults(
        metrics=values,
        models={r: session.records[r] for r in ("full", "retain", "model") if r in session.records},
        options=options,
        sizes=data.sizes(),
        generations={
            f"{p.what}, jailbreak" if p.start else p.what: measured.value
            for p, measured in session.results.items()
            if p.kind == "generations" and p.role == "model"
        },
        provenance=_provenance(session, evidence),
        total=_cost(session.results, session),
    )


def _missing(spec: MetricSpec, session: Session) -> str | None:
    """Return the reason why a metric cannot be measured; None if it can be."""
    absent = [role for role in spec.needs if role in ("retain", "full") and role not in session.sources]
    if absent:
        return f"no {' and no '.join(absent)} model was given"
    for name in spec.sets:
        if (lack := session.data.missing(name)) is not None:
            return lack
    for p in spec.passes:
        if p.kind not in (*OF_TEXTS, "own") and not (encoded := session.plan_of(p).encoded).rows:
            return f"no entity could be located; in the first example: {encoded.skipped[0].reason}"
    return None


def _score(spec: MetricSpec, evidence: Evidence) -> Outcome:
    evidence.spec = spec
    try:
        return spec.score(evidence)
    except Undefined as why:
        return Outcome(math.nan, str(why))
    except ModelError as error:  # the fluency classifier cannot be loaded
        if spec.group != "utility":
            raise
        return Outcome(math.nan, str(error))


def _value(spec: MetricSpec, outcome: Outcome, session: Session, cost: Cost) -> MetricValue:
    no_number = math.isnan(outcome.value)
    return MetricValue(
        name=spec.name,
        label=spec.label,
        group=spec.group,
        **spec.meaning._asdict(),
        value=outcome.value,
        reason="its formula is undefined for these values" if outcome.reason is None and no_number else outcome.reason,
        ids=tuple(outcome.ids),
        per_example=tuple(outcome.per_example),
        subjects=_subjects(spec, outcome.ids, session.data),
        details=outcome.details,
        cost=cost,
    )


def _subjects(spec: MetricSpec, ids: Sequence[str], data: MetricData) -> tuple[str | None, ...]:
    """Return the subjects of a metric's examples, from the first set with all examples; empty without subjects."""
    sets = [data.examples(p.set_name) for p in spec.passes if p.set_name not in ("", "entities")]
    for examples in (*sets, data.with_entities):
        subject_of = {example.id: example.subject for example in examples}
        if ids and all(name in subject_of for name in ids):
            subjects = tuple(subject_of[name] for name in ids)
            return subjects if any(subjects) else ()
    return ()


def _cost(passes: Iterable[Pass], session: Session) -> Cost:
    """Add up the cost of passes in this call; passes that involve the model are repeated for every model."""
    run = [(p.role == "model" or p.what == "model", session.results[p]) for p in passes if p in session.fresh]
    repeated = [result for of_model, result in run if of_model]
    others = [result for of_model, result in run if not of_model]
    return Cost(
        seconds=sum(result.seconds for result in repeated),
        forwards=sum(result.forwards for result in repeated),
        reference_seconds=sum(result.seconds for result in others),
        reference_forwards=sum(result.forwards for result in others),
    )


def _provenance(session: Session, evidence: Evidence) -> dict[str, object]:
    internal = any(p.set_name == "entities" for p in session.results)
    record = provenance(
        engine=session.run.engine,
        device=session.device,
        rows=session.rows,
        rendered_prompt=session.prompt(session.data.forget[0].question),
        ids_hash=session.inputs_hash(Pass("model", "answers", "forget")),
        packages=("rouge-score", "scikit-learn"),
    )
    return {
        **record,
        "entity_ids_hash": session.plan.encoded.ids_hash if internal else None,
        "data_hash": data_hash(session.data),
        "sample": None if session.data.sample is None else dict(session.data.sample),
        "protocol": session.protocol,
        "fluency": evidence.fluency.name,
        "metrics": [name for name in METRICS if name in evidence.outcomes],
    }
