"""Logit Lens: UDS on each layer's state read by the head of `full` directly, without running the later layers."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from uds_lens.metrics._declaration import ERASED, Evidence, Outcome, Pass, metric, needs_states

if TYPE_CHECKING:
    from jaxtyping import Float
    from torch import Tensor


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
    """Return Logit Lens, aggregated like UDS; its deltas per example and layer are kept for figures."""
    from uds_lens.metrics._definitions.uds import depth_of_deltas  # declared after this one

    def rounded(deltas: Float[Tensor, "example layer"]) -> list[list[float]]:
        return [[round(value, 6) for value in row] for row in deltas.tolist()]

    full = evidence.lens("full")
    s1_delta, s2_delta = full - evidence.lens("retain"), full - evidence.lens("model")
    outcome = depth_of_deltas(evidence, s1_delta, s2_delta)
    deltas = {"s1_delta": rounded(s1_delta), "s2_delta": rounded(s2_delta)}
    return replace(outcome, details={**outcome.details, **deltas})
