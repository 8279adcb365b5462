"""Who works on what: claims with a heartbeat, so that workers on one or many machines never do the same.

A claim is a file named after a generation, created exclusively: of two workers exactly one has it, on file systems
without locks too. Nothing is removed from under another: who takes over from a dead worker creates the next
generation, and who is done marks his own as free. A worker is dead when it ran on this machine and its process is
gone, or when this process has watched its claim for `SILENCE` seconds and no heartbeat came. No clocks are compared.
"""

from __future__ import annotations

import json
import os
import re
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from uds_lens._storage.files import read_file, writing
from uds_lens._storage.processes import ProcessId, is_gone, this_process
from uds_lens.errors import ResultFormatError

BEAT = 10.0  # seconds between heartbeats

SILENCE = 300.0
"""Seconds that a claim is watched without a heartbeat before its holder on another machine counts as dead."""

_CLAIM = re.compile(r"([1-9][0-9]{0,8})\.claim")


class Holder(NamedTuple):
    """Who holds a claim."""

    process: ProcessId  # where it works
    run: str  # name of the run that it works for


class _Watched(NamedTuple):
    """A claim as it was seen last."""

    stamp: tuple[int, int]  # which claim, and its last heartbeat: compared for equality alone
    since: float  # when this process first saw that, by its own clock
    beats: bool  # whether a heartbeat came while it was watched


class Claims:
    """Claims in a folder."""

    def __init__(self, folder: Path, *, run: str = "", beat: float = BEAT, silence: float = SILENCE) -> None:
        self.folder, self.run, self.beat, self.silence = folder, run, beat, silence
        self._watched: dict[str, _Watched] = {}

    def take(self, name: str) -> Claim | None:
        """Claim something; None where another has it."""
        place = self.folder / name
        with writing(place):
            place.mkdir(parents=True, exist_ok=True)
            last = max(_generations(place), default=0)
            if last and not self._is_over(name, last):
                return None
            file = place / f"{last + 1}.claim"
            try:
                with open(file, "x", encoding="utf-8") as claim:
                    json.dump({**this_process()._asdict(), "run": self.run}, claim)
            except FileExistsError:
                return None
        return Claim(file, self.beat)

    def holder(self, name: str) -> Holder | None:
        """Return who works on it; None for nobody, or somebody unknown."""
        last = max(_generations(self.folder / name), default=0)
        return _holder(self._file(name, last)) if last and not self._is_over(name, last) else None

    def is_alive(self, name: str) -> bool:
        """Return whether its holder certainly lives: here, or with heartbeats while it was watched."""
        holder = self.holder(name)
        here = holder is not None and holder.process.machine == this_process().machine
        return here or (name in self._watched and self._watched[name].beats)

    def deaths(self, name: str, run: str) -> int:
        """Count the workers of a run that died over it; whoever holds it now is not among them."""
        place, holders = self.folder / name, []
        numbers = _generations(place)
        for number in numbers:
            if number < max(numbers) and not (place / f"{number}.free").exists():
                holders.append(_holder(self._file(name, number)))
        return sum(holder is not None and holder.run == run for holder in holders)

    def _is_over(self, name: str, number: int) -> bool:
        """Return whether a generation's holder is done or dead."""
        file = self._file(name, number)
        if file.with_suffix(".free").exists():
            return True
        holder = _holder(file)
        if holder is not None and is_gone(holder.process):
            return True
        with suppress(OSError):
            stamp = number, os.stat(file).st_mtime_ns
            seen = self._watched.get(name)
            if seen is None or seen.stamp != stamp:
                beats = seen is not None and seen.stamp[0] == number
                self._watched[name] = _Watched(stamp, time.monotonic(), beats)
            else:
                return time.monotonic() - seen.since > self.silence
        return False

    def _file(self, name: str, number: int) -> Path:
        return self.folder / name / f"{number}.claim"


class Claim:
    """Something that is ours until the `with` ends, or the process does."""

    def __init__(self, file: Path, beat: float) -> None:
        self.file, self._beat, self._over = file, beat, threading.Event()
        self._heart = threading.Thread(target=self._live, daemon=True, name=f"heartbeat {file.parent.name}")

    def __enter__(self) -> Claim:
        self._heart.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._heart.join()
        with suppress(OSError):  # then our process has to end before another has it
            self.file.with_suffix(".free").touch()

    def _live(self) -> None:
        while not self._over.wait(self._beat):
            with suppress(OSError):
                os.utime(self.file)


def _generations(place: Path) -> list[int]:
    try:
        return [int(match[1]) for name in os.listdir(place) if (match := _CLAIM.fullmatch(name))]
    except OSError:
        return []


def _holder(file: Path) -> Holder | None:
    """Read a claim; None where it is broken, or just being written: then its heartbeat decides."""
    try:
        record = json.loads(read_file(file, most=4096))
        process = ProcessId(str(record["machine"]), int(record["pid"]), int(record["born"]))
        return Holder(process, str(record["run"])) if process.pid > 0 else None
    except (ResultFormatError, ValueError, LookupError, TypeError, AttributeError, RecursionError, OverflowError):
        return None
