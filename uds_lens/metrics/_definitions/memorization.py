"""Memorization: how much is gone, by four metrics at once."""

from __future__ import annotations

from uds_lens.metrics._declaration import Evidence, Meaning, Outcome, harmonic_of_parts, metric

_PARTS = ("es", "em", "paraprob", "truth_ratio")


@metric(
    name="memorization",
    label="Memorization",
    group="aggregate",
    meaning=Meaning("erasure", "one of four known", "nothing known"),
    uses=_PARTS,
)
def memorization(evidence: Evidence) -> Outcome:
    """Return `HM(1 - ES, 1 - EM, 1 - ParaProb, 1 - Truth Ratio)`, the harmonic mean."""
    parts = {f"1-{name}": 1 - evidence.value(name) for name in _PARTS}
    return Outcome(harmonic_of_parts(parts), details=parts)
