"""Ctrl-C, and the signal that ends a job on a cluster: clean up, say what is saved, and exit."""

from __future__ import annotations

import gc
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

import typer


class Stopped(KeyboardInterrupt):
    """The program was asked to stop; carries what has been saved."""

    def __init__(self, saved: str = "", *, code: int = 130) -> None:
        super().__init__(saved)
        self.saved, self.code = saved, code


@contextmanager
def stoppable() -> Iterator[None]:
    """Let SIGTERM end the block as Ctrl-C does, so that temporary files go; the program exits with 130 or 143."""
    in_main = threading.current_thread() is threading.main_thread()
    before: Any = signal.signal(signal.SIGTERM, _terminate) if in_main else None
    try:
        yield
    except KeyboardInterrupt as stop:
        _let_go(stop)
        saved = f"; {stop.saved}" if isinstance(stop, Stopped) and stop.saved else ""
        typer.echo(f"Stopped{saved}.", err=True)
        raise SystemExit(stop.code if isinstance(stop, Stopped) else 130) from None
    finally:
        if in_main:
            signal.signal(signal.SIGTERM, before)


@contextmanager
def saying_what_is_saved(saved: Callable[[], str]) -> Iterator[None]:
    """Where the block is stopped, say what is saved and how to resume, in the words that `saved` gives then."""
    try:
        yield
    except KeyboardInterrupt as stop:
        raise Stopped(saved(), code=getattr(stop, "code", 130)) from None


def _let_go(error: BaseException | None) -> None:
    """Drop the variables of the interrupted functions, so that their temporary files go now."""
    while error is not None:
        error.__traceback__ = None
        error = error.__context__
    gc.collect()


def _terminate(number: int, frame: FrameType | None) -> None:
    raise Stopped(code=128 + number)
