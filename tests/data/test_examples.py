import dataclasses

import pytest
from hypothesis import given, strategies as st

from uds_lens.data import ForgetExample
from uds_lens.data._examples import Span, entity_span
from uds_lens.errors import DataError


def test_lists_become_tuples_so_that_an_example_can_be_hashed(unchecked):
    example = ForgetExample("0", "Who?", "Ada.", paraphrased_answers=["It is Ada."], perturbed_answers=["Bo."])
    assert example.paraphrased_answers == ("It is Ada.",)
    assert hash(example) == hash(dataclasses.replace(example))


@pytest.mark.parametrize(
    ("cells", "message"),
    [
        ({"question": 3}, r"ForgetExample \(row 4\): `question` must be text; got 3 \(int\)"),
        ({"prefix": 1.5}, r"`prefix` must be text; got 1.5"),
        ({"id": None}, r"`id` must be text; got None"),
        (
            {"question": "Who \ud83d?"},
            r"`question` contains half a character \('\\ud83d' at index 4\).* Correct the row",
        ),
        ({"perturbed_answers": "Bo."}, r"must be a tuple of strings; got 'Bo.' \(str\). Write \('Bo.',\)"),
        ({"paraphrased_answers": ("a", 2)}, r"`paraphrased_answers` must be text; got 2"),
    ],
)
def test_wrong_cells_are_named(unchecked, cells, message):
    with pytest.raises(DataError, match=message):
        ForgetExample(**{"id": "0", "question": "Who?", "answer": "Ada.", "row": 4, **cells})


ANSWER = "It was Ada Vey, and Ada Vey's sister."


@pytest.mark.parametrize(
    ("answer", "entity", "prefix", "expected"),
    [
        ("It was Ada.", "Ada", None, (7, 10)),
        ("It was Ada.", " Ada ", None, (7, 10)),
        ("Ada.", "Ada", "", (0, 3)),
        (" Ada.", "Ada", "", (1, 4)),
        (ANSWER, "Ada Vey", "It was", (7, 14)),
        (ANSWER, "Ada Vey", "It was ", (7, 14)),
        (ANSWER, "Ada Vey", "It was Ada Vey, and", (20, 27)),
        ('"Ash" is it.', "Ash", '"', (1, 4)),
    ],
)
def test_located(answer, entity, prefix, expected):
    assert entity_span(ForgetExample("0", "Who?", answer, prefix=prefix, entity=entity)) == expected


@pytest.mark.parametrize(
    ("entity", "prefix", "reason"),
    [
        (None, None, "No entity is given."),
        ("  ", "It was", "No entity is given."),
        ("Bo", None, "The entity 'Bo' does not occur in the answer."),
        ("ada vey", None, "The entity 'ada vey' does not occur in the answer (only with different capitalisation)."),
        ("Ada Vey", None, "The entity 'Ada Vey' occurs 2 times in the answer and no prefix says which one is meant."),
        ("Ada Vey", "It is", "The answer does not start with the prefix 'It is'."),
        ("Ada Vey", "It", "The prefix 'It' is not followed by the entity 'Ada Vey' in the answer."),
        ("Ada Vey", "", "The prefix '' is not followed by the entity 'Ada Vey' in the answer."),
    ],
)
def test_reasons(entity, prefix, reason):
    assert entity_span(ForgetExample("0", "Who?", ANSWER, prefix=prefix, entity=entity)) == reason


def test_overlapping_occurrences_are_ambiguous():
    assert "occurs 2 times" in entity_span(ForgetExample("0", "Who?", "anana", entity="ana"))


@given(prefix=st.text(), entity=st.text(), suffix=st.text())
def test_with_its_prefix_an_entity_is_always_found(prefix, entity, suffix):
    span = entity_span(ForgetExample("0", "Who?", prefix + entity + suffix, prefix=prefix, entity=entity))
    if not entity.strip():
        assert span == "No entity is given."
    else:
        assert isinstance(span, Span)
        assert (prefix + entity + suffix)[span.start : span.end] == entity.strip()


@pytest.mark.parametrize("blank", ["", " "])
def test_rows_with_a_blank_subject_or_type_have_none_in_common(blank):
    example = ForgetExample("0", "Who?", "Ada.", type=blank, subject=blank)
    assert example.type is None and example.subject is None
