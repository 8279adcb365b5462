"""ROUGE-L recall of generated answers: plain, against paraphrases, and after a jailbreak prefix."""

from __future__ import annotations

from functools import partial

from uds_lens.metrics._declaration import (
    KNOWN,
    Evidence,
    Outcome,
    Role,
    mean_of_defined,
    mean_outcome,
    metric,
    needs_generations,
)


@metric(
    name="rouge",
    label="ROUGE",
    group="generation",
    meaning=KNOWN,
    passes=needs_generations("forget"),
    packages=("rouge_score",),
)
def rouge(evidence: Evidence, *, name: str = "forget", role: Role = "model", jailbreak: bool = False) -> Outcome:
    """Return the ROUGE-L recall of generated answers to a set's questions (`uds_lens.generation.rouge_l_recall`)."""
    from uds_lens.generation import rouge_l_recall

    references = [example.answer for example in evidence.data.examples(name)]
    answers = evidence.generations(name, role, jailbreak=jailbreak)
    return mean_outcome(evidence.ids(name), rouge_l_recall(references, answers, words=evidence.options.rouge_words))


@metric(
    name="para_rouge",
    label="Para. ROUGE",
    group="generation",
    meaning=KNOWN,
    passes=needs_generations("forget"),
    packages=("rouge_score",),
    references=("forget/paraphrased",),
)
def para_rouge(evidence: Evidence) -> Outcome:
    """Return the ROUGE-L recall of the paraphrased forget answers, averaged over each example's paraphrases.

    With `MetricOptions(para_rouge="questions")`, return the ROUGE-L recall of answers to paraphrased questions.
    """
    from uds_lens.generation import rouge_l_recall

    if evidence.options.para_rouge == "questions":
        return rouge(evidence, name="forget/rephrased")
    values = []
    for example, answer in zip(evidence.data.forget, evidence.generations("forget"), strict=True):
        references = example.paraphrased_answers
        scores = rouge_l_recall(references, [answer] * len(references), words=evidence.options.rouge_words)
        values.append(mean_of_defined(scores))
    return mean_outcome(evidence.ids("forget"), values)


metric(
    name="jailbreak_rouge",
    label="Jailbreak ROUGE",
    group="generation",
    meaning=KNOWN,
    passes=needs_generations("forget", jailbreak=True),
    packages=("rouge_score",),
)(partial(rouge, jailbreak=True))
