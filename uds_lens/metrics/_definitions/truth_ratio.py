"""Truth Ratio: is the truth still likelier than falsehoods of the same form?"""

from __future__ import annotations

import math
from collections.abc import Sequence

from uds_lens.metrics._declaration import (
    Evidence,
    Meaning,
    Outcome,
    geometric_mean,
    mean_outcome,
    metric,
    needs_answers,
)
from uds_lens.metrics._definitions.prob import probabilities


def truth_ratio(correct: Sequence[float], wrong: Sequence[float]) -> float:
    """Return `p_c / (p_c + p_w)`: does the model still prefer the truth over wrong answers of the same form?

    Args:
        correct: Probabilities of the paraphrased answers; p_c is their geometric mean.
        wrong: Probabilities of the perturbed answers; p_w is their geometric mean.

    Returns:
        In [0, 1]; 0.5 = no preference, 1 = only the truth. NaN where a side is empty or both are 0.

    References:
        Maini et al. 2024, TOFU; in the form of Dorna et al. 2025, OpenUnlearning.

    Example:
        >>> round(truth_ratio([0.6], [0.2]), 6)
        0.75
    """
    p_c, p_w = geometric_mean(correct), geometric_mean(wrong)
    return p_c / (p_c + p_w) if p_c + p_w > 0 else math.nan


@metric(
    name="truth_ratio",
    label="Truth Ratio",
    group="memorization",
    meaning=Meaning("knowledge", "prefers falsehoods", "prefers truth (0.5: neither)"),
    passes=needs_answers("forget/paraphrased", "forget/perturbed"),
)
def forget_truth_ratio(evidence: Evidence) -> Outcome:
    """Return the Truth Ratio on the forget set."""
    sides = (probabilities(evidence, f"forget/{kind}") for kind in ("paraphrased", "perturbed"))
    return mean_outcome(evidence.ids("forget"), [truth_ratio(*pair) for pair in zip(*sides, strict=True)])
