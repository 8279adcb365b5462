"""Who works on what: lock files with a heartbeat, so that workers on one or many machines never do the same.

A claim is a file named after a model and a generation. It is opened for exclusive creation, so of two workers exactly
one has it. Nothing is ever removed from under another: who takes over from a dead
worker creates the next generation, and who is done marks his own as free. A worker is dead when its machine is this
one and its process is gone, or when its heart has not beaten for `SILENCE` seconds.
"""

from __future__ import annotations

import json
import os
import socket
import tempfile
import threading
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

BEAT = 10.0
"""Seconds between heartbeats."""

SILENCE = 300.0
"""Seconds without a heartbeat after which a worker on another machine counts as dead."""


@dataclass(frozen=True)
class Holder:
    """Who holds a claim."""

    host: str
    """Machine."""
    pid: int
    """Process."""
    born: float
    """When the process began, so that a number used again is no disguise."""
    since: float
    """When the claim was taken, seconds of the epoch."""


class Claims:
    """Claims in a folder.

    Args:
        folder: Shared by all workers.
        beat: Seconds between heartbeats.
        silence: Seconds without one after which a holder counts as dead.
    """

    def __init__(self, folder: Path, *, beat: float = BEAT, silence: float = SILENCE) -> None:
        self.folder, self.beat, self.silence = folder, beat, silence

    def take(self, name: str) -> Claim | None:
        """Claim something; None where somebody alive has it."""
        place = self.folder / name
        place.mkdir(parents=True, exist_ok=True)
        generations = _generations(place)
        last = generations[-1] if generations else 0
        if last and not self._is_over(place, last, now=_clock_of(place)):
            return None
        host, born = this_machine(), _born(os.getpid())
        claim = place / f"{last + 1}.claim"
        try:
            with open(claim, "x", encoding="utf-8") as file:
                json.dump({"host": host, "pid": os.getpid(), "born": born, "since": time.time()}, file)
        except FileExistsError:
            return None
        return Claim(claim, self.beat)

    def holder(self, name: str) -> Holder | None:
        """Who is working on it now; None for nobody."""
        place = self.folder / name
        generations = _generations(place)
        if not generations or self._is_over(place, generations[-1], now=time.time()):
            return None
        return _holder(place / f"{generations[-1]}.claim")

    def deaths(self, name: str, since: float) -> int:
        """How many workers died over it since a moment."""
        place = self.folder / name
        count = 0
        for number in _generations(place):
            holder = _holder(place / f"{number}.claim")
            free = (place / f"{number}.free").exists()
            over = free or self._is_over(place, number, now=time.time())
            count += bool(over and not free and holder is not None and holder.since >= since)
        return count

    def _is_over(self, place: Path, number: int, *, now: float) -> bool:
        """Whether a generation's holder is done or dead. `now` is by the clock that dates the files."""
        if (place / f"{number}.free").exists():
            return True
        claim = place / f"{number}.claim"
        holder = _holder(claim)
        if holder is not None and holder.host == this_machine():
            return not _is_alive(holder)
        try:
            return now - claim.stat().st_mtime > self.silence
        except FileNotFoundError:
            return True


class Claim:
    """Something that is ours until the `with` ends, or we die."""

    def __init__(self, file: Path, beat: float) -> None:
        self.file, self._beat, self._over = file, beat, threading.Event()
        self._heart = threading.Thread(target=self._live, daemon=True, name=f"heartbeat {file.parent.name}")

    @property
    def is_ours(self) -> bool:
        """False where somebody took over because our heart was silent for too long."""
        return self.file.exists() and _generations(self.file.parent)[-1] == int(self.file.stem)

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


def _clock_of(folder: Path) -> float:
    """Now, by the clock that dates the files of a folder: that of another machine, on a network drive."""
    with tempfile.NamedTemporaryFile(dir=folder, suffix=".now") as file:
        return os.stat(file.name).st_mtime


def this_machine() -> str:
    """Name of this machine and, on Linux, of the container's own numbering of processes."""
    try:
        inside = os.readlink("/proc/self/ns/pid")
    except OSError:
        inside = ""
    return f"{socket.gethostname()} {inside}".strip()


def _generations(place: Path) -> list[int]:
    try:
        names = os.listdir(place)
    except FileNotFoundError:
        return []
    return sorted(int(name[:-6]) for name in names if name.endswith(".claim") and name[:-6].isdigit())


def _holder(file: Path) -> Holder | None:
    """Who wrote a claim; None where it is gone, broken or just being written: then its age decides."""
    try:
        record = json.loads(file.read_text())
        return Holder(str(record["host"]), int(record["pid"]), float(record["born"]), float(record["since"]))
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _born(pid: int) -> float:
    import psutil

    return float(psutil.Process(pid).create_time())


def _is_alive(holder: Holder) -> bool:
    import psutil

    try:
        process = psutil.Process(holder.pid)
        return abs(process.create_time() - holder.born) < 2 and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
    except psutil.AccessDenied:
        return True
