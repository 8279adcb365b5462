"""CKA: have the states at the entities moved from those of `full` towards those of `retain`?"""

from __future__ import annotations

import math

from uds_lens.metrics._declaration import ERASED, Evidence, Outcome, Undefined, metric, needs_states

_ROUNDING = 1e-9  # distance of a CKA from 1 that float64 sums of equal states can leave


@metric(name="cka", label="CKA", group="representation", meaning=ERASED, passes=needs_states("retain", "model", "full"))
def cka(evidence: Evidence) -> Outcome:
    """Return the mean over layers of `cka_erasure`, weighted by `1 - CKA(full, retain)` (`linear_cka`)."""
    import torch

    from uds_lens.metrics._white_box import cka_erasure, linear_cka, weighted_erasure

    full_retain, model_retain = [], []
    for layer in range(evidence.n_layers()):
        retain = evidence.stacked_states("retain", layer)
        full_retain.append(linear_cka(evidence.stacked_states("full", layer), retain))
        model_retain.append(linear_cka(evidence.stacked_states("model", layer), retain))
    c_fr, c_ur = (torch.tensor(values, dtype=torch.float64) for values in (full_retain, model_retain))
    erasure, weights = cka_erasure(c_fr, c_ur), 1 - c_fr
    weights[weights < _ROUNDING] = 0.0
    value = weighted_erasure(erasure, weights)
    if math.isnan(value):
        raise Undefined("no layer separates full from retain: their states have CKA 1, or do not vary")
    details = {"full_retain": full_retain, "model_retain": model_retain, "erasure": erasure.tolist()}
    return Outcome(value, details=details)
