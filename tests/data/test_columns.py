import math
from fractions import Fraction

import numpy as np
import pandas
import pytest
from malformed_sets import NoRepr

from uds_lens.data._columns import examples_from_rows
from uds_lens.errors import DataError


def one(cells="typed", **row):
    return examples_from_rows([{"question": "Who?", "answer": "Ada Vey.", **row}], where="t", cells=cells)[0]


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        ({}, "0"),
        ({"id": 7}, "7"),
        ({"id": 7.0}, "7"),
        ({"id": np.int64(7)}, "7"),
        ({"id": " a7 "}, "a7"),
        ({"id": "007"}, "007"),
        ({"idx": 3}, "3"),
        ({"id": "a", "idx": 3}, "a"),
        ({"id": None, "idx": 3}, "3"),
        ({"id": math.nan}, "0"),
    ],
)
def test_identity(row, expected):
    assert one(**row).id == expected


HUGE = [pytest.param(10**5000, id="digits"), pytest.param(Fraction(10**400), id="range")]


@pytest.mark.parametrize("value", [1.5, math.inf, True, "", [1], {"a": 1}, *HUGE])
def test_identity_must_be_text_or_whole(value):
    with pytest.raises(DataError, match="t, row 0, column `id`: expected text or a whole number; got"):
        one(id=value)


@pytest.mark.parametrize("missing", [None, math.nan, np.float32("nan"), pandas.NA, pandas.NaT])
def test_missing_cells(missing):
    example = one(prefix=missing, entity=missing, type=missing, paraphrased_answers=missing, perturbed_answer=missing)
    assert (example.prefix, example.entity, example.type) == (None, None, None)
    assert example.paraphrased_answers == example.perturbed_answers == ()
    with pytest.raises(DataError, match="needs a question and an answer; empty in row 0 \\(`answer`\\)"):
        one(answer=missing)


def test_numbers_as_text_answer_lists_and_their_aliases():
    assert one(answer=1945, entity=np.int32(1945)).entity == "1945"
    assert one(paraphrased_answer="A").paraphrased_answers == ("A",)
    assert one(paraphrased_answers=["A", "B"], paraphrased_answer="A").paraphrased_answers == ("A", "B")
    assert one(perturbed_answer=np.array(["A", "B"], dtype=object)).perturbed_answers == ("A", "B")
    assert one(perturbed_answers='["A"]').perturbed_answers == ('["A"]',)
    assert one(cells="text", perturbed_answers='["A", "B"]').perturbed_answers == ("A", "B")


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ({"answer": 19.5}, r"column `answer`: expected text; got 19.5 \(float\)"),
        ({"entity": True}, r"column `entity`: expected text; got True \(bool\)"),
        ({"perturbed_answer": ["A", 3]}, "column `perturbed_answer`: expected text or a list of texts; got 3"),
        # what no message can hold is told all the same
        ({"entity": NoRepr()}, "got a value of type NoRepr that cannot be shown"),
        ({"entity": [NoRepr()]}, "got a value of type list that cannot be shown"),
        ({"entity": ["\ud83d\x1b"]}, r"got \['.*ud83d.*x1b'\]"),
    ],
)
def test_cells_that_are_something_else(row, words):
    with pytest.raises(DataError, match=words) as caught:
        one(**row)
    assert str(caught.value).isprintable() and len(str(caught.value)) < 500


@pytest.mark.parametrize("cell", ["['A']", "[__import__('os').getcwd()]", "[" * 100_000])
def test_lists_in_text_cells_are_json_and_never_evaluated(cell):
    with pytest.raises(DataError, match=r"must be JSON, for example \[\"one\", \"two\"\] \(write it with json.dumps\)"):
        one(cells="csv", perturbed_answers=cell)


@pytest.mark.parametrize(
    ("answer", "expected"), [("Ada Vey, that is Ada Vey.", ""), ("It was Ada Vey.", None), ("Bo.", None)]
)
def test_empty_prefix_cell_of_a_csv(answer, expected):
    assert one(cells="csv", prefix="", entity="Ada Vey", answer=answer).prefix == expected


ROW = {"question": "Who?", "answer": "Ada."}


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        ([], "^t is empty: expected at least one row with the columns"),
        ([{}], "the columns `question`, `answer` are missing. Found: no column"),
        ([ROW, "Ada"], r"t, row 1: expected a dictionary .* got str"),
        ([ROW] + [{**ROW, "question": " "}] * 12, r"empty in row 1 \(`question`\), .*10 \(`question`\), and 2 more\."),
        (
            [{"query": "Who?", "answer": "Ada."}],
            "^t: the column `question` is missing. Found: `query`, `answer`. Expected: `question`, `answer`; "
            r"optional: prefix, entity, id \(or idx\), type, subject, paraphrased_question, paraphrased_answers \(or "
            r"paraphrased_answer\), perturbed_answers \(or perturbed_answer\). Rename the columns.$",
        ),
        (
            [{**ROW, "id": name} for name in "ababca"],
            r"^t: ids must be unique; 2 occur more than once: 'a' \(rows 0, 2, 5\), 'b' \(rows 1, 3\). "
            r"Rename the repeated ids, or drop the id column to use the row numbers \(which start at 0\)\.$",
        ),
    ],
)
def test_rows_that_do_not_fit_are_reported_at_once(rows, words):
    with pytest.raises(DataError, match=words):
        examples_from_rows(rows, where="t")
