"""Overall: forgot, private, and still useful."""

from __future__ import annotations

from uds_lens.metrics._declaration import Evidence, Meaning, Outcome, harmonic_of_parts, metric

_OF = ("memorization", "privacy", "utility_rel")


@metric(
    name="overall",
    label="Overall",
    group="aggregate",
    meaning=Meaning("utility", "one of three is 0", "forgot, private, useful"),
    high=float("inf"),
    uses=_OF,
)
def overall(evidence: Evidence) -> Outcome:
    """Harmonic mean of Memorization, Privacy and Utility_rel."""
    parts = {name: evidence.value(name) for name in _OF}
    return Outcome(harmonic_of_parts(parts), details=parts)
