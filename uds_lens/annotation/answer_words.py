"""Answers as words with places, and the run of words that stands out."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

from uds_lens.checked_arguments import arguments_checked
from uds_lens.data import Span

_WORD = re.compile(r"\S+")
_SENTENCE_END = re.compile(r"[.!?][\"')\u201d]?\s+(?=[A-Z\"\u201c])")
_OPENING = frozenset("\"'\u201c\u2018")
_CLOSING = frozenset("\"'\u201d\u2019")
_CORE = re.compile(r"\w(?:.*\w)?", re.DOTALL)

_SMALL = """
a an and are as at be been being but by for from had has have he her hers him his i in into is it its of on or she so
than that the their them they this to was were which who whom whose will with you your
"""
SMALL = frozenset(_SMALL.split())
"""Words that carry nothing alone; a run neither starts nor ends with one where it can be helped."""


class Word(NamedTuple):
    """A word of an answer, with its punctuation left out."""

    text: str
    start: int
    end: int

    @property
    def key(self) -> str:
        """To compare words by: without case and without a possessive ending.

        >>> Word("Ada's", 0, 5).key
        'ada'
        """
        return re.sub(r"['\u2019]s$", "", self.text.casefold())


@arguments_checked
def words_of(text: str) -> list[Word]:
    """Words in order; punctuation around them and lone signs are left out.

    >>> [word.text for word in words_of('It was "Ada Vey" -- of 1999.')]
    ['It', 'was', 'Ada', 'Vey', 'of', '1999']
    """
    found = []
    for match in _WORD.finditer(text):
        core = _CORE.search(match[0])
        if core:
            start = match.start() + core.start()
            found.append(Word(core[0], start, start + len(core[0])))
    return found


def best_run(scores: Sequence[float]) -> range:
    """The contiguous run with the largest sum; empty where no score is above 0.

    >>> best_run([-1.0, 2.0, -0.5, 3.0, -4.0])
    range(1, 4)
    """
    best, found = 0.0, range(0)
    total, start = 0.0, 0
    for place, score in enumerate(scores):
        if total <= 0:
            total, start = 0.0, place
        total += score
        if total > best:
            best, found = total, range(start, place + 1)
    return found


def trimmed(words: Sequence[Word], run: range) -> range:
    """The run without small words at its ends, unless it holds nothing else."""
    start, stop = run.start, run.stop
    while start < stop and words[start].key in SMALL:
        start += 1
    while stop > start and words[stop - 1].key in SMALL:
        stop -= 1
    return range(start, stop) if start < stop else run


def span_of(answer: str, words: Sequence[Word], run: range) -> Span:
    """Characters of a run, with the quotation marks directly around it.

    >>> text = 'She wrote "Ash and Ember".'
    >>> span = span_of(text, words_of(text), range(2, 5))
    >>> text[span.start : span.end]
    '"Ash and Ember"'
    """
    start, end = words[run.start].start, words[run.stop - 1].end
    if start > 0 and answer[start - 1] in _OPENING and answer[end : end + 1] in _CLOSING:
        return Span(start - 1, end + 1)
    return Span(start, end)


def verdict(words: Sequence[Word]) -> range:
    """The first word, where it is yes or no: it answers the question, the rest explains it."""
    return range(1) if words and words[0].key in ("yes", "no") else range(0)


def first_sentence(answer: str) -> list[Word]:
    """Words of the first sentence; an entity does not go on in the next one.

    >>> [word.text for word in first_sentence("Ada Vey. She wrote Ash.")]
    ['Ada', 'Vey']
    """
    end = _SENTENCE_END.search(answer)
    return [word for word in words_of(answer) if end is None or word.end <= end.start() + 1]


def asked(question: str) -> set[str]:
    """Words of a question, to tell what an answer only repeats."""
    return {word.key for word in words_of(question)}
