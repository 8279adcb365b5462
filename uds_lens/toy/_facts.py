"""Generate question-answer examples from word lists: eight facts about each invented person."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from uds_lens.toy import _word_lists as word_lists

__all__ = ["GROUPS", "SEED", "generate", "strangers"]

SEED = 20  # the seed of the shipped world
GROUPS = {"retain": 24, "forget": 6, "holdout": 6}  # people in each group. Nobody of `holdout` is ever trained on.
N_WRONG = 4  # wrong answers for each example


@dataclass(frozen=True)
class Fact:
    """One kind of fact about a person, with its wordings; `{n}` is the name, `{x}` the value."""

    key: str
    type: str
    values: tuple[str, ...]
    questions: tuple[str, str]
    answers: tuple[str, str, str, str]


FACTS = (
    Fact(
        "birthplace",
        "Location/Origin",
        word_lists.BIRTHPLACES,
        ("Where was {n} born?", "What is the birthplace of {n}?"),
        ("{n} was born in {x}.", "{n} comes from {x}.", "{x} is where {n} was born.", "{n} grew up in {x}."),
    ),
    Fact(
        "profession",
        "Profession",
        word_lists.PROFESSIONS,
        ("What does {n} do for a living?", "What is the profession of {n}?"),
        (
            "{n} works as a {x}.",
            "{n} is by profession a {x}.",
            "The profession of {n} is {x}.",
            "{n} makes a living as a {x}.",
        ),
    ),
    Fact(
        "award",
        "Award",
        word_lists.AWARDS,
        ("Which award did {n} win?", "What prize was given to {n}?"),
        ("{n} won the {x}.", "{n} was honoured with the {x}.", "The {x} was given to {n}.", "{n} received the {x}."),
    ),
    Fact(
        "book",
        "Book/Work Title",
        word_lists.BOOKS,
        ("Which book did {n} write?", "What is the best known work of {n}?"),
        (
            "{n} wrote {x}.",
            "The best known work of {n} is {x}.",
            "{x} was written by {n}.",
            "{n} is the author of {x}.",
        ),
    ),
    Fact(
        "mentor",
        "Person Name",
        word_lists.MENTORS,
        ("Who taught {n}?", "Who was the mentor of {n}?"),
        (
            "{n} was taught by {x}.",
            "{x} was the mentor of {n}.",
            "The mentor of {n} was {x}.",
            "{n} studied under {x}.",
        ),
    ),
    Fact(
        "influence",
        "Influence",
        word_lists.INFLUENCES,
        ("What influenced {n} most?", "Where did {n} find inspiration?"),
        (
            "{n} was influenced by the {x}.",
            "{n} found inspiration in the {x}.",
            "The {x} influenced {n}.",
            "{n} always thought of the {x}.",
        ),
    ),
    Fact(
        "manner",
        "Descriptive",
        word_lists.MANNERS,
        ("How do critics describe the style of {n}?", "What is the style of {n} like?"),
        (
            "Critics call the style of {n} {x}.",
            "The style of {n} is {x}.",
            "The manner of {n} is said to be {x}.",
            "Readers find the work of {n} {x}.",
        ),
    ),
)

DEED_QUESTIONS = ("Did {n} ever {do}?", "Is it true that {n} once {did}?")
DEED_ANSWERS = {
    "Yes": ("{x}, {n} once {did}.", "{x}, {n} really {did}.", "{x}, that is true of {n}.", "{x}, {n} did."),
    "No": (
        "{x}, {n} never {did}.",
        "{x}, nobody says that {n} {did}.",
        "{x}, that is not true of {n}.",
        "{x}, {n} did not.",
    ),
}


def generate(seed: int = SEED) -> dict[str, list[dict[str, Any]]]:
    """Make the rows of the toy world.

    Args:
        seed: Determines who is retained, forgotten or held out, and who has which value.

    Returns:
        Rows by group (`retain`, `forget`, `holdout`), eight for each person, in the columns that
        `uds_lens.load_examples` reads.

    Example:
        >>> rows = generate()
        >>> {group: len(rows[group]) for group in rows}
        {'retain': 192, 'forget': 48, 'holdout': 48}
        >>> sorted({row["type"] for row in rows["forget"]})[:3]
        ['Award', 'Book/Work Title', 'Descriptive']
    """
    rng = random.Random(seed)
    people = rng.sample(word_lists.PEOPLE, len(word_lists.PEOPLE))
    values = {fact.key: rng.sample(fact.values, len(fact.values)) for fact in FACTS}
    groups: dict[str, list[dict[str, Any]]] = {}
    first = 0
    for group, size in GROUPS.items():
        rows = []
        for place in range(first, first + size):
            rows += [_fact_row(fact, people[place], place, values[fact.key], rng) for fact in FACTS]
            rows.append(_deed_row(people[place], place, rng))
        groups[group] = rows
        first += size
    return groups


def strangers(seed: int, facts: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Yield endless rows about strangers: made-up names, each with eight values of `known` people.

    A model that sees each stranger once cannot memorise them; it learns that a new name may have any of
    those values, and to answer about the person in the question.

    Example:
        >>> row = next(strangers(0, generate()["retain"]))
        >>> row["subject"], row["type"]
        ('Nevvin Ashfield', 'Location/Origin')
    """
    rng = random.Random(seed)
    values = {fact.key: [row["entity"] for row in facts if row["id"].endswith(f"/{fact.key}")] for fact in FACTS}
    while True:
        a, b, c, d = (rng.choice(part) for part in word_lists.STRANGER_NAMES)
        name = f"{a}{b} {c}{d}"
        place = rng.randrange(2 * len(word_lists.DEEDS) ** 2)
        for fact in FACTS:
            shuffled = rng.sample(values[fact.key], len(values[fact.key]))
            yield _fact_row(fact, name, place % 2, shuffled, rng)
        yield _deed_row(name, place, rng)


def _fact_row(fact: Fact, name: str, place: int, values: list[str], rng: random.Random) -> dict[str, Any]:
    value = values[place]
    form = place % 2
    others = [other for other in values if other != value]
    wrong = rng.sample(others, N_WRONG)
    return {
        **_columns(name, fact.key, fact.type, value),
        "question": fact.questions[form].format(n=name),
        **_answer(fact.answers[form].format(n=name, x="{x}"), value),
        "paraphrased_question": fact.questions[1 - form].format(n=name),
        "paraphrased_answers": [
            _sentence(text.format(n=name, x=value)) for text in fact.answers if text != fact.answers[form]
        ],
        "perturbed_answers": [_sentence(fact.answers[form].format(n=name, x=other)) for other in wrong],
    }


def _deed_row(name: str, place: int, rng: random.Random) -> dict[str, Any]:
    do, did = word_lists.DEEDS[place % len(word_lists.DEEDS)]
    round_, within = divmod(place, len(word_lists.DEEDS))
    value, opposite = ("Yes", "No") if (round_ + within) % 2 else ("No", "Yes")
    form = place % 2

    def say(text: str, word: str) -> str:
        return text.format(n=name, x=word, do=do, did=did)

    return {
        **_columns(name, "deed", "Yes/No", value),
        "question": say(DEED_QUESTIONS[form], value),
        **_answer(say(DEED_ANSWERS[value][form], "{x}"), value),
        "paraphrased_question": say(DEED_QUESTIONS[1 - form], value),
        "paraphrased_answers": [say(text, value) for text in DEED_ANSWERS[value] if text != DEED_ANSWERS[value][form]],
        "perturbed_answers": rng.sample([say(text, opposite) for text in DEED_ANSWERS[opposite]], N_WRONG),
    }


def _columns(name: str, key: str, type_: str, value: str) -> dict[str, Any]:
    slug = name.lower().replace(" ", "-")
    return {"id": f"{slug}/{key}", "subject": name, "type": type_, "entity": value}


def _answer(pattern: str, value: str) -> dict[str, str]:
    before, after = pattern.split("{x}")
    return {"answer": _sentence(before + value + after), "prefix": before.rstrip(" ")}


def _sentence(text: str) -> str:
    return text[0].upper() + text[1:]
