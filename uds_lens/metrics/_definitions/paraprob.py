"""Probability of the answer in other words."""

from __future__ import annotations

from uds_lens.metrics._declaration import (
    KNOWN,
    Evidence,
    Outcome,
    geometric_mean,
    mean_outcome,
    metric,
    needs_answers,
)
from uds_lens.metrics._definitions.prob import probabilities


@metric(
    name="paraprob",
    label="Para. Probability",
    group="memorization",
    meaning=KNOWN,
    passes=needs_answers("forget/paraphrased"),
)
def paraprob(evidence: Evidence) -> Outcome:
    """Probability of the paraphrased forget answers: the geometric mean over those of one example."""
    found = probabilities(evidence, "forget/paraphrased")
    return mean_outcome(evidence.ids("forget"), [geometric_mean(each) for each in found])
