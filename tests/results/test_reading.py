"""The verdict that a fatal warning withholds, and sentences about the score."""

import dataclasses
import math

import pytest

from uds_lens.results import compare, compare_all, models_frame
from uds_lens.results._cautions import Caution
from uds_lens.results._frames import thirds_in_words

from .conftest import made

MANY = 40
KNOWN, HALF = [[1.0, 1.0]] * MANY, [[0.5, 0.5]] * MANY


def first(audit, **told):
    sample = {"limit": MANY, "of": 400, "sample": "first", "seed": 0, **told}
    return dataclasses.replace(audit, provenance={**audit.provenance, "sample": sample})


FATAL = {
    "swapped": lambda: made([[-1.0, -1.0]] * 30 + KNOWN[:10], HALF),
    "sorted by subject": lambda: first(made(KNOWN, HALF), sorted_by="subject"),
    "saved before it was told": lambda: first(made(KNOWN, HALF)),
}


@pytest.mark.parametrize("kind", FATAL)
def test_a_fatal_warning_withholds_the_reading_and_is_marked(kind):
    audit = FATAL[kind]()
    assert not math.isnan(audit.uds) and audit.reading == "withheld"
    assert audit.cautions[0].level == "fatal" and audit.fatal == (audit.warnings[0],)
    summary = audit.summary()
    assert (summary["reading"], summary["n_fatal"], summary["warning_levels"][0]) == ("withheld", 1, "fatal")
    assert f"warnings={len(audit.warnings)} (1 fatal)" in repr(audit)
    card = audit._repr_html_()
    assert "withheld" in card and "<b>Fatal:</b>" in card
    assert models_frame({"one": audit})["reading"].tolist() == ["withheld"]
    assert compare(audit, audit).fatal == audit.fatal
    assert compare_all({"a": audit, "b": audit})["fatal"].tolist() == [audit.fatal[0]]


def test_the_weight_of_the_score_by_thirds_of_the_layers():
    audit = made([[1.0, 0.0, 1.0, 2.0, 4.0, 2.0], [0.0, 0.0, 0.0, 0.0, 0.0, 3.0], [0.0] * 6], [[0.0] * 6] * 3)
    assert audit.summary()["weight_by_third"] == pytest.approx([0.05, 0.15, 0.8])
    assert thirds_in_words(audit) == "Weight in the score: 5% in layers 0-1, 15% in layers 2-3, 80% in layers 4-5."
    nothing = made([[0.0] * 6], [[0.0] * 6])
    assert nothing.fatal and nothing.reading == "withheld"
    assert all(map(math.isnan, nothing.summary()["weight_by_third"]))
    assert thirds_in_words(nothing) == ""


def test_entities_behind_a_quote_are_marked_row_by_row():
    audit = made([[1.0, 1.0]] * 2, [[0.5, 0.5]] * 2)
    quoted = dataclasses.replace(audit.examples[1], answer='She wrote "Ash".', entity="Ash", prefix=None)
    audit = dataclasses.replace(audit, examples=[audit.examples[0], quoted])
    paper = dataclasses.replace(audit, config=dataclasses.replace(audit.config, entity_space="always"))
    for rule, added in ((audit, False), (paper, True)):
        assert rule.examples_frame()["space_added"].tolist() == [False, added]
        assert any(text.startswith("1 of 2 entities directly follow") for text in rule.warnings) == added
        swapped = dataclasses.replace(rule, s1_delta=-1 - rule.s1_delta)
        (fatal,) = (text for text in swapped.warnings if "Are full and retain swapped? " in text)
        assert fatal.startswith("1 of 2 entities directly follow") == added


def test_a_template_that_opens_answers_in_two_ways_is_a_caution():
    audit = made([[1.0, 1.0]] * 2, [[0.5, 0.5]] * 2)
    opened = {"answers_opened": ["assistant\n<think>\n", "assistant\n"]}
    asked = dataclasses.replace(audit, provenance={**audit.provenance, **opened})
    (new,) = (caution for caution in asked.cautions if caution not in audit.cautions)
    assert (new.level, new.mark) == ("caution", "answers opened in two ways")
    assert (
        "begins an answer to be generated with 'assistant\\n<think>\\n', but a given answer with 'assistant\\n'."
        in new.text
    )


def test_a_prefix_that_ends_in_a_space_is_named():
    audit = made([[1.0, 1.0]] * 2, [[0.5, 0.5]] * 2)
    spaced = dataclasses.replace(audit.examples[1], answer="She wrote Ash.", entity="Ash", prefix="She wrote ")
    assert not any("end in a space" in text for text in audit.warnings)
    audit = dataclasses.replace(audit, examples=[audit.examples[0], spaced])
    (text,) = (text for text in audit.warnings if "end in a space" in text)
    assert text.startswith("1 of 2 prefixes end in a space") and str(spaced.id) in text


def test_entities_that_begin_their_answer_are_counted_where_full_hardly_gives_them():
    audit = made([[1.0, 1.0]] * 3, [[1.0, 1.0], [0.5, 0.5], [0.5, 0.5]])
    begins = dataclasses.replace(audit.examples[0], answer="Ash, she says.", entity="Ash", prefix="")
    later = [dataclasses.replace(x, answer="It is Ash.", entity="Ash", prefix="It is") for x in audit.examples[1:]]
    audit = dataclasses.replace(audit, examples=[begins, *later], s_full=audit.s_full.new_tensor([-10.0, -0.1, -0.1]))
    (text,) = (text for text in audit.warnings if "come first in their answer" in text)
    assert text.startswith("1 of 3 entities") and text.endswith(
        "1 of these examples are measurable, with a mean UDS of 1.000."
    )
    known = dataclasses.replace(audit, s_full=audit.s_full.new_full((3,), -0.1))
    assert not any("come first in their answer" in text for text in known.warnings)


def test_other_warnings_leave_the_reading():
    audit = first(made(KNOWN, HALF), sorted_by=None)
    assert audit.cautions == (Caution("caution", audit.warnings[0], "first 40 only"),)
    assert "are mixed" in audit.warnings[0]
    assert audit.fatal == () and audit.reading == "undecided" and "fatal" not in repr(audit)
    random = first(made(KNOWN, HALF), sample="random")
    assert [caution.level for caution in random.cautions] == ["note"]
    assert compare(random, random).fatal == ()


def test_entities_that_question_or_prefix_give_away_are_named():
    audit = made([[1.0, 1.0]] * 40, [[0.5, 0.5]] * 40)

    def marks(**given):
        examples = [dataclasses.replace(audit.examples[0], **given), *audit.examples[1:]]
        return [c for c in dataclasses.replace(audit, examples=tuple(examples)).cautions if "given away" in c.mark]

    assert marks() == marks(question="Is it A01?") == []
    (note,) = marks(question="Is it a0?")
    assert note.level == "note" and "1 of 40 entities already occur" in note.text and "(e0)" in note.text
    assert marks(answer="A0 it is: A0.", prefix="A0 it is:")
    asked = tuple(dataclasses.replace(e, question=f"Is it {e.entity}?") for e in audit.examples)
    (caution,) = (c for c in dataclasses.replace(audit, examples=asked).cautions if "given away" in c.mark)
    assert caution.level == "caution" and "40 of 40" in caution.text
