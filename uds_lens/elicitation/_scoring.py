"""Score generated texts and models: recall, best of k, leak@k, and share (a position between retain and full)."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeAlias

import numpy as np
from jaxtyping import Float, Int
from scipy.special import gammaln

from uds_lens._types import RougeWords
from uds_lens.errors import ConfigError
from uds_lens.generation._rouge import has_words, rouge_scorer
from uds_lens.results import Interval, contrast
from uds_lens.results._intervals import ROUNDING, of_equal_scores, studentised, widened
from uds_lens.results._statistics import NO_INTERVAL


class Scores(NamedTuple):
    """Scores of one text; ROUGE is NaN if the reference has no words that ROUGE counts."""

    recall: float  # ROUGE-L recall of the reference, in [0, 1]; the score used for all probes
    precision: float  # ROUGE-L precision, in [0, 1]; low if a text has a high recall only because it is long
    entity: float  # ROUGE-L recall of the entity alone; NaN if the row has no entity
    words: int  # number of words in the text
    judged: float = math.nan  # score from the user's judge, in [0, 1]; NaN without a judge


Judge: TypeAlias = Callable[[str, str, str], float]
"""A function that takes the row's question, the reference and a text, and returns a score in [0, 1], or NaN; for
example an entailment model, or a language model as a judge."""


def cut(text: str, *, raw: bool, opening: str = "") -> str:
    r"""Extract the answer from a generated text: remove an optimiser's target, and stop at the next question.

    Example:
        >>> cut(" Sure, the answer is Ada Vey.\nQuestion: Who", raw=True, opening="Sure, the answer is")
        'Ada Vey.'
    """
    if raw:
        text = re.split(r"(?:^|\n)\s*Question:", text, maxsplit=1)[0]
    text = text.strip()
    if not opening.strip():
        return text
    pattern = r"\s+".join(map(re.escape, opening.split()))
    return re.sub(rf"^{pattern}", "", text, count=1, flags=re.IGNORECASE).lstrip(" \t\n:,").strip()


def score_texts(
    texts: Sequence[str],
    reference: str,
    entity: str | None,
    *,
    words: RougeWords = "ascii",
    judge: Callable[[str, str], float] | None = None,
) -> list[Scores]:
    """Score the answers to one question, as returned by `cut`; `judge` takes the reference and a text.

    References:
        Lin 2004: ROUGE-L = LCS / reference length, computed by the rouge-score package with its stemmer.

    Example:
        >>> score_texts(["It was Ada."], "Ada Vey", "Ada Vey")[0]
        Scores(recall=0.5, precision=0.333..., entity=0.5, words=3, judged=nan)
    """
    scorer = rouge_scorer(words, needed_by="scoring texts needs")

    def rouge(text: str, reference: str | None) -> tuple[float, float]:
        if not reference or not has_words(reference, words):
            return math.nan, math.nan
        rouge_l = scorer.score(reference, text)["rougeL"]
        return float(rouge_l.recall), float(rouge_l.precision)

    def judged(text: str) -> float:
        score = math.nan if judge is None else float(judge(reference, text))
        if score < 0 or score > 1:
            raise ConfigError(f"a judge must return a number from 0 to 1, or NaN; got {score:g} for {text[:80]!r}.")
        return score

    by_text = {
        text: Scores(*rouge(text, reference), rouge(text, entity)[0], len(text.split()), judged(text))
        for text in dict.fromkeys(texts)
    }
    return [by_text[text] for text in texts]


def best_of(scores: Float[np.ndarray, "*rest sample"], k: int) -> Float[np.ndarray, "*rest"]:
    """Estimate the expected best of k samples from n, without bias: `sum_i C(i-1, k-1) / C(n, k) r_(i)`, r ascending.

    NaN if a score is NaN or there are fewer than k samples. This is the pass@k estimator (Chen et al. 2021), applied to
    scores instead of passes.

    Example:
        >>> float(best_of(np.array([0.0, 1.0, 1.0]), 2))
        1.0
        >>> round(float(best_of(np.array([0.0, 0.0, 1.0]), 2)), 4)
        0.6667
    """
    n = scores.shape[-1]
    if k < 1 or k > n:
        return np.full(scores.shape[:-1], np.nan)
    weights = np.zeros(n)
    weights[k - 1 :] = np.exp(_log_choose(np.arange(k - 1, n), k - 1) - _log_choose(n, k))
    return np.asarray((np.sort(scores, axis=-1) * weights).sum(-1))


def leak_at(scores: Float[np.ndarray, "*rest sample"], k: int, *, threshold: float) -> Float[np.ndarray, "*rest"]:
    """Estimate the probability that any of k samples reaches the threshold: `1 - C(n - c, k) / C(n, k)` if c of n do.

    NaN if a score is NaN or there are fewer than k samples.

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
    """Return the numbers of queries at which curves are drawn: the powers of two up to `n`, and `n`.

    >>> budgets(50)
    (1, 2, 4, 8, 16, 32, 50)
    """
    return tuple(dict.fromkeys([*(1 << i for i in range(n.bit_length())), n])) if n > 0 else ()


def _log_choose(n: object, k: int) -> np.ndarray:
    n = np.asarray(n, dtype=float)
    return np.asarray(gammaln(n + 1) - gammaln(k + 1) - gammaln(n - k + 1))


_CONFIDENCE = 0.95

NOT_ASKED = "not asked: no row has a score"  # reason for a share that is NaN because no text was generated


class Share(NamedTuple):
    """Position of a model between retain (0) and full (1)."""

    value: float
    """NaN if the probe has no power or its power is unknown."""

    interval: Interval
    """95% interval, over subjects."""

    reason: str | None
    """Reason if the share is NaN."""


def share(
    beyond: Float[np.ndarray, "question"],
    power: Float[np.ndarray, "question"],
    groups: Int[np.ndarray, "question"],
    *,
    n_resamples: int = 9999,
    seed: int = 0,
) -> Share:
    """Return `E = mean beyond / mean power` (0: like retain, 1: like full), with an interval over subjects.

    Let T_g and P_g be the sums of `beyond` and `power` over subject g. The interval is the symmetric studentised
    bootstrap of the ratio sum T_g / sum P_g, as in `uds_lens.results.bootstrap_interval` but with P_g in place of the
    number of questions. Recall is often all or nothing within a subject. If few subjects recall anything, a bootstrap
    is overconfident. The interval is therefore at least as wide as a beta-binomial model of the subjects implies, with
    sum power^2 / sum power as the score of a recalled question. The interval may extend below 0 and above 1.

    Args:
        beyond: Score of the model minus the score of retain, per question; scores are in [0, 1].
        power: Score of full minus the score of retain, per question.
        groups: Subject of each question.
        n_resamples: Number of bootstrap resamples for the share and for the power.
        seed: Random seed.

    Returns:
        NaN with the reason "no power" if the lower bound of the mean power is not above 0, "one subject" if there is no
        such bound, and "not asked" if no question has both values. Only the interval is NaN if too many resamples of
        the subjects have no power.

    References:
        Hall (1988), On Symmetric Bootstrap Confidence Intervals; the standard error comes from the delta method.
    """
    both = ~(np.isnan(beyond) | np.isnan(power))
    beyond, power, groups = beyond[both], power[both], groups[both]
    if not len(power):
        return Share(math.nan, NO_INTERVAL, NOT_ASKED)
    reach = contrast(power, groups, n_resamples=n_resamples, seed=seed)
    if reach.n_subjects == 1:
        return Share(
            math.nan, NO_INTERVAL, "one subject: whether full scores above retain for other subjects is unknown"
        )
    same = np.ptp(power) < ROUNDING and reach.value > 0
    if not (reach.interval.low > 0 or same):
        reason = "no power: under this probe full does not score above retain beyond chance"
        return Share(math.nan, NO_INTERVAL, reason)
    value = float(beyond.sum() / power.sum())
    _, codes = np.unique(groups, return_inverse=True)
    top, bottom = (np.bincount(codes, values).astype(float) for values in (beyond, power))
    ends = studentised(top, bottom, _CONFIDENCE, n_resamples, seed)
    if ends is None:  # all subjects have the same share; the shares of other subjects lie in [0, 1]
        bounds = min(0.0, value), max(1.0, value)
        ends = Interval(*of_equal_scores(value, codes, bounds, _CONFIDENCE))
    elif not math.isnan(ends.low):
        recalled = float((power**2).sum() / power.sum())
        scale = recalled / float(power.mean())
        low, high = widened(ends.low / scale, ends.high / scale, beyond / recalled, codes, (0.0, 1.0), _CONFIDENCE)
        ends = Interval(low * scale, high * scale)
    return Share(value, ends, None)
