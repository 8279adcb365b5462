"""The numbers and texts that the page's script works with. What several audits share is there once."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from uds_lens import plots
from uds_lens._storage import plain
from uds_lens.elicitation import ElicitationResults
from uds_lens.errors import ConfigError
from uds_lens.metrics import LensComparison, MetricResults, MetricValue
from uds_lens.plots._examples import row_order
from uds_lens.plots._models import by_score
from uds_lens.plots._style import LIGHT, number, recolouring
from uds_lens.report._page import deltas, floats
from uds_lens.results import DepthAudit, site_groups

if TYPE_CHECKING:
    import pandas as pd


# Metrics handed to a report: matched to its audits, as a table and beside the depth.

MetricSources: TypeAlias = MetricResults | Mapping[str, MetricResults] | Sequence[MetricResults]
"""Results of one model or of several, in any order."""

UTILITIES = ("utility_rel", "utility", "model_utility", "retain_q_prob", "retain_q_rouge")
"""Metrics of utility, in order of preference."""

_GROUPS = {
    "utility": "Utility",
    "aggregate": "Combined",
    "memorization": "Memorization",
    "generation": "Generation",
    "membership": "Membership",
    "representation": "Inside the model",
    "custom": "Your own",
}
_SCORES = {"full": 0.0, "retain": 1.0}


class Measured(NamedTuple):
    """What was measured beside depth."""

    values: Mapping[str, Mapping[str, MetricValue]]
    """Metrics by name of the audit; `full` and `retain` of the audits under their roles, where they are no audits."""
    roles: tuple[str, ...]
    """Those of `values` that are no audits."""
    warnings: Mapping[str, tuple[str, ...]]
    """What to know before quoting them, by the same names."""


def measured(audits: Mapping[str, DepthAudit], metrics: MetricSources) -> Measured | None:
    """The results by audit, found by the weights of the models; None without any.

    Raises:
        ConfigError: Results of a model that is none of the page's, or something that is no result.
    """
    values: dict[str, dict[str, MetricValue]] = {}
    warnings: dict[str, tuple[str, ...]] = {}
    for source in metric_sources(metrics):
        for name in _owners(audits, source):
            values.setdefault(name, {}).update(source.metrics)
            warnings[name] = tuple(dict.fromkeys((*warnings.get(name, ()), *source.warnings)))
    if not values:
        return None
    names = [*audits, *(role for role in _SCORES if role not in audits)]
    return Measured(
        {name: values[name] for name in names if name in values},
        tuple(name for name in values if name not in audits),
        warnings,
    )


def metric_sources(metrics: MetricSources) -> list[MetricResults]:
    """The results one by one."""
    if isinstance(metrics, MetricResults):
        return [metrics]
    found = list(metrics.values() if isinstance(metrics, Mapping) else metrics)
    if not all(isinstance(source, MetricResults) for source in found):
        raise ConfigError(
            "metrics of a report are MetricResults (of metrics.evaluate, or MetricResults.load); got something else."
        )
    return found


def _owners(audits: Mapping[str, DepthAudit], source: MetricResults) -> list[str]:
    """The audits of the model that was measured; else the role it has in all of them."""
    own = source.models["model"].fingerprint
    names = [name for name, audit in audits.items() if audit.models["unlearned"].fingerprint == own]
    roles = [
        role for role in _SCORES if {audit.models[role].fingerprint for audit in audits.values()} == {own}
    ]
    free = [role for role in roles if role not in audits]
    if not names and not free:
        raise ConfigError(
            f"the metrics of {source.models['model'].name!r} belong to none of the audits on the page: expected "
            "results of one of their models (the weights are compared, not the names)."
        )
    return names or free


def usefulness(found: Measured) -> str | None:
    """Choose the utility metric: the first that all models have, else the first that any has."""
    for enough in (all, any):
        for name in UTILITIES:
            if enough(name in own and not math.isnan(own[name].value) for own in found.values.values()):
                return name
    return None


def depth_frame(audits: Mapping[str, DepthAudit], found: Measured) -> tuple[pd.DataFrame, str] | None:
    """`model`, `uds`, `uds_low`, `uds_high` and `utility` of the models, and what utility is; None without any."""
    import pandas as pd

    name = usefulness(found)
    if name is None:
        return None
    rows = []
    for model, own in found.values.items():
        audit = audits.get(model)
        uds = _SCORES[model] if audit is None else audit.uds
        low, high = (math.nan, math.nan) if audit is None else audit.uds_interval
        value = own[name].value if name in own else math.nan
        rows.append({"model": model, "uds": uds, "uds_low": low, "uds_high": high, "utility": value})
    label = next(own[name].label for own in found.values.values() if name in own)
    return pd.DataFrame(rows), f"{label}, higher is better"


def metrics_table(
    audits: Mapping[str, DepthAudit], found: Measured, order: Sequence[str], references: Sequence[str]
) -> dict[str, Any]:
    """Words of the section: a row per metric, a column per model in `order`, references that are no audits last."""
    places = {name: place for place, name in enumerate(audits)}
    names = [name for name in (*order, *found.roles) if name in found.values]
    columns = [
        {"name": name, "index": places.get(name), "reference": name in references or name in found.roles}
        for name in names
    ]
    every: dict[str, MetricValue] = {}
    for name in names:
        every |= {key: value for key, value in found.values[name].items() if key not in every}
    groups = [
        {
            "label": label,
            "rows": [
                _row(value, [found.values[name].get(key) for name in names])
                for key, value in every.items()
                if value.group == group
            ],
        }
        for group, label in _GROUPS.items()
    ]
    told: dict[str, list[str]] = {}
    for name in names:
        for sentence in found.warnings.get(name, ()):
            told.setdefault(sentence, []).append(name)
    return {
        "columns": columns,
        "groups": [group for group in groups if group["rows"]],
        "warnings": [
            {"text": text, "names": who if len(who) < len(names) else []} for text, who in told.items()
        ],
        "without": [name for name in order if name not in found.values],
        "scatter": usefulness(found) is not None,
    }


def _row(metric: MetricValue, values: Sequence[MetricValue | None]) -> dict[str, Any]:
    arrow = {
        "knowledge": "higher: still known",
        "erasure": "higher: erased",
        "utility": "higher: better",
    }
    return {
        "label": metric.label,
        "meaning": f"0 {metric.zero}, 1 {metric.one}; {arrow[metric.direction]}",
        "cells": [_cell(value) for value in values],
    }


def _cell(metric: MetricValue | None) -> dict[str, str]:
    if metric is None:
        return {"text": "", "title": "not measured"}
    if math.isnan(metric.value):
        return {"text": "NaN", "title": metric.reason or "undefined"}
    low, high = metric.interval
    told = "" if math.isnan(low) else f"95 % interval {low:.3f} to {high:.3f}"
    return {"text": f"{metric.value:.3f}", "title": told}


# The figures of the page, as plain JSON in the light palette; the page recolours them for dark
# surroundings.

PER_MODEL = ("layers", "examples", "types", "length", "tau", "clip", "control")
"""Figures that exist once per model."""


def model_figures(audit: DepthAudit) -> dict[str, Any]:
    """The figures of one audit by name."""
    examples, layers = audit.examples_frame(), audit.layers_frame()
    return {
        "layers": plain_figure(plots.layer_profile(layers, title=None)),
        "examples": plain_figure(plots.uds_distribution(examples, title=None)),
        "types": plain_figure(plots.type_bars(audit.types_frame(), title=None))
        if examples["type"].notna().any()
        else None,
        "length": plain_figure(plots.length_scatter(examples, title=None)),
        "tau": plain_figure(plots.tau_curve(audit.tau_sweep(), tau=audit.config.tau, title=None)),
        "clip": plain_figure(plots.clip_bars(layers, title=None)),
        "control": None
        if audit.control is None
        else plain_figure(plots.forget_and_kept(audit.control_layers_frame(), title=None)),
    }


def shared_figures(
    audits: Mapping[str, DepthAudit],
    pairs: pd.DataFrame | None = None,
    *,
    references: Sequence[str] = (),
    metrics: Measured | None = None,
) -> dict[str, Any]:
    """Figures of all audits together, and patterns whose numbers the page fills in."""
    first = next(iter(audits.values()))
    return {
        "compare": plain_figure(
            plots.compare_layers(
                {name: a.layers_frame() for name, a in audits.items()},
                chosen=next((name for name in audits if name not in references), None),
                references=references,
                title=None,
            )
        ),
        "differences": None if pairs is None else _differences(pairs, references),
        "useful": None if metrics is None else _useful(audits, metrics, references),
        "heatmap": _heatmap_pattern(),
        **{
            f"components{place}": _components(sites)
            for place, sites in enumerate(site_groups(audits.values()))
        },
        "example": _example_pattern(first),
        "lens": _lens_pattern(first),
        "template": jsonable(plots.template("light")),
    }


def _differences(pairs: pd.DataFrame, references: Sequence[str]) -> Any:
    """The matrix, and which of its rows are references."""
    figure = plain_figure(plots.audit_differences(pairs, title=None))
    figure["layout"]["meta"] = {
        "references": [place for place, name in enumerate(by_score(pairs, "uds")) if name in references]
    }
    return figure


def _useful(audits: Mapping[str, DepthAudit], metrics: Measured, references: Sequence[str]) -> Any:
    """Depth against utility; each mark says which model it is."""
    found = depth_frame(audits, metrics)
    if found is None:
        return None
    frame, label = found
    figure = plots.depth_utility(frame, label=label, references=[*references, *metrics.roles], title=None)
    drawn = frame.dropna(subset=["uds", "utility"])["model"]
    places = {name: place for place, name in enumerate(audits)}
    for name, trace in zip(drawn, (trace for trace in figure.data if trace.meta), strict=True):
        trace.meta = {"place": places.get(name, -1), "reference": name not in places or name in references}
    return plain_figure(figure)


def cluster_order(audit: DepthAudit) -> list[int]:
    """Examples with similar LER next to each other."""
    order = row_order(audit.ler.numpy(), audit.uds_per_example.numpy(), "cluster")
    return [int(index) for index in order]


def _heatmap_pattern() -> Any:
    import pandas as pd

    long = pd.DataFrame({"layer": [0], "s1_delta": [1.0], "s2_delta": [0.0], "ler": [0.0]})
    examples = pd.DataFrame({"example_id": [""], "question": [""], "entity": [""], "uds": [0.0]})
    pattern = plain_figure(plots.ler_heatmap(long, examples, title=None))
    for key in ("x", "z", "text", "customdata"):
        pattern["data"][0].pop(key)
    return pattern


def _components(sites: Mapping[str, DepthAudit]) -> Any:
    return plain_figure(
        plots.component_profile({site: audit.layers_frame() for site, audit in sites.items()}, title=None)
    )


def _example_pattern(audit: DepthAudit) -> Any:
    import pandas as pd

    zeros = np.zeros(max(audit.n_layers, 1))
    layers = pd.DataFrame(
        {"layer": np.arange(len(zeros)), "s1_delta": zeros, "s2_delta": zeros, "ler": zeros}
    )
    return plain_figure(plots.example_profile(layers, tau=audit.config.tau, title=None))


def _lens_pattern(audit: DepthAudit) -> Any:
    """Its headings say `undefined` where the page puts the scores."""
    import pandas as pd

    columns = [f"{view}_{part}" for view in ("uds", "lens") for part in ("s1_delta", "s2_delta", "ler")]
    layers = pd.DataFrame({"layer": [0], **{name: [np.nan] for name in columns}})
    return plain_figure(plots.lens_against_uds(layers, tau=audit.config.tau, title=None))


def plain_figure(figure: Any) -> Any:
    """A figure as JSON values, without the template that all share."""
    found = jsonable(figure)
    found["layout"].pop("template", None)
    return found


def jsonable(part: Any) -> Any:
    """A part of a figure as JSON values."""
    from plotly.io.json import to_json_plotly

    return json.loads(to_json_plotly(part))


# Logit Lens values handed to a report, found for the examples of its audits.

LensSource: TypeAlias = LensComparison | MetricResults
"""One example (`metrics.compare_logit_lens`), or all of them (`metrics.evaluate` with `logit_lens`)."""


class LensDeltas(NamedTuple):
    """Deltas by Logit Lens for the examples of an audit, nats per token; NaN where nobody measured them."""

    s1: Float[Tensor, "example layer"]
    """Of `retain`."""
    s2: Float[Tensor, "example layer"]
    """Of the unlearned model."""


def lens_deltas(audits: Mapping[str, DepthAudit], sources: Sequence[LensSource]) -> dict[str, LensDeltas]:
    """The values of `sources` by audit and example.

    Args:
        audits: Name to audit.
        sources: Results for any of them, in any order; later ones replace earlier ones.

    Returns:
        Audits that have any; a source belongs to each audit of the same models (raw protocol, site `resid_post`).

    Raises:
        ConfigError: A source belongs to no audit, or holds no Logit Lens values per layer.
    """
    found: dict[str, LensDeltas] = {}
    for source in sources:
        rows = _rows_of_comparison(source) if isinstance(source, LensComparison) else _rows_of_results(source)
        owners = [name for name, audit in audits.items() if _belongs(source, audit)]
        used = 0
        for name in owners:
            deltas = found.get(name) or _nothing(audits[name])
            used += _fill(deltas, audits[name], rows)
            found[name] = deltas
        if not used:
            raise ConfigError(
                f"the Logit Lens values of {_subject(source)} belong to none of the audits on the page: expected the "
                "same three models, examples of the audit, the raw protocol and the site resid_post."
            )
    return found


def lens_among(audits: Mapping[str, DepthAudit], metrics: MetricSources) -> list[MetricResults]:
    """Those of other metrics that hold Logit Lens values of an audit."""
    return [
        source
        for source in metric_sources(metrics)
        if "logit_lens" in source.metrics
        and "s1_delta" in source.metrics["logit_lens"].details
        and any(_belongs(source, audit) for audit in audits.values())
    ]


_Rows: TypeAlias = Mapping[str, tuple[Sequence[float], Sequence[float]]]


def _rows_of_comparison(source: LensComparison) -> _Rows:
    return {source.example.id: (source.lens_s1.tolist(), source.lens_s2.tolist())}


def _rows_of_results(source: MetricResults) -> _Rows:
    lens = source.metrics.get("logit_lens")
    if lens is None or "s1_delta" not in lens.details:
        raise ConfigError(
            f"the metrics of {_subject(source)} hold no Logit Lens values per layer: measure logit_lens with this "
            "release, with the full and the retain model."
        )
    sides = [lens.details[name] for name in ("s1_delta", "s2_delta")]
    if not all(isinstance(side, Sequence) and len(side) == len(lens.ids) for side in sides):
        raise ConfigError(f"the Logit Lens values of {_subject(source)} are not one row per example.")
    return {
        example: (_numbers(s1, source), _numbers(s2, source))
        for example, s1, s2 in zip(lens.ids, *sides, strict=True)
    }


def _numbers(values: object, source: MetricResults) -> list[float]:
    """The values of one example; files write NaN as null."""
    if not isinstance(values, Sequence) or not all(isinstance(v, int | float | None) for v in values):
        raise ConfigError(f"the Logit Lens values of {_subject(source)} are not one number per layer.")
    return [math.nan if value is None else float(value) for value in values]


def _subject(source: LensSource) -> str:
    """What the values are about, for messages."""
    if isinstance(source, LensComparison):
        return f"example {source.example.id!r}"
    return f"model {source.models['model'].name!r}"


def _belongs(source: LensSource, audit: DepthAudit) -> bool:
    if audit.config.protocol != "raw" or audit.config.site != "resid_post":
        return False
    if isinstance(source, LensComparison):
        places = [place for place, example in enumerate(audit.examples) if example.id == source.example.id]
        return any(
            torch.equal(audit.s1_delta[place], source.uds_s1)
            and torch.equal(audit.s2_delta[place], source.uds_s2)
            for place in places
        )
    roles = {"full": "full", "retain": "retain", "unlearned": "model"}
    same_models = all(
        role in source.models and source.models[role].fingerprint == audit.models[own].fingerprint
        for own, role in roles.items()
    )
    return same_models and _same_examples(source, audit)


def _same_examples(source: MetricResults, audit: DepthAudit) -> bool:
    """Whether the ids mean the same examples; ids are often row numbers, which every file has.

    Told by the tokens of all; where one of the two holds more rows, by the last layer, at which Logit Lens and UDS
    are the same measurement of `retain`.
    """
    tokens = source.provenance.get("entity_ids_hash")
    if tokens is not None and tokens == audit.provenance.get("ids_hash"):
        return True
    if audit.config.last_layer != "resid_post":
        return False
    rows = _rows_of_results(source)
    known = [(i, e) for i, e in enumerate(audit.examples) if e.id in rows and rows[e.id][0]]
    ours = {e.id: float(audit.s1_delta[i, -1]) for i, e in known}
    return bool(ours) and all(
        math.isclose(rows[e][0][-1], s1, rel_tol=0.01, abs_tol=0.01) for e, s1 in ours.items()
    )


def _nothing(audit: DepthAudit) -> LensDeltas:
    return LensDeltas(*(torch.full_like(audit.s1_delta, torch.nan) for _ in range(2)))


def _fill(deltas: LensDeltas, audit: DepthAudit, rows: _Rows) -> int:
    """Write the rows of the audit's examples; returns how many there were."""
    used = 0
    for place, example in enumerate(audit.examples):
        if example.id in rows and all(len(values) == audit.n_layers for values in rows[example.id]):
            for kept, values in zip(deltas, rows[example.id], strict=True):
                kept[place] = torch.tensor(values, dtype=kept.dtype)
            used += 1
    return used


# Elicitations handed to a report, beside the audits of the same models: what came out, what it says, what
# was said.

_LEVEL = 0.05
_LONGEST = 600
"""Letters of a text that the page holds."""

_ROLES = ("unlearned", "retain", "full")


def elicited_beside(
    audits: Mapping[str, DepthAudit], sources: Sequence[ElicitationResults]
) -> dict[str, ElicitationResults]:
    """The elicitation of each audit's unlearned model, by the audit's name.

    Args:
        audits: Name to audit.
        sources: Results for any of them, in any order; of two of one model the later one counts.

    Raises:
        ConfigError: One is of a model that none of the audits is about, or shares no example with its audit.
    """
    found: dict[str, ElicitationResults] = {}
    for source in sources:
        if not isinstance(source, ElicitationResults):
            raise ConfigError(
                "elicitations are ElicitationResults (ElicitationResults.load reads saved ones); got "
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
        found |= dict.fromkeys(owners, source)
    return found


def elicited_values(audit: DepthAudit, found: ElicitationResults) -> dict[str, Any]:
    """What the page shows of one elicitation, as texts.

    Returns:
        `sentence`, `how`, `rows` (the summary), `ledger`, `warnings`, `said` (by place of the example in the audit).
    """
    table = found.summary()
    return {
        "sentence": _sentence(table),
        "how": _how(found),
        "rows": [_elicited_values_row(row) for row in table.to_dict("records")],
        "ledger": [_line(line) for line in found.ledger().to_dict("records")],
        "warnings": list(found.warnings),
        "said": _said(audit, found),
    }


def elicited_figures(audit: DepthAudit, found: ElicitationResults) -> dict[str, Any]:
    """Scores by probe, and depth beside what one probe brought out."""
    names = [record.name for record in found.probes if not record.capacity]
    chosen = next((name for name in ("cloze", "plain") if name in names), names[0] if names else None)
    deep = None
    if chosen is not None and "retain" in found.models:
        deep = plain_figure(plots.depth_elicited(found.with_depth(audit), probe=chosen, title=None))
    return {
        "elicited": plain_figure(plots.elicited_scores(found.summary(), title=None)),
        "depth_elicited": deep,
    }


def _sentence(table: Any) -> str:
    known = table[table["p_holm"].notna()]
    if not len(known):
        return "There is nothing to compare with: no retain model was asked."
    real = known[(known["p_holm"] < _LEVEL) & (known["beyond_retain"] > 0)]
    if not len(real):
        return f"No probe brings out more than retain says, beyond chance (adjusted p below {_LEVEL:g})."
    best = real.loc[real["beyond_retain"].idxmax()]
    names = ", ".join(dict.fromkeys(real["probe"]))
    return (
        f"{names}: more than retain says, beyond chance (adjusted p below {_LEVEL:g}). Most by {best['probe']}: "
        f"{_signed(best['beyond_retain'])} of the reference."
    )


def _how(found: ElicitationResults) -> str:
    options = found.options
    drawn = ""
    if options.samples:
        among = "all tokens" if options.top_k is None else f"the {options.top_k} likeliest tokens"
        drawn = f" and {options.samples} texts drawn (temperature {options.temperature:g}, {among})"
    return (
        f"{len(found.examples)} questions, greedily{drawn}, up to {options.max_new_tokens} tokens, seed "
        f"{options.seed}, {found.protocol} protocol."
    )


def _elicited_values_row(row: Mapping[str, Any]) -> dict[str, Any]:
    share = str(row["share_reason"] or "")
    return {
        "probe": row["probe"],
        "how": _decoding(row["decoding"], row["statistic"]),
        "scores": [_plain(row.get(role, math.nan)) for role in ("full", "retain", "unlearned")],
        "beyond": _with_interval(row["beyond_retain"], row["beyond_low"], row["beyond_high"], signed=True),
        "p": "" if math.isnan(row["p_holm"]) else f"{row['p_holm']:.2g}",
        "real": bool(row["p_holm"] < _LEVEL and row["beyond_retain"] > 0),
        "power": _with_interval(row["power"], row["power_low"], row["power_high"], signed=True),
        "share": _with_interval(row["share"], row["share_low"], row["share_high"], signed=False)
        if not math.isnan(row["share"])
        else next((why for why in ("no power", "not asked") if share.startswith(why)), "none"),
        "n": int(row["n"]),
    }


def _line(line: Mapping[str, Any]) -> list[str]:
    skipped = str(line["skipped"])
    if line["skipped"]:
        skipped += f": {line['first_reason']}"
    return [
        line["probe"],
        line["access"],
        line["injects"],
        str(line["asked"]),
        skipped,
        _plain(line["reference_in_prompt"]),
        str(line["empty"]),
        str(line["endless"]),
    ]


def _said(audit: DepthAudit, found: ElicitationResults) -> dict[str, list[dict[str, Any]]]:
    """Of each example of the audit: by probe, the greedy text, or the best of the drawn ones, of each model."""
    places = {(row.id, row.question): place for place, row in enumerate(audit.examples)}
    of = [places.get((row.id, row.question)) for row in found.examples]
    told: dict[str, list[dict[str, Any]]] = {}
    for record in found.probes:
        for decoding in ("greedy", "sampled"):
            parts = [p for p in found.parts if (p.probe, p.decoding) == (record.name, decoding)]
            by_role = {part.role: {said.row: said for said in part.said} for part in parts}
            for row, place in enumerate(of):
                texts = []
                for role in _ROLES:
                    said = by_role.get(role, {}).get(row)
                    if said is None or not said.texts:
                        continue
                    scores = [score.recall for score in found.scores[role, record.name, decoding][row]]
                    best = max(range(len(scores)), key=lambda n: -1.0 if math.isnan(scores[n]) else scores[n])
                    texts.append([role, _short(said.texts[best]), _plain(scores[best])])
                if texts and place is not None:
                    how = "greedy" if decoding == "greedy" else f"best of {found.options.samples} drawn"
                    name = f"{record.name}, {how}" + (" (given the answer)" if record.capacity else "")
                    told.setdefault(str(place), []).append({"name": name, "texts": texts})
    return told


def _short(text: str) -> str:
    text = " ".join(text.split())
    return text if len(text) <= _LONGEST else text[: _LONGEST - 1] + "…"


def _decoding(decoding: str, statistic: str) -> str:
    return decoding if decoding == "greedy" else f"{decoding}, {statistic}"


def _plain(value: float) -> str:
    return "" if math.isnan(value) else f"{value:.2f}"


def _signed(value: float) -> str:
    return f"{'+' if value >= 0 else ''}{number(value, 2)}"


def _with_interval(value: float, low: float, high: float, *, signed: bool) -> str:
    if math.isnan(value):
        return ""
    write = _signed if signed else (lambda x: number(x, 2))
    return write(value) if math.isnan(low) else f"{write(value)} ({write(low)} to {write(high)})"


EXAMPLE_FIELDS = ("id", "row", "type", "subject", "question", "answer", "prefix", "entity")


def payload(
    audits: Mapping[str, DepthAudit],
    lens: Mapping[str, LensDeltas],
    pairs: pd.DataFrame | None = None,
    *,
    references: Sequence[str] = (),
    elicited: Mapping[str, ElicitationResults] | None = None,
    metrics: Measured | None = None,
) -> dict[str, Any]:
    """Everything for the page, as strict JSON values.

    Args:
        audits: Name to audit.
        lens: Logit Lens by audit, for those that have it.
        pairs: `uds_lens.results.compare_all(audits)`; None leaves its figure out.
        references: Names of audits that are there for comparison.
        elicited: Elicitations by audit, for those that have one.
        metrics: Other metrics of the models.

    Returns:
        `models` (one per audit, with indices into the following), `sets` (examples), `stage1` (S1 deltas), `figures`,
        `recolour` (light colour to dark), `scale`, `look` (colours of curves that the page changes).
    """
    sets: list[Any] = []
    stage1: list[str] = []
    models = []
    for name, audit in audits.items():
        tau = audit.config.tau
        found = (elicited or {}).get(name)
        models.append(
            {
                "name": name,
                "reference": name in references,
                "set": _index(sets, _example_set(audit)),
                "stage1": _index(stage1, deltas(audit.s1_delta, tau)),
                "s2": floats(audit.s2_delta),
                "uds": floats(audit.uds_per_example),
                "lens": [deltas(lens[name].s1, tau), floats(lens[name].s2)] if name in lens else None,
                "tau": tau,
                "layers": audit.n_layers,
                "cluster": cluster_order(audit),
                "figures": model_figures(audit) | ({} if found is None else elicited_figures(audit, found)),
                "elicited": None if found is None else elicited_values(audit, found),
            }
        )
    return plain(
        {
            "models": models,
            "sets": sets,
            "stage1": stage1,
            "figures": shared_figures(audits, pairs, references=references, metrics=metrics),
            "recolour": recolouring(),
            "scale": list(LIGHT.scale),
            "missing": LIGHT.missing,
            "tint": LIGHT.erased_band,
            "look": {name: getattr(LIGHT, name) for name in ("erased", "other", "faint", "text", "ink")},
        }
    )


def _example_set(audit: DepthAudit) -> dict[str, Any]:
    return {
        "fields": [*EXAMPLE_FIELDS, "tokens"],
        "rows": [
            [*(getattr(example, name) for name in EXAMPLE_FIELDS), tokens]
            for example, tokens in zip(audit.examples, audit.n_tokens.tolist(), strict=True)
        ],
    }


def _index(known: list[Any], item: Any) -> int:
    """Place of `item` in `known`, added if new."""
    if item not in known:
        known.append(item)
    return known.index(item)
