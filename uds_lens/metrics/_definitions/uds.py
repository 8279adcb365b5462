"""UDS of any deltas, whether they come from patching or from a lens."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from uds_lens.metrics._declaration import ERASED, Evidence, Outcome, Pass, metric, needs_states

if TYPE_CHECKING:
    from jaxtyping import Float
    from torch import Tensor


def depth_of_deltas(
    evidence: Evidence, s1_delta: Float[Tensor, "example layer"], s2_delta: Float[Tensor, "example layer"]
) -> Outcome:
    """UDS of deltas per example and layer, nats per token: its layers, clipping and weights.

    Args:
        evidence: The settings (tau) and the examples.
        s1_delta: What is lost with `retain`.
        s2_delta: What is lost with the model.

    Returns:
        The mean over examples that have a KE layer.
    """
    from uds_lens.results import ke_mask, layer_erasure_ratio, mean_uds, uds_per_example

    ke = ke_mask(s1_delta, evidence.options.tau)
    per_example = uds_per_example(s1_delta, layer_erasure_ratio(s1_delta, s2_delta, ke), ke)
    value = mean_uds(per_example)
    reason = None
    if math.isnan(value):
        reason = f"no example has a layer where retain loses more than tau = {evidence.options.tau:g} nats per token"
    details = {"n_skipped": evidence.n_skipped(), "ke_layers": int(ke.sum())}
    return Outcome(value, reason, evidence.entity_ids(), per_example.tolist(), details)


# The Unlearning Depth Score, beside the others: the passes and the score of an audit.


@metric(
    name="uds",
    label="UDS",
    group="representation",
    meaning=ERASED,
    passes=(
        *needs_states("retain", "model"),
        Pass("full", "patched", "retain"),
        Pass("full", "patched", "model"),
    ),
)
def uds(evidence: Evidence) -> Outcome:
    """The Unlearning Depth Score."""
    return depth_of_deltas(evidence, evidence.patched_delta("retain"), evidence.patched_delta("model"))
