"""Utility: useful and fluent; and relative to `full`."""

from __future__ import annotations

from uds_lens.metrics._declaration import (
    USEFUL,
    Evidence,
    Meaning,
    Outcome,
    Pass,
    Undefined,
    harmonic_of_parts,
    metric,
    needs_generations,
)
from uds_lens.metrics._definitions.fluency import fluency
from uds_lens.metrics._definitions.model_utility import part_passes, utility_of


def _passes_over_full() -> tuple[Pass, ...]:
    parts = dict.fromkeys(p for passes in part_passes("full").values() for p in passes)
    return (*parts, *needs_generations("forget", role="full"))


@metric(name="utility", label="Utility", group="utility", meaning=USEFUL, uses=("model_utility", "fluency"))
def utility(evidence: Evidence) -> Outcome:
    """Utility: harmonic mean of Model Utility and Fluency."""
    parts = {name: evidence.value(name) for name in ("model_utility", "fluency")}
    return Outcome(harmonic_of_parts(parts), details=parts)


@metric(
    name="utility_rel",
    label="Utility (rel.)",
    group="utility",
    meaning=Meaning("utility", "useless", "as full; may exceed 1"),
    high=float("inf"),
    passes=_passes_over_full(),
    uses=("utility",),
)
def utility_rel(evidence: Evidence) -> Outcome:
    """Utility relative to `full`."""
    own = evidence.value("utility")
    both = {
        "Model Utility of full": utility_of(evidence, "full"),
        "Fluency of full": fluency(evidence, role="full").value,
    }
    full = harmonic_of_parts(both)
    if full == 0:
        raise Undefined("the Utility of full is 0")
    return Outcome(own / full, details={"utility_model": own, "utility_full": full})
