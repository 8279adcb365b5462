"""From a row of named cells to a `ForgetExample`: column names, aliases, and cells that are not there."""

from __future__ import annotations

import hashlib
import json
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from numbers import Integral, Real
from typing import Any, Literal, TypeAlias

from uds_lens.data._examples import ForgetExample, listed, named, short
from uds_lens.errors import DataError

# Which of TOFU's 200 authors a row is about: the files hold 20 rows an author, in order, and do not say so.

ROWS_PER_AUTHOR = 20
_AUTHORS = 200

ANNOTATED_COLUMNS = frozenset({"idx", "prefix", "entity", "entity_span", "full_output"})
"""Columns of the published file with TOFU's entities (forget10), whose `idx` is the row in forget10."""

_WHOLE_SPLITS = {
    ("700b8fda09ee0184", 4000): "full",
    ("700b8fda09ee0184", 3960): "retain99",
    ("700b8fda09ee0184", 3800): "retain95",
    ("700b8fda09ee0184", 3600): "retain90",
    ("700b8fda09ee0184", 400): "retain_perturbed",
    ("c49456b0f247609b", 40): "forget01",
    ("ab361a976d578516", 200): "forget05",
    ("f337e852a9583c13", 400): "forget10",
    ("bb3f78d5d1d9164a", 400): "holdout10",
}
"""Split by the first question (start of its SHA-256) and the number of rows: a file says neither its split nor its
authors, and another file of such a name must not be given any."""


def with_authors(examples: Sequence[ForgetExample], split: str) -> list[ForgetExample]:
    """Fill `subject` with the author, "author 0" to "author 199" in the order of TOFU's `full`.

    The row number within the split says which: an id that is a row number (`idx`), or the place in a whole split.
    A split that holds no authors, or is not whole and has no row numbers, stays as it is; so does a given subject.

    Args:
        examples: Rows of one split, in its order.
        split: TOFU's name for it: full, forgetNN, retainNN, retain_perturbed, holdout10, or one of these with
            `_perturbed` or `_filtered` behind it.

    Returns:
        The examples with their subjects.

    Example:
        >>> rows = [ForgetExample(str(i), "Who?", "Ada.", row=i) for i in range(40)]
        >>> [with_authors(rows, "forget01")[i].subject for i in (0, 19, 20)]
        ['author 198', 'author 198', 'author 199']
    """
    known = _authors(split)
    if known is None or any(example.subject for example in examples):
        return list(examples)
    first, count, who = known
    rows = [int(example.id) if example.id.isascii() and example.id.isdigit() else -1 for example in examples]
    numbered = rows != [example.row for example in examples] or len(rows) == count * ROWS_PER_AUTHOR
    if not numbered or not all(0 <= row < count * ROWS_PER_AUTHOR for row in rows):
        return list(examples)
    return [
        replace(example, subject=f"{who} {first + row // ROWS_PER_AUTHOR}")
        for example, row in zip(examples, rows, strict=True)
    ]


def split_of(examples: Sequence[ForgetExample]) -> str | None:
    """TOFU's split that the rows are as a whole: by their number and the first question; None for anything else.

    Args:
        examples: All rows of a source, in its order.
    """
    if not examples:
        return None
    first = hashlib.sha256(examples[0].question.encode("utf-8", "surrogatepass")).hexdigest()[:16]
    return _WHOLE_SPLITS.get((first, len(examples)))


def is_annotated(columns: Iterable[object]) -> bool:
    """True for the columns of the published file with entities, which names no subject."""
    names = set(columns)
    return names >= ANNOTATED_COLUMNS and "subject" not in names


def _authors(split: str) -> tuple[int, int, str] | None:
    """First author, number of authors and what they are called; None where the split has none."""
    if split in ("full", "retain_perturbed"):
        return 0, _AUTHORS if split == "full" else 20, "author"
    part = re.fullmatch(r"(forget|retain|holdout)(\d\d)(_perturbed|_filtered)?", split)
    if part is None:
        return None
    count = int(part[2]) * _AUTHORS // 100
    if part[1] == "holdout":
        return 0, count, "holdout author"
    return (_AUTHORS - count if part[1] == "forget" else 0), count, "author"


REQUIRED = ("question", "answer")
OPTIONAL = (
    "prefix",
    "entity",
    "id (or idx)",
    "type",
    "subject",
    "paraphrased_question",
    "paraphrased_answers (or paraphrased_answer)",
    "perturbed_answers (or perturbed_answer)",
)

Cells: TypeAlias = Literal["typed", "text", "csv"]

_LISTS = {
    "paraphrased_answers": ("paraphrased_answers", "paraphrased_answer"),
    "perturbed_answers": ("perturbed_answers", "perturbed_answer"),
}

KNOWN = frozenset(
    (
        *REQUIRED,
        *("prefix", "entity", "id", "idx", "type", "subject", "paraphrased_question"),
        *(alias for aliases in _LISTS.values() for alias in aliases),
    )
)
"""Every column that is read; all others are ignored."""


def examples_from_rows(
    rows: Iterable[Any], *, where: str, cells: Cells = "typed", found: Iterable[str] | None = None
) -> list[ForgetExample]:
    """Turn rows of named cells into examples, and check them as a whole.

    Columns that are not known (TOFU's `option1`, `full_output`, ...) are ignored. The published file with TOFU's
    entities is known by its columns: there the author, 20 rows each, becomes the `subject`.

    Args:
        rows: Mappings from column name to cell.
        where: What the rows come from, for error messages.
        cells: "typed" where a cell has a type of its own (JSON, Parquet); "text" where a list may have been
            written as text (a table read from CSV): a cell of a list column that looks like a list must then
            be JSON; "csv" like "text", and an empty cell is a missing one, except that an empty `prefix` next
            to an entity that opens the answer means the empty prefix.
        found: Names of all columns of the source, where the rows hold only those that are read.

    Returns:
        One example per row, in order.

    Raises:
        DataError: No row; a required column or cell is missing; a cell has the wrong type; an id occurs
            twice.

    Example:
        >>> rows = [{"idx": 7, "question": "Who?", "answer": "Ada Vey.", "entity": "Ada Vey"}]
        >>> examples_from_rows(rows, where="the list")[0].id
        '7'
    """
    rows = [_as_mapping(row, index, where) for index, row in enumerate(rows)]
    found = None if found is None else list(found)
    if not rows:
        raise DataError(f"{where} is empty: expected at least one row with the columns {named(REQUIRED)}.")
    _check_columns(rows, where, found)
    examples = [_Row(row, index, where, cells).example() for index, row in enumerate(rows)]
    check_unique(examples, where=where)
    names = {name for row in rows for name in row} if found is None else found
    split = "forget10_filtered" if is_annotated(names) else split_of(examples)
    return examples if split is None else with_authors(examples, split)


def examples_from_list(source: Sequence[Any]) -> list[ForgetExample]:
    """Examples and rows, mixed, as examples, checked as a whole.

    Raises:
        DataError: A row cannot be read, or an id occurs twice.
    """
    if not any(isinstance(item, ForgetExample) for item in source):
        return examples_from_rows(source, where="the list of rows")
    examples = [
        item
        if isinstance(item, ForgetExample)
        else examples_from_rows([item], where=f"the list, item {at}")[0]
        for at, item in enumerate(source)
    ]
    check_unique(examples, where="the list of examples")
    return examples


def with_rows_read(source: Iterable[ForgetExample | Mapping[str, Any]]) -> list[ForgetExample]:
    """Examples as they are; where rows are among them, all are read and checked.

    >>> with_rows_read([{"question": "Who?", "answer": "Ada."}])[0].answer
    'Ada.'
    """
    found = list(source)
    examples = [each for each in found if isinstance(each, ForgetExample)]
    return examples if len(examples) == len(found) else examples_from_list(found)


def check_unique(examples: Iterable[ForgetExample], *, where: str) -> None:
    """Raise `DataError` naming every id that occurs more than once, with its rows."""
    rows: dict[str, list[int]] = defaultdict(list)
    for example in examples:
        rows[example.id].append(example.row)
    twice = [
        f"{short(name, 40)} (rows {listed([str(row) for row in at], 40)})"
        for name, at in rows.items()
        if len(at) > 1
    ]
    if twice:
        raise DataError(
            f"{where}: ids must be unique; {len(twice)} occur more than once: {listed(twice)}. "
            "Rows count from 0. Rename them, or drop the id column to use the row numbers."
        )


def _as_mapping(row: object, index: int, where: str) -> Mapping[str, Any]:
    if isinstance(row, Mapping):
        return row
    raise DataError(
        f"{where}, row {index}: expected named cells (a dict with {named(REQUIRED)}); "
        f"got {type(row).__name__}."
    )


def _check_columns(rows: list[Mapping[str, Any]], where: str, names: Iterable[str] | None) -> None:
    found = list(dict.fromkeys(name for row in rows for name in row) if names is None else names)
    missing = [name for name in REQUIRED if name not in found]
    if missing:
        raise DataError(
            f"{where}: the column{'s' * (len(missing) > 1)} {named(missing)} "
            f"{'are' if len(missing) > 1 else 'is'} missing. Found: {named(found, 80) or 'no column'}. "
            f"Expected: {named(REQUIRED)}; optional: {', '.join(OPTIONAL)}. Rename the columns."
        )
    empty = [
        f"{index} (`{name}`)"
        for index, row in enumerate(rows)
        for name in REQUIRED
        if _is_blank(row.get(name))
    ]
    if empty:
        raise DataError(
            f"{where}: every row needs a question and an answer; empty in row {listed(empty)}. "
            "Rows count from 0. Fill or remove them."
        )


class _Row:
    """One row while it is read: knows its place, so that every complaint can name it."""

    def __init__(self, row: Mapping[str, Any], index: int, where: str, cells: Cells) -> None:
        self.row, self.index, self.where, self.cells = row, index, where, cells

    def example(self) -> ForgetExample:
        return ForgetExample(
            id=self.identity(),
            question=self.text("question") or "",
            answer=self.text("answer") or "",
            prefix=self.prefix(),
            entity=self.text("entity"),
            type=self.text("type"),
            subject=self.text("subject"),
            paraphrased_question=self.text("paraphrased_question"),
            paraphrased_answers=self.texts("paraphrased_answers"),
            perturbed_answers=self.texts("perturbed_answers"),
            row=self.index,
        )

    def cell(self, name: str) -> Any:
        value = self.row.get(name)
        if _is_null(value) or (self.cells == "csv" and value == ""):
            return None
        return value

    def identity(self) -> str:
        for name in ("id", "idx"):
            value = self.cell(name)
            if value is None:
                continue
            if isinstance(value, str) and value.strip():
                return value.strip()
            whole = _as_whole(value)
            if whole is None:
                raise self.wrong(name, value, "text or a whole number")
            return whole
        return str(self.index)

    def text(self, name: str) -> str | None:
        value = self.cell(name)
        if value is None or isinstance(value, str):
            return value
        whole = _as_whole(value) if isinstance(value, Integral) else None
        if whole is None:
            raise self.wrong(name, value, "text")
        return whole

    def prefix(self) -> str | None:
        value = self.text("prefix")
        if value is None and self.cells == "csv" and "prefix" in self.row:
            entity = (self.text("entity") or "").strip()
            if entity and (self.text("answer") or "").lstrip().startswith(entity):
                return ""
        return value

    def texts(self, name: str) -> tuple[str, ...]:
        found: list[str] = []
        for alias in _LISTS[name]:
            value = self.cell(alias)
            if value is not None:
                found.extend(text for text in self.split(alias, value) if text not in found)
        return tuple(found)

    def split(self, name: str, value: Any) -> list[str]:
        if isinstance(value, str) and self.cells != "typed" and value.lstrip().startswith("["):
            value = self.parsed(name, value)
        if hasattr(value, "tolist") and not isinstance(value, (str, bytes)):
            value = value.tolist()
        values = list(value) if isinstance(value, (list, tuple)) else [value]
        for text in values:
            if not isinstance(text, str):
                raise self.wrong(name, text, "text or a list of texts")
        return values

    def parsed(self, name: str, value: str) -> Any:
        try:
            return json.loads(value)
        except (ValueError, RecursionError) as error:
            raise DataError(
                f"{self.where}, row {self.index}, column `{name}`: a list in a text cell must be JSON, "
                f'for example ["one", "two"] (write it with json.dumps); got {short(value)}.'
            ) from error

    def wrong(self, name: str, value: object, expected: str) -> DataError:
        return DataError(
            f"{self.where}, row {self.index}, column `{name}`: expected {expected}; "
            f"got {short(value)} ({type(value).__name__})."
        )


def _is_null(value: object) -> bool:
    """None, NaN, and the missing markers of pandas."""
    if value is None or type(value).__name__ in ("NAType", "NaTType"):
        return True
    return isinstance(value, Real) and not isinstance(value, Integral) and bool(value != value)


def _as_whole(value: Any) -> str | None:
    """Digits of a whole number; None where it is none, or has more digits than Python writes."""
    if isinstance(value, bool) or not isinstance(value, Real):
        return None
    number: Any = value
    try:
        return str(int(number)) if isinstance(value, Integral) or float(number).is_integer() else None
    except (ValueError, OverflowError):
        return None


def _is_blank(value: object) -> bool:
    return _is_null(value) or (isinstance(value, str) and not value.strip())
