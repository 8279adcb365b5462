"""Probability of the paraphrased answers."""

from __future__ import annotations

from uds_lens.metrics._declaration import KNOWN, Evidence, Outcome, geometric_mean, mean_outcome, metric, needs_answers
from uds_lens.metrics._definitions.prob import probabilities


@metric(
    name="paraprob",
    label="Para. Probability",
    group="memorization",
    meaning=KNOWN,
    passes=needs_answers("forget/paraphrased"),
)
def paraprob(evidence: Evidence) -> Outcome:
    """Return the probability of the paraphrased forget answers, the geometric mean over those of one example."""
    values = [geometric_mean(values) for values in probabilities(evidence, "forget/paraphrased")]
    return mean_outcome(evidence.ids("forget"), values)
