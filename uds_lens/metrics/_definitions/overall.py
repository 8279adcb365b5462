"""Overall: forgotten, private, and still useful."""

from __future__ import annotations

from uds_lens.metrics._declaration import Evidence, Meaning, Outcome, harmonic_of_parts, metric

_PARTS = ("memorization", "privacy", "utility_rel")


@metric(
    name="overall",
    label="Overall",
    group="aggregate",
    meaning=Meaning("utility", "one part is 0", "all parts are 1", high=float("inf")),
    uses=_PARTS,
)
def overall(evidence: Evidence) -> Outcome:
    """Return the harmonic mean of Memorization, Privacy and Utility_rel."""
    parts = {name: evidence.value(name) for name in _PARTS}
    return Outcome(harmonic_of_parts(parts), details=parts)
