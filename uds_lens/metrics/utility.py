"""What a model should still be able to do: the nine parts of Model Utility, and the aggregates built on it."""

from __future__ import annotations

import math
from collections.abc import Sequence

from uds_lens.metrics.memorization import geometric_mean


def option_probability(answer: float, options: Sequence[float]) -> float:
    """Probability of the answer among the options: `p / (p + sum of the others)`, for multiple-choice sets.

    Args:
        answer: Length-normalised probability of the right answer.
        options: Those of the wrong answers.

    Returns:
        In [0, 1]; NaN without another option, or where all are 0.

    Example:
        >>> option_probability(0.5, [0.25, 0.25])
        0.5
    """
    total = answer + math.fsum(options)
    return answer / total if options and total > 0 else math.nan


def kept_truth(correct: Sequence[float], wrong: Sequence[float]) -> float:
    """Truth Ratio as utility: `max(0, 1 - p_w / p_c)`, geometric means of the wrong and of the right answers.

    Returns:
        1 = wrong answers are impossible, 0 = at least as likely as the truth; NaN where a side is empty or both are 0.

    Example:
        >>> kept_truth([0.5], [0.25]), kept_truth([0.25], [0.5])
        (0.5, 0.0)
    """
    p_c, p_w = geometric_mean(correct), geometric_mean(wrong)
    if math.isnan(p_c) or math.isnan(p_w) or p_c == p_w == 0:
        return math.nan
    return max(0.0, 1 - p_w / p_c) if p_c > 0 else 0.0
