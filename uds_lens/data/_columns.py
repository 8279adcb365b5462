"""Converting rows to `ForgetExample`s: column names, aliases, missing cells, and TOFU's authors."""

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

REQUIRED = ("question", "answer")
_LISTS = {
    "paraphrased_answers": ("paraphrased_answers", "paraphrased_answer"),
    "perturbed_answers": ("perturbed_answers", "perturbed_answer"),
}
_TEXTS = ("prefix", "entity", "id", "idx", "type", "subject", "paraphrased_question")
OPTIONAL = (
    "prefix",
    "entity",
    "id (or idx)",
    "type",
    "subject",
    "paraphrased_question",
    *(f"{name} (or {alias})" for name, alias in _LISTS.values()),
)
KNOWN = frozenset((*REQUIRED, *_TEXTS, *(alias for aliases in _LISTS.values() for alias in aliases)))
"""All columns that are read; other columns are ignored."""

Cells: TypeAlias = Literal["typed", "text", "csv"]


def examples_from_rows(
    rows: Iterable[Any], *, where: str, cells: Cells = "typed", columns: Iterable[str] | None = None
) -> list[ForgetExample]:
    """Convert rows (dictionaries) to examples, and check the whole list.

    Unknown columns (TOFU's `option1`, `full_output`, ...) are ignored. Complete splits of TOFU, and the published file
    with TOFU's entities, are recognised: their authors (20 rows each) become the `subject`s.

    Example:
        >>> rows = [{"idx": 7, "question": "Who?", "answer": "Ada Vey.", "entity": "Ada Vey"}]
        >>> examples_from_rows(rows, where="the list")[0].id
        '7'
    """
    rows = list(rows)
    for index, row in enumerate(rows):
        if not isinstance(row, Mapping):
            raise DataError(
                f"{where}, row {index}: expected a dictionary (with {named(REQUIRED)}); got {type(row).__name__}."
            )
    if not rows:
        raise DataError(f"{where} is empty: expected at least one row with the columns {named(REQUIRED)}.")
    names = list(dict.fromkeys(name for row in rows for name in row)) if columns is None else list(columns)
    _check_columns(rows, where, names)
    examples = [_Row(row, index, where, cells).example() for index, row in enumerate(rows)]
    check_unique(examples, where=where)
    annotated = ANNOTATED_COLUMNS.issubset(names) and "subject" not in names
    split = "forget10_filtered" if annotated else split_of(examples)
    return examples if split is None else with_authors(examples, split)


def examples_from_list(items: Sequence[Any]) -> list[ForgetExample]:
    """Read a list of examples, rows, or both, and check the whole list."""
    if not any(isinstance(item, ForgetExample) for item in items):
        return examples_from_rows(items, where="the list of rows")
    examples: list[ForgetExample] = []
    for index, item in enumerate(items):
        is_example = isinstance(item, ForgetExample)
        examples += [item] if is_example else examples_from_rows([item], where=f"the list, item {index}")
    check_unique(examples, where="the list of examples")
    return examples


def with_rows_read(source: Iterable[ForgetExample | Mapping[str, Any]]) -> list[ForgetExample]:
    """Return examples unchanged; if the list contains rows, convert them and check the whole list.

    >>> with_rows_read([{"question": "Who?", "answer": "Ada."}])[0].answer
    'Ada.'
    """
    items = list(source)
    examples = [item for item in items if isinstance(item, ForgetExample)]
    return examples if len(examples) == len(items) else examples_from_list(items)


def check_unique(examples: Iterable[ForgetExample], *, where: str) -> None:
    """Raise a `DataError` that lists every id that occurs more than once, with its rows."""
    rows: dict[str, list[str]] = defaultdict(list)
    for example in examples:
        rows[example.id].append(str(example.row))
    twice = [f"{short(name, 40)} (rows {listed(at, 40)})" for name, at in rows.items() if len(at) > 1]
    if twice:
        raise DataError(
            f"{where}: ids must be unique; {len(twice)} occur more than once: {listed(twice)}. "
            "Rename the repeated ids, or drop the id column to use the row numbers (which start at 0)."
        )


def _check_columns(rows: list[Mapping[str, Any]], where: str, names: list[str]) -> None:
    missing = [name for name in REQUIRED if name not in names]
    if missing:
        columns, are = ("columns", "are") if len(missing) > 1 else ("column", "is")
        raise DataError(
            f"{where}: the {columns} {named(missing)} {are} missing. Found: {named(names, 80) or 'no column'}. "
            f"Expected: {named(REQUIRED)}; optional: {', '.join(OPTIONAL)}. Rename the columns."
        )
    empty = [f"{i} (`{name}`)" for i, row in enumerate(rows) for name in REQUIRED if _is_blank(row.get(name))]
    if empty:
        raise DataError(
            f"{where}: every row needs a question and an answer; empty in row {listed(empty)}. "
            "Fill or remove these rows (row numbers start at 0)."
        )


class _Row:
    """A row being read, with its position for error messages."""

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
        return None if _is_null(value) or (self.cells == "csv" and value == "") else value

    def identity(self) -> str:
        for name in ("id", "idx"):
            value = self.cell(name)
            if isinstance(value, str) and value.strip():
                return value.strip()
            if value is not None:
                digits = _whole_number(value)
                if digits is None:
                    raise self.wrong(name, value, "text or a whole number")
                return digits
        return str(self.index)

    def text(self, name: str) -> str | None:
        value = self.cell(name)
        if value is None or isinstance(value, str):
            return value
        digits = _whole_number(value) if isinstance(value, Integral) else None
        if digits is None:
            raise self.wrong(name, value, "text")
        return digits

    def prefix(self) -> str | None:
        value = self.text("prefix")
        if value is None and self.cells == "csv" and "prefix" in self.row:
            entity = (self.text("entity") or "").strip()
            if entity and (self.text("answer") or "").lstrip().startswith(entity):
                return ""
        return value

    def texts(self, name: str) -> tuple[str, ...]:
        values = [
            text for alias in _LISTS[name] if (cell := self.cell(alias)) is not None for text in self.split(alias, cell)
        ]
        return tuple(dict.fromkeys(values))

    def split(self, name: str, value: Any) -> list[str]:
        if isinstance(value, str) and self.cells != "typed" and value.lstrip().startswith("["):
            try:
                value = json.loads(value)
            except (ValueError, RecursionError) as error:
                raise DataError(
                    f"{self.where}, row {self.index}, column `{name}`: a list in a text cell must be JSON, "
                    f'for example ["one", "two"] (write it with json.dumps); got {short(value)}.'
                ) from error
        if hasattr(value, "tolist") and not isinstance(value, (str, bytes)):
            value = value.tolist()
        values = list(value) if isinstance(value, (list, tuple)) else [value]
        for text in values:
            if not isinstance(text, str):
                raise self.wrong(name, text, "text or a list of texts")
        return values

    def wrong(self, name: str, value: object, expected: str) -> DataError:
        return DataError(
            f"{self.where}, row {self.index}, column `{name}`: expected {expected}; "
            f"got {short(value)} ({type(value).__name__})."
        )


def _is_null(value: object) -> bool:
    """Return whether a value is None, NaN, or pandas' marker for a missing value."""
    if value is None or type(value).__name__ in ("NAType", "NaTType"):
        return True
    return isinstance(value, Real) and not isinstance(value, Integral) and bool(value != value)


def _is_blank(value: object) -> bool:
    return _is_null(value) or (isinstance(value, str) and not value.strip())


def _whole_number(value: Any) -> str | None:
    """Return a whole number as text; None for any other value, or one with more digits than Python prints."""
    if isinstance(value, bool) or not isinstance(value, Real):
        return None
    number: Any = value
    try:
        return str(int(number)) if isinstance(value, Integral) or float(number).is_integer() else None
    except (ValueError, OverflowError):
        return None


# TOFU's files have 20 rows for each of 200 authors, in order, but no column that names the author.

ROWS_PER_AUTHOR = 20
_AUTHORS = 200

ANNOTATED_COLUMNS = frozenset({"idx", "prefix", "entity", "entity_span", "full_output"})
"""Columns of the published file with TOFU's entities (forget10), whose `idx` is the row number in forget10."""

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
"""TOFU's splits, keyed by the SHA-256 of the first question (16 digits) and the number of rows. Nothing else in a file
identifies its split, and other data must not be assigned authors."""


def with_authors(examples: Sequence[ForgetExample], split: str) -> list[ForgetExample]:
    """Set `subject` to the author, "author 0" to "author 199" in the order of TOFU's `full` split.

    The author is determined by the row number within the split, which is either the id (`idx`) or the position in a
    complete split. Splits without authors, incomplete splits without row numbers, and examples that already have a
    subject are returned unchanged. Splits with authors: full, forgetNN, retainNN, holdout10, retain_perturbed, and
    NAME_perturbed or NAME_filtered.

    Example:
        >>> rows = [ForgetExample(str(i), "Who?", "Ada.", row=i) for i in range(40)]
        >>> [with_authors(rows, "forget01")[i].subject for i in (0, 19, 20)]
        ['author 198', 'author 198', 'author 199']
    """
    authors = _authors(split)
    if authors is None or any(example.subject for example in examples):
        return list(examples)
    first, count, name = authors
    rows = [int(example.id) if example.id.isascii() and example.id.isdigit() else -1 for example in examples]
    numbered = rows != [example.row for example in examples] or len(rows) == count * ROWS_PER_AUTHOR
    if not numbered or not all(0 <= row < count * ROWS_PER_AUTHOR for row in rows):
        return list(examples)
    return [
        replace(example, subject=f"{name} {first + row // ROWS_PER_AUTHOR}")
        for example, row in zip(examples, rows, strict=True)
    ]


def split_of(examples: Sequence[ForgetExample]) -> str | None:
    """Return the name of a complete split of TOFU; None for any other examples."""
    first = hashlib.sha256(examples[0].question.encode("utf-8", "surrogatepass")).hexdigest()[:16]
    return _WHOLE_SPLITS.get((first, len(examples)))


def _authors(split: str) -> tuple[int, int, str] | None:
    """Return a split's first author, number of authors, and prefix of their names; None if it has no authors."""
    if split in ("full", "retain_perturbed"):
        return 0, _AUTHORS if split == "full" else 20, "author"
    part = re.fullmatch(r"(forget|retain|holdout)(\d\d)(_perturbed|_filtered)?", split)
    if part is None:
        return None
    count = int(part[2]) * _AUTHORS // 100
    if part[1] == "holdout":
        return 0, count, "holdout author"
    return (_AUTHORS - count if part[1] == "forget" else 0), count, "author"
