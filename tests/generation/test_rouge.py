import math

import pytest

from uds_lens.errors import ConfigError, UdsLensWarning, forget_warnings
from uds_lens.generation import rouge_l_recall


def longest_common(a, b):
    best = [[0] * (len(b) + 1) for _ in range(len(a) + 1)]
    for i, x in enumerate(a, start=1):
        for j, y in enumerate(b, start=1):
            best[i][j] = best[i - 1][j - 1] + 1 if x == y else max(best[i - 1][j], best[i][j - 1])
    return best[-1][-1]


def test_rouge_by_hand():
    reference, answer = "ada was born in the old town", "in the old days ada was a town"
    expected = longest_common(reference.split(), answer.split()) / 7
    assert rouge_l_recall([reference], [answer]) == [pytest.approx(expected)]
    assert rouge_l_recall(["She writes novels"], ["she wrote a novel"]) == [pytest.approx(2 / 3)]
    assert rouge_l_recall(["Ada"], [""]) == [0.0]


def test_other_scripts(unchecked):
    """Words of a-z and 0-9 are a small part of these: their ROUGE would be that of the year alone."""
    forget_warnings()
    pairs = [
        ("Он родился в 1990 году", "Она умерла в 1990", 2 / 5),
        ("他出生于1990年", "他死于1990年", 4 / 6),
        ("日本", "日本", 1.0),
        ("เขาเกิดปี 1990", "ปี 1990", 2 / 8),
        ("हिन्दी में किताब", "हिन्दी किताब", 2 / 3),
    ]
    for reference, answer, expected in pairs:
        assert rouge_l_recall([reference], [answer], words="unicode") == [pytest.approx(expected)], reference
    for number, (reference, answer, _) in enumerate(pairs):
        if number:
            assert math.isnan(rouge_l_recall([reference], [answer])[0])
            continue
        with pytest.warns(
            UdsLensWarning, match=r"consist mostly of other characters.*rouge_words='unicode' counts words in any"
        ):
            assert math.isnan(rouge_l_recall([reference], [answer])[0])
    english = ("It's Ada's third-best novels 1990_1", "the third best NOVEL (1990)")
    assert rouge_l_recall(*zip(english, strict=True), words="unicode") == rouge_l_recall(*zip(english, strict=True))
    with pytest.raises(ConfigError, match=r"rouge_words must be one of 'ascii', 'unicode'; got 'latin'"):
        rouge_l_recall(["a"], ["a"], words="latin")
