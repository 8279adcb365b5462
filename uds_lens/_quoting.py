"""Escape untrusted text (names in data, model cards, options) for terminals and tables."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pandas as pd

# Control characters except tab and line feed, text-direction marks and overrides, and unpaired surrogates.
_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
_FORMULA = re.compile(r"'*[=+\-@\t\r]")
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?|[+-]?(inf|nan)", re.IGNORECASE)


def printable(text: str) -> str:
    r"""Replace characters that control a terminal or the text direction with JSON escapes.

    >>> print(printable("a\x1b[2Jb\u202e\nc"))
    a\u001b[2Jb\u202e
    c
    """
    return _CONTROL.sub(lambda match: json.dumps(match[0])[1:-1], text)


def markdown(text: str) -> str:
    """Escape text so that it is not parsed as markup and does not end a Markdown table cell.

    >>> markdown("<b> | [x](javascript:y)")
    '&#60;b&#62; &#124; &#91;x&#93;(javascript:y)'
    """
    return re.sub(r"[<>|`\\[\]]", lambda match: f"&#{ord(match[0])};", printable(" ".join(text.split())))


def csv_text(frame: pd.DataFrame) -> str:
    """Write a table as CSV without its index, escaping text that a spreadsheet would take for a formula.

    Text that starts like a formula (`=`, `+`, `-`, `@`, a tab) is prefixed with an apostrophe, which `unquoted`
    removes. Numbers are left as they are.
    """
    quoted = _each_text(frame, _quoted)
    # The \r\n terminator makes pandas quote cells that contain \r, where some readers would start a new row.
    return quoted.rename(columns=_quoted).to_csv(index=False, lineterminator="\r\n").replace("\r\n", "\n")


def read_quoted(frame: pd.DataFrame) -> pd.DataFrame:
    """Undo the escaping of `csv_text` in a table read from CSV."""
    return _each_text(frame, unquoted).rename(columns=unquoted)


def _each_text(frame: pd.DataFrame, change: Callable[[Any], Any]) -> pd.DataFrame:
    changed = frame.copy()
    for name, column in frame.items():
        if column.dtype.kind not in "biufc":
            changed[name] = column.map(change)
    return changed


def unquoted(value: Any) -> Any:
    """Remove the apostrophe that `csv_text` added.

    >>> unquoted("'=1+1"), unquoted("'tis"), unquoted(1.0)
    ('=1+1', "'tis", 1.0)
    """
    return value[1:] if isinstance(value, str) and value[:1] == "'" and _FORMULA.match(value) else value


def _quoted(value: Any) -> Any:
    """Quote a cell; text that already looks quoted is quoted again, so that it survives a round trip.

    >>> _quoted("=1+1"), _quoted("-0.5"), _quoted("'-x"), _quoted("npo-1")
    ("'=1+1", '-0.5', "''-x", 'npo-1')
    """
    return f"'{value}" if isinstance(value, str) and _FORMULA.match(value) and not _NUMBER.fullmatch(value) else value
