"""Probability of the answer, by its length, and of its paraphrases."""

from __future__ import annotations

import math
from collections.abc import Sequence

from uds_lens.metrics._declaration import (
    KNOWN,
    Evidence,
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
        logprobs: Log-probability of each labelled token of the answer, what ends it included, in nats.

    Returns:
        In [0, 1]; NaN without a token.

    Example:
        >>> round(probability([math.log(0.5), math.log(0.125)]), 6)
        0.25
    """
    values = [float(value) for value in logprobs]
    return math.exp(math.fsum(values) / len(values)) if values else math.nan


def probabilities(evidence: Evidence, name: str, role: Role = "model") -> list[list[float]]:
    """Return the length-normalised probability of every answer of a set, listed per example."""
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
    """Return the probability of the paraphrased forget answers, the geometric mean over those of one example."""
    values = [geometric_mean(values) for values in probabilities(evidence, "forget/paraphrased")]
    return mean_outcome(evidence.ids("forget"), values)
