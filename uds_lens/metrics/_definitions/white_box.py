"""White-box baselines: linear CKA of a model's states, and masked Fisher information of its weights.

CKA measures whether the states at the entities have moved from the states of `full` towards those of `retain`. Masked
Fisher measures whether the weights that encode the forget set in `full` (less Fisher information than in `retain`)
still encode it.
"""

from __future__ import annotations

import math
from functools import partial

from uds_lens.metrics._declaration import ERASED, Evidence, Outcome, Pass, Undefined, metric, needs_states

_ROUNDING = 1e-9  # float64 rounding can move the CKA of equal states this far from 1


@metric(name="cka", label="CKA", group="representation", meaning=ERASED, passes=needs_states("retain", "model", "full"))
def cka(evidence: Evidence) -> Outcome:
    """Return the mean over layers of `cka_erasure`, weighted by `1 - CKA(full, retain)` (`linear_cka`).

    States are taken at the entities or over whole answers (`MetricOptions.cka_scope`).
    """
    import torch

    from uds_lens.metrics._white_box import cka_erasure, linear_cka, weighted_erasure

    states = partial(evidence.stacked_states, answers="forget" if evidence.options.cka_scope == "answers" else "")
    full_retain, model_retain = [], []
    for layer in range(evidence.n_layers()):
        retain = states("retain", layer)
        full_retain.append(linear_cka(states("full", layer), retain))
        model_retain.append(linear_cka(states("model", layer), retain))
    c_fr, c_ur = (torch.tensor(values, dtype=torch.float64) for values in (full_retain, model_retain))
    erasure, weights = cka_erasure(c_fr, c_ur), 1 - c_fr
    weights[weights < _ROUNDING] = 0.0
    value = weighted_erasure(erasure, weights)
    if math.isnan(value):
        raise Undefined("no layer separates full from retain: their states have CKA 1, or do not vary")
    details = {"full_retain": full_retain, "model_retain": model_retain, "erasure": erasure.tolist()}
    return Outcome(value, details=details)


FRACTIONS = (0.0001, 0.001, 0.01)  # fractions of a layer's weights in the masks


def fisher_masked(evidence: Evidence, *, fraction: float) -> Outcome:
    """Return the mean over layers of `fisher_erasure`, weighted by the excess of `retain` over `full`."""
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
