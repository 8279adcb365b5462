"""What samples of a question say: best of k, leak at k, and what more queries bring. Pure functions of the scores."""

from __future__ import annotations

import numpy as np
from jaxtyping import Float
from scipy.special import gammaln

from uds_lens.checked_arguments import arguments_checked


@arguments_checked
def best_of(scores: Float[np.ndarray, "*rest sample"], k: int) -> Float[np.ndarray, "*rest"]:
    """Expected best of k of the n samples, without bias: `sum_i C(i-1, k-1) / C(n, k) r_(i)`, r ascending.

    Args:
        scores: One score per sample, at least k of them.
        k: Queries that an attacker has.

    Returns:
        In the range of the scores; NaN where one of the scores is, or where there are fewer than k.

    Example:
        >>> float(best_of(np.array([0.0, 1.0, 1.0]), 2))
        1.0
        >>> round(float(best_of(np.array([0.0, 0.0, 1.0]), 2)), 4)
        0.6667

    Reference: the estimator of pass@k (Chen et al. 2021), for scores instead of passes.
    """
    n = scores.shape[-1]
    if k < 1 or k > n:
        return np.full(scores.shape[:-1], np.nan)
    ranks = np.arange(k, n + 1)
    weights = np.zeros(n)
    weights[k - 1 :] = np.exp(_log_choose(ranks - 1, k - 1) - _log_choose(n, k))
    return np.asarray((np.sort(scores, axis=-1) * weights).sum(-1))


@arguments_checked
def leak_at(
    scores: Float[np.ndarray, "*rest sample"], k: int, *, threshold: float
) -> Float[np.ndarray, "*rest"]:
    """Probability that one of k samples reaches the threshold: `1 - C(n - c, k) / C(n, k)`, c of n reach it.

    Args:
        scores: One score per sample.
        k: Queries that an attacker has.
        threshold: Score from which an answer counts as given away.

    Returns:
        In [0, 1]; NaN where a score is, or where there are fewer than k.

    Example:
        >>> round(float(leak_at(np.array([0.2, 0.9, 0.1, 1.0]), 2, threshold=0.8)), 4)
        0.8333
    """
    n = scores.shape[-1]
    if k < 1 or k > n:
        return np.full(scores.shape[:-1], np.nan)
    short = n - (scores >= threshold).sum(-1)
    with np.errstate(invalid="ignore"):
        none = np.where(short >= k, np.exp(_log_choose(np.maximum(short, k), k) - _log_choose(n, k)), 0.0)
    return np.asarray(np.where(np.isnan(scores).any(-1), np.nan, 1.0 - none))


def budgets(n: int) -> tuple[int, ...]:
    """Numbers of queries to draw a curve at: powers of two, and all.

    >>> budgets(50)
    (1, 2, 4, 8, 16, 32, 50)
    """
    powers = [1 << i for i in range(n.bit_length()) if 1 << i <= n]
    return tuple(dict.fromkeys([*powers, n])) if n > 0 else ()


def _log_choose(n: object, k: int) -> np.ndarray:
    n = np.asarray(n, dtype=float)
    return np.asarray(gammaln(n + 1) - gammaln(k + 1) - gammaln(n - k + 1))
