"""From answers on retain, real authors and world facts to Utility; and the aggregates over metrics."""

from __future__ import annotations

import math

from uds_lens.metrics.evidence import Evidence, Undefined
from uds_lens.metrics.generation import rouge_l_recall
from uds_lens.metrics.means import harmonic_mean
from uds_lens.metrics.spec import Outcome, Role, mean_outcome
from uds_lens.metrics.utility import kept_truth, option_probability

SETS = {"retain": "retain", "ra": "real_authors", "wf": "world_facts"}
"""Sets of Model Utility by the short names of their metrics."""

MULTIPLE_CHOICE = ("real_authors", "world_facts")
"""Sets whose Probability is normalised over the options."""

MIA_NAMES = ("mia_loss", "mia_zlib", "mia_min_k", "mia_min_kpp")
"""The attacks."""


def q_prob(evidence: Evidence, *, name: str, role: Role = "model") -> Outcome:
    """Probability on a utility set."""
    own = [p for (p,) in evidence.probabilities(name, role)]
    if name in MULTIPLE_CHOICE:
        options = evidence.probabilities(f"{name}/perturbed", role)
        own = [option_probability(*pair) for pair in zip(own, options, strict=True)]
    return mean_outcome(evidence.ids(name), own)


def q_rouge(evidence: Evidence, *, name: str, role: Role = "model") -> Outcome:
    """ROUGE-L recall on a utility set."""
    references = [example.answer for example in evidence.data.examples(name)]
    return mean_outcome(evidence.ids(name), rouge_l_recall(references, evidence.generations(name, role)))


def q_truth_ratio(evidence: Evidence, *, name: str, role: Role = "model") -> Outcome:
    """Truth Ratio on a utility set; the right answers are the paraphrases, or the answer where there are none."""
    plain = evidence.probabilities(name, role)
    rephrased = evidence.probabilities(f"{name}/paraphrased", role)
    wrong = evidence.probabilities(f"{name}/perturbed", role)
    correct = [better or own for better, own in zip(rephrased, plain, strict=True)]
    return mean_outcome(evidence.ids(name), [kept_truth(*pair) for pair in zip(correct, wrong, strict=True)])


PARTS = {"q_prob": q_prob, "q_rouge": q_rouge, "truth_ratio": q_truth_ratio}
"""What is measured on each of the three sets."""

PART_NAMES = tuple(f"{short}_{kind}" for short in SETS for kind in PARTS)
"""The nine parts of Model Utility."""


def model_utility(evidence: Evidence) -> Outcome:
    """Model Utility: harmonic mean of the nine parts."""
    parts = {name: evidence.value(name) for name in PART_NAMES}
    return Outcome(_harmonic(parts), details=parts)


def fluency(evidence: Evidence, *, role: Role = "model") -> Outcome:
    """Share of fluent answers to the forget questions."""
    values = evidence.fluency(evidence.generations("forget", role))
    return mean_outcome(evidence.ids("forget"), values, scorer=evidence.fluency.name)


def utility(evidence: Evidence) -> Outcome:
    """Utility: harmonic mean of Model Utility and Fluency."""
    parts = {name: evidence.value(name) for name in ("model_utility", "fluency")}
    return Outcome(_harmonic(parts), details=parts)


def utility_rel(evidence: Evidence) -> Outcome:
    """Utility relative to `full`."""
    own, full = evidence.value("utility"), _utility_of_full(evidence)
    if full == 0:
        raise Undefined("the Utility of full is 0")
    return Outcome(own / full, details={"utility_model": own, "utility_full": full})


def _utility_of_full(evidence: Evidence) -> float:
    parts = {
        f"{short}_{kind} of full": score(evidence, name=name, role="full").value
        for short, name in SETS.items()
        for kind, score in PARTS.items()
    }
    both = {
        "Model Utility of full": _harmonic(parts),
        "Fluency of full": fluency(evidence, role="full").value,
    }
    return _harmonic(both)


def memorization(evidence: Evidence) -> Outcome:
    """Memorization: harmonic mean of what is gone, by four metrics."""
    parts = {f"1-{name}": 1 - evidence.value(name) for name in ("es", "em", "paraprob", "truth_ratio")}
    return Outcome(_harmonic(parts), details=parts)


def mia_agg(evidence: Evidence) -> Outcome:
    """Harmonic mean of the four normalised attacks."""
    parts = {f"s_{name}": evidence.value(f"s_{name}") for name in MIA_NAMES}
    return Outcome(_harmonic(parts), details=parts)


def privacy(evidence: Evidence) -> Outcome:
    """Privacy: MIA_agg, or its harmonic mean with UDS."""
    names = ("mia_agg", "uds") if evidence.options.uds_in_privacy else ("mia_agg",)
    parts = {name: evidence.value(name) for name in names}
    return Outcome(_harmonic(parts), details=parts)


def overall(evidence: Evidence) -> Outcome:
    """Harmonic mean of Memorization, Privacy and Utility_rel."""
    parts = {name: evidence.value(name) for name in ("memorization", "privacy", "utility_rel")}
    return Outcome(_harmonic(parts), details=parts)


def _harmonic(parts: dict[str, float]) -> float:
    undefined = [name for name, value in parts.items() if math.isnan(value)]
    if undefined:
        raise Undefined(f"{', '.join(undefined)} has no value")
    return harmonic_mean(list(parts.values()))
