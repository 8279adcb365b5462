"""Length-normalised probability of answers and paraphrases, and the Truth Ratio of true to false answers."""

from __future__ import annotations

import math
from collections.abc import Sequence

from uds_lens.metrics._declaration import (
    KNOWN,
    Evidence,
    Meaning,
    Outcome,
    Role,
    geometric_mean,
    mean_outcome,
    metric,
    needs_answers,
)


def probability(logprobs: Sequence[float]) -> float:
    """Return the length-normalised probability of an answer: `exp(mean log p)`, the geometric mean over its tokens.

    Args:
        logprobs: Log-probability of each labelled token (the answer and its end), in nats.

    Returns:
        A value in [0, 1]; NaN without tokens.

    Example:
        >>> round(probability([math.log(0.5), math.log(0.125)]), 6)
        0.25
    """
    values = [float(value) for value in logprobs]
    return math.exp(math.fsum(values) / len(values)) if values else math.nan


def probabilities(evidence: Evidence, name: str, role: Role = "model") -> list[list[float]]:
    """Return the length-normalised probability of every answer in a set, grouped by example."""
    logprobs = evidence.answers(name, role).logprobs
    return evidence.by_example(name, [probability(row.tolist()) for row in logprobs])


@metric(name="prob", label="Probability", group="memorization", meaning=KNOWN, passes=needs_answers("forget"))
def prob(evidence: Evidence) -> Outcome:
    """Return the probability of the forget answers."""
    return mean_outcome(evidence.ids("forget"), [p for (p,) in probabilities(evidence, "forget")])


@metric(
    name="paraprob",
    label="Para. Probability",
    group="memorization",
    meaning=KNOWN,
    passes=needs_answers("forget/paraphrased"),
)
def paraprob(evidence: Evidence) -> Outcome:
    """Return the probability of the paraphrased forget answers, as a geometric mean per example."""
    values = [geometric_mean(values) for values in probabilities(evidence, "forget/paraphrased")]
    return mean_outcome(evidence.ids("forget"), values)


def truth_ratio(correct: Sequence[float], wrong: Sequence[float]) -> float:
    """Return `p_c / (p_c + p_w)`: does the model still prefer the truth over wrong answers of the same form?

    Args:
        correct: Probabilities of the paraphrased answers; p_c is their geometric mean.
        wrong: Probabilities of the perturbed answers; p_w is their geometric mean.

    Returns:
        A value in [0, 1]; 0.5 means no preference, 1 means that only the truth has any probability. NaN if there are no
        correct or no wrong answers, or if both means are 0.

    References:
        Maini et al. 2024, TOFU; in the form given by Dorna et al. 2025, OpenUnlearning.

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
