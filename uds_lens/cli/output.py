"""What commands print: tables that fit the terminal, what to know before quoting a score, JSON for machines."""

from __future__ import annotations

import json
import math
import os
import sys
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from textwrap import fill
from typing import TYPE_CHECKING, Any, Literal

import typer

from uds_lens.cli.beside_tables import print_beside
from uds_lens.cli.short_names import shortened_names

if TYPE_CHECKING:
    from rich.console import Console

    from uds_lens.results import DepthAudit

_LEGEND = (
    "UDS 0: the knowledge sits where it does in full; 1: it is as absent as in retain. "
    "Interval: by subject where examples share one, else by example. N: examples measured. "
    "NaN: examples that are not measurable, because at no layer do full and retain differ by more than tau. "
    "layers: those that hold the knowledge, mean over examples."
)


_SAMPLED = (
    " If all asked: where the UDS of all examples lies, of which these are a random sample; the interval before it is "
    "about other subjects or examples than those of the data."
)


def print_audits(audits: Mapping[str, DepthAudit], *, cautions_of: Sequence[str] | None = None) -> None:
    """Print the table of `audits` (name to audit), their warnings, and what the columns mean.

    Args:
        audits: What to print, in this order.
        cautions_of: Names whose warnings are printed; None prints those of all.
    """
    sampled = any(audit.sample_error is not None for audit in audits.values())
    titles: tuple[str, ...] = ("model", "UDS", _interval_title(audits), "N", "NaN", "layers", "reading")
    rows = [_cells(name, audit) for name, audit in audits.items()]
    if sampled:
        titles = (*titles[:3], "if all asked", *titles[3:])
        rows = [
            [*row[:3], _if_all_asked(audit), *row[3:]]
            for row, audit in zip(rows, audits.values(), strict=True)
        ]
    print_table(titles, rows, right=("UDS", "N", "NaN", "layers"), bold="UDS")
    print_beside(audits)
    shown = audits if cautions_of is None else {name: audits[name] for name in cautions_of}
    print_cautions(
        {name: [(_MARKS[level], text) for level, text in audit.cautions] for name, audit in shown.items()}
    )
    typer.echo(f"\n{fill(_LEGEND + _SAMPLED if sampled else _LEGEND, width())}")


_MARKS = {"fatal": "!! FATAL", "caution": "!", "note": "-"}
"""How a warning begins, by its level."""


def print_cautions(cautions: Mapping[str, Sequence[tuple[str, str]]]) -> None:
    """Each sentence once, with its mark and the names it is about; those of the gravest mark first."""
    found: dict[tuple[str, str], list[str]] = {}
    for name, marked in cautions.items():
        for mark, sentence in marked:
            found.setdefault((mark, sentence), []).append(name)
    for (mark, sentence), names in sorted(found.items(), key=lambda item: _ORDER.index(item[0][0])):
        subject = "all" if len(names) == len(cautions) > 1 else ", ".join(names)
        print_wrapped(f"{mark} {subject}: {sentence}")


_ORDER = list(_MARKS.values())


def _interval_title(audits: Mapping[str, DepthAudit]) -> str:
    levels = {audit.config.confidence for audit in audits.values()}
    return f"{levels.pop():.0%} interval" if len(levels) == 1 else "interval"


def _cells(name: str, audit: DepthAudit) -> list[str]:
    from uds_lens.results.reading import WITHHELD

    summary = audit.summary()
    low, high = summary["uds_low"], summary["uds_high"]
    return [
        name,
        "NaN" if math.isnan(audit.uds) else f"{audit.uds:.3f}",
        "-" if math.isnan(low) else f"{low:.3f} - {high:.3f}",
        str(summary["n_measured"]),
        str(summary["n_not_measurable"]),
        f"{summary['ke_layers_mean']:.1f} of {summary['n_layers']}",
        f"{WITHHELD} (!!)" if audit.reading == WITHHELD else audit.reading,
    ]


def _if_all_asked(audit: DepthAudit) -> str:
    """Where the score of all examples lies, with the confidence of the interval."""
    found = audit.sample_error
    if found is None:
        return "all were"
    low, high = found.interval
    return "unknown" if math.isnan(low) else f"{low:.3f} - {high:.3f}"


def score_in_words(audit: DepthAudit) -> str:
    """The score and its interval in one line."""
    if math.isnan(audit.uds):
        return "UDS NaN, nothing measurable"
    low, high = audit.uds_interval
    interval = "" if math.isnan(low) else f", {audit.config.confidence:.0%} interval {low:.3f} to {high:.3f}"
    sample = "" if audit.sample_error is None else f"; {audit.sample_error.words} examples"
    withheld = "; its reading is withheld" if audit.fatal else ""
    return f"UDS {audit.uds:.3f}{interval}{sample}{withheld}"


def audits_as_json(audits: Mapping[str, DepthAudit], directories: Mapping[str, Path]) -> str:
    """The summaries of `audits` with the directories they were saved in; undefined numbers are null."""
    from uds_lens.storage import plain

    found: list[dict[str, Any]] = [
        {"name": name, "directory": str(directories[name]), **audit.summary()}
        for name, audit in audits.items()
    ]
    return json.dumps({"audits": plain(found)}, indent=2, ensure_ascii=False, allow_nan=False)


def trained_before(directory: Path) -> str | None:
    """When the training run whose result is already there was finished; None where there is none."""
    from uds_lens.errors import UdsLensError
    from uds_lens.unlearning import read_record

    try:
        return str(read_record(directory)["created"])
    except (UdsLensError, KeyError):
        return None


def print_training(directory: Path, *, before: str | None, as_json: bool) -> None:
    """What a finished training run says: its whole record as JSON, or a line or two.

    Args:
        directory: Where its result is.
        before: When the result that was there before was finished (see `trained_before`).
        as_json: Print the record.
    """
    from uds_lens.unlearning import read_record

    record: dict[str, Any] = read_record(directory)
    if as_json:
        typer.echo(json.dumps({"directory": str(directory), **record}, indent=2, ensure_ascii=False))
        return
    curve = record["loss_curve"]
    if curve:
        typer.echo(f"{record['name']}: loss {curve[0]['loss']:.3f} to {curve[-1]['loss']:.3f}")
    if record["created"] == before:
        typer.echo(f"Already trained, with the same model, data and settings, on {before}: {directory}")
        return
    typer.echo(f"{record['steps']} steps in {record['seconds']:.1f} s. Saved in {directory}")


def print_table(
    titles: Sequence[str],
    rows: Sequence[Sequence[str]],
    *,
    right: Collection[str] = (),
    bold: str | None = None,
    wrapped: str | None = None,
    shortest: int = 12,
) -> None:
    """A table that fits the terminal: texts of the first column give way, in their middle; the others stay whole.

    Where that is not enough, the others take several lines.

    Args:
        titles: Of the columns.
        rows: Texts.
        right: Titles of columns that are set to the right.
        bold: Title of the column that matters most.
        wrapped: Title of a column whose texts may take several lines.
        shortest: The least that is left of a name.
    """
    from rich.box import SIMPLE_HEAD
    from rich.markup import escape
    from rich.table import Table

    columns = list(zip(titles, *rows, strict=True))
    wide = [max(map(len, column)) for column in columns[1:] if column[0] != wrapped]
    gap = next((gap for gap in _GAPS if sum(wide) + gap * len(wide) + shortest <= width()), None)
    fits = gap is not None
    room = width() - sum(wide) - (gap or 0) * len(wide) if fits and wrapped is None else width()
    table = Table(box=SIMPLE_HEAD, pad_edge=False, show_edge=False, collapse_padding=gap != _GAPS[0])
    for number, title in enumerate(titles):
        justify: Literal["left", "right"] = "right" if title in right else "left"
        table.add_column(
            title,
            justify=justify,
            no_wrap=number == 0 or (fits and title != wrapped),
            overflow="fold",
            style="bold" if title == bold else "",
        )
    firsts = shortened_names([row[0] for row in rows], room)
    for first, (_, *more) in zip(firsts, rows, strict=True):
        table.add_row(*map(escape, (first, *more)))
    _console().print(table)


_GAPS = 3, 2
"""Columns between two texts, the second where the first is too much."""


def width() -> int:
    """Columns of the terminal; 80 where there is none."""
    return _console().width


def _console() -> Console:
    """The terminal; without any marks where the environment says NO_COLOR."""
    from rich.console import Console

    plain = bool(os.environ.get("NO_COLOR"))
    return Console(file=sys.stdout, highlight=False, color_system=None if plain else "auto")


def print_wrapped(text: str) -> None:
    """A paragraph as wide as the terminal; its later lines are indented."""
    blank = "\n" if text.startswith("\n") else ""
    typer.echo(blank + fill(text.strip(), width(), subsequent_indent="  ", break_on_hyphens=False))
