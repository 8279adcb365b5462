import pytest
from hypothesis import given, strategies as st

from uds_lens.data import ForgetExample, Span, entity_span

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
        ("ada vey", None, "The entity 'ada vey' does not occur in the answer (only with other upper and lower case)."),
        ("Ada Vey", None, "The entity 'Ada Vey' occurs 2 times in the answer and no prefix tells which one is meant."),
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
