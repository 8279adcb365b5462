"""Membership inference: can the forget set be distinguished from questions that no model has seen?

Each attack scores every example, where a higher score means less familiar. The metric is the area under the ROC curve
with the holdout set as positives: 0.5 is chance, and 1 means that the forget set is fully identifiable.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TypeAlias

from uds_lens._optional_packages import require_package
from uds_lens._settings import check_value
from uds_lens._types import Share
from uds_lens.metrics._declaration import Evidence, Meaning, Outcome, Role, Undefined, metric, needs_answers


def mean_nll(logprobs: Sequence[float]) -> float:
    """Return MIA-LOSS: the mean NLL of the answer and its end, in nats per token; NaN without tokens.

    >>> mean_nll([-1.0, -3.0])
    2.0
    """
    values = [float(value) for value in logprobs]
    return -math.fsum(values) / len(values) if values else math.nan


def zlib_score(logprobs: Sequence[float], answer: str) -> float:
    """Return MIA-ZLib: the mean NLL divided by the compressed length of the answer, in nats per byte.

    Args:
        logprobs: Log-probability of each labelled token (the answer and its end).
        answer: The answer's text, which is compressed as UTF-8.

    Returns:
        A number >= 0; NaN without tokens.

    References:
        Carlini et al. 2021, Extracting Training Data from Large Language Models.

    Example:
        >>> zlib_score([-1.0, -3.0], "aaaa") == 2.0 / len(zlib.compress(b"aaaa"))
        True
    """
    return mean_nll(logprobs) / len(zlib.compress(answer.encode("utf-8")))


def min_k_score(logprobs: Sequence[float], *, k: float = 0.4) -> float:
    """Return MIA-Min-K: the negated mean of the lowest fraction k of token scores (at least one token).

    Min-K++ uses `(log p - mu) / sigma` as the token score, where mu and sigma^2 are the mean and variance of log p over
    the vocabulary, weighted by p (`AnswerScores.standardised`).

    Args:
        logprobs: Log-probability (or standardised log-probability) of each labelled token (the answer and its end).
        k: Fraction of tokens; their number is rounded down.

    Returns:
        The score; higher means less familiar. The last position is left out, as in Open-Unlearning; NaN if no other
        position is left.

    Raises:
        ConfigError: `k` is outside (0, 1].

    References:
        Shi et al. 2024, Detecting Pretraining Data from Large Language Models; Zhang et al. 2024, Min-K%++.

    Example:
        >>> min_k_score([-1.0, -4.0, -2.0, -0.5, -0.1, -9.0], k=0.4)
        3.0
    """
    check_value("k", k, Share)
    ascending = sorted([float(value) for value in logprobs][:-1])
    lowest = ascending[: max(1, int(len(ascending) * k))]
    return -math.fsum(lowest) / len(lowest) if lowest else math.nan


def auc(forget: Sequence[float], holdout: Sequence[float]) -> float:
    """Return the AUC: the probability that a holdout example scores above a forget example, with ties counting as half.

    Args:
        forget: Scores of the members; NaNs are ignored.
        holdout: Scores of the non-members; NaNs are ignored.

    Returns:
        A value in [0, 1]; NaN if there are no members or no non-members.

    Raises:
        MissingDependencyError: scikit-learn is not installed.

    Example:
        >>> auc([1.0, 2.0], [2.0, 3.0])
        0.875
    """
    require_package("sklearn", needed_by="an ROC curve needs")
    from sklearn.metrics import roc_auc_score

    members = [score for score in forget if not math.isnan(score)]
    others = [score for score in holdout if not math.isnan(score)]
    if not members or not others:
        return math.nan
    return float(roc_auc_score([0] * len(members) + [1] * len(others), members + others))


def normalised_auc(model: float, retain: float) -> float:
    """Return `s = 1 - min(|AUC_m - AUC_ret| / AUC_ret, 1)`: is the model as hard to attack as `retain`?

    Args:
        model: AUC of the model.
        retain: AUC of `retain`.

    Returns:
        1 if the two AUCs are equal, 0 if they differ by at least the AUC of `retain`; NaN if either AUC is NaN or the
        AUC of `retain` is 0.

    Example:
        >>> normalised_auc(0.6, 0.5), normalised_auc(0.5, 0.5)
        (0.8, 1.0)
    """
    if math.isnan(model) or math.isnan(retain) or retain == 0:
        return math.nan
    return 1.0 - min(abs(model - retain) / retain, 1.0)


IDENTIFIABLE = Meaning("knowledge", "holdout more familiar", "forget set identifiable (0.5: chance)")

Attack: TypeAlias = Callable[[Evidence, list[float], list[float], str], float]
"""Function that scores one answer, given the evidence, its log-probabilities, its standardised log-probabilities and
its text."""

ATTACKS: dict[str, tuple[str, Attack]] = {
    "mia_loss": ("LOSS", lambda evidence, logprobs, standardised, text: mean_nll(logprobs)),
    "mia_zlib": ("ZLib", lambda evidence, logprobs, standardised, text: zlib_score(logprobs, text)),
    "mia_min_k": (
        "Min-K",
        lambda evidence, logprobs, standardised, text: min_k_score(logprobs, k=evidence.options.min_k),
    ),
    "mia_min_kpp": (
        "Min-K++",
        lambda evidence, logprobs, standardised, text: min_k_score(standardised, k=evidence.options.min_k),
    ),
}
"""The attacks, by metric name: label and scoring function."""


def mia(evidence: Evidence, *, attack: Attack, role: Role = "model") -> Outcome:
    """Return the AUC of an attack.

    The values per example are the attack's scores; ids from the holdout set begin with "holdout/".
    """
    scores: dict[str, list[float]] = {}
    for name in ("forget", "holdout"):
        answers = evidence.answers(name, role)
        rows = zip(answers.logprobs, answers.standardised, evidence.texts(name), strict=True)
        scores[name] = [attack(evidence, logp.tolist(), std.tolist(), text) for logp, std, text in rows]
    return auc_outcome(evidence, scores)


def auc_outcome(evidence: Evidence, scores: Mapping[str, list[float]]) -> Outcome:
    """Return the AUC of an attack from its scores on "forget" and "holdout"."""
    members, others = scores["forget"], scores["holdout"]
    ids = [*evidence.ids("forget"), *(f"holdout/{name}" for name in evidence.ids("holdout"))]
    value = auc(members, others)
    empty = [name for name, values in scores.items() if all(map(math.isnan, values))]
    reason = f"no {' and no '.join(empty)} answer is long enough for this attack" if math.isnan(value) else None
    return Outcome(value, reason, ids, [*members, *others], {"n_holdout": len(others)})


def s_mia(evidence: Evidence, *, attack: Attack, of: str) -> Outcome:
    """Return the normalised AUC of an attack."""
    model, of_retain = evidence.value(of), mia(evidence, attack=attack, role="retain")
    retain = of_retain.value
    value = normalised_auc(model, retain)
    if math.isnan(value):
        raise Undefined(f"the AUC of retain is {retain:g}{f': {of_retain.reason}' if of_retain.reason else ''}")
    return Outcome(value, details={"auc_model": model, "auc_retain": retain})


for _name, (_label, _attack) in ATTACKS.items():
    metric(
        name=_name,
        label=f"MIA-{_label}",
        group="membership",
        meaning=IDENTIFIABLE,
        passes=needs_answers("forget", "holdout"),
        packages=("sklearn",),
    )(partial(mia, attack=_attack))
for _name, (_label, _attack) in ATTACKS.items():
    metric(
        name=f"s_{_name}",
        label=f"s_{_label}",
        group="membership",
        meaning=Meaning("erasure", "far from retain", "as retain"),
        passes=needs_answers("forget", "holdout", role="retain"),
        uses=(_name,),
        packages=("sklearn",),
    )(partial(s_mia, attack=_attack, of=_name))
