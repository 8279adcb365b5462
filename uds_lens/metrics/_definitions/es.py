"""Extraction Strength and Exact Memorization: which answer tokens does the teacher-forced argmax get right?"""

from __future__ import annotations

import math
from collections.abc import Sequence

from uds_lens.metrics._declaration import KNOWN, Evidence, Outcome, mean_outcome, metric, needs_answers


def extraction_strength(hits: Sequence[bool], *, strict: bool = False) -> float:
    """Return Extraction Strength (ES): `1 - k / T`, with the smallest k such that all tokens after token k are right.

    If not even the last token is right, Open-Unlearning stops at k = T - 1 and gives 1 / T. This is also the default
    here, for comparison with published numbers; `strict` follows the definition, with k = T.

    Args:
        hits: Whether each labelled token (the answer and its end) is the model's argmax.
        strict: Return 0 if nothing can be extracted.

    Returns:
        A value in [0, 1], computed without the last position; NaN if no other position is left.

    References:
        Carlini et al. 2021, Extracting Training Data from Large Language Models; Dorna et al. 2025, OpenUnlearning.

    Example:
        >>> extraction_strength([False, True, True, True, False])
        0.75
        >>> missed = [True, True, True, False, True]
        >>> extraction_strength(missed), extraction_strength(missed, strict=True)
        (0.25, 0.0)
    """
    answer = [bool(hit) for hit in hits][:-1]
    if not answer:
        return math.nan
    right = next((n for n, hit in enumerate(reversed(answer)) if not hit), len(answer))
    return (right if strict else max(right, 1)) / len(answer)


@metric(name="es", label="Extraction Strength", group="memorization", meaning=KNOWN, passes=needs_answers("forget"))
def es(evidence: Evidence) -> Outcome:
    """Return Extraction Strength on the forget set."""
    strict, hits = evidence.options.strict_es, evidence.answers("forget").hits
    values = [extraction_strength(row.tolist(), strict=strict) for row in hits]
    return mean_outcome(evidence.ids("forget"), values)


def exact_memorization(hits: Sequence[bool]) -> float:
    """Return Exact Memorization (EM): the fraction of answer tokens that the teacher-forced argmax gets right.

    Args:
        hits: Whether each labelled token (the answer and its end) is the model's argmax.

    Returns:
        A value in [0, 1], computed without the last position; NaN if no other position is left.

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
