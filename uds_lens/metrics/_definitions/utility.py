"""Fluency (does the model still write language?) and Utility: useful and fluent; and relative to `full`."""

from __future__ import annotations

from uds_lens.metrics._declaration import (
    USEFUL,
    Evidence,
    Meaning,
    Outcome,
    Role,
    Undefined,
    harmonic_of_metrics,
    harmonic_of_parts,
    mean_outcome,
    metric,
    needs_generations,
)
from uds_lens.metrics._definitions.model_utility import part_passes, utility_of


@metric(
    name="fluency",
    label="Fluency",
    group="utility",
    meaning=Meaning("utility", "only gibberish", "no gibberish"),
    passes=needs_generations("forget"),
)
def fluency(evidence: Evidence, *, role: Role = "model") -> Outcome:
    """Return the share of fluent answers to the forget questions."""
    values = evidence.fluency(evidence.generations("forget", role))
    return mean_outcome(evidence.ids("forget"), values, scorer=evidence.fluency.name)


@metric(name="utility", label="Utility", group="utility", meaning=USEFUL, uses=("model_utility", "fluency"))
def utility(evidence: Evidence) -> Outcome:
    """Return the harmonic mean of Model Utility and Fluency."""
    return harmonic_of_metrics(evidence, ("model_utility", "fluency"))


@metric(
    name="utility_rel",
    label="Utility (rel.)",
    group="utility",
    meaning=Meaning("utility", "useless", "as full (no limit)", high=float("inf")),
    passes=(
        *dict.fromkeys(p for passes in part_passes("full").values() for p in passes),
        *needs_generations("forget", role="full"),
    ),
    uses=("utility",),
)
def utility_rel(evidence: Evidence) -> Outcome:
    """Return Utility relative to that of `full`."""
    model = evidence.value("utility")
    full = harmonic_of_parts(
        {"Model Utility of full": utility_of(evidence, "full"), "Fluency of full": fluency(evidence, role="full").value}
    )
    if full == 0:
        raise Undefined("the Utility of full is 0")
    return Outcome(model / full, details={"utility_model": model, "utility_full": full})
