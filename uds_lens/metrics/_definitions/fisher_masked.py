"""Masked Fisher information: do weights that `full` no longer adapts to the forget set still do their work?"""

from __future__ import annotations

import math
from functools import partial

from uds_lens.metrics._declaration import ERASED, Evidence, Outcome, Pass, Undefined, metric

FRACTIONS = (0.0001, 0.001, 0.01)  # shares of a layer's weights that the masks hold


def fisher_masked(evidence: Evidence, *, fraction: float) -> Outcome:
    """Return the mean over layers of `fisher_erasure`, weighted by what `retain` has more than `full`."""
    from uds_lens.metrics._fisher import fisher_erasure
    from uds_lens.metrics._white_box import weighted_erasure

    erasure, weights = fisher_erasure(evidence.masks(), evidence.fisher(), fraction)
    value = weighted_erasure(erasure, weights)
    if math.isnan(value):
        raise Undefined("no weight has more Fisher information in retain than in full")
    return Outcome(value, details={"erasure": erasure.tolist(), "excess": weights.tolist()})


for _fraction in FRACTIONS:
    metric(
        name=f"fisher_masked_{_fraction:g}",
        label=f"Fisher Masked ({100 * _fraction:g}%)",
        group="representation",
        meaning=ERASED,
        passes=(Pass("retain", "fisher_spill"), Pass("full", "fisher_masks"), Pass("model", "fisher_sums")),
    )(partial(fisher_masked, fraction=_fraction))
