"""How much of an answer a model has by heart: pure functions of teacher-forced tokens.

Conventions of Open-Unlearning (Dorna et al. 2025): likelihoods count the end token, EM and ES do not look at it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from jaxtyping import Bool, Float
from torch import Tensor


def probability(logprobs: Float[Tensor, "token"]) -> float:
    """Length-normalised probability of an answer: `exp(mean log p)`, the geometric mean over its tokens.

    Args:
        logprobs: Log-probability of each answer token, the end token included, in nats.

    Returns:
        In [0, 1]; NaN without a token.

    Example:
        >>> import torch
        >>> round(probability(torch.tensor([0.5, 0.125]).log()), 6)
        0.25
    """
    return math.exp(float(logprobs.double().mean())) if len(logprobs) else math.nan


def geometric_mean(probabilities: Sequence[float]) -> float:
    """Geometric mean over the answers of one example, for example its paraphrases; NaN without any.

    >>> round(geometric_mean([0.5, 0.125]), 6), geometric_mean([0.5, 0.0])
    (0.25, 0.0)
    """
    if not probabilities or any(math.isnan(p) for p in probabilities):
        return math.nan
    if min(probabilities) == 0:
        return 0.0
    return math.exp(math.fsum(math.log(p) for p in probabilities) / len(probabilities))


def truth_ratio(correct: Sequence[float], wrong: Sequence[float]) -> float:
    """`p_c / (p_c + p_w)`: does the model still prefer the truth over answers of the same form that are wrong?

    Args:
        correct: Probabilities of the paraphrased answers; p_c is their geometric mean.
        wrong: Probabilities of the perturbed answers; p_w is their geometric mean.

    Returns:
        In [0, 1]; 0.5 = no preference, 1 = only the truth. NaN where a side is empty or both are 0.

    Example:
        >>> round(truth_ratio([0.6], [0.2]), 6)
        0.75
    """
    p_c, p_w = geometric_mean(correct), geometric_mean(wrong)
    return p_c / (p_c + p_w) if p_c + p_w > 0 else math.nan


def exact_memorization(hits: Bool[Tensor, "token"]) -> float:
    """Exact Memorization (EM): share of answer tokens that the teacher-forced argmax gets right.

    Args:
        hits: Per answer token, the end token included as last: is it the model's first choice?

    Returns:
        In [0, 1], without the last position; NaN where nothing is left.

    Example:
        >>> import torch
        >>> exact_memorization(torch.tensor([True, False, True, True, False]))
        0.75
    """
    kept = hits[:-1]
    return float(kept.double().mean()) if len(kept) else math.nan


def extraction_strength(hits: Bool[Tensor, "token"], *, strict: bool = False) -> float:
    """Extraction Strength (ES): `1 - k / T`, k = length of the shortest prefix after which every token is right.

    Where not even the last token is right, Open-Unlearning stops at k = T - 1 and so gives 1 / T. That is the
    default here, for comparison with published numbers; `strict` follows the definition, k = T.

    Args:
        hits: Per answer token, the end token included as last: is it the model's first choice?
        strict: True gives 0 where nothing can be extracted.

    Returns:
        In [0, 1], without the last position; NaN where nothing is left.

    Example:
        >>> import torch
        >>> extraction_strength(torch.tensor([False, True, True, True, False]))
        0.75
        >>> missed = torch.tensor([True, True, True, False, True])
        >>> extraction_strength(missed), extraction_strength(missed, strict=True)
        (0.25, 0.0)
    """
    kept = hits[:-1].tolist()
    if not kept:
        return math.nan
    right = next((n for n, hit in enumerate(reversed(kept)) if not hit), len(kept))
    return (right if strict else max(right, 1)) / len(kept)
