"""The four membership attacks as one number."""

from __future__ import annotations

from uds_lens.metrics._declaration import Evidence, Meaning, Outcome, harmonic_of_parts, metric
from uds_lens.metrics._definitions.membership_attacks import ATTACKS

_PARTS = tuple(f"s_{name}" for name in ATTACKS)


@metric(
    name="mia_agg",
    label="MIA agg.",
    group="aggregate",
    meaning=Meaning("erasure", "far from retain", "as retain"),
    uses=_PARTS,
)
def mia_agg(evidence: Evidence) -> Outcome:
    """Return the harmonic mean of the four normalised attacks."""
    parts = {name: evidence.value(name) for name in _PARTS}
    return Outcome(harmonic_of_parts(parts), details=parts)
