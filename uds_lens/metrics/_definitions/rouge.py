"""ROUGE-L recall of generated answers: plainly asked, against paraphrases, and with the answer begun for the model."""

from __future__ import annotations

from functools import partial

from uds_lens.metrics._declaration import (
    KNOWN,
    Evidence,
    Outcome,
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
def rouge(evidence: Evidence, *, jailbreak: bool = False, of: str = "forget") -> Outcome:
    """Return ROUGE-L recall of the forget answers (`uds_lens.generation.rouge_l_recall`)."""
    from uds_lens.generation import rouge_l_recall

    references = [example.answer for example in evidence.data.examples(of)]
    answers = evidence.generations(of, jailbreak=jailbreak)
    return mean_outcome(evidence.ids(of), rouge_l_recall(references, answers, words=evidence.options.rouge_words))


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
    """Return ROUGE-L recall of the paraphrased forget answers, the mean over the paraphrases of one example.

    With `MetricOptions(para_rouge="questions")` that of the answers to the paraphrased questions.
    """
    from uds_lens.generation import rouge_l_recall

    if evidence.options.para_rouge == "questions":
        return rouge(evidence, of="forget/rephrased")
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
