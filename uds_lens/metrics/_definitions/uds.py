"""UDS, and Logit Lens aggregated like UDS: states are patched into `full`, or read by the head of `full`."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING

from uds_lens.metrics._declaration import ERASED, Evidence, Outcome, Pass, metric, needs_states

if TYPE_CHECKING:
    from jaxtyping import Float
    from torch import Tensor


def depth_of_deltas(
    evidence: Evidence, s1_delta: Float[Tensor, "example layer"], s2_delta: Float[Tensor, "example layer"]
) -> Outcome:
    """Compute UDS from deltas (nats per token), averaged over examples that have a KE layer."""
    from uds_lens.results import ke_mask, layer_erasure_ratio, mean_uds, uds_per_example

    tau = evidence.options.tau
    ke = ke_mask(s1_delta, tau)
    per_example = uds_per_example(s1_delta, layer_erasure_ratio(s1_delta, s2_delta, ke), ke)
    value, reason = mean_uds(per_example), None
    if math.isnan(value):
        reason = f"no example has a layer where retain loses more than tau = {tau:g} nats per token"
    details = {"n_skipped": evidence.n_skipped(), "ke_layers": int(ke.sum())}
    return Outcome(value, reason, evidence.entity_ids(), per_example.tolist(), details)


@metric(
    name="logit_lens",
    label="Logit Lens",
    group="representation",
    meaning=ERASED,
    passes=(
        *needs_states("retain", "model", "full"),
        *(Pass("full", "lens", role) for role in ("retain", "full", "model")),
    ),
)
def logit_lens(evidence: Evidence) -> Outcome:
    """Return Logit Lens, aggregated like UDS; the deltas per example and layer are kept for figures."""

    def rounded(deltas: Float[Tensor, "example layer"]) -> list[list[float]]:
        return [[round(value, 6) for value in row] for row in deltas.tolist()]

    full = evidence.lens("full")
    s1_delta, s2_delta = full - evidence.lens("retain"), full - evidence.lens("model")
    outcome = depth_of_deltas(evidence, s1_delta, s2_delta)
    deltas = {"s1_delta": rounded(s1_delta), "s2_delta": rounded(s2_delta)}
    return replace(outcome, details={**outcome.details, **deltas})


@metric(
    name="uds",
    label="UDS",
    group="representation",
    meaning=ERASED,
    passes=(*needs_states("retain", "model"), Pass("full", "patched", "retain"), Pass("full", "patched", "model")),
)
def uds(evidence: Evidence) -> Outcome:
    """Return the Unlearning Depth Score."""
    return depth_of_deltas(evidence, evidence.patched_delta("retain"), evidence.patched_delta("model"))
