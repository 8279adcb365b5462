"""Exact Memorization: how many of the answer's tokens are the model's first choice."""

from __future__ import annotations

import math
from collections.abc import Sequence

from uds_lens.metrics._declaration import KNOWN, Evidence, Outcome, mean_outcome, metric, needs_answers


def exact_memorization(hits: Sequence[bool]) -> float:
    """Return Exact Memorization (EM): share of answer tokens that the teacher-forced argmax gets right.

    Args:
        hits: Per labelled token of the answer, what ends it included: is it the model's first choice?

    Returns:
        In [0, 1], without the last position; NaN where nothing is left.

    References:
        Tirumala et al. 2022, Memorization Without Overfitting; Dorna et al. 2025, OpenUnlearning.

    Example:
        >>> exact_memorization([True, False, True, True, False])
        0.75
    """
    answer = [bool(hit) for hit in hits][:-1]
    return sum(answer) / len(answer) if answer else math.nan


@metric(name="em", label="Exact Memorization", group="memorization", meaning=KNOWN, passes=needs_answers("forget"))
def em(evidence: Evidence) -> Outcome:
    """Return Exact Memorization on the forget set."""
    hits = evidence.answers("forget").hits
    return mean_outcome(evidence.ids("forget"), [exact_memorization(row.tolist()) for row in hits])
