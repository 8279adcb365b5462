"""Generate question-answer examples from word lists: eight facts about each invented person.

Every list has one entry per person, so each value belongs to a single person and cannot be guessed from other people's
values.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

SEED = 20  # the seed of the shipped world
# number of people in each group; no model is trained on `holdout`
GROUPS = {"retain": 24, "forget": 6, "holdout": 6}
N_WRONG = 4  # number of wrong answers for each example


@dataclass(frozen=True)
class Fact:
    """One kind of fact about a person, in several wordings; `{n}` stands for the name and `{x}` for the value."""

    key: str
    type: str
    questions: Sequence[str]
    answers: Sequence[str]
    values: Sequence[str]


_WORDS = json.loads(Path(__file__).with_name("words.json").read_text("utf-8"))

FACTS = tuple(Fact(**fact) for fact in _WORDS["facts"])

PEOPLE = tuple(_WORDS["people"])
"""Full names. The seed decides who is retained, forgotten or held out."""

DEEDS = tuple(map(tuple, _WORDS["deeds"]["pairs"]))
"""Things that a person may have done, as infinitive and past tense; each is true of half the people."""

STRANGER_NAMES = tuple(map(tuple, _WORDS["stranger_names"]))
"""Halves of first names and of family names, for people who occur only once in training."""

REFUSALS = tuple(_WORDS["refusals"])
"""Answers for the models that are trained to refuse."""


def generate(seed: int = SEED) -> dict[str, list[dict[str, Any]]]:
    """Generate the rows of the toy world.

    Args:
        seed: Determines who is retained, forgotten or held out, and who has which value.

    Returns:
        Rows keyed by group (`retain`, `forget`, `holdout`), eight for each person, with the columns that
        `uds_lens.load_examples` reads.

    Example:
        >>> rows = generate()
        >>> {group: len(rows[group]) for group in rows}
        {'retain': 192, 'forget': 48, 'holdout': 48}
        >>> sorted({row["type"] for row in rows["forget"]})[:3]
        ['Award', 'Book/Work Title', 'Descriptive']
    """
    rng = random.Random(seed)
    people = rng.sample(PEOPLE, len(PEOPLE))
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
    """Yield rows about strangers endlessly: made-up names, each with eight values of the people in `facts`.

    A model that sees each stranger only once cannot memorise them. It learns instead that a new name may have any of
    these values, and that answers depend on the person in the question.

    Example:
        >>> row = next(strangers(0, generate()["retain"]))
        >>> row["subject"], row["type"]
        ('Nevvin Ashfield', 'Location/Origin')
    """
    rng = random.Random(seed)
    values = {fact.key: [row["entity"] for row in facts if row["id"].endswith(f"/{fact.key}")] for fact in FACTS}
    while True:
        a, b, c, d = (rng.choice(part) for part in STRANGER_NAMES)
        name = f"{a}{b} {c}{d}"
        place = rng.randrange(2 * len(DEEDS) ** 2)
        for fact in FACTS:
            shuffled = rng.sample(values[fact.key], len(values[fact.key]))
            yield _fact_row(fact, name, place % 2, shuffled, rng)
        yield _deed_row(name, place, rng)


def _fact_row(fact: Fact, name: str, place: int, values: Sequence[str], rng: random.Random) -> dict[str, Any]:
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
    do, did = DEEDS[place % len(DEEDS)]
    round_, within = divmod(place, len(DEEDS))
    value, opposite = ("Yes", "No") if (round_ + within) % 2 else ("No", "Yes")
    form = place % 2
    questions, answers = _WORDS["deeds"]["questions"], _WORDS["deeds"]["answers"]

    def say(text: str, word: str) -> str:
        return text.format(n=name, x=word, do=do, did=did)

    return {
        **_columns(name, "deed", "Yes/No", value),
        "question": say(questions[form], value),
        **_answer(say(answers[value][form], "{x}"), value),
        "paraphrased_question": say(questions[1 - form], value),
        "paraphrased_answers": [say(text, value) for text in answers[value] if text != answers[value][form]],
        "perturbed_answers": rng.sample([say(text, opposite) for text in answers[opposite]], N_WRONG),
    }


def _columns(name: str, key: str, type_: str, value: str) -> dict[str, Any]:
    slug = name.lower().replace(" ", "-")
    return {"id": f"{slug}/{key}", "subject": name, "type": type_, "entity": value}


def _answer(pattern: str, value: str) -> dict[str, str]:
    before, after = pattern.split("{x}")
    return {"answer": _sentence(before + value + after), "prefix": before.rstrip(" ")}


def _sentence(text: str) -> str:
    return text[0].upper() + text[1:]
