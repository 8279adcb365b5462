"""The numbers and texts that the page's script works with. What several audits share is there once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from uds_lens.plots.palette import LIGHT, recolouring
from uds_lens.report.elicited_values import elicited_figures, elicited_values
from uds_lens.report.embedding import deltas, floats
from uds_lens.report.lens_values import LensDeltas
from uds_lens.report.page_figures import cluster_order, model_figures, shared_figures
from uds_lens.report.usefulness import Measured
from uds_lens.results import DepthAudit
from uds_lens.storage import plain

if TYPE_CHECKING:
    import pandas as pd

    from uds_lens.elicitation import ElicitationResults

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
