"""Where the entity stands in the answer, in characters."""

from __future__ import annotations

from typing import NamedTuple

from uds_lens.checked_arguments import arguments_checked
from uds_lens.data.example import ForgetExample
from uds_lens.data.quoting import short


@arguments_checked
class Span(NamedTuple):
    """Half-open range of characters."""

    start: int
    end: int


@arguments_checked
def entity_span(example: ForgetExample) -> Span | str:
    """Locate the entity in the answer.

    With a prefix the answer must start with it and the entity must follow, white space between them allowed.
    Without one the entity must occur exactly once. White space around the entity itself does not count.

    Args:
        example: The example to look at.

    Returns:
        The characters of the entity in `example.answer`, or the reason why they cannot be told, as a
        sentence.

    Example:
        >>> example = ForgetExample("0", "Who wrote Ash?", "It was Ada Vey.", entity="Ada Vey")
        >>> entity_span(example)
        Span(start=7, end=14)
        >>> entity_span(ForgetExample("0", "Who?", "Ada and Ada.", entity="Ada"))
        "The entity 'Ada' occurs 2 times in the answer and no prefix tells which one is meant."
    """
    entity = (example.entity or "").strip()
    if not entity:
        return "No entity is given."
    if entity not in example.answer:
        return f"The entity {short(entity)} does not occur in the answer{_case_hint(entity, example.answer)}."
    if example.prefix is None:
        return _only_place(entity, example.answer)
    return _after_prefix(entity, example.prefix, example.answer)


def _only_place(entity: str, answer: str) -> Span | str:
    start = answer.find(entity)
    count = _occurrences(entity, answer)
    if count > 1:
        return (
            f"The entity {short(entity)} occurs {count} times in the answer "
            "and no prefix tells which one is meant."
        )
    return Span(start, start + len(entity))


def _after_prefix(entity: str, prefix: str, answer: str) -> Span | str:
    if not answer.startswith(prefix):
        return f"The answer does not start with the prefix {short(prefix)}."
    rest = answer[len(prefix) :]
    start = len(answer) - len(rest.lstrip())
    if not answer.startswith(entity, start):
        return f"The prefix {short(prefix)} is not followed by the entity {short(entity)} in the answer."
    return Span(start, start + len(entity))


def _occurrences(entity: str, answer: str) -> int:
    """Number of places where the entity starts, overlapping ones included."""
    count, start = 0, answer.find(entity)
    while start >= 0:
        count, start = count + 1, answer.find(entity, start + 1)
    return count


def _case_hint(entity: str, answer: str) -> str:
    return " (only with other upper and lower case)" if entity.lower() in answer.lower() else ""
