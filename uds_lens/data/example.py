"""The unit of every audit: one question, its answer, and the entity that should be forgotten."""

from __future__ import annotations

from dataclasses import dataclass

from uds_lens.checked_arguments import arguments_named
from uds_lens.data.quoting import short
from uds_lens.errors import DataError


@arguments_named
@dataclass(frozen=True)
class ForgetExample:
    """One question with its answer, and where known the entity inside that answer.

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
    """Answer text before the entity; "" says that the entity opens the answer, None leaves it to be found."""
    entity: str | None = None
    """The words of the answer that carry the knowledge; None where the row serves other metrics only."""
    type: str | None = None
    """Kind of entity, for per-type tables."""
    subject: str | None = None
    """Whom or what the question is about."""
    paraphrased_question: str | None = None
    """The question in other words."""
    paraphrased_answers: tuple[str, ...] = ()
    """The answer in other words, still true."""
    perturbed_answers: tuple[str, ...] = ()
    """Answers of the same form that are wrong."""
    row: int = 0
    """Place in the source, from 0."""

    def __post_init__(self) -> None:
        for name in ("id", "question", "answer"):
            _check_text(name, getattr(self, name), self.row)
        for name in ("prefix", "entity", "type", "subject", "paraphrased_question"):
            if getattr(self, name) is not None:
                _check_text(name, getattr(self, name), self.row)
        for name in ("paraphrased_answers", "perturbed_answers"):
            object.__setattr__(self, name, _texts(name, getattr(self, name), self.row))


@dataclass(frozen=True)
class SkippedExample:
    """A row that could not be scored. It counts as neither erased nor intact."""

    id: str
    """Identity of the example."""
    row: int
    """Place in the source, from 0."""
    reason: str
    """Why, as a sentence for the reader of a report."""
    question: str
    """The question, to recognise the row by."""


def _check_text(name: str, value: object, row: int) -> None:
    if not isinstance(value, str):
        raise DataError(
            f"ForgetExample (row {row}): `{name}` must be text; got {short(value)} ({type(value).__name__})."
        )
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise DataError(
            f"ForgetExample (row {row}): `{name}` holds half of a character ({value[error.start]!r} at place "
            f"{error.start}), which no file can hold: the text was cut inside an emoji, or read wrongly. Mend the row."
        ) from error


def _texts(name: str, values: object, row: int) -> tuple[str, ...]:
    if isinstance(values, str) or not isinstance(values, (list, tuple)):
        raise DataError(
            f"ForgetExample (row {row}): `{name}` must be a tuple of texts; got {short(values)} "
            f"({type(values).__name__}). Write ({short(values)},) for a single one."
        )
    for value in values:
        _check_text(name, value, row)
    return tuple(values)
