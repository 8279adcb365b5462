"""Host depth: what stays lost when blocks from `retain`, which never saw the facts, replace the model's own?"""

from __future__ import annotations

import math

from uds_lens.metrics._declaration import ERASED, Evidence, Outcome, Pass, Role, metric

_ROLES: tuple[Role, ...] = ("retain", "full", "model")


@metric(
    name="host_depth",
    label="Host depth",
    group="representation",
    meaning=ERASED,
    passes=tuple(Pass(role, "transplanted") for role in _ROLES),
)
def host_depth(evidence: Evidence) -> Outcome:
    """Return the mean h that `uds_lens.transplant` computes without control facts, with output depth in the details."""
    from uds_lens.results import mean_uds, output_depth
    from uds_lens.transplants import _scores as scores

    retain, full, model = (evidence.transplanted(role) for role in _ROLES)
    left, cost, of_retain = full.own[:, None] - model.mixed, full.own[:, None] - full.mixed, full.own - retain.own
    admitted = scores.affordable(cost, of_retain)
    chosen = scores.least_on_others(left, admitted, evidence.entity_subjects())
    per_example = scores.taken(scores.host_depth(left, cost, of_retain, evidence.options.tau), chosen)
    value, reason = mean_uds(per_example), None
    if math.isnan(value):
        reason = "no choice of blocks from retain keeps full's answers intact, or retain knows all of these answers"
    said = mean_uds(output_depth(full.own, model.own, retain.own, evidence.options.tau))
    details = {
        "n_skipped": evidence.n_skipped(),
        "candidates": len(admitted),
        "admitted": int(admitted.sum()),
        "output_depth": said,
    }
    return Outcome(value, reason, evidence.entity_ids(), per_example.tolist(), details)
