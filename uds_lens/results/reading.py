"""A score in words, or why there are none."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from uds_lens.results.audit_scores import AuditScores

WITHHELD = "withheld"
"""Instead of words, where a warning is fatal: the number is there, and does not mean what a score means."""

_READINGS = (
    (0.05, "intact, as in full"),
    (0.35, "mostly intact"),
    (0.65, "partly erased"),
    (0.95, "mostly erased"),
    (math.inf, "erased, as in retain"),
)


def reading(uds: float) -> str:
    """A score in words.

    >>> [reading(uds) for uds in (0.0, 0.2, 0.5, 0.8, 1.0, float("nan"))]
    ['intact, as in full', 'mostly intact', 'partly erased', 'mostly erased', 'erased, as in retain', 'not measurable']
    """
    if math.isnan(uds):
        return "not measurable"
    return next(words for bound, words in _READINGS if uds < bound)


def reading_of(audit: AuditScores) -> str:
    """An audit's score in words; `withheld` where one of its warnings is fatal."""
    if math.isnan(audit.uds):
        return reading(audit.uds)
    if audit.fatal:
        return WITHHELD
    words, stand_in = reading(audit.uds), audit.config.stand_in
    return words if stand_in is None else words.replace("retain", stand_in)
