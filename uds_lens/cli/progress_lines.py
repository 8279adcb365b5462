"""What the program is doing, line by line on standard error, each with the time since it started."""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

_begun = time.monotonic()

_OURS, _DOING, _MEMORY = "uds_lens", "uds_lens.progress", "uds_lens.audit.memory"


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
