"""Numbers and texts for a report's script; data shared by several audits are stored once."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from uds_lens import plots
from uds_lens._progress import progress
from uds_lens._storage.records import plain
from uds_lens.elicitation import ElicitationResults
from uds_lens.errors import ConfigError
from uds_lens.metrics import LensComparison, MetricResults, MetricValue
from uds_lens.plots._examples import row_order
from uds_lens.plots._models import by_score
from uds_lens.plots._style import LIGHT, number, recolouring
from uds_lens.report._page import deltas, floats, jsonable, plain_figure
from uds_lens.results import DepthAudit
from uds_lens.results._comparing import site_groups
from uds_lens.results._settings import roles_of
from uds_lens.results._verdict import LEVEL
from uds_lens.transplants import Transplant

if TYPE_CHECKING:
    import pandas as pd

MATRIX = 4  # number of models from which differences are also shown as a matrix


# Other metrics, matched to the audits by the weights of their models.

MetricSource: TypeAlias = MetricResults | Transplant

MetricSources: TypeAlias = MetricSource | Mapping[str, MetricSource] | Sequence[MetricSource]
"""Results for one or several models, in any order."""

UTILITIES = ("utility_rel", "utility", "model_utility", "retain_q_prob", "retain_q_rouge")
"""Utility metrics in order of preference."""

_GROUPS = {
    "utility": "Utility",
    "aggregate": "Combined",
    "memorization": "Memorization",
    "generation": "Generation",
    "membership": "Membership",
    "representation": "Representation",
    "custom": "Custom",
}
_DIRECTIONS = {"knowledge": "higher: still known", "erasure": "higher: erased", "utility": "higher: better"}
_SCORES = {"full": 0.0, "retain": 1.0}


class Measured(NamedTuple):
    """Metrics next to depth."""

    # By audit name; `full` and `retain` by role if they are not audited.
    values: Mapping[str, Mapping[str, MetricValue]]
    roles: tuple[str, ...]  # names in `values` that are not audit names
    warnings: Mapping[str, tuple[str, ...]]  # by the same names
    # The kind of prompts, "raw" or "chat template"; both if a model's metrics used both.
    prompts: Mapping[str, str]


def measured(audits: Mapping[str, DepthAudit], metrics: MetricSources) -> Measured | None:
    """Match metric results to audits; None if there are no results."""
    values: dict[str, dict[str, MetricValue]] = {}
    warnings: dict[str, tuple[str, ...]] = {}
    prompts: dict[str, dict[str, None]] = {}
    for source in metric_sources(metrics):
        for name in _owners(audits, source):
            values.setdefault(name, {}).update(source.metrics)
            warnings[name] = tuple(dict.fromkeys((*warnings.get(name, ()), *source.warnings)))
            if (protocol := source.provenance.get("protocol")) is not None:
                prompts.setdefault(name, {})["chat template" if protocol == "chat" else str(protocol)] = None
    if not values:
        return None
    names = [name for name in (*audits, *(role for role in _SCORES if role not in audits)) if name in values]
    roles = tuple(name for name in values if name not in audits)
    asked = {name: ", ".join(prompts.get(name, ())) for name in names}
    return Measured({name: values[name] for name in names}, roles, warnings, asked)


def metric_sources(metrics: MetricSources) -> list[MetricResults]:
    """Return the metric results as a list."""
    return [source for source in _sources(metrics) if isinstance(source, MetricResults)]


def _sources(metrics: MetricSources) -> list[MetricSource]:
    if isinstance(metrics, MetricResults | Transplant):
        return [metrics]
    sources = list(metrics.values() if isinstance(metrics, Mapping) else metrics)
    if not all(isinstance(source, MetricResults | Transplant) for source in sources):
        raise ConfigError(
            "metrics of a report are MetricResults (from metrics.evaluate or MetricResults.load) and transplants; got "
            "something else."
        )
    return sources


def transplants_among(audits: Mapping[str, DepthAudit], metrics: MetricSources) -> dict[str, Transplant]:
    """Match transplants to the audits of their models (if a model has several audits, to the compatible ones)."""
    found: dict[str, Transplant] = {}
    for source in _sources(metrics):
        if not isinstance(source, Transplant):
            continue
        weights = source.models["unlearned"].fingerprint
        names = [name for name, audit in audits.items() if audit.models["unlearned"].fingerprint == weights]
        if not names:
            raise ConfigError(
                f"the transplant of {source.models['unlearned'].name!r} belongs to none of the audits: no audited "
                "model has the weights of its model."
            )
        fitting = [name for name in names if source.differs_from(audits[name]) is None]
        found |= dict.fromkeys(fitting or [name for name in names if name not in found], source)
    return {name: found[name] for name in audits if name in found}


def _owners(audits: Mapping[str, DepthAudit], source: MetricResults) -> list[str]:
    """Return the names of the measured model's audits or, if it has none, its role in all audits."""
    weights = source.models["model"].fingerprint
    names = [name for name, audit in audits.items() if audit.models["unlearned"].fingerprint == weights]
    roles = [
        role
        for role in _SCORES
        if role not in audits and {audit.models[role].fingerprint for audit in audits.values()} == {weights}
    ]
    if not names and not roles:
        raise ConfigError(
            f"the metrics of {source.models['model'].name!r} belong to none of the audits on the page: expected "
            "results of one of their models (the weights are compared, not the names). Audit that model too, or leave "
            "its results out."
        )
    return names or roles


def utility_metric(metrics: Measured | None) -> str | None:
    """Return the utility metric: the first that all models have or, failing that, the first that any model has."""
    if metrics is None:
        return None
    models = metrics.values.values()
    for enough in (all, any):
        for name in UTILITIES:
            if enough(name in values and not math.isnan(values[name].value) for values in models):
                return name
    return None


def metrics_table(
    audits: Mapping[str, DepthAudit], metrics: Measured, order: Sequence[str], references: Sequence[str]
) -> dict[str, Any]:
    """Return the texts of the section, with one row per metric and one column per model in `order`, roles last."""
    places = {name: place for place, name in enumerate(audits)}
    names = [name for name in (*order, *metrics.roles) if name in metrics.values]
    first: dict[str, MetricValue] = {}
    warnings: dict[str, list[str]] = {}
    for name in names:
        for key, value in metrics.values[name].items():
            first.setdefault(key, value)
        for sentence in metrics.warnings.get(name, ()):
            warnings.setdefault(sentence, []).append(name)
    groups = []
    for group, label in _GROUPS.items():
        rows = [
            {
                "label": value.label,
                "meaning": f"0 {value.zero}, 1 {value.one}; {_DIRECTIONS[value.direction]}",
                "cells": [_cell(metrics.values[name].get(key)) for name in names],
            }
            for key, value in first.items()
            if value.group == group
        ]
        groups += [{"label": label, "rows": rows}] if rows else []
    return {
        "columns": [
            {
                "name": name,
                "index": places.get(name),
                "reference": name in references or name not in places,
                "prompts": metrics.prompts[name],
            }
            for name in names
        ],
        "groups": groups,
        "warnings": [{"text": text, "names": who if len(who) < len(names) else []} for text, who in warnings.items()],
        "without": [name for name in order if name not in metrics.values],
        "scatter": utility_metric(metrics) is not None,
    }


def _cell(metric: MetricValue | None) -> dict[str, str]:
    if metric is None:
        return {"text": "", "title": "not measured"}
    if math.isnan(metric.value):
        return {"text": "NaN", "title": metric.reason or "undefined"}
    low, high = metric.interval
    interval = "" if math.isnan(low) else f"95% interval {low:.3f} to {high:.3f}"
    return {"text": f"{metric.value:.3f}", "title": interval}


# Figures as plain JSON in the light palette; the page recolours them for a dark background.


def _model_figures(audit: DepthAudit, layers: pd.DataFrame) -> dict[str, Any]:
    """Draw the figures for one model."""
    examples = audit.examples_frame()
    figures: dict[str, Any] = {
        "layers": plots.layer_profile(layers, title=None),
        "examples": plots.uds_distribution(examples, title=None),
        "length": plots.length_scatter(examples, title=None),
        "tau": plots.tau_curve(audit.tau_sweep(), tau=audit.config.tau, title=None),
        "clip": plots.clip_bars(layers, title=None),
        "types": plots.type_bars(audit.types_frame(), title=None) if examples["type"].notna().any() else None,
        "control": None if audit.control is None else plots.forget_and_kept(audit.control_layers_frame(), title=None),
    }
    return {name: None if figure is None else plain_figure(figure) for name, figure in figures.items()}


def _shared_figures(
    audits: Mapping[str, DepthAudit],
    layers: Mapping[str, pd.DataFrame],
    pairs: pd.DataFrame | None,
    references: Sequence[str],
    metrics: Measured | None,
) -> dict[str, Any]:
    """Draw the figures for all audits together, and figures whose data the page fills in."""
    import pandas as pd

    first = next(iter(audits.values()))
    chosen = next((name for name in audits if name not in references), None)
    figures: dict[str, Any] = {
        "compare": plain_figure(plots.compare_layers(layers, chosen=chosen, references=references, title=None)),
        "differences": None,
        "utility": None if metrics is None else _utility_figure(audits, metrics, references),
    }
    if pairs is not None and len(audits) >= MATRIX and pairs["difference"].notna().any():
        figures["differences"] = plain_figure(plots.audit_differences(pairs, title=None))
        grey = [place for place, name in enumerate(by_score(pairs, "uds")) if name in references]
        figures["differences"]["layout"]["meta"] = {"references": grey}
    names = {id(audit): name for name, audit in audits.items()}
    for place, sites in enumerate(site_groups(audits.values())):
        frames = {site: layers[names[id(audit)]] for site, audit in sites.items()}
        figures[f"components{place}"] = plain_figure(plots.component_profile(frames, title=None))
    long = pd.DataFrame({"layer": [0], "s1_delta": [1.0], "s2_delta": [0.0], "ler": [np.nan]})  # NaN adds a legend
    examples = pd.DataFrame({"example_id": [""], "question": [""], "entity": [""], "uds": [0.0]})
    heatmap = plain_figure(plots.ler_heatmap(long, examples, title=None))
    for key in ("x", "z", "text", "customdata"):
        heatmap["data"][0].pop(key)
    zeros = np.zeros(max(first.n_layers, 1))
    one = pd.DataFrame({"layer": np.arange(len(zeros)), "s1_delta": zeros, "s2_delta": zeros, "ler": zeros})
    columns = [f"{view}_{part}" for view in ("uds", "lens") for part in ("s1_delta", "s2_delta", "ler")]
    lens = pd.DataFrame({"layer": [0], **{name: [np.nan] for name in columns}})
    return figures | {
        "heatmap": heatmap,
        "example": plain_figure(plots.example_profile(one, tau=first.config.tau, title=None)),
        # the page replaces `undefined` in the headings by the scores
        "lens": plain_figure(plots.lens_against_uds(lens, tau=first.config.tau, title=None)),
        "template": jsonable(plots.template("light")),
    }


def _utility_figure(
    audits: Mapping[str, DepthAudit], metrics: Measured, references: Sequence[str]
) -> dict[str, Any] | None:
    """Draw depth against utility; each mark stores the position of its model."""
    import pandas as pd

    name = utility_metric(metrics)
    if name is None:
        return None
    rows: list[dict[str, Any]] = []
    for model, values in metrics.values.items():
        audit = audits.get(model)
        low, high = (math.nan, math.nan) if audit is None else audit.uds_interval
        uds = _SCORES[model] if audit is None else audit.uds
        utility = values[name].value if name in values else math.nan
        rows.append({"model": model, "uds": uds, "uds_low": low, "uds_high": high, "utility": utility})
    label = next(values[name].label for values in metrics.values.values() if name in values)
    grey = [*references, *metrics.roles]
    figure = plots.depth_utility(pd.DataFrame(rows), label=f"{label} (higher is better)", references=grey, title=None)
    drawn = [row["model"] for row in rows if not math.isnan(row["uds"] + row["utility"])]
    places = {model: place for place, model in enumerate(audits)}
    for model, trace in zip(drawn, (trace for trace in figure.data if trace.meta), strict=True):
        trace.meta = {"place": places.get(model, -1), "reference": model in grey}
    return plain_figure(figure)


# Logit Lens values, matched to the audits and their examples.

LensSource: TypeAlias = LensComparison | MetricResults
"""Values for one example (`metrics.compare_logit_lens`), or for all (`metrics.evaluate` with `logit_lens`)."""


class LensDeltas(NamedTuple):
    """Logit Lens deltas for the examples of an audit, in nats per token; NaN if not measured."""

    s1: Float[Tensor, "example layer"]  # of `retain`
    s2: Float[Tensor, "example layer"]  # of the unlearned model


def lens_deltas(audits: Mapping[str, DepthAudit], sources: Sequence[LensSource]) -> dict[str, LensDeltas]:
    """Match Logit Lens values to audits and examples."""
    deltas: dict[str, LensDeltas] = {}
    for source in sources:
        rows, used = _lens_rows(source), 0
        for name, audit in audits.items():
            if not _lens_belongs(source, audit):
                continue
            missing = torch.full_like(audit.s1_delta, torch.nan)
            stored = deltas.setdefault(name, LensDeltas(missing, missing.clone()))
            for place, example in enumerate(audit.examples):
                values = rows.get(example.id, ((), ()))
                if all(len(side) == audit.n_layers for side in values) and audit.n_layers:
                    for tensor, side in zip(stored, values, strict=True):
                        tensor[place] = torch.tensor(side, dtype=tensor.dtype)
                    used += 1
        if not used:
            raise ConfigError(
                f"the Logit Lens values of {_lens_subject(source)} belong to none of the audits on the page: expected "
                "values for the three models and the examples of an audit with raw prompts at the site resid_post."
            )
    return deltas


def lens_among(audits: Mapping[str, DepthAudit], metrics: MetricSources) -> list[MetricResults]:
    """Return the metric results with Logit Lens values for an audit."""
    return [
        source
        for source in metric_sources(metrics)
        if "logit_lens" in source.metrics
        and "s1_delta" in source.metrics["logit_lens"].details
        and any(_lens_belongs(source, audit) for audit in audits.values())
    ]


def _lens_rows(source: LensSource) -> dict[str, tuple[Sequence[float], Sequence[float]]]:
    """Return S1 and S2 per layer by example id; null in files means NaN."""
    if isinstance(source, LensComparison):
        return {source.example.id: (source.lens_s1.tolist(), source.lens_s2.tolist())}
    lens, subject = source.metrics.get("logit_lens"), _lens_subject(source)
    if lens is None or "s1_delta" not in lens.details:
        raise ConfigError(
            f"the metrics of {subject} contain no Logit Lens values per layer: measure logit_lens again with this "
            "release, and pass a full and a retain model."
        )
    try:
        sides = [map(list, np.array(lens.details[name], dtype=float)) for name in ("s1_delta", "s2_delta")]
        return {example: (s1, s2) for example, s1, s2 in zip(lens.ids, *sides, strict=True)}
    except (KeyError, TypeError, ValueError) as error:
        raise ConfigError(f"the Logit Lens values of {subject} must be one number per example and layer.") from error


def _lens_subject(source: LensSource) -> str:
    if isinstance(source, LensComparison):
        return f"example {source.example.id!r}"
    return f"model {source.models['model'].name!r}"


def _lens_belongs(source: LensSource, audit: DepthAudit) -> bool:
    """Return whether the values belong to the audit's models and examples; ids alone may be mere row numbers.

    Examples are compared by the hash of all tokens or, if that differs because one side has more rows, by the values at
    the last layer, where Logit Lens and UDS measure the same quantity for `retain`.
    """
    if audit.config.site != "resid_post":
        return False
    if isinstance(source, LensComparison):
        return any(
            example.id == source.example.id
            and torch.equal(audit.s1_delta[place], source.uds_s1)
            and torch.equal(audit.s2_delta[place].nan_to_num(), source.uds_s2.nan_to_num())
            for place, example in enumerate(audit.examples)
        )
    if audit.config.protocol == "chat":  # Logit Lens metrics use raw prompts
        return False
    for ours, theirs in {"full": "full", "retain": "retain", "unlearned": "model"}.items():
        if theirs not in source.models or source.models[theirs].fingerprint != audit.models[ours].fingerprint:
            return False
    tokens = source.provenance.get("entity_ids_hash")
    if tokens is not None and tokens == audit.provenance.get("ids_hash"):
        return True
    if audit.config.last_layer != "resid_post":
        return False
    rows = _lens_rows(source)
    last = [
        (rows[e.id][0][-1], float(audit.s1_delta[i, -1]))
        for i, e in enumerate(audit.examples)
        if e.id in rows and rows[e.id][0]
    ]
    return bool(last) and all(math.isclose(a, b, rel_tol=0.01, abs_tol=0.01) for a, b in last)


# Elicitations, matched to the audits of the same models.

_LONGEST = 600  # maximum length of an answer on the page, in characters

_ROLES = ("unlearned", "retain", "full")


def elicited_beside(
    audits: Mapping[str, DepthAudit], sources: Sequence[ElicitationResults]
) -> dict[str, ElicitationResults]:
    """Match elicitations to audits, keyed by audit name; if a model has several, the last is used."""
    matched: dict[str, ElicitationResults] = {}
    for source in sources:
        if not isinstance(source, ElicitationResults):
            raise ConfigError(
                "elicitations are ElicitationResults (ElicitationResults.load reads saved results); got "
                f"{type(source).__name__}."
            )
        model = source.models["unlearned"]
        asked = {(row.id, row.question) for row in source.examples}
        owners = [
            name
            for name, audit in audits.items()
            if audit.models["unlearned"].fingerprint == model.fingerprint
            and asked & {(row.id, row.question) for row in audit.examples}
        ]
        if not owners:
            raise ConfigError(
                f"the elicitation of {model.name[:100]!r} belongs to none of the audits on the page: expected the "
                "weights of an audited model, and examples with the same ids and questions."
            )
        matched |= dict.fromkeys(owners, source)
    return matched


def elicited_values(audit: DepthAudit, results: ElicitationResults) -> dict[str, Any]:
    """Return the values and texts to show for an elicitation."""
    table = results.summary()
    rows = []
    for row in table.to_dict("records"):
        why, colon, _ = str(row["share_reason"]).partition(":")
        share = why if colon else "none"
        if not math.isnan(row["share"]):
            share = _with_interval(row, "share", signed=False)
        one_text = row["decoding"] == "greedy"
        rows.append(
            {
                "probe": row["probe"],
                "how": row["decoding"] if one_text else f"{row['decoding']}, {row['statistic']}",
                "scores": [_number(row.get(role, math.nan)) for role in ("full", "retain", "unlearned")],
                "beyond": _with_interval(row, "beyond_retain", "beyond", signed=True),
                "p": "" if math.isnan(row["p_holm"]) else f"{row['p_holm']:.2g}",
                "real": bool(row["p_holm"] < LEVEL and row["beyond_retain"] > 0),
                "power": _with_interval(row, "power", signed=True),
                "share": share,
                "n": int(row["n"]),
            }
        )
    ledger = [
        [
            *(line[name] for name in ("probe", "access", "injects")),
            str(line["asked"]),
            f"{line['skipped']}: {line['first_reason']}" if line["skipped"] else str(line["skipped"]),
            _number(line["reference_in_prompt"]),
            str(line["empty"]),
            str(line["endless"]),
        ]
        for line in results.ledger().to_dict("records")
    ]
    return {
        "how": _elicited_how(results),
        "rows": rows,
        "ledger": ledger,
        "warnings": list(results.warnings),
        "said": _texts_by_example(audit, results),
    }


def elicited_figures(audit: DepthAudit, results: ElicitationResults) -> dict[str, Any]:
    """Draw scores by probe, and depth against how much one probe extracted."""
    names = [record.name for record in results.probes if not record.capacity]
    chosen = next((name for name in ("cloze", "plain") if name in names), names[0] if names else None)
    depth = None
    if chosen is not None and "retain" in results.models:
        depth = plain_figure(plots.depth_elicited(results.with_depth(audit), probe=chosen, title=None))
    return {"elicited": plain_figure(plots.elicited_scores(results.summary(), title=None)), "depth_elicited": depth}


def _elicited_how(results: ElicitationResults) -> str:
    options = results.options
    samples = ""
    if options.samples:
        among = "all tokens" if options.top_k is None else f"top-k {options.top_k}"
        samples = f" and {options.samples} samples (temperature {options.temperature:g}, {among})"
    return (
        f"{len(results.examples)} questions, greedy{samples}, up to {options.max_new_tokens} tokens, seed "
        f"{options.seed}, {results.protocol} protocol."
    )


def _texts_by_example(audit: DepthAudit, results: ElicitationResults) -> dict[str, list[dict[str, Any]]]:
    """Return, for each example and probe, each model's greedy text or best sample."""
    places = {(row.id, row.question): place for place, row in enumerate(audit.examples)}
    of = [places.get((row.id, row.question)) for row in results.examples]
    blocks: dict[str, list[dict[str, Any]]] = {}
    for record in results.probes:
        for decoding in ("greedy", "sampled"):
            parts = [part for part in results.parts if (part.probe, part.decoding) == (record.name, decoding)]
            by_role = {part.role: {response.row: response for response in part.responses} for part in parts}
            how = "greedy" if decoding == "greedy" else f"best of {results.options.samples} samples"
            name = f"{record.name}, {how}" + (" (given the answer)" if record.capacity else "")
            for row, place in enumerate(of):
                texts = []
                for role in _ROLES:
                    response = by_role.get(role, {}).get(row)
                    if response is None or not response.texts or place is None:
                        continue
                    scores = [score.recall for score in results.scores[role, record.name, decoding][row]]
                    best = max(range(len(scores)), key=lambda n: -1.0 if math.isnan(scores[n]) else scores[n])
                    text = " ".join(response.texts[best].split())
                    short = text if len(text) <= _LONGEST else text[: _LONGEST - 1] + "…"
                    texts.append([role, short, _number(scores[best])])
                if texts:
                    blocks.setdefault(str(place), []).append({"name": name, "texts": texts})
    return blocks


def _number(value: float) -> str:
    return "" if math.isnan(value) else f"{value:.2f}"


def _signed(value: float) -> str:
    return f"{'+' if value >= 0 else ''}{number(value, 2)}"


def _with_interval(row: Mapping[str, Any], name: str, ends: str | None = None, *, signed: bool) -> str:
    low, high = (row[f"{ends or name}_{end}"] for end in ("low", "high"))
    if math.isnan(row[name]):
        return ""
    write = _signed if signed else number
    return write(row[name]) if math.isnan(low) else f"{write(row[name])} ({write(low)} to {write(high)})"


_FIELDS = ("id", "row", "type", "subject", "question", "answer", "prefix", "entity")

_LARGE = 4000  # number of models times examples above which a progress bar is shown


def payload(
    audits: Mapping[str, DepthAudit],
    lens: Mapping[str, LensDeltas],
    pairs: pd.DataFrame | None = None,
    *,
    references: Sequence[str] = (),
    elicited: Mapping[str, ElicitationResults] | None = None,
    metrics: Measured | None = None,
) -> dict[str, Any]:
    """Return all data for the page, as strict JSON values."""
    sets: list[Any] = []
    stage1: list[str] = []
    models = []
    layers: dict[str, pd.DataFrame] = {}
    long = None if sum(len(audit.examples) for audit in audits.values()) > _LARGE else False
    for name, audit in progress(audits.items(), desc="drawing", total=len(audits), unit="model", enabled=long):
        tau, results = audit.config.tau, (elicited or {}).get(name)
        layers[name] = audit.layers_frame()
        figures = _model_figures(audit, layers[name])
        if results is not None:
            figures |= elicited_figures(audit, results)
        rows = [
            [*(getattr(example, field) for field in _FIELDS), tokens]
            for example, tokens in zip(audit.examples, audit.n_tokens.tolist(), strict=True)
        ]
        order = row_order(audit.ler.numpy(), audit.uds_per_example.numpy(), "cluster")
        models.append(
            {
                "name": name,
                "reference": name in references,
                "set": _index(sets, {"fields": [*_FIELDS, "tokens"], "rows": rows}),
                "stage1": _index(stage1, deltas(audit.s1_delta, tau)),
                "s2": floats(audit.s2_delta),
                "uds": floats(audit.uds_per_example),
                "lens": [deltas(lens[name].s1, tau), floats(lens[name].s2)] if name in lens else None,
                "tau": tau,
                "layers": audit.n_layers,
                "cluster": order.tolist(),
                "figures": figures,
                "elicited": None if results is None else elicited_values(audit, results),
            }
        )
    return plain(
        {
            "models": models,
            "roles": roles_of(audits.values())._asdict(),
            "sets": sets,
            "stage1": stage1,
            "figures": _shared_figures(audits, layers, pairs, references, metrics),
            "recolour": recolouring(),
            "scale": list(LIGHT.scale),
            "missing": LIGHT.missing,
            "tint": LIGHT.erased_band,
            "look": {name: getattr(LIGHT, name) for name in ("erased", "other", "faint", "text", "ink")},
        }
    )


def _index(items: list[Any], item: Any) -> int:
    """Return the index of `item` in `known`, adding it if it is missing."""
    if item not in items:
        items.append(item)
    return items.index(item)
