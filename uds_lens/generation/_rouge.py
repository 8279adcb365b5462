"""ROUGE-L recall and F1."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from uds_lens._optional_packages import require_package
from uds_lens._types import RougeWords, check_choice
from uds_lens.errors import Setting, warn_once


def rouge_l_recall(references: Sequence[str], answers: Sequence[str], *, words: RougeWords = "ascii") -> list[float]:
    """Return each answer's ROUGE-L recall: the fraction of reference words in the longest common subsequence.

    ROUGE is computed by the rouge-score package with its stemmer.

    Args:
        references: Correct answers.
        answers: The answers to score, in the same order.
        words: "ascii" counts words made of a-z and 0-9, as in rouge-score and published numbers. "unicode" counts words
            in any script; ASCII words are still stemmed, and in scripts without spaces (such as Chinese, Japanese and
            Thai) each character is a word.

    Returns:
        Values in [0, 1]; NaN if a reference has no words, or if the counted words cover less than half of its letters
        and digits.

    Raises:
        MissingDependencyError: The package rouge-score is not installed.

    References:
        Lin 2004, ROUGE: A Package for Automatic Evaluation of Summaries.

    Example:
        >>> rouge_l_recall(["the cat sat down"], ["the dog sat"])
        [0.5]
        >>> rouge_l_recall(["Он родился в 1990 году"], ["Она умерла в 1990"], words="unicode")
        [0.4]
    """
    scorer = rouge_scorer(words, needed_by="ROUGE needs")
    return [
        float(scorer.score(reference, answer)["rougeL"].recall) if has_words(reference, words) else float("nan")
        for reference, answer in zip(references, answers, strict=True)
    ]


def rouge_l_f1(references: Sequence[str], answers: Sequence[str], *, words: RougeWords = "ascii") -> list[float]:
    """Return each answer's ROUGE-L F1, which penalises rambling answers; arguments as for `rouge_l_recall`.

    Example:
        >>> rouge_l_f1(["the cat sat down"], ["the dog sat down there"])
        [0.6666666666666665]
    """
    scorer = rouge_scorer(words, needed_by="ROUGE needs")
    return [
        float(scorer.score(reference, answer)["rougeL"].fmeasure) if has_words(reference, words) else float("nan")
        for reference, answer in zip(references, answers, strict=True)
    ]


def rouge_scorer(words: RougeWords, *, needed_by: str) -> Any:
    """Return a ROUGE-L scorer."""
    check_choice("rouge_words", words, RougeWords)
    require_package("rouge_score", needed_by=needed_by)
    from rouge_score import rouge_scorer

    return rouge_scorer.RougeScorer(["rougeL"], tokenizer=_AnyScript() if words == "unicode" else _Ascii())


def has_words(reference: str, words: RougeWords) -> bool:
    """Return whether the counted words cover at least half of a reference's letters and digits; warn if they do not."""
    letters = [char for char in reference if char.isalnum()]
    counted = sum(char.isascii() for char in letters) if words == "ascii" else len(letters)
    if letters and 2 * counted < len(letters):
        warn_once(
            "ROUGE counts only words made of a-z and 0-9, so it is NaN for references that consist mostly of other "
            "characters. ",
            Setting("rouge_words", "unicode"),
            " counts words in any script.",
            key="rouge of other scripts",
        )
    return bool(letters) and 2 * counted >= len(letters)


_UNSPACED = re.compile(
    "[\u0e00-\u0fff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u31f0-\u9fff\uf900-\ufaff\U00020000-\U0003ffff]"
)
"""Characters in scripts without spaces between words: Thai, Lao, Tibetan, Burmese, Khmer, Japanese, Chinese."""


@lru_cache(maxsize=1 << 16)  # stemming dominates ROUGE's run time, and texts about one subject repeat words
def _stem(word: str) -> str:
    from nltk.stem.porter import PorterStemmer

    return str(PorterStemmer().stem(word))


class _Ascii:
    """A tokenizer for rouge-score that is equivalent to its default with stemming, but caches stems."""

    stem = staticmethod(_stem)

    def tokenize(self, text: str) -> list[str]:
        from rouge_score import tokenize

        return list(tokenize.tokenize(text, self))


class _AnyScript:
    """A tokenizer for rouge-score that splits text in any script into words."""

    def __init__(self) -> None:
        self._ascii = _Ascii()

    def tokenize(self, text: str) -> list[str]:
        words, word = list[str](), ""
        for char in [*unicodedata.normalize("NFKC", text).lower(), " "]:
            kind = unicodedata.category(char)[0]
            if kind == "M" and word:  # accents and vowel signs belong to the preceding letter
                word += char
                continue
            ends = not char.isalnum() or _UNSPACED.match(char) or _UNSPACED.match(word)
            if word and ends:
                words += self._ascii.tokenize(word) if word.isascii() else [word]
                word = ""
            word += char if char.isalnum() else ""
        return words
