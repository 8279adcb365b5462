"""Privacy: the membership attacks, with or without the depth score."""

from __future__ import annotations

from uds_lens.metrics._declaration import Evidence, Meaning, MetricSpec, Outcome, add_metric, harmonic_of_parts


def privacy(evidence: Evidence) -> Outcome:
    """Return MIA_agg, or (`MetricOptions.uds_in_privacy`) its harmonic mean with UDS."""
    names = ("mia_agg", "uds") if evidence.options.uds_in_privacy else ("mia_agg",)
    parts = {name: evidence.value(name) for name in names}
    return Outcome(harmonic_of_parts(parts), details=parts)


add_metric(
    MetricSpec(
        name="privacy",
        label="Privacy",
        group="aggregate",
        meaning=Meaning("erasure", "leaks", "as retain"),
        score=privacy,
        uses=("mia_agg",),
        uses_if={"uds_in_privacy": ("uds",)},
    )
)
