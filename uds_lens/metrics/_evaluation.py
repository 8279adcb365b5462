"""`evaluate`: one way to ask a model for any of the metrics."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Sequence
from typing import Any

from uds_lens._progress import tell
from uds_lens._settings import as_settings
from uds_lens.data import as_examples
from uds_lens.data._prompts import describe_protocol
from uds_lens.errors import ConfigError, ModelError
from uds_lens.metrics._catalogue import METRICS, require_packages, resolve
from uds_lens.metrics._data import MetricData
from uds_lens.metrics._declaration import Evidence, MetricSpec, Outcome, Pass, Undefined
from uds_lens.metrics._fluency import FluencyScorer, HeuristicFluency, HubFluency
from uds_lens.metrics._options import MetricOptions
from uds_lens.metrics._passes import Measured, MetricCache, Session, measure
from uds_lens.metrics._results import Cost, MetricResults, MetricValue
from uds_lens.models import ModelSource
from uds_lens.results import ModelRecord, RunOptions
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
    fluency: FluencyScorer | str = "hub",
) -> MetricResults:
    """Measure metrics of one model, with one model in memory at a time.

    Metrics that need the same pass share it, and a question runs once for all its answers. What cannot be computed is
    NaN with the reason, and the others run.

    Args:
        model: The model to evaluate: directory, Hub id, transformers model, `TransformerBridge` or `HookedModel`.
        data: The sets to ask (see `load_tofu_data`), or a forget set alone: examples, rows, a table, a path.
        metrics: Names from `METRICS`, with those they are made of; None measures all.
        retain: Never saw the forget set; for normalised attacks and white-box metrics.
        full: Trained on everything; for white-box metrics and relative utility.
        options: What to measure; default `MetricOptions()`.
        run: How to run it; default `RunOptions()`.
        cache: Measurements of `full` and `retain` from earlier calls, and for later ones.
        fluency: "hub" (a classifier from the Hub), "heuristic" (offline rules of thumb), or a scorer of your own.

    Returns:
        Values, per-example values, reasons, costs, provenance.

    Raises:
        ConfigError: A metric or option does not exist, or no metric is asked for.
        ModelError: A checkpoint cannot be opened, or emits NaN or infinite logits (names the first example).
        IncompatibleModelsError: The checkpoints differ in architecture, size or tokenizer.
        MissingDependencyError: A metric needs a package that is not installed; said before anything is measured.

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
    beside = {"retain": retain, "full": full}
    sources: dict[str, ModelSource] = {"model": model}
    sources |= {role: source for role, source in beside.items() if source is not None}
    session = Session(sources, data, options=options, run=run, cache=cache)
    missing = {spec.name: _missing(spec, session) for spec in specs}
    require_packages(spec for spec in specs if missing[spec.name] is None)
    passes = {spec.name: _passes(spec, session) for spec in specs if missing[spec.name] is None}
    if passes:
        tell(f"prompts: {describe_protocol(options.protocol, session.protocol)}")
    session.perform([each for several in passes.values() for each in several], measure)
    evidence = Measured(session, scorer(fluency, offline=run.offline))
    for spec in specs:
        reason = missing[spec.name]
        evidence.outcomes[spec.name] = _score(spec, evidence) if reason is None else Outcome(math.nan, reason)
    return _assemble(specs, passes, evidence, session)


def scorer(fluency: FluencyScorer | str, *, offline: bool = False) -> FluencyScorer:
    """A fluency scorer by name ("hub", "heuristic", or the Hub id or directory of a classifier), or as given."""
    if not isinstance(fluency, str):
        if not hasattr(fluency, "name"):
            raise ConfigError(f"fluency must be a name or a scorer; got {type(fluency).__name__}.")
        return fluency
    if fluency == "heuristic":
        return HeuristicFluency()
    return HubFluency(offline=offline) if fluency == "hub" else HubFluency(fluency, offline=offline)


def fluency_scorer(
    metrics: Iterable[str] | None,
    fluency: FluencyScorer | str,
    *,
    options: MetricOptions | None = None,
    offline: bool = False,
) -> FluencyScorer:
    """The scorer that these metrics will use, loaded before anything else runs if one of them asks it.

    Args:
        metrics: Names, as for `evaluate`.
        fluency: "hub", "heuristic", the Hub id or directory of a classifier, or a scorer.
        options: As for `evaluate`.
        offline: Use only files already downloaded.

    Raises:
        ModelError: A classifier is needed and cannot be loaded.
    """
    options = options or MetricOptions()
    found = scorer(fluency, offline=offline)
    specs = resolve(metrics, options=options)
    if isinstance(found, HubFluency) and "fluency" in {spec.name for spec in specs}:
        found.require()
    return found


def _missing(spec: MetricSpec, session: Session) -> str | None:
    """Why a metric cannot be measured at all; None if it can."""
    absent = [role for role in spec.needs if role in ("retain", "full") and role not in session.sources]
    if absent:
        return f"no {' and no '.join(absent)} model was given"
    lacks = [session.data.missing(name) for name in spec.sets]
    lack = next((lack for lack in lacks if lack is not None), None)
    if lack is not None:
        return lack
    if "internal" in spec.needs and not session.plan.encoded.rows:
        return f"no entity could be located; the first: {session.plan.encoded.skipped[0].reason}"
    return None


def _passes(spec: MetricSpec, session: Session) -> list[Pass]:
    return [p for p in spec.passes if not p.optional or session.data.missing(p.set_name) is None]


def _score(spec: MetricSpec, evidence: Evidence) -> Outcome:
    try:
        return spec.score(evidence)
    except Undefined as why:
        return Outcome(math.nan, str(why))
    except ModelError as error:
        if spec.group != "utility":
            raise
        return Outcome(math.nan, str(error))


def _assemble(
    specs: Sequence[MetricSpec], passes: dict[str, list[Pass]], evidence: Evidence, session: Session
) -> MetricResults:
    found = {}
    for spec in specs:
        outcome = evidence.outcomes[spec.name]
        behind = {
            p for used in resolve([spec.name], options=session.options) for p in passes.get(used.name, [])
        }
        found[spec.name] = MetricValue(
            name=spec.name,
            label=spec.label,
            group=spec.group,
            direction=spec.meaning.direction,
            low=spec.low,
            high=spec.high,
            zero=spec.meaning.zero,
            one=spec.meaning.one,
            value=outcome.value,
            reason=outcome.reason,
            ids=tuple(outcome.ids),
            per_example=tuple(outcome.per_example),
            subjects=_subjects(spec, outcome.ids, session.data),
            details=outcome.details,
            cost=_cost(behind, session),
        )
    return MetricResults(
        metrics=found,
        models=_records(session),
        options=session.options,
        sizes=session.data.sizes(),
        generations=_generations(session),
        provenance=_provenance(session, evidence),
        total=_cost(session.results, session),
    )


def _subjects(spec: MetricSpec, ids: Sequence[str], data: MetricData) -> tuple[str | None, ...]:
    """Subjects of the examples of a metric, from the first of its sets that holds them; empty where none has one."""
    sets = [data.examples(p.set_name) for p in spec.passes if p.set_name not in ("", "entities")]
    for examples in (*sets, data.with_entities):
        known = {example.id: example.subject for example in examples}
        if ids and all(each in known for each in ids):
            found = tuple(known[each] for each in ids)
            return found if any(found) else ()
    return ()


def _cost(passes: Iterable[Pass], session: Session) -> Cost:
    run = [(p, session.results[p]) for p in passes if p in session.fresh]
    own = [measured for p, measured in run if _on_model(p)]
    others = [measured for p, measured in run if not _on_model(p)]
    return Cost(
        seconds=sum(m.seconds for m in own),
        forwards=sum(m.forwards for m in own),
        reference_seconds=sum(m.seconds for m in others),
        reference_forwards=sum(m.forwards for m in others),
    )


def _on_model(each: Pass) -> bool:
    """Whether a pass has to be repeated for every model."""
    return each.role == "model" or each.what == "model"


def _records(session: Session) -> dict[str, ModelRecord]:
    return {role: session.records[role] for role in ("full", "retain", "model") if role in session.records}


def _generations(session: Session) -> dict[str, Sequence[str]]:
    return {
        f"{p.what}, jailbreak" if p.start else p.what: measured.value
        for p, measured in session.results.items()
        if p.kind == "generations" and p.role == "model"
    }


def _provenance(session: Session, evidence: Evidence) -> dict[str, object]:
    first = session.data.forget[0].question
    internal = any(p.set_name == "entities" for p in session.results)
    found = provenance(
        engine=session.run.engine,
        device=session.device,
        rows=session.rows,
        rendered_prompt=session.prompt(first),
        ids_hash=session.inputs_hash(Pass("model", "answers", "forget")),
        packages=("rouge-score", "scikit-learn"),
    )
    return {
        **found,
        "entity_ids_hash": session.plan.encoded.ids_hash if internal else None,
        "sample": None if session.data.sample is None else dict(session.data.sample),
        "protocol": session.protocol,
        "fluency": evidence.fluency.name,
        "metrics": [name for name in METRICS if name in evidence.outcomes],
    }
