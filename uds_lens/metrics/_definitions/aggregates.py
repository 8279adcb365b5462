"""Harmonic means of other metrics: Model Utility, Utility, and the aggregates of the published tables.

Model Utility measures what a model should still know, as nine scores on three sets. Fluency measures whether the model
still writes fluent language. Utility combines Model Utility and Fluency, and is also computed relative to `full`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial

from uds_lens.metrics._declaration import (
    USEFUL,
    Evidence,
    Group,
    Meaning,
    Outcome,
    Pass,
    Role,
    Undefined,
    geometric_mean,
    harmonic_of_parts,
    mean_outcome,
    metric,
    needs_answers,
    needs_generations,
)
from uds_lens.metrics._definitions.membership_attacks import ATTACKS
from uds_lens.metrics._definitions.prob import probabilities
from uds_lens.metrics._definitions.rouge import rouge

SETS = {"retain": "retain", "ra": "real_authors", "wf": "world_facts"}
"""Sets of Model Utility, by the prefix of their metrics' names."""

MULTIPLE_CHOICE = ("real_authors", "world_facts")  # sets whose Probability is normalised over the answer options

_SET_LABELS = {"retain": "retain", "ra": "real authors", "wf": "world facts"}


def option_probability(answer: float, options: Sequence[float]) -> float:
    """Return the answer's probability relative to all options, `p / (p + sum of the others)`, for multiple-choice sets.

    Args:
        answer: Length-normalised probability of the correct answer.
        options: Length-normalised probability of each wrong answer.

    Returns:
        A value in [0, 1]; NaN if there is no other option, or if all probabilities are 0.

    Example:
        >>> option_probability(0.5, [0.25, 0.25])
        0.5
    """
    total = answer + math.fsum(options)
    return answer / total if options and total > 0 else math.nan


def kept_truth(correct: Sequence[float], wrong: Sequence[float]) -> float:
    """Return the Truth Ratio as utility: `max(0, 1 - p_w / p_c)`, from geometric means over wrong and correct answers.

    Returns:
        1 if wrong answers have probability 0, 0 if they are at least as likely as the truth; NaN if there are no
        correct or no wrong answers, or if both means are 0.

    Example:
        >>> kept_truth([0.5], [0.25]), kept_truth([0.25], [0.5])
        (0.5, 0.0)
    """
    p_c, p_w = geometric_mean(correct), geometric_mean(wrong)
    if math.isnan(p_c) or math.isnan(p_w) or p_c == p_w == 0:
        return math.nan
    return max(0.0, 1 - p_w / p_c) if p_c > 0 else 0.0


def q_prob(evidence: Evidence, *, name: str, role: Role = "model") -> Outcome:
    """Return Probability on a utility set."""
    values = [p for (p,) in probabilities(evidence, name, role)]
    if name in MULTIPLE_CHOICE:
        options = probabilities(evidence, f"{name}/perturbed", role)
        values = [option_probability(*pair) for pair in zip(values, options, strict=True)]
    return mean_outcome(evidence.ids(name), values)


def q_truth_ratio(evidence: Evidence, *, name: str, role: Role = "model") -> Outcome:
    """Return the Truth Ratio on a utility set; the correct answers are the paraphrases, or else the answer itself."""
    answers = probabilities(evidence, name, role)
    paraphrases = probabilities(evidence, f"{name}/paraphrased", role)
    wrong = probabilities(evidence, f"{name}/perturbed", role)
    correct = [several or one for several, one in zip(paraphrases, answers, strict=True)]
    return mean_outcome(evidence.ids(name), [kept_truth(*pair) for pair in zip(correct, wrong, strict=True)])


_PARTS: dict[str, tuple[str, Callable[..., Outcome]]] = {
    "q_prob": ("Probability", q_prob),
    "q_rouge": ("ROUGE", rouge),
    "truth_ratio": ("Truth Ratio", q_truth_ratio),
}
"""Scores on each of the three sets: label and function."""

PART_NAMES = tuple(f"{short}_{kind}" for short in SETS for kind in _PARTS)  # the nine scores in Model Utility


def part_passes(role: Role) -> dict[str, tuple[Pass, ...]]:
    """Return the passes for each of the nine scores."""
    passes = {}
    for short, name in SETS.items():
        answers = needs_answers(name, role=role)
        wrong = needs_answers(f"{name}/perturbed", role=role)
        paraphrases = needs_answers(f"{name}/paraphrased", role=role, optional=True)
        passes[f"{short}_q_prob"] = (*answers, *wrong) if name in MULTIPLE_CHOICE else answers
        passes[f"{short}_q_rouge"] = needs_generations(name, role=role)
        passes[f"{short}_truth_ratio"] = (*answers, *paraphrases, *wrong)
    return passes


def utility_of(evidence: Evidence, role: Role) -> float:
    """Return the Model Utility of a reference model, the harmonic mean of its nine scores."""
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


def harmonic_of_metrics(evidence: Evidence, *, names: Sequence[str]) -> Outcome:
    """Return the harmonic mean of other metrics."""
    parts = {name: evidence.value(name) for name in names}
    return Outcome(harmonic_of_parts(parts), details=parts)


def _declare_mean(name: str, label: str, group: Group, meaning: Meaning, *, uses: Sequence[str]) -> None:
    """Declare a metric that is the harmonic mean of other metrics."""
    metric(name=name, label=label, group=group, meaning=meaning, uses=uses)(partial(harmonic_of_metrics, names=uses))


_declare_mean("model_utility", "Model Utility", "utility", USEFUL, uses=PART_NAMES)


@metric(
    name="fluency",
    label="Fluency",
    group="utility",
    meaning=Meaning("utility", "only gibberish", "no gibberish"),
    passes=needs_generations("forget"),
)
def fluency(evidence: Evidence, *, role: Role = "model") -> Outcome:
    """Return the fraction of fluent answers to the forget questions."""
    values = evidence.fluency(evidence.generations("forget", role))
    return mean_outcome(evidence.ids("forget"), values, scorer=evidence.fluency.name)


_declare_mean("utility", "Utility", "utility", USEFUL, uses=("model_utility", "fluency"))


@metric(
    name="utility_rel",
    label="Utility (rel.)",
    group="utility",
    meaning=Meaning("utility", "useless", "as full (no limit)", high=float("inf")),
    passes=(
        *dict.fromkeys(p for passes in part_passes("full").values() for p in passes),
        *needs_generations("forget", role="full"),
    ),
    uses=("utility",),
)
def utility_rel(evidence: Evidence) -> Outcome:
    """Return Utility relative to the Utility of `full`."""
    model = evidence.value("utility")
    full = harmonic_of_parts(
        {"Model Utility of full": utility_of(evidence, "full"), "Fluency of full": fluency(evidence, role="full").value}
    )
    if full == 0:
        raise Undefined("the Utility of full is 0")
    return Outcome(model / full, details={"utility_model": model, "utility_full": full})


_KNOWLEDGE = ("es", "em", "paraprob", "truth_ratio")


@metric(
    name="memorization",
    label="Memorization",
    group="aggregate",
    meaning=Meaning("erasure", "one of four known", "nothing known"),
    uses=_KNOWLEDGE,
)
def memorization(evidence: Evidence) -> Outcome:
    """Return `HM(1 - ES, 1 - EM, 1 - ParaProb, 1 - Truth Ratio)`, the harmonic mean."""
    parts = {f"1-{name}": 1 - evidence.value(name) for name in _KNOWLEDGE}
    return Outcome(harmonic_of_parts(parts), details=parts)


_AS_RETAIN = Meaning("erasure", "far from retain", "as retain")
_declare_mean("mia_agg", "MIA agg.", "aggregate", _AS_RETAIN, uses=[f"s_{name}" for name in ATTACKS])


_declare_mean("privacy", "Privacy", "aggregate", Meaning("erasure", "leaks", "as retain"), uses=("mia_agg",))

_NO_LIMIT = Meaning("utility", "one part is 0", "all parts are 1", high=math.inf)
_declare_mean("overall", "Overall", "aggregate", _NO_LIMIT, uses=("memorization", "privacy", "utility_rel"))
_declare_mean(
    "privacy_uds", "Privacy with UDS", "aggregate", Meaning("erasure", "leaks", "as retain"), uses=("mia_agg", "uds")
)
_declare_mean(
    "overall_uds", "Overall with UDS", "aggregate", _NO_LIMIT, uses=("memorization", "privacy_uds", "utility_rel")
)
