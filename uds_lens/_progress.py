"""Progress bars in terminals and notebooks, and a log record for each step.

Records are logged to `uds_lens._progress` at level INFO. The command line prints them. In Python, add a logging handler
and call `logging.getLogger("uds_lens").setLevel("INFO")`.
"""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Iterable, Iterator, Sized
from contextlib import contextmanager
from contextvars import ContextVar
from shutil import get_terminal_size
from typing import TypeVar

from uds_lens._quoting import printable

T = TypeVar("T")

logger = logging.getLogger(__name__)

_EVERY = 30.0
"""Seconds between log records of the same loop."""

_BAR, _LEAST = 44, 16
"""Columns that a bar and its numbers take up, and the minimum left for the label."""

_about: ContextVar[str] = ContextVar("uds_lens_about", default="")


_quiet: ContextVar[bool] = ContextVar("uds_lens_quiet", default=False)


def tell(message: str) -> None:
    """Log the current step.

    Args:
        message: A few words, for example "opening ckpt/full".
    """
    if not _quiet.get():
        logger.info("%s", _named(message))


def duration(seconds: float) -> str:
    """Return a duration in words.

    >>> duration(0.2), duration(42), duration(600), duration(9000)
    ('1 s', '42 s', '10 min', '2.5 h')
    """
    if seconds < 100:
        return f"{max(1.0, seconds):.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 6000 else f"{seconds / 3600:.1f} h"


@contextmanager
def quiet() -> Iterator[None]:
    """Suppress log records inside the `with` block, for a small step in a task that logs its own progress."""
    token = _quiet.set(True)
    try:
        yield
    finally:
        _quiet.reset(token)


@contextmanager
def about(what: str) -> Iterator[None]:
    """Prefix bars and log records inside the `with` block with a label such as "npo (2 of 3)"."""
    token = _about.set(what)
    try:
        yield
    finally:
        _about.reset(token)


def progress(
    iterable: Iterable[T], *, desc: str, total: int | None = None, unit: str = "it", enabled: bool | None = None
) -> Iterator[T]:
    """Iterate with a tqdm bar on standard error, or with occasional log records outside a terminal.

    Args:
        iterable: What to iterate over.
        desc: Label to the left of the bar.
        total: Number of items, when `iterable` has no length.
        unit: Name of one item.
        enabled: Whether to show the bar; None shows it in terminals and notebooks only.

    Returns:
        An iterator over the same items.

    Example:
        >>> list(progress([1, 2], desc="demo", enabled=False))
        [1, 2]
    """
    if total is None and isinstance(iterable, Sized):
        total = len(iterable)
    if enabled is None:
        enabled = sys.stderr.isatty() or _in_notebook()
    if not enabled:
        if _quiet.get():
            return iter(iterable)
        return _recorded(iterable, _named(desc), total, unit)
    from tqdm.auto import tqdm

    what = shortened(_about.get(), max(_LEAST, get_terminal_size().columns - _BAR - len(desc)))
    return iter(tqdm(iterable, desc=_named(desc, what), total=total, unit=unit, leave=False))


def _recorded(iterable: Iterable[T], desc: str, total: int | None, unit: str) -> Iterator[T]:
    """Yield the items, with a log record at the start and every half minute."""
    many = "" if total is None else f" of {total}"
    logger.info("%s%s", desc, "" if total is None else f": {total} {unit}{'' if total == 1 else _plural(unit)}")
    last = time.monotonic()
    for done, item in enumerate(iterable):
        if time.monotonic() - last >= _EVERY:
            last = time.monotonic()
            logger.info("%s: %d%s", desc, done, many)
        yield item


def _plural(unit: str) -> str:
    return "es" if unit.endswith("ch") else "s"


def _named(message: str, what: str | None = None) -> str:
    what = _about.get() if what is None else what
    return printable(f"{what}: {message}" if what else message)


def shortened(text: str, room: int) -> str:
    """Shorten a string to `room` characters by cutting out its middle.

    >>> shortened("Llama-3.2-1B_forget10_NPO", 16)
    'Llama-...t10_NPO'
    """
    if len(text) <= room:
        return text
    left = (room - 3) // 2
    return f"{text[:left]}...{text[len(text) - (room - 3 - left) :]}"


def _in_notebook() -> bool:
    """Return whether this process is a notebook kernel (an imported IPython is not enough)."""
    ipython = sys.modules.get("IPython")
    return ipython is not None and hasattr(ipython.get_ipython(), "kernel")
