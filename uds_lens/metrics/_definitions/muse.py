"""MUSE metrics: PrivLeak, and memorisation of texts (VerbMem) and facts (KnowMem) measured by ROUGE-L F1."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from functools import partial

from uds_lens.metrics._declaration import (
    KNOWN,
    USEFUL,
    Evidence,
    Group,
    Meaning,
    Outcome,
    Undefined,
    mean_outcome,
    metric,
    needs_answers,
    needs_generations,
)
from uds_lens.metrics._definitions.membership_attacks import ATTACKS, mia


def privleak(model: float, retain: float) -> float:
    """Return `100 ((1 - AUC_m) - (1 - AUC_ret)) / (1 - AUC_ret)`, in percent; an AUC of 1 means fully identifiable.

    Args:
        model: AUC of the model, as defined in this library; MUSE's AUC is 1 minus this AUC.
        retain: AUC of `retain`.

    Returns:
        0 if equal to `retain`; negative, down to -100, if the forget set is still identifiable; positive, without
        limit, if the forget set is less familiar to the model than to `retain`. NaN if either AUC is NaN or the AUC of
        `retain` is 1.

    References:
        Shi et al. 2024, MUSE; in the form of Dorna et al. 2025, OpenUnlearning.

    Example:
        >>> privleak(1.0, 0.5), privleak(0.5, 0.5), privleak(0.25, 0.5)
        (-100.0, 0.0, 50.0)
    """
    if math.isnan(model) or math.isnan(retain) or retain == 1:
        return math.nan
    return 100 * (retain - model) / (1 - retain)


@metric(
    name="privleak",
    label="PrivLeak",
    group="aggregate",  # in percent, and derived from the Min-K attack, so not listed with the attacks in [0, 1]
    meaning=Meaning("erasure", "as retain", "1% stranger than to retain", low=-100.0, high=math.inf),
    passes=needs_answers("forget", "holdout", role="retain"),
    uses=("mia_min_k",),
    packages=("sklearn",),
)
def of_min_k(evidence: Evidence) -> Outcome:
    """Return PrivLeak of the Min-K attack."""
    model = evidence.value("mia_min_k")
    retain = mia(evidence, attack=ATTACKS["mia_min_k"][1], role="retain").value
    value = privleak(model, retain)
    if math.isnan(value):
        raise Undefined(f"the AUC of retain is {retain:g}")
    return Outcome(value, details={"auc_model": model, "auc_retain": retain})


_NEXT_QUESTION = re.compile(r"\n\n|\nQuestion|Question:")  # models that were not trained to end an answer keep writing


def rouge_f1(evidence: Evidence, *, name: str, tokens: int, ends: re.Pattern[str] | None = None) -> Outcome:
    """Return the ROUGE-L F1 of the first tokens of generated answers (`uds_lens.generation.rouge_l_f1`)."""
    from uds_lens.generation import rouge_l_f1

    references = [example.answer for example in evidence.data.examples(name)]
    answers = [evidence.first_tokens(answer, tokens) for answer in evidence.generations(name)]
    answers = [answer if ends is None else ends.split(answer)[0] for answer in answers]
    return mean_outcome(evidence.ids(name), rouge_l_f1(references, answers, words=evidence.options.rouge_words))


_TO_KNOW = partial(rouge_f1, tokens=32, ends=_NEXT_QUESTION)
_ROUGES: tuple[tuple[str, str, str, Group, Meaning, Callable[..., Outcome]], ...] = (
    ("forget_verbmem_rouge", "passages", "VerbMem", "generation", KNOWN, partial(rouge_f1, tokens=128)),
    ("forget_knowmem_rouge", "forget", "KnowMem", "generation", KNOWN, _TO_KNOW),
    ("retain_knowmem_rouge", "retain", "KnowMem, retain", "utility", USEFUL, _TO_KNOW),
)
for _name, _set, _label, _group, _meaning, _score in _ROUGES:
    metric(
        name=_name,
        label=_label,
        group=_group,
        meaning=_meaning,
        passes=needs_generations(_set),
        packages=("rouge_score",),
    )(partial(_score, name=_set))
