"""Which of TOFU's 200 authors a row is about: the files hold 20 rows an author, in order, and do not say so."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Sequence
from dataclasses import replace

from uds_lens.data.example import ForgetExample

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
