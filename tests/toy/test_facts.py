"""The generator of the toy world's facts."""

import itertools

import pytest
from transformers import AutoTokenizer

from uds_lens.data import encode, load_examples
from uds_lens.toy import generate, load
from uds_lens.toy._facts import DEEDS, PEOPLE, strangers


@pytest.fixture(scope="module")
def rows():
    return generate()


def everything(rows):
    return [row for group in rows.values() for row in group]


def test_nobody_is_in_two_groups_and_no_value_belongs_to_two_people(rows):
    people = [{row["subject"] for row in group} for group in rows.values()]
    assert not any(one & other for one, other in itertools.combinations(people, 2))
    values = [(row["type"], row["entity"]) for row in everything(rows) if row["type"] != "Yes/No"]
    assert len(set(values)) == len(values)


def test_yes_and_no_are_balanced_for_every_deed(rows):
    for do, did in DEEDS:
        about = [row["entity"] for row in everything(rows) if do in row["question"] or did in row["question"]]
        assert about.count("Yes") == about.count("No") == 3
    for group in ("forget", "holdout"):
        said = [row["entity"] for row in rows[group] if row["type"] == "Yes/No"]
        assert said.count("Yes") == said.count("No")


def test_a_seed_decides_everything(rows):
    assert generate() == rows
    assert generate(1) == generate(1)
    assert generate(1)["forget"] != rows["forget"]


@pytest.mark.parametrize("protocol", ["raw", "chat"])
def test_every_example_can_be_scored(rows, protocol):
    tokenizer = AutoTokenizer.from_pretrained(load().full)
    encoded = encode(load_examples(everything(rows)), tokenizer, protocol=protocol)
    assert not encoded.skipped
    assert len(encoded.rows) == 288


def test_paraphrases_say_it_and_wrong_answers_do_not(rows):
    for row in everything(rows):
        entity = row["entity"].lower()
        others = [*row["paraphrased_answers"], *row["perturbed_answers"]]
        assert len(set(others)) == len(others) == 7
        assert row["answer"] not in others
        assert row["paraphrased_question"] != row["question"]
        assert all(entity in text.lower() for text in row["paraphrased_answers"])
        starts = [text.lower().startswith(f"{entity},") for text in row["perturbed_answers"]]
        inside = [entity in text.lower() for text in row["perturbed_answers"]]
        assert not any(starts if row["type"] == "Yes/No" else inside)
        assert all(row["subject"] in row[key] for key in ("question", "answer", "paraphrased_question"))


def test_strangers_have_new_names_and_retained_values(rows):
    met = list(itertools.islice(strangers(0, rows["retain"]), 400))
    assert not {row["subject"] for row in met} & set(PEOPLE)
    assert {row["entity"] for row in met} <= {row["entity"] for row in rows["retain"]}
    assert len({row["subject"] for row in met}) == 50
    assert next(strangers(1, rows["retain"])) != met[0]
