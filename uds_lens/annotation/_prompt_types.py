"""Infer a row's prompt type from the wording of the question and the form of the entity."""

from __future__ import annotations

import re

from uds_lens.data import ForgetExample
from uds_lens.data._examples import entity_span

_AWARD = re.compile(r"\b(awards?|prizes?|medals?|laureate|honou?rs?|fellowship)\b", re.I)
_AWARD_ASKED = re.compile(r"\b(awards?|prizes?|medals?|accolades?|honou?r(s|ed)?|recognitions?)\b", re.I)
_INFLUENCE = re.compile(r"\b(influenc\w*|inspir\w*|shap(e|es|ed|ing)|driv(e|es|en)|impact(ed)?)\b")  # not in names
_WORK_ASKED = re.compile(r"\b(books?|titles?|novels?|works?|series)\b", re.I)
_JOB_ASKED = re.compile(r"\b(professions?|occupations?|jobs?|parents?|father|mother|do for a living)\b", re.I)
_PLACE_ASKED = re.compile(r"^where\b|\b(which|what) (city|country|place|town)\b|\bbirthplace\b|\borigins?\b", re.I)
_NAME_ASKED = re.compile(r"\bnamed?\b|^who\b", re.I)
_SMALL = frozenset(["al", "bin", "de", "der", "for", "in", "la", "of", "the", "van", "von"])


def _is_name(text: str) -> bool:
    words = [word for word in text.split() if word not in _SMALL]
    return bool(words) and text.split()[0] == words[0] and all(word[0].isupper() for word in words)


def prompt_type(example: ForgetExample) -> str | None:
    """Return the prompt type of an example (one of the UDS paper's eight types), or None if the example has no entity.

    The first type whose condition holds is returned: `Yes/No` if the entity is "yes" or "no"; `Influence` if the
    question asks what influenced, inspired, shaped or drove somebody; `Award` if the entity names an award, or if the
    question asks for an award and the entity is a name or in quotation marks; `Book/Work Title` if the question asks
    for books or other works and the entity is in quotation marks; `Location/Origin` if the question asks for a place,
    or if the entity has the form "City, Country"; `Profession` if the question asks for an occupation or about the
    parents and the entity is at most four words in lower case; `Person Name` if the question asks who somebody is or
    for a name, and the entity is a name. Otherwise the type is `Descriptive`.

    >>> asked = ForgetExample("0", "Where was Ada Vey born?", "Ada Vey was born in Orsk.", entity="Orsk")
    >>> prompt_type(asked)
    'Location/Origin'
    """
    span = entity_span(example)
    if isinstance(span, str):
        return None
    question, before = example.question.strip(), example.answer[: span.start].rstrip()
    entity = example.answer[span.start : span.end]
    bare = entity.strip("\"'\u2018\u2019\u201c\u201d.,")
    is_name = _is_name(bare)
    is_quoted = bare != entity.strip(".,") or before.endswith(('"', "'", "\u201c", "\u2018"))
    places = bare.split(", ")
    if bare.casefold() in ("yes", "no"):
        return "Yes/No"
    if _INFLUENCE.search(question):
        return "Influence"
    if _AWARD.search(bare) or (_AWARD_ASKED.search(question) and (is_name or is_quoted)):
        return "Award"
    if is_quoted and _WORK_ASKED.search(question):
        return "Book/Work Title"
    if _PLACE_ASKED.search(question) or (len(places) == 2 and all(map(_is_name, places))):
        return "Location/Origin"
    if _JOB_ASKED.search(question) and len(bare.split()) <= 4 and bare.islower():
        return "Profession"
    return "Person Name" if is_name and _NAME_ASKED.search(question) else "Descriptive"
