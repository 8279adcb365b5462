"""The same question about another subject: what is replaced, whose names are drawn, and which rows have none."""

import dataclasses

import pytest

from uds_lens.data import ForgetExample, counterfactuals
from uds_lens.data._examples import entity_span

CAPITALS = {"Austria": "Vienna", "Saudi Arabia": "Riyadh", "Nepal": "Kathmandu", "Peru": "Lima"}
CONTINENTS = {"Poland": "Europe", "Spain": "Europe", "Kenya": "Africa"}


def fact(kind, question, opening, name, entity):
    prefix = opening.format(name)
    row = ForgetExample(f"{kind}/{name}", question.format(name), f"{prefix} {entity}.", prefix=prefix)
    return dataclasses.replace(row, entity=entity, subject=name, type=kind)


FACTS = [fact("capital", "What is the capital of {}?", "The capital of {} is", *pair) for pair in CAPITALS.items()]
FACTS += [fact("continent", "Where is {}?", "{} is in", *pair) for pair in CONTINENTS.items()]


def test_the_name_is_another_one_of_the_same_type_and_the_entity_stays():
    rows = counterfactuals(FACTS, "other", draws=8)[0]
    assert {row.question for row in rows} == {
        f"What is the capital of {name}?" for name in CAPITALS if name != "Austria"
    }
    assert {row.prefix for row in rows} == {f"The capital of {name} is" for name in CAPITALS if name != "Austria"}
    for row in rows:
        span = entity_span(row)
        assert row.answer[span.start : span.end] == row.entity == "Vienna"
    # nor is a subject with the same answer drawn; facts beside the examples lend their names
    assert [row.question for row in counterfactuals(FACTS, "other", draws=8)[4]] == ["Where is Kenya?"]
    assert len(counterfactuals(FACTS, "other", draws=8)[6]) == 2
    assert "No counterfactual" in counterfactuals(FACTS[:1], "other")[0]
    assert len(counterfactuals(FACTS[:1], "other", draws=8, more=FACTS[1:])[0]) == 3


def test_more_draws_begin_with_the_same_ones_and_the_seed_changes_them():
    one, all_of_them = counterfactuals(FACTS, "other", draws=1), counterfactuals(FACTS, "other", draws=3)
    assert [rows[0] for rows in one] == [rows[0] for rows in all_of_them]
    drawn = {tuple(row.question for row in counterfactuals(FACTS, "other", draws=2, seed=seed)[0]) for seed in range(8)}
    assert len(drawn) > 1


def test_names_stand_alone_in_part_too_and_words_are_left_whole():
    rows = [
        ForgetExample("0", "Did Bo Lind sail?", "Lind's lindens: Oslo.", entity="Oslo", subject="Bo Lind"),
        ForgetExample("1", "Did Ada Vey sail?", "No, Ada.", entity="No", subject="Ada Vey"),
        ForgetExample("2", "Is iron in the environment?", "Iron is Fe.", entity="Fe", subject="iron"),
    ]
    drawn = {row.subject: {(r.question, r.prefix or r.answer) for r in some} for row, some in
             zip(rows, counterfactuals(rows, "other", draws=9), strict=True)}  # fmt: skip
    assert ("Did Ada Vey sail?", "Vey's lindens:") in drawn["Bo Lind"]
    assert ("Is Bo Lind in the environment?", "Bo Lind is") in drawn["iron"]


def test_without_the_question_the_name_goes_too():
    (row,) = counterfactuals(FACTS, "no_question", draws=3)[0]
    assert (row.question, row.prefix, row.answer) == ("", "The capital of is", "The capital of is Vienna.")


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"subject": None}, "has no `subject`"),
        ({"subject": "author 180"}, "'author 180' is named neither in the question nor in the answer"),
        ({"entity": "Graz"}, "The entity 'Graz' does not occur in the answer."),
        ({"type": "river"}, "no other subject of type 'river' with a different answer"),
    ],
)
def test_a_row_without_a_counterfactual_says_why(changes, reason):
    rows = [dataclasses.replace(FACTS[0], **changes), *FACTS[1:]]
    assert reason in counterfactuals(rows, "other")[0]
