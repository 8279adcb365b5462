"""`ForgetExample`, a question with its answer and the entity in it, and how messages show untrusted data."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from uds_lens.errors import DataError


@dataclass(frozen=True)
class ForgetExample:
    """One question with its answer and, if known, the entity in that answer.

    Example:
        >>> example = ForgetExample(id="0", question="Who wrote Ash?", answer="It was Ada Vey.")
        >>> example.entity is None
        True
    """

    id: str
    """Unique within a data set."""
    question: str
    """The question as the user would ask it, without any template."""
    answer: str
    """The reference answer."""
    prefix: str | None = None
    """The answer text before the entity; "" if the answer starts with the entity, None to search for the entity."""
    entity: str | None = None
    """The words in the answer that carry the knowledge; None if the row is only for metrics that need no entity."""
    type: str | None = None
    """Type of the entity, for tables by type."""
    subject: str | None = None
    """The person or thing that the question is about."""
    paraphrased_question: str | None = None
    """The question in other words."""
    paraphrased_answers: tuple[str, ...] = ()
    """Correct answers in other words."""
    perturbed_answers: tuple[str, ...] = ()
    """Wrong answers of the same form."""
    row: int = 0
    """Row number in the source, from 0."""

    def __post_init__(self) -> None:
        for name in ("id", "question", "answer", "prefix", "entity", "type", "subject", "paraphrased_question"):
            if getattr(self, name) is not None or name in ("id", "question", "answer"):
                _check_text(name, getattr(self, name), self.row)
        for name in ("type", "subject"):
            if not (getattr(self, name) or "").strip():  # a blank type or subject means None
                object.__setattr__(self, name, None)
        for name in ("paraphrased_answers", "perturbed_answers"):
            object.__setattr__(self, name, _texts(name, getattr(self, name), self.row))


@dataclass(frozen=True)
class SkippedExample:
    """A row that could not be scored. It is counted neither as erased nor as intact."""

    id: str
    """Id of the example."""
    row: int
    """Row number in the source, from 0."""
    reason: str
    """The reason, as a sentence for reports."""
    question: str
    """The question, to identify the row."""


def _check_text(name: str, value: object, row: int) -> None:
    if not isinstance(value, str):
        raise DataError(
            f"ForgetExample (row {row}): `{name}` must be text; got {short(value)} ({type(value).__name__})."
        )
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise DataError(
            f"ForgetExample (row {row}): `{name}` contains half a character ({value[error.start]!r} at index "
            f"{error.start}), which cannot be saved: the text was cut inside an emoji, or decoded incorrectly. Correct "
            "the row."
        ) from error


def _texts(name: str, values: object, row: int) -> tuple[str, ...]:
    if isinstance(values, str) or not isinstance(values, (list, tuple)):
        raise DataError(
            f"ForgetExample (row {row}): `{name}` must be a tuple of strings; got {short(values)} "
            f"({type(values).__name__}). Write ({short(values)},) for a single string."
        )
    for value in values:
        _check_text(name, value, row)
    return tuple(values)


class Span(NamedTuple):
    """Half-open range of characters."""

    start: int
    end: int


def entity_span(example: ForgetExample) -> Span | str:
    """Locate the entity in the answer.

    With a prefix, the answer must start with the prefix, followed by the entity (whitespace between them is allowed).
    Without a prefix, the entity must occur exactly once. Whitespace around the entity is ignored.

    Args:
        example: The example.

    Returns:
        The entity's character span in `example.answer`, or a sentence that says why it cannot be determined.

    Example:
        >>> example = ForgetExample("0", "Who wrote Ash?", "It was Ada Vey.", entity="Ada Vey")
        >>> entity_span(example)
        Span(start=7, end=14)
        >>> entity_span(ForgetExample("0", "Who?", "Ada and Ada.", entity="Ada"))
        "The entity 'Ada' occurs 2 times in the answer and no prefix says which one is meant."
    """
    entity, answer, prefix = (example.entity or "").strip(), example.answer, example.prefix
    if not entity:
        return "No entity is given."
    if entity not in answer:
        hint = " (only with different capitalisation)" if entity.lower() in answer.lower() else ""
        return f"The entity {short(entity)} does not occur in the answer{hint}."
    if prefix is None:
        start = answer.find(entity)
        count = len(re.findall(f"(?={re.escape(entity)})", answer))  # including overlapping ones
        if count > 1:
            times = f"occurs {count} times in the answer"
            return f"The entity {short(entity)} {times} and no prefix says which one is meant."
    else:
        if not answer.startswith(prefix):
            return f"The answer does not start with the prefix {short(prefix)}."
        start = len(answer) - len(answer[len(prefix) :].lstrip())
        if not answer.startswith(entity, start):
            return f"The prefix {short(prefix)} is not followed by the entity {short(entity)} in the answer."
    return Span(start, start + len(entity))


def given_away(example: ForgetExample) -> bool:
    """Return whether the question, or the answer before the entity, already contains the entity (ignoring case).

    A model can copy such an entity without knowing it.

    >>> given_away(ForgetExample("0", "Did Ada Vey write Ash?", "Ada Vey wrote Ash.", entity="Ash"))
    True
    """
    span = entity_span(example)
    if isinstance(span, str):
        return False
    words = re.escape(example.answer[span.start : span.end].strip(" .,;:!?\"'\u2018\u2019\u201c\u201d"))
    before = f"{example.question}\n{example.answer[: span.start]}"
    return bool(words) and re.search(rf"(?<!\w){words}(?!\w)", before, re.IGNORECASE) is not None


# Messages show untrusted data: a cell may contain a megabyte of text, half a surrogate pair, a number with ten thousand
# digits, or an object whose `repr` raises. Such values are shortened, put on one line, and made printable.

_NAME = 32


def short(value: object, width: int = 80) -> str:
    """Return the `repr` of a value, cut to about `width` characters; never raises.

    >>> short("Ada")
    "'Ada'"
    """
    if isinstance(value, (str, bytes)):
        shown = repr(value[:width])
        whole = len(value) <= width and len(shown) <= 2 * width
        return shown if whole else f"{shown[:width]}... ({len(value)} characters)"
    if isinstance(value, (list, tuple, set, frozenset, dict)) and len(value) > width:
        return f"{type(value).__name__} of {len(value)} items"
    try:
        shown = plain(repr(value), 10 * width)
    except Exception:  # any `repr` may raise, even that of a very large number
        return f"a value of type {type(value).__name__} that cannot be shown"
    return shown if len(shown) <= width else f"{shown[:width]}... ({len(shown)} characters)"


def plain(text: object, width: int = 160) -> str:
    r"""Return a text on one line, without quotes, with unprintable characters escaped, cut to `width`.

    >>> plain("a\nb \ud83d")
    'a b \\ud83d'
    """
    try:
        words = str(text)
    except Exception:  # as above
        return f"a value of type {type(text).__name__} that cannot be shown"
    head = " ".join(words[: 4 * width].split())
    shown = "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in head)
    cut = len(words) > 4 * width or len(shown) > width
    return f"{shown[: width - 3].rstrip()}..." if cut else shown


def place(path: str | os.PathLike[str], width: int = 120) -> str:
    """Return a path as text, or only its end if it is long.

    >>> place("/".join(["a" * 100] * 3), 20)
    '...aaaaaaaaaaaaaaaaa'
    """
    text = os.fspath(path)
    shown = plain(text[-4 * width :], 4 * width)
    return shown if len(shown) <= width and len(text) <= 4 * width else f"...{shown[3 - width :]}"


def named(names: Iterable[object], width: int = 120, quote: str = "`") -> str:
    """List as many names as fit, and say how many are left out.

    >>> named(["question", "answer"])
    '`question`, `answer`'
    >>> named(map(str, range(100)), 12, quote="")
    '0, 1, 2, 3, and 96 more'
    """
    return listed([f"{quote}{plain(name, _NAME)}{quote}" for name in names], width)


def listed(items: list[str], width: int = 160, most: int = 10) -> str:
    """List as many items as fit into `width`, and say how many are left out."""
    taken = 0
    for count in range(1, min(len(items), most) + 1):
        if count > 1 and len(", ".join(items[:count])) > width:
            break
        taken = count
    shown = ", ".join(items[:taken])
    return shown if taken == len(items) else f"{shown}, and {len(items) - taken} more"
