"""Entities from texts alone: what differs from other answers, what is a name, what the question did not say."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from difflib import SequenceMatcher
from typing import Any, TypeAlias

from uds_lens.annotation.answer_words import (
    SMALL,
    Word,
    asked,
    best_run,
    first_sentence,
    span_of,
    trimmed,
    verdict,
    words_of,
)
from uds_lens.data import ForgetExample, Span
from uds_lens.errors import MissingDependencyError
from uds_lens.optional_packages import require_package

Found: TypeAlias = Span | str
"""Characters of the answer, or the reason why there are none, as a sentence."""

SPACY_MODEL = "en_core_web_sm"


def by_difference(example: ForgetExample) -> Found:
    """What the answer says and its perturbed variants do not, and its paraphrases do.

    Each word of the first sentence scores the share of perturbed answers that lack it (aligned word by word) minus one
    half, plus, with half the weight, the share of paraphrased answers that have it minus one half; words of the
    question score 0 at most. The run of words with the largest sum is the entity; "Yes" or "No" in front is one by
    itself.
    """
    if not example.perturbed_answers and not example.paraphrased_answers:
        return "There is neither a perturbed nor a paraphrased answer to compare with."
    words = first_sentence(example.answer)
    known = asked(example.question)
    scores = [0.0] * len(words)
    for weight, answers in ((-1.0, example.perturbed_answers), (0.5, example.paraphrased_answers)):
        for other in answers:
            kept = _kept(words, other, aligned=weight < 0)
            for place in range(len(words)):
                scores[place] += weight * ((place in kept) - 0.5) / len(answers)
    new = [min(score, 0.0) if word.key in known else score for word, score in zip(words, scores, strict=True)]
    run = verdict(words) or best_run(new)
    if not run:
        return "The answer does not differ from its variants in any word."
    return span_of(example.answer, words, trimmed(words, run))


def _kept(words: Sequence[Word], other: str, *, aligned: bool) -> set[int]:
    """Places of the words that another answer has too: in the same order, or anywhere."""
    theirs = [word.key for word in words_of(other)]
    if not aligned:
        return {place for place, word in enumerate(words) if word.key in theirs}
    matcher = SequenceMatcher(None, [word.key for word in words], theirs, autojunk=False)
    return {
        place for block in matcher.get_matching_blocks() for place in range(block.a, block.a + block.size)
    }


def by_answer(example: ForgetExample) -> Found:
    """The longest stretch of the first sentence that the question does not say; "Yes" or "No" in front by itself."""
    words = first_sentence(example.answer)
    if not words:
        return "The answer has no word."
    known = asked(example.question)
    scores = [-1.0 if word.key in known else float(word.key not in SMALL) for word in words]
    run = verdict(words) or best_run(scores) or range(len(words))
    return span_of(example.answer, words, trimmed(words, run))


def names_in(examples: Iterable[ForgetExample], *, nlp: Callable[[str], Any] | None = None) -> list[Found]:
    """Named entities of spaCy: the longest one of the answer that the question does not hold, else the first.

    Args:
        examples: Examples.
        nlp: A loaded pipeline; None loads `SPACY_MODEL`.

    Raises:
        MissingDependencyError: spaCy or its English model is not installed.
    """
    read = nlp or _pipeline()
    return [_longest_new_name(example, read(example.answer).ents) for example in examples]


def _longest_new_name(example: ForgetExample, entities: Sequence[Any]) -> Found:
    if not entities:
        return "No name was found in the answer."
    question = example.question.casefold()
    new = [entity for entity in entities if entity.text.casefold() not in question]
    chosen = max(new or entities[:1], key=lambda entity: len(entity.text))
    return Span(chosen.start_char, chosen.end_char)


def _pipeline() -> Callable[[str], Any]:
    require_package(
        "spacy",
        needed_by="finding names needs",
        instead=f"Then python -m spacy download {SPACY_MODEL}. Without it there are the ways contrast, difference and "
        "answer.",
    )
    import spacy

    try:
        return spacy.load(SPACY_MODEL)
    except OSError as error:
        raise MissingDependencyError(
            f"spaCy's model {SPACY_MODEL} is not installed: python -m spacy download {SPACY_MODEL}."
        ) from error
