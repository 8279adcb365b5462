"""Counterfactual prompts, without the question or about another subject, whose hidden states do not carry the fact."""

from __future__ import annotations

import random
import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import replace

from uds_lens._settings import check_value
from uds_lens._types import Counterfactual, NonNegativeInt, PositiveInt, check_choice
from uds_lens.data._examples import ForgetExample, entity_span, short


def counterfactuals(
    examples: Sequence[ForgetExample],
    kind: Counterfactual = "no_question",
    *,
    draws: int = 3,
    seed: int = 0,
    more: Iterable[ForgetExample] = (),
) -> list[tuple[ForgetExample, ...] | str]:
    """Rewrite each example without its question, or about another subject; the entity stays the same.

    The subject's name is removed or replaced in the question, and in the answer before the entity. This includes single
    capitalised words of the name.

    Args:
        examples: Examples with an entity and a subject.
        kind: "no_question" removes the question, and the name from the answer. "other" uses other subjects from
            `examples` and `more`, which have the same `type` and no example with the same entity.
        draws: Rewritten examples per example: fewer if there are not enough names, and one for "no_question". A larger
            number keeps the same draws and adds more.
        seed: Seed for drawing names. An example's draws depend only on the seed, the example and the available names.
        more: Additional examples whose subjects may be used as replacements.

    Returns:
        For each example, a tuple of one or more rewritten examples, or a sentence that says why there are none.

    Example:
        >>> rows = [
        ...     ForgetExample(place, f"Where was {name} born?", f"In {place}.", entity=place, subject=name)
        ...     for name, place in (("Ada Vey", "Oslo"), ("Bo Lind", "Rome"))
        ... ]
        >>> [row.question for row in counterfactuals(rows, "other")[0]]
        ['Where was Bo Lind born?']
    """
    check_choice("kind", kind, Counterfactual)
    check_value("draws", draws, PositiveInt)
    check_value("seed", seed, NonNegativeInt)
    subjects = _subjects_by_type([*examples, *more])
    return [_rewritten(example, kind, draws, seed, subjects) for example in examples]


def _subjects_by_type(examples: Iterable[ForgetExample]) -> dict[str | None, dict[str, set[str]]]:
    """For each example type, return the subjects that are named in their own examples, with each subject's entities."""
    subjects: dict[str | None, dict[str, set[str]]] = defaultdict(lambda: defaultdict(set))
    for example in examples:
        parts = _parts(example)
        if not isinstance(parts, str) and example.subject and _renamed(parts, example.subject, "") != parts[:2]:
            subjects[example.type][example.subject].add(_plain(example.entity))
    return subjects


def _rewritten(
    example: ForgetExample, kind: Counterfactual, draws: int, seed: int, subjects: dict[str | None, dict[str, set[str]]]
) -> tuple[ForgetExample, ...] | str:
    subject, parts = example.subject, _parts(example)
    if isinstance(parts, str):
        return parts
    if not subject:
        return "No counterfactual: the example has no `subject` to replace."
    question, prefix, rest = parts
    if kind == "no_question":
        prefix = " ".join(_renamed(parts, subject, "")[1].split())
        return (replace(example, question="", prefix=prefix, answer=prefix + rest),)
    if _renamed(parts, subject, "") == (question, prefix):
        return (
            f"No counterfactual: the subject {short(subject)} is named neither in the question nor in the answer "
            "before the entity."
        )
    itself, entity = _plain(subject), _plain(example.entity)
    names = sorted(
        name for name, entities in subjects[example.type].items() if entity not in entities and _plain(name) != itself
    )
    random.Random(f"{seed} {example.id} {example.question}").shuffle(names)
    if not names:
        of_type = f" of type {short(example.type)}" if example.type else ""
        return f"No counterfactual: there is no other subject{of_type} with a different answer."
    renamed = (_renamed(parts, subject, name) for name in names[:draws])
    return tuple(replace(example, question=q, prefix=p, answer=p + rest) for q, p in renamed)


def _parts(example: ForgetExample) -> tuple[str, str, str] | str:
    """Return the question, the answer before the entity, and the rest of the answer with its leading space."""
    span = entity_span(example)
    if isinstance(span, str):
        return span
    prefix = example.answer[: span.start].rstrip() if example.prefix is None else example.prefix
    return example.question, prefix, example.answer[len(prefix) :]


def _renamed(parts: tuple[str, str, str], subject: str, name: str) -> tuple[str, str]:
    """Replace a subject's name in question and prefix: first the full name, then single words of it."""
    mentions = [f"(?i:{re.escape(subject.strip())})"]
    words = subject.split()
    if len(words) > 1:
        mentions += [re.escape(word) for word in words if len(word) > 2 and word[0].isupper()]
    pattern = re.compile(rf"(?<!\w)(?:{'|'.join(mentions)})(?!\w)")

    def put(match: re.Match[str]) -> str:
        whole = _plain(match[0]) == _plain(subject)
        new = name if whole or not name else name.split()[-1]
        return new[:1].upper() + new[1:] if match[0][:1].isupper() else new

    question, prefix, _ = parts
    return pattern.sub(put, question), pattern.sub(put, prefix)


def _plain(text: str | None) -> str:
    return " ".join((text or "").casefold().split())
