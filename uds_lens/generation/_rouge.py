"""How much of a reference an answer recalls."""

from __future__ import annotations

from collections.abc import Sequence

from uds_lens._optional_packages import require_package


def rouge_l_recall(references: Sequence[str], answers: Sequence[str]) -> list[float]:
    """Return ROUGE-L recall of each answer: share of the reference's words in the longest common subsequence.

    Computed by the rouge-score package with its stemmer.

    Returns:
        In [0, 1]; NaN where a reference has no word of a-z and 0-9, which are all that rouge-score counts.

    Raises:
        MissingDependencyError: rouge-score is not installed.

    References:
        Lin 2004, ROUGE: A Package for Automatic Evaluation of Summaries.

    Example:
        >>> rouge_l_recall(["the cat sat down"], ["the dog sat"])
        [0.5]
    """
    require_package("rouge_score", needed_by="ROUGE needs")
    from rouge_score import rouge_scorer

    scorer = rouge_scorer.RougeScorer(["rougeL"], use_stemmer=True)
    return [
        float(scorer.score(reference, answer)["rougeL"].recall)
        if any(char.isascii() and char.isalnum() for char in reference)
        else float("nan")
        for reference, answer in zip(references, answers, strict=True)
    ]
