"""Logit Lens values handed to a report, found for the examples of its audits."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple, TypeAlias

import torch
from jaxtyping import Float
from torch import Tensor

from uds_lens.errors import ConfigError
from uds_lens.metrics import LensComparison, MetricResults
from uds_lens.report.usefulness import MetricSources, metric_sources
from uds_lens.results import DepthAudit

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
