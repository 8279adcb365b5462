"""From a row of named cells to a `ForgetExample`: column names, aliases, and cells that are not there."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping
from numbers import Integral, Real
from typing import Any, Literal, TypeAlias

from uds_lens.data.example import ForgetExample
from uds_lens.errors import DataError

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
_SHOWN = 10


def examples_from_rows(rows: Iterable[Any], *, where: str, cells: Cells = "typed") -> list[ForgetExample]:
    """Turn rows of named cells into examples, and check them as a whole.

    Columns that are not known (TOFU's `option1`, `full_output`, ...) are ignored.

    Args:
        rows: Mappings from column name to cell.
        where: What the rows come from, for error messages.
        cells: "typed" where a cell has a type of its own (JSON, Parquet); "text" where a list may have been
            written as text (a table read from CSV): a cell of a list column that looks like a list must then
            be JSON; "csv" like "text", and an empty cell is a missing one, except that an empty `prefix` next
            to an entity that opens the answer means the empty prefix.

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
    if not rows:
        raise DataError(f"{where} is empty: expected at least one row with the columns {_quoted(REQUIRED)}.")
    _check_columns(rows, where)
    examples = [_Row(row, index, where, cells).example() for index, row in enumerate(rows)]
    check_unique(examples, where=where)
    return examples


def check_unique(examples: Iterable[ForgetExample], *, where: str) -> None:
    """Raise `DataError` naming every id that occurs more than once, with its rows."""
    rows: dict[str, list[int]] = defaultdict(list)
    for example in examples:
        rows[example.id].append(example.row)
    twice = [f"{name!r} (rows {', '.join(map(str, at))})" for name, at in rows.items() if len(at) > 1]
    if twice:
        raise DataError(
            f"{where}: ids must be unique; {len(twice)} occur more than once: {_listed(twice)}. "
            "Rows count from 0. Rename them, or drop the id column to use the row numbers."
        )


def _as_mapping(row: object, index: int, where: str) -> Mapping[str, Any]:
    if isinstance(row, Mapping):
        return row
    raise DataError(
        f"{where}, row {index}: expected named cells (a dict with {_quoted(REQUIRED)}); "
        f"got {type(row).__name__}."
    )


def _check_columns(rows: list[Mapping[str, Any]], where: str) -> None:
    found = list(dict.fromkeys(str(name) for row in rows for name in row))
    missing = [name for name in REQUIRED if name not in found]
    if missing:
        raise DataError(
            f"{where}: the column{'s' * (len(missing) > 1)} {_quoted(missing)} "
            f"{'are' if len(missing) > 1 else 'is'} missing. Found: {_quoted(found) or 'no column'}. "
            f"Expected: {_quoted(REQUIRED)}; optional: {', '.join(OPTIONAL)}. Rename the columns."
        )
    empty = [
        f"{index} (`{name}`)"
        for index, row in enumerate(rows)
        for name in REQUIRED
        if _is_blank(row.get(name))
    ]
    if empty:
        raise DataError(
            f"{where}: every row needs a question and an answer; empty in row {_listed(empty)}. "
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
            if _is_number(value) and float(value).is_integer():
                return str(int(value))
            raise self.wrong(name, value, "text or a whole number")
        return str(self.index)

    def text(self, name: str) -> str | None:
        value = self.cell(name)
        if value is None or isinstance(value, str):
            return value
        if _is_number(value) and isinstance(value, Integral):
            return str(int(value))
        raise self.wrong(name, value, "text")

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
                f'for example ["one", "two"] (write it with json.dumps); got {_short(value)}.'
            ) from error

    def wrong(self, name: str, value: object, expected: str) -> DataError:
        return DataError(
            f"{self.where}, row {self.index}, column `{name}`: expected {expected}; "
            f"got {_short(value)} ({type(value).__name__})."
        )


def _is_null(value: object) -> bool:
    """None, NaN, and the missing markers of pandas."""
    if value is None or type(value).__name__ in ("NAType", "NaTType"):
        return True
    return isinstance(value, Real) and not isinstance(value, Integral) and bool(value != value)


def _is_number(value: Any) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool)


def _is_blank(value: object) -> bool:
    return _is_null(value) or (isinstance(value, str) and not value.strip())


def _short(value: object, width: int = 80) -> str:
    shown = repr(value)
    return shown if len(shown) <= width else f"{shown[:width]}... ({len(shown)} characters)"


def _quoted(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def _listed(items: list[str]) -> str:
    shown = ", ".join(items[:_SHOWN])
    return shown if len(items) <= _SHOWN else f"{shown}, and {len(items) - _SHOWN} more"
