"""What a generated text is worth: cut to the answer, then ROUGE-L recall, precision, entity recall, words."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

from uds_lens.optional_packages import require_package


class Scores(NamedTuple):
    """Scores of one text; NaN where the reference has no word that ROUGE counts."""

    recall: float
    """ROUGE-L recall of the reference, in [0, 1]: the score of every audit."""

    precision: float
    """ROUGE-L precision, in [0, 1]: low where recall comes from saying much."""

    entity: float
    """ROUGE-L recall of the entity alone; NaN where the row has none."""

    words: int
    """Words of the text."""


def cut(text: str, *, raw: bool, opening: str = "") -> str:
    r"""The answer in a generated text: without an optimiser's target at its start, and up to the next question.

    Args:
        text: As it was generated, after the prompt (a forced start is part of the prompt).
        raw: Whether the raw protocol was used, in which models go on with a question of their own.
        opening: What an optimiser worked for; cut off where the text begins with it, whatever its case.

    Example:
        >>> cut(" Sure, the answer is Ada Vey.\nQuestion: Who", raw=True, opening="Sure, the answer is")
        'Ada Vey.'
    """
    if raw:
        text = re.split(r"(?:^|\n)\s*Question:", text, maxsplit=1)[0]
    text = text.strip()
    wanted = " ".join(opening.split())
    if wanted:
        pattern = r"\s+".join(map(re.escape, wanted.split()))
        text = re.sub(rf"^{pattern}", "", text, count=1, flags=re.IGNORECASE)
    return text.lstrip(" \t\n:,").strip() if wanted else text


def score_texts(texts: Sequence[str], reference: str, entity: str | None) -> list[Scores]:
    """Score answers to one question; the same texts are scored once.

    Reference: Lin 2004, ROUGE-L = LCS / reference length, by the rouge-score package with its stemmer.

    Args:
        texts: Answers, cut.
        reference: What should be said.
        entity: The part that carries the knowledge.

    Example:
        >>> score_texts(["It was Ada."], "Ada Vey", "Ada Vey")[0]
        Scores(recall=0.5, precision=0.333..., entity=0.5, words=3)
    """
    require_package("rouge_score", needed_by="scoring what a model says needs")
    from rouge_score import rouge_scorer

    scorer = rouge_scorer.RougeScorer(["rougeL"], use_stemmer=True)
    known: dict[str, Scores] = {}
    for text in texts:
        if text not in known:
            recall, precision = _rouge(scorer, reference, text)
            part = float("nan") if not entity else _rouge(scorer, entity, text)[0]
            known[text] = Scores(recall, precision, part, len(text.split()))
    return [known[text] for text in texts]


def reference_in_prompt(prompt: str, reference: str) -> float:
    """How much of the reference the prompt itself holds: ROUGE-L recall, in [0, 1]; an audit's own leak.

    >>> reference_in_prompt("Question: Where was Ada born?", "Ada was born in Velloum.")
    0.4
    """
    return score_texts([prompt], reference, None)[0].recall


def _rouge(scorer: object, reference: str, text: str) -> tuple[float, float]:
    if not any(char.isascii() and char.isalnum() for char in reference):
        return float("nan"), float("nan")
    found = scorer.score(reference, text)["rougeL"]  # type: ignore[attr-defined]
    return float(found.recall), float(found.precision)
