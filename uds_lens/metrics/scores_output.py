"""From token scores and generated answers to the metrics of what a model says."""

from __future__ import annotations

import math
from collections.abc import Callable

from jaxtyping import Float
from torch import Tensor

from uds_lens.metrics.evidence import Evidence, Undefined
from uds_lens.metrics.generation import rouge_l_recall
from uds_lens.metrics.means import mean_of_defined
from uds_lens.metrics.membership import auc, mean_nll, min_k_score, normalised_auc, zlib_score
from uds_lens.metrics.memorization import exact_memorization, extraction_strength, geometric_mean, truth_ratio
from uds_lens.metrics.spec import Outcome, Role, mean_outcome

Attack = Callable[[Evidence, Float[Tensor, "token"], Float[Tensor, "token"], str], float]
"""Score of one answer from its log-probabilities, its standardised ones and its text."""


def es(evidence: Evidence) -> Outcome:
    """Extraction Strength on the forget set."""
    strict = evidence.options.strict_es
    hits = evidence.answers("forget").hits
    return mean_outcome(evidence.ids("forget"), [extraction_strength(each, strict=strict) for each in hits])


def em(evidence: Evidence) -> Outcome:
    """Exact Memorization on the forget set."""
    hits = evidence.answers("forget").hits
    return mean_outcome(evidence.ids("forget"), [exact_memorization(each) for each in hits])


def prob(evidence: Evidence) -> Outcome:
    """Probability of the forget answers."""
    return mean_outcome(evidence.ids("forget"), [p for (p,) in evidence.probabilities("forget")])


def paraprob(evidence: Evidence) -> Outcome:
    """Probability of the paraphrased forget answers."""
    found = evidence.probabilities("forget/paraphrased")
    return mean_outcome(evidence.ids("forget"), [geometric_mean(each) for each in found])


def forget_truth_ratio(evidence: Evidence) -> Outcome:
    """Truth Ratio on the forget set."""
    correct = evidence.probabilities("forget/paraphrased")
    wrong = evidence.probabilities("forget/perturbed")
    values = [truth_ratio(*pair) for pair in zip(correct, wrong, strict=True)]
    return mean_outcome(evidence.ids("forget"), values)


def rouge(evidence: Evidence, *, jailbreak: bool = False) -> Outcome:
    """ROUGE-L recall of the forget answers."""
    references = [example.answer for example in evidence.data.forget]
    answers = evidence.generations("forget", jailbreak=jailbreak)
    return mean_outcome(evidence.ids("forget"), rouge_l_recall(references, answers))


def para_rouge(evidence: Evidence) -> Outcome:
    """ROUGE-L recall of the paraphrased forget answers, by the same generations; mean over the paraphrases of one."""
    answers = evidence.generations("forget")
    values = [
        mean_of_defined(
            rouge_l_recall(example.paraphrased_answers, [answer] * len(example.paraphrased_answers))
        )
        for example, answer in zip(evidence.data.forget, answers, strict=True)
    ]
    return mean_outcome(evidence.ids("forget"), values)


def loss_attack(
    evidence: Evidence, logp: Float[Tensor, "token"], z: Float[Tensor, "token"], text: str
) -> float:
    """MIA-LOSS."""
    return mean_nll(logp)


def zlib_attack(
    evidence: Evidence, logp: Float[Tensor, "token"], z: Float[Tensor, "token"], text: str
) -> float:
    """MIA-ZLib."""
    return zlib_score(logp, text)


def min_k_attack(
    evidence: Evidence, logp: Float[Tensor, "token"], z: Float[Tensor, "token"], text: str
) -> float:
    """MIA-Min-K."""
    return min_k_score(logp, k=evidence.options.min_k)


def min_kpp_attack(
    evidence: Evidence, logp: Float[Tensor, "token"], z: Float[Tensor, "token"], text: str
) -> float:
    """MIA-Min-K++."""
    return min_k_score(z, k=evidence.options.min_k)


def mia(evidence: Evidence, *, attack: Attack, role: Role = "model") -> Outcome:
    """AUC of an attack; per-example values are the attack's scores, ids of the holdout set begin with "holdout/"."""
    members, others = (
        [
            attack(evidence, logp, z, text.answer)
            for logp, z, text in zip(scores.logprobs, scores.standardised, scores.texts, strict=True)
        ]
        for scores in (evidence.answers("forget", role), evidence.answers("holdout", role))
    )
    ids = [*evidence.ids("forget"), *(f"holdout/{name}" for name in evidence.ids("holdout"))]
    return Outcome(auc(members, others), None, ids, [*members, *others], {"n_holdout": len(others)})


def s_mia(evidence: Evidence, *, attack: Attack, of: str) -> Outcome:
    """Normalised AUC of an attack."""
    retain = mia(evidence, attack=attack, role="retain").value
    model = evidence.value(of)
    value = normalised_auc(model, retain)
    if math.isnan(value):
        raise Undefined(f"the AUC of retain is {retain:g}")
    return Outcome(value, details={"auc_model": model, "auc_retain": retain})
