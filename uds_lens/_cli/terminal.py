"""Terminal output: tables and warnings on standard output, progress on standard error.

The first section handles Ctrl-C and the signal that ends a cluster job: clean up, say what has been saved, and exit.
"""

from __future__ import annotations

import gc
import json
import logging
import math
import os
import re
import signal
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from numbers import Real
from pathlib import Path
from textwrap import fill
from types import FrameType
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, TypeVar

import typer

import uds_lens as ul
from uds_lens._progress import shortened
from uds_lens._quoting import printable
from uds_lens._storage.records import plain

if TYPE_CHECKING:
    import pandas as pd
    from rich.console import Console


K = TypeVar("K")


def echo(text: str, *, err: bool = False, nl: bool = True) -> None:
    """Print text without the control characters that a terminal would interpret. All output goes through here."""
    typer.echo(printable(text), err=err, nl=nl)


class Stopped(KeyboardInterrupt):
    """Raised when the program is told to stop; says what has been saved."""

    def __init__(self, saved: str = "", *, code: int = 130) -> None:
        super().__init__(saved)
        self.saved, self.code = saved, code


@contextmanager
def stoppable() -> Iterator[None]:
    """Make SIGTERM end the block like Ctrl-C, so that temporary files are removed; the exit code is 130 or 143."""
    in_main = threading.current_thread() is threading.main_thread()
    before: Any = signal.signal(signal.SIGTERM, _terminate) if in_main else None
    try:
        yield
    except KeyboardInterrupt as stop:
        _let_go(stop)
        saved = f"; {stop.saved}" if isinstance(stop, Stopped) and stop.saved else ""
        echo(f"Stopped{saved}.", err=True)
        raise SystemExit(stop.code if isinstance(stop, Stopped) else 130) from None
    finally:
        if in_main:
            signal.signal(signal.SIGTERM, before)


@contextmanager
def saying_what_is_saved(saved: Callable[[], str]) -> Iterator[None]:
    """If the block is stopped, print what has been saved and how to resume, as returned by `saved`."""
    try:
        yield
    except KeyboardInterrupt as stop:
        raise Stopped(saved(), code=getattr(stop, "code", 130)) from None


def _let_go(error: BaseException | None) -> None:
    """Drop the variables of the interrupted functions, so that their temporary files are removed now."""
    while error is not None:
        error.__traceback__ = None
        error = error.__context__
    gc.collect()


def _terminate(number: int, frame: FrameType | None) -> None:
    raise Stopped(code=128 + number)


_LEGEND = (
    "UDS 0 = knowledge intact (as in {full}), 1 = erased (as in {retain}). "
    "Interval: bootstrap over subjects, or over examples if there are no subjects; it does not cover kinds of "
    "subjects that are not in the data. N: examples measured. "
    "NaN: examples that are not measurable, because {full} encodes no more than {retain} at any layer (S1 <= tau). "
    "layers: knowledge-encoding layers, mean over examples."
)
_SAMPLED = (
    " All examples: estimated range of the UDS over all examples, of which these are a random sample; the interval "
    "to its left also covers subjects or examples that are not in the data."
)
_DAMAGE = (
    "Loss: mean log-probability lost when the {unlearned} states are patched in, in nats per token, on forget facts "
    "and on retained facts, followed by the loss with {retain}'s states. Damage: loss on retained facts as a share of "
    "the loss on forget facts. Both losses are measured on the entities, after the correct beginning of the answer. "
    "Prob: probability of the retained entities under {full} and under the model itself; for whole answers, see "
    "uds-lens metrics --retain-data."
)
_PROB = (
    " Output: output depth, computed on the same scale from the models' unpatched answers. Prob: probability per "
    "token that "
    "the model itself gives the entity, after the correct beginning of its answer ({full}: {of_full})."
)
_RETAINS = (
    "Each row is scaled by a different {retain_model}. The spread of the scores shows how much this choice matters."
)
_TRANSPLANTS = (
    "output: share of the answers' log-probability that is lost (0 as in full, 1 as in retain). host: share still lost "
    "when blocks of retain, which never saw the facts, are put into the model. hidden: output - host, the share that "
    "the other blocks of the model still hold. back: share of the loss that blocks of full undo, followed by the same "
    "share for retain; a high share shows that the change is localised, not that knowledge is hidden."
)
_MARKS = {"fatal": "!! FATAL", "caution": "!", "note": "-"}
"""Prefix of a warning, by its level."""


def print_audits(audits: Mapping[str, ul.DepthAudit], *, cautions_of: Sequence[str] | None = None) -> None:
    """Print the table of `audits` (name to audit), their warnings, and a legend of the columns.

    `cautions_of` names the audits whose warnings are printed, by default all.
    """
    from uds_lens.results._frames import thirds_in_words
    from uds_lens.results._settings import roles_of

    roles = roles_of(audits.values())._asdict()
    levels = {audit.config.confidence for audit in audits.values()}
    sampled = any(audit.sample_error is not None for audit in audits.values())
    rows = [{"name": name, "audit": audit, **audit.summary()} for name, audit in audits.items()]
    columns: dict[str, Column] = {
        "model": "name",
        "UDS": "uds",
        f"{levels.pop() * 100:g}% interval" if len(levels) == 1 else "interval": ("uds_low", "uds_high"),
        "output": "output_depth",
        "Prob": "prob_unlearned",
        "all examples": _all_examples if sampled else lambda _: None,
        "N": "n_measured",
        "NaN": "n_not_measurable",
        "layers": lambda row: f"{row['ke_layers_mean']:.1f} of {row['n_layers']}",
        "verdict": lambda row: f"{row['reading']} (!!)" if row["audit"].fatal else row["reading"],
    }
    print_frame(rows, columns, undefined="NaN", optional=("output", "Prob", "all examples"), bold="UDS")
    decided = grouped((audit.verdict[:2], name) for name, audit in audits.items() if not audit.fatal)
    for (word, why), names in decided.items():
        print_wrapped(f"{word}: {why}" if len(audits) == 1 else f"{word} ({', '.join(names)}): {why}")
    by_weight = grouped((thirds_in_words(audit), name) for name, audit in audits.items())
    for words, names in by_weight.items():
        if words:
            print_wrapped(words if len(by_weight) == 1 else f"{', '.join(names)}: {words}")
    if controlled := {name: audit for name, audit in audits.items() if audit.control is not None}:
        _print_damage(controlled)
    if several := {name: audit for name, audit in audits.items() if audit.retains}:
        _print_retains(several)
    shown = audits if cautions_of is None else {name: audits[name] for name in cautions_of}
    print_cautions(
        {name: [(_MARKS[level], text) for level, text, _ in audit.cautions] for name, audit in shown.items()}
    )
    prompts = with_names((audit.prompts, name) for name, audit in audits.items())
    of_full = ", ".join(dict.fromkeys(_score(row["prob_full"]) for row in rows))
    probs = any(row["prob_unlearned"] == row["prob_unlearned"] for row in rows)
    legend = _LEGEND + _PROB * probs + _SAMPLED * sampled + " Prompts: {prompts}."
    print_wrapped("\n" + legend.format(**roles, of_full=of_full, prompts=prompts), indent="")


def _all_examples(row: Mapping[str, Any]) -> str:
    """Format the range of the score over all examples, as estimated from a sample."""
    error = row["audit"].sample_error
    low_high = "unknown" if error is None else interval(*error.interval)
    return "measured" if error is None else "unknown" if low_high == "-" else low_high


def _print_damage(audits: Mapping[str, ul.DepthAudit]) -> None:
    from uds_lens.results._settings import roles_of

    rows = [{"name": name, **audit.summary()} for name, audit in audits.items()]
    columns: dict[str, Column] = {
        "model": "name",
        "damage": "damage",
        "interval": ("damage_low", "damage_high"),
        "forget": "forget_loss",
        "kept": "control_loss",
        "retain's": "control_retain_loss",
        "Prob": lambda row: f"{_score(row['prob_control_full'])} -> {_score(row['prob_control_unlearned'])}",
    }
    echo("\nRetained facts")
    print_frame(rows, columns, undefined="NaN", bold="damage")
    for reason, names in grouped((row["damage_reason"] or "", row["name"]) for row in rows).items():
        if reason:
            who = "" if len(names) == len(audits) else f"{', '.join(names)}: "
            print_wrapped(f"{who}damage is NaN, because {reason}.")
    print_wrapped(_DAMAGE.format(**roles_of(audits.values())._asdict()), indent="")


def _print_retains(audits: Mapping[str, ul.DepthAudit]) -> None:
    from uds_lens.results._settings import roles_of

    rows = [{"name": name, **row} for name, audit in audits.items() for row in audit.retains_frame().to_dict("records")]
    roles = roles_of(audits.values())._asdict()
    echo("\nAgainst each {retain_model}".format(**roles))
    columns: dict[str, Column] = {
        "model": "name",
        "retain": "retain",
        "UDS": "uds",
        "interval": ("uds_low", "uds_high"),
        "N": "n_measured",
    }
    print_frame(rows, columns, undefined="NaN", wrapped="retain")
    print_wrapped(_RETAINS.format(**roles), indent="")


def number(value: float | None, digits: int = 3, *, undefined: str = "-") -> str:
    """Format a number for a table; zero has no sign.

    >>> number(0.5), number(-0.0001), number(float("nan")), number(None, undefined="NaN")
    ('0.500', '0.000', '-', 'NaN')
    """
    return undefined if value is None or value != value else f"{round(value, digits) + 0.0:.{digits}f}"


_score = partial(number, undefined="NaN")


def interval(low: float, high: float, digits: int = 3) -> str:
    """Format an interval for a table; "-" if it is undefined."""
    return "-" if math.isnan(low) else f"{number(low, digits)} to {number(high, digits)}"


def print_json(content: Any) -> None:
    """Print the tables of a command as strict JSON; undefined numbers are null."""
    echo(json.dumps(plain(content), indent=2, ensure_ascii=False, allow_nan=False))


def table_rows(frame: pd.DataFrame) -> list[dict[str, Any]]:
    """Return the rows of a table for JSON; undefined values are null."""
    rows: list[dict[str, Any]] = json.loads(frame.to_json(orient="records", double_precision=15))
    return rows


def grouped(pairs: Iterable[tuple[K, str]]) -> dict[K, list[str]]:
    """Group the texts by key, keeping their order."""
    groups: dict[K, list[str]] = {}
    for key, text in pairs:
        groups.setdefault(key, []).append(text)
    return groups


def with_names(told: Iterable[tuple[str, str]]) -> str:
    """Join the sentences without duplicates; if they differ, each is followed by the names it applies to."""
    groups = grouped(told)
    return "; ".join(text if len(groups) == 1 else f"{text}: {', '.join(names)}" for text, names in groups.items())


def print_cautions(cautions: Mapping[str, Sequence[tuple[str, str]]]) -> None:
    """Print each warning once, with its mark and the names it applies to, the most serious first."""
    names_by_warning = grouped((warning, name) for name, warnings in cautions.items() for warning in warnings)
    order = list(_MARKS.values())
    for (mark, sentence), names in sorted(names_by_warning.items(), key=lambda item: order.index(item[0][0])):
        subject = "all" if len(names) == len(cautions) > 1 else ", ".join(names)
        print_wrapped(f"{mark} {subject}: {sentence}")


def print_transplants(transplants: Mapping[str, ul.Transplant]) -> None:
    """Print the table of transplants with their warnings, or nothing if there are none."""
    if not transplants:
        return
    rows, warnings = [], {}
    for name, found in transplants.items():
        widest = found.localisation[-1]
        rows.append({"name": name, **found.summary(), **widest._asdict()})
        reasons = {"host depth": found.host_depth_reason, "hidden": found.hidden_reason}
        texts = [f"No {score}: {reason}." for score, reason in reasons.items() if reason]
        warnings[name] = [(_MARKS[level], text) for level, text, _ in found.cautions] + [
            (_MARKS["note"], text) for text in texts[:1]
        ]
    columns: dict[str, Column] = {
        "model": "name",
        "output": "output_depth",
        "host": "host_depth",
        "host interval": lambda row: interval(*row["host_depth_interval"]),
        "hidden": "hidden",
        "hidden interval": lambda row: interval(*row["hidden_interval"]),
        "back": "value",
        "retain": "retain",
        "blocks": lambda row: row["band"] if row["reason"] is None else "-",
    }
    echo("\nWith blocks of other models")
    print_frame(rows, columns, undefined="NaN", bold="hidden")
    print_cautions(warnings)
    print_wrapped(_TRANSPLANTS, indent="")


def print_audits_as_json(
    audits: Mapping[str, ul.DepthAudit],
    directories: Mapping[str, Path],
    transplants: Mapping[str, ul.Transplant] | None = None,
) -> None:
    """Print the summaries of `audits` with their directories and the summaries of their transplants."""
    rows = [{"name": name, "directory": str(directories[name]), **audit.summary()} for name, audit in audits.items()]
    for row in rows:
        if transplants and row["name"] in transplants:
            row["transplant"] = transplants[row["name"]].summary()
    print_json({"audits": rows})


_PROSE = 100
"""Maximum width of a line of text, as in --help."""

_GAPS = 3, 2, 1
"""Possible widths of the gap between two columns; the first that fits is used."""


Column: TypeAlias = str | tuple[str, str] | Callable[[Mapping[str, Any]], object]
"""A column of the frame (`name:digits` if not three digits), two columns (an interval), or a function of a row."""


def print_frame(
    rows: pd.DataFrame | Iterable[Mapping[str, Any]],
    columns: Mapping[str, Column],
    *,
    undefined: str = "-",
    optional: Collection[str] = (),
    **layout: Any,
) -> None:
    """Print the rows of a frame; `columns` maps each title to its cells, and numbers are right-aligned.

    Columns named in `optional` are left out if no row has a value; `layout` is passed to `print_table`.
    """
    records: Any = list(rows) if not hasattr(rows, "to_dict") else rows.to_dict("records")
    values = {title: [_value(row, what) for row in records] for title, what in columns.items()}
    values = {
        title: column for title, column in values.items() if title not in optional or any(map(_is_defined, column))
    }
    right = [title for title, column in values.items() if all(isinstance(v, Real) for v in column if v is not None)]
    digits = {title: what.partition(":")[2] for title, what in columns.items() if isinstance(what, str)}
    cells = [
        [
            number(value, int(digits.get(title) or 3), undefined=undefined)
            if value is None or isinstance(value, float)
            else str(value)
            for value in column
        ]
        for title, column in values.items()
    ]
    print_table(list(values), list(zip(*cells, strict=True)), right=right, **layout)


def _value(row: Mapping[str, Any], what: Column) -> Any:
    if isinstance(what, tuple):
        return interval(row[what[0]], row[what[1]])
    return row.get(what.partition(":")[0]) if isinstance(what, str) else what(row)


def _is_defined(value: Any) -> bool:
    return value is not None and value == value


def print_table(
    titles: Sequence[str],
    rows: Sequence[Sequence[str]],
    *,
    right: Collection[str] = (),
    bold: str | None = None,
    wrapped: str | None = None,
    shortest: int = 12,
) -> None:
    """Print a table that fits the terminal: shorten names in the first column, then fold the other columns.

    `right` names the right-aligned columns, `bold` the most important one, and `wrapped` one whose cells may take
    several lines. Names in the first column keep at least `shortest` characters.
    """
    from rich.box import SIMPLE_HEAD
    from rich.markup import escape
    from rich.table import Table

    titles, rows = [*map(printable, titles)], [[*map(printable, row)] for row in rows]
    columns = list(zip(titles, *rows, strict=True))
    wide = [max(map(len, column)) for column in columns[1:] if column[0] != wrapped]
    least = min(shortest, max(map(len, columns[0])))
    gap = next((gap for gap in _GAPS if sum(wide) + gap * len(wide) + least <= width()), None)
    fits = gap is not None
    room = width() - sum(wide) - (gap or 0) * len(wide) if fits and wrapped is None else width()
    padding = 0 if gap == 1 else (0, 1)
    table = Table(box=SIMPLE_HEAD, pad_edge=False, show_edge=False, padding=padding, collapse_padding=gap != _GAPS[0])
    for number, title in enumerate(titles):
        justify: Literal["left", "right"] = "right" if title in right else "left"
        no_wrap = number == 0 or (fits and title != wrapped)
        style = "bold" if title == bold else ""
        table.add_column(title, justify=justify, no_wrap=no_wrap, overflow="fold", style=style)
    for first, (_, *more) in zip(shortened_names([row[0] for row in rows], room), rows, strict=True):
        table.add_row(*map(escape, (first, *more)))
    _console().print(table)


def shortened_names(names: Sequence[str], room: int) -> list[str]:
    """Shorten names to at most `room` characters; if several would look alike, keep the word in which they differ.

    >>> shortened_names(["forget10_NPO_lr2e-05_epoch10", "forget10_NPL_lr2e-05_epoch10", "full"], 16)
    ['...NPO_lr2e-0...', '...NPL_lr2e-0...', 'full']
    """
    alike = grouped((shortened(name, room), name) for name in dict.fromkeys(names))
    short = {group[0]: text for text, group in alike.items() if len(group) == 1}
    for group in (group for group in alike.values() if len(group) > 1):
        differing = (i for i, signs in enumerate(zip(*group, strict=False)) if len(set(signs)) > 1)
        shared = group[0][: next(differing, min(map(len, group)))]
        start = max((end.end() for end in re.finditer(r"[^A-Za-z0-9.]", shared)), default=0)
        for name in group:
            text = f"...{name[start:]}"
            short[name] = text if len(text) <= room else f"{text[: room - 3]}..."
    return [short[name] for name in names]


def width() -> int:
    """Return the width of the terminal in columns; 80 if there is no terminal."""
    return _console().width


def _console() -> Console:
    """Open the terminal, without colours if NO_COLOR is set."""
    from rich.console import Console

    plain = bool(os.environ.get("NO_COLOR"))
    return Console(file=sys.stdout, highlight=False, color_system=None if plain else "auto")


def print_wrapped(text: str, *, indent: str = "  ") -> None:
    """Print a paragraph at the width of the terminal, up to a readable maximum, with a hanging indent."""
    blank = "\n" if text.startswith("\n") else ""
    echo(blank + fill(text.strip(), min(width(), _PROSE), subsequent_indent=indent, break_on_hyphens=False))


# Progress: one line per step on standard error, each with the time since the program started.

_started = time.monotonic()


def say(message: str) -> None:
    """Print a line of progress immediately."""
    text = f"[{elapsed()}] {printable(message)}"
    if sys.stderr.isatty():
        text = fill(text, width(), subsequent_indent=" " * 7, break_long_words=False, break_on_hyphens=False)
    text += "\n"
    tqdm = sys.modules.get("tqdm")
    if tqdm is not None and sys.stderr.isatty():
        tqdm.tqdm.write(text, file=sys.stderr, end="")  # a visible progress bar is cleared first
        return
    sys.stderr.write(text)
    sys.stderr.flush()


def elapsed() -> str:
    """Return the time since the program started: minutes and seconds, preceded by hours if it is an hour or more."""
    minutes, seconds = divmod(int(time.monotonic() - _started), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02}" if hours else f"{minutes}:{seconds:02}"


@contextmanager
def progress_printed(*, verbose: bool = False) -> Iterator[None]:
    """Print the library's progress."""
    global _started
    _started = time.monotonic()
    handler = _Lines(verbose)
    ours, root = logging.getLogger("uds_lens"), logging.getLogger()
    before = ours.level, ours.propagate, root.level
    ours.addHandler(handler)
    ours.setLevel(logging.INFO)
    ours.propagate = False  # otherwise a handler that another package put on the root logger would print it again
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
    """Print records as lines; a memory estimate is printed only if it exceeds all earlier ones."""

    def __init__(self, verbose: bool) -> None:
        super().__init__(logging.INFO)
        self._verbose, self._most = verbose, 0

    def emit(self, record: logging.LogRecord) -> None:
        """Print a record if it is meant for the user."""
        if record.name in ("uds_lens._progress", "uds_lens.study"):
            say(record.getMessage())
        elif record.name == "uds_lens.audit._memory":
            (estimate,) = record.args or (None,)
            needed = getattr(estimate, "total", 0)
            if needed > self._most:
                self._most = needed
                say(f"memory: {record.getMessage()}")
        elif self._verbose:
            say(f"{record.name}: {record.getMessage()}")
