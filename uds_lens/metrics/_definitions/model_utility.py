"""Model Utility: what a model should still be able to do, in nine parts on three sets."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial

from uds_lens.metrics._declaration import (
    USEFUL,
    Evidence,
    Outcome,
    Pass,
    Role,
    geometric_mean,
    harmonic_of_parts,
    mean_outcome,
    metric,
    needs_answers,
    needs_generations,
)
from uds_lens.metrics._definitions.prob import probabilities

SETS = {"retain": "retain", "ra": "real_authors", "wf": "world_facts"}
"""Sets of Model Utility by the short names of their metrics."""

MULTIPLE_CHOICE = ("real_authors", "world_facts")
"""Sets whose Probability is normalised over the options."""

_SET_LABELS = {"retain": "retain", "ra": "real authors", "wf": "world facts"}


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


def q_prob(evidence: Evidence, *, name: str, role: Role = "model") -> Outcome:
    """Probability on a utility set."""
    own = [p for (p,) in probabilities(evidence, name, role)]
    if name in MULTIPLE_CHOICE:
        options = probabilities(evidence, f"{name}/perturbed", role)
        own = [option_probability(*pair) for pair in zip(own, options, strict=True)]
    return mean_outcome(evidence.ids(name), own)


def q_rouge(evidence: Evidence, *, name: str, role: Role = "model") -> Outcome:
    """ROUGE-L recall on a utility set."""
    from uds_lens.generation import rouge_l_recall

    references = [example.answer for example in evidence.data.examples(name)]
    return mean_outcome(evidence.ids(name), rouge_l_recall(references, evidence.generations(name, role)))


def q_truth_ratio(evidence: Evidence, *, name: str, role: Role = "model") -> Outcome:
    """Truth Ratio on a utility set; the right answers are the paraphrases, or the answer where there are none."""
    plain = probabilities(evidence, name, role)
    rephrased = probabilities(evidence, f"{name}/paraphrased", role)
    wrong = probabilities(evidence, f"{name}/perturbed", role)
    correct = [better or own for better, own in zip(rephrased, plain, strict=True)]
    return mean_outcome(evidence.ids(name), [kept_truth(*pair) for pair in zip(correct, wrong, strict=True)])


_PARTS: dict[str, tuple[str, Callable[..., Outcome]]] = {
    "q_prob": ("Probability", q_prob),
    "q_rouge": ("ROUGE", q_rouge),
    "truth_ratio": ("Truth Ratio", q_truth_ratio),
}
"""What is measured on each of the three sets: label and value."""

PART_NAMES = tuple(f"{short}_{kind}" for short in SETS for kind in _PARTS)
"""The nine parts of Model Utility."""


def part_passes(role: Role) -> dict[str, tuple[Pass, ...]]:
    """What has to be measured for each of the nine parts."""
    found = {}
    for short, name in SETS.items():
        wrong = needs_answers(f"{name}/perturbed", role=role)
        own = needs_answers(name, role=role)
        found[f"{short}_q_prob"] = (*own, *wrong) if name in MULTIPLE_CHOICE else own
        found[f"{short}_q_rouge"] = needs_generations(name, role=role)
        rephrased = needs_answers(f"{name}/paraphrased", role=role, optional=True)
        found[f"{short}_truth_ratio"] = (*own, *rephrased, *wrong)
    return found


def utility_of(evidence: Evidence, role: Role) -> float:
    """Model Utility of another model than the one that is evaluated: the harmonic mean of its nine parts.

    Raises:
        Undefined: A part has no value.
    """
    parts = {
        f"{short}_{kind} of {role}": score(evidence, name=name, role=role).value
        for short, name in SETS.items()
        for kind, (_, score) in _PARTS.items()
    }
    return harmonic_of_parts(parts)


for _short, _set in SETS.items():
    for _kind, (_label, _score) in _PARTS.items():
        metric(
            name=f"{_short}_{_kind}",
            label=f"{_label}, {_SET_LABELS[_short]}",
            group="utility",
            meaning=USEFUL,
            passes=part_passes("model")[f"{_short}_{_kind}"],
            packages=("rouge_score",) if _kind == "q_rouge" else (),
        )(partial(_score, name=_set))


@metric(name="model_utility", label="Model Utility", group="utility", meaning=USEFUL, uses=PART_NAMES)
def model_utility(evidence: Evidence) -> Outcome:
    """Model Utility: harmonic mean of the nine parts."""
    parts = {name: evidence.value(name) for name in PART_NAMES}
    return Outcome(harmonic_of_parts(parts), details=parts)
