"""Aggregates: harmonic means of other metrics."""

from __future__ import annotations

from uds_lens.metrics._declaration import (
    Evidence,
    Meaning,
    MetricSpec,
    Outcome,
    add_metric,
    harmonic_of_metrics,
    harmonic_of_parts,
    metric,
)
from uds_lens.metrics._definitions.membership_attacks import ATTACKS

_KNOWLEDGE = ("es", "em", "paraprob", "truth_ratio")
_OVERALL = ("memorization", "privacy", "utility_rel")
_ATTACKS = tuple(f"s_{name}" for name in ATTACKS)


@metric(
    name="memorization",
    label="Memorization",
    group="aggregate",
    meaning=Meaning("erasure", "one of four known", "nothing known"),
    uses=_KNOWLEDGE,
)
def memorization(evidence: Evidence) -> Outcome:
    """Return `HM(1 - ES, 1 - EM, 1 - ParaProb, 1 - Truth Ratio)`, the harmonic mean."""
    parts = {f"1-{name}": 1 - evidence.value(name) for name in _KNOWLEDGE}
    return Outcome(harmonic_of_parts(parts), details=parts)


@metric(
    name="mia_agg",
    label="MIA agg.",
    group="aggregate",
    meaning=Meaning("erasure", "far from retain", "as retain"),
    uses=_ATTACKS,
)
def mia_agg(evidence: Evidence) -> Outcome:
    """Return the harmonic mean of the four normalised attacks."""
    return harmonic_of_metrics(evidence, _ATTACKS)


def privacy(evidence: Evidence) -> Outcome:
    """Return MIA_agg, or (`MetricOptions.uds_in_privacy`) its harmonic mean with UDS."""
    return harmonic_of_metrics(evidence, ("mia_agg", "uds") if evidence.options.uds_in_privacy else ("mia_agg",))


add_metric(
    MetricSpec(
        name="privacy",
        label="Privacy",
        group="aggregate",
        meaning=Meaning("erasure", "leaks", "as retain"),
        score=privacy,
        uses=("mia_agg",),
        uses_if={"uds_in_privacy": ("uds",)},
    )
)


@metric(
    name="overall",
    label="Overall",
    group="aggregate",
    meaning=Meaning("utility", "one part is 0", "all parts are 1", high=float("inf")),
    uses=_OVERALL,
)
def overall(evidence: Evidence) -> Outcome:
    """Return the harmonic mean of Memorization, Privacy and Utility_rel."""
    return harmonic_of_metrics(evidence, _OVERALL)
