"""What commands print: tables that fit the terminal, what to know before quoting a score, JSON for machines."""

from __future__ import annotations

import json
import logging
import math
import os
import re
import sys
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from textwrap import fill
from typing import TYPE_CHECKING, Any, Literal

import typer

from uds_lens._progress import shortened

if TYPE_CHECKING:
    from rich.console import Console

    from uds_lens.results import DepthAudit
    from uds_lens.results._statistics import Interval


# Tables beside that of the scores: what only some audits have, damage and scores against single retain
# models.

_DAMAGE = (
    "Loss: mean log-probability lost with the unlearned states put in, nats per token, on forget facts, on facts that "
    "were to be kept, and there with the states of retain. Damage: the second as a share of the first."
)
_RETAINS = "Each scale goes by one of the retain models. How far the scores lie apart is how much 0 to 1 itself moves."


def print_beside(audits: Mapping[str, DepthAudit]) -> None:
    """Print the tables that there is something for."""
    controlled = {name: audit for name, audit in audits.items() if audit.control is not None}
    several = {name: audit for name, audit in audits.items() if audit.retains}
    if controlled:
        _print_damage(controlled)
    if several:
        _print_retains(several)


def _print_damage(audits: Mapping[str, DepthAudit]) -> None:

    titles = ("model", "damage", "interval", "forget", "kept", "retain's")
    rows = []
    for name, audit in audits.items():
        found = audit.damage_estimate
        losses = (found.forget_loss, found.control_loss, found.retain_loss)
        rows.append([name, _number(found.value), _interval(found.interval), *map(_number, losses)])
    typer.echo("\nRetained facts")
    print_table(titles, rows, right=("damage", "forget", "kept", "retain's"), bold="damage")
    typer.echo(fill(_DAMAGE, width()))


def _print_retains(audits: Mapping[str, DepthAudit]) -> None:

    rows = [
        [name, row.retain, _number(row.uds), _interval((row.uds_low, row.uds_high)), str(row.n_measured)]
        for name, audit in audits.items()
        for row in audit.retains_frame().itertuples()
    ]
    typer.echo("\nAgainst each retain model")
    print_table(("model", "retain", "UDS", "interval", "N"), rows, right=("UDS", "N"), wrapped="retain")
    typer.echo(fill(_RETAINS, width()))


def _number(value: float) -> str:
    return "NaN" if math.isnan(value) else f"{round(value, 3) + 0.0:.3f}"  # not -0.000


def _interval(interval: Interval | tuple[float, float]) -> str:
    low, high = interval
    return "-" if math.isnan(low) else f"{low:.3f} - {high:.3f}"


# Names that are too long for where they stand: without their middle, but still told apart.


def shortened_names(names: Sequence[str], room: int) -> list[str]:
    """Names in no more than `room` signs each; where several would look alike, from the word in which they differ.

    >>> shortened_names(["forget10_NPO_lr2e-05_epoch10", "forget10_NPL_lr2e-05_epoch10", "full"], 16)
    ['...NPO_lr2e-0...', '...NPL_lr2e-0...', 'full']
    """
    alike: dict[str, list[str]] = {}
    for name in dict.fromkeys(names):
        alike.setdefault(shortened(name, room), []).append(name)
    found = {
        name: short if len(group) == 1 else _from(_difference(group), name, room)
        for short, group in alike.items()
        for name in group
    }
    return [found[name] for name in names]


def _difference(names: Sequence[str]) -> int:
    """Where the first word begins in which names differ."""
    signs = enumerate(zip(*names, strict=False))
    shared = next((place for place, each in signs if len(set(each)) > 1), min(map(len, names)))
    return max((end.end() for end in re.finditer(r"[^A-Za-z0-9.]", names[0][:shared])), default=0)


def _from(start: int, name: str, room: int) -> str:
    text = f"...{name[start:]}"
    return text if len(text) <= room else f"{text[: room - 3]}..."


_LEGEND = (
    "UDS 0 = knowledge intact (as in full), 1 = erased (as in retain). "
    "CI: bootstrap over subjects, or over examples where there are none. N: examples measured. "
    "NaN: examples that are not measurable: no layer where full encodes more than retain (S1 <= tau). "
    "layers: knowledge-encoding layers, mean over examples."
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
        {name: [(_MARKS[level], text) for level, text, _ in audit.cautions] for name, audit in shown.items()}
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
    from uds_lens.results._scores import WITHHELD

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
    from uds_lens._storage import plain

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


# What the program is doing, line by line on standard error, each with the time since it started.

_begun = time.monotonic()

_OURS, _DOING, _MEMORY = "uds_lens", "uds_lens._progress", "uds_lens.audit._memory"


def say(message: str) -> None:
    """One line, at once.

    Args:
        message: What is done now, or has been done.
    """
    printable = message.encode("utf-8", "backslashreplace").decode("utf-8")  # a system's names may be no text
    text = f"[{elapsed()}] {printable}\n"
    tqdm = sys.modules.get("tqdm")
    if tqdm is not None and sys.stderr.isatty():
        tqdm.tqdm.write(text, file=sys.stderr, end="")  # a bar that is shown makes room
        return
    sys.stderr.write(text)
    sys.stderr.flush()


def elapsed() -> str:
    """Time since the program started: minutes and seconds, and hours where there are some."""
    minutes, seconds = divmod(int(time.monotonic() - _begun), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02}" if hours else f"{minutes}:{seconds:02}"


@contextmanager
def spoken(*, verbose: bool = False) -> Iterator[None]:
    """Print what the library says of its work.

    Args:
        verbose: All records at INFO, of other packages too, each with the name of its logger.
    """
    global _begun
    _begun = time.monotonic()
    handler = _Lines(verbose)
    ours, root = logging.getLogger(_OURS), logging.getLogger()
    before = ours.level, ours.propagate, root.level
    ours.addHandler(handler)
    ours.setLevel(logging.INFO)
    ours.propagate = False  # a handler that some package put on the root logger would print it again
    if verbose:
        root.addHandler(handler)
        root.setLevel(min(root.level, logging.INFO))
    try:
        yield
    finally:
        ours.removeHandler(handler)
        root.removeHandler(handler)
        ours.level, ours.propagate, root.level = before


class _Lines(logging.Handler):
    """Prints records as lines; an estimate of memory only where it is larger than all before."""

    def __init__(self, verbose: bool) -> None:
        super().__init__(logging.INFO)
        self._verbose, self._most = verbose, 0

    def emit(self, record: logging.LogRecord) -> None:
        """Print a record, if it is for the user."""
        if record.name == _DOING:
            say(record.getMessage())
        elif record.name == _MEMORY and self._rises(record):
            say(f"memory: {record.getMessage()}")
        elif self._verbose:
            say(f"{record.name}: {record.getMessage()}")

    def _rises(self, record: logging.LogRecord) -> bool:
        (estimate,) = record.args or (None,)
        needed = getattr(estimate, "total", 0)
        told, self._most = needed > self._most, max(needed, self._most)
        return told
