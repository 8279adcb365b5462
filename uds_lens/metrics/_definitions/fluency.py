"""Fluency: does the model still write language?"""

from __future__ import annotations

from uds_lens.metrics._declaration import Evidence, Meaning, Outcome, Role, mean_outcome, metric, needs_generations


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
