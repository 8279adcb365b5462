"""What a block of code removes from the disk, or replaces there, as Python's own audit events tell it."""

import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

_EVENTS = ("os.remove", "os.rmdir", "os.rename", "os.truncate", "shutil.rmtree")

_recording: list[list[Path]] = []


def _listen(event: str, given: tuple) -> None:
    if event in _EVENTS:
        for place in given[: 2 if event == "os.rename" else 1]:
            if not isinstance(place, int) and os.path.isabs(place):  # below a tree, rmtree goes on with bare names
                for removed in _recording:
                    removed.append(Path(os.fsdecode(place)))


@cache
def _listening() -> None:
    sys.addaudithook(_listen)  # cannot be taken away again


@contextmanager
def recorded() -> Iterator[list[Path]]:
    """Record every place that is removed, renamed or replaced while the block runs."""
    _listening()
    removed: list[Path] = []
    _recording.append(removed)
    try:
        yield removed
    finally:
        _recording.remove(removed)


def outside(removed: list[Path], folder: Path) -> list[Path]:
    """The places that lie neither in a folder nor in a temporary one of this library."""
    resolved = [Path(os.path.realpath(place.parent)) / place.name for place in removed]
    places = [place for place in resolved if "__pycache__" not in place.parts]  # Python's own
    spilled = str(Path(tempfile.gettempdir()) / "uds_lens-")
    top = Path(os.path.realpath(folder))
    return [place for place in places if not (place.is_relative_to(top) or str(place).startswith(spilled))]
