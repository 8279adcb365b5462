"""Which process something belongs to, and whether that process has ended."""

from __future__ import annotations

import hashlib
import os
import platform
import uuid
from functools import cache
from pathlib import Path
from typing import NamedTuple


class ProcessId(NamedTuple):
    """The identity of a process, unique across machines and time."""

    machine: str  # of the machine since it was started, and of its numbering of processes
    pid: int  # its number there
    born: int  # when it began, so that a number used again is another process


def this_process() -> ProcessId:
    """Return the process that calls."""
    pid = os.getpid()
    return ProcessId(_machine(), pid, _born(pid) or 0)


def is_gone(process: ProcessId) -> bool:
    """Return whether a process has certainly ended. Nothing is certain about another machine or container."""
    if process.machine != _machine():
        return False
    born = _born(process.pid)
    return born != process.born and not (born is None and _is_hidden(process.pid))


@cache
def _machine() -> str:
    # Names are no use: machines share them. Containers share machine and boot id, but number processes by themselves.
    parts = [_text("/etc/machine-id"), _text("/proc/sys/kernel/random/boot_id")]
    try:
        parts.append(str(os.stat("/proc/self/ns/pid").st_ino))
    except OSError:
        parts += [platform.node(), f"{uuid.getnode():x}"]
    return hashlib.sha256("|".join(parts).encode()).hexdigest()[:12]


def _is_hidden(pid: int) -> bool:
    """Return whether there is a process of that number, of another user, whom the system does not show."""
    try:
        os.kill(pid, 0)
    except PermissionError:
        return True
    except (OSError, OverflowError):
        pass
    return False


def _text(path: str) -> str:
    try:
        return Path(path).read_text(encoding="ascii").strip()
    except (OSError, ValueError):
        return ""


def _born(pid: int) -> int | None:
    """When a process began; None where there is none of that number, or it waits to be collected."""
    try:
        # Ticks since the machine was started: seconds of the epoch move when the clock is set.
        fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
        return None if fields[0] in (b"Z", b"X") else int(fields[19])
    except (OSError, IndexError, ValueError):
        if Path("/proc/self/stat").exists():
            return None
    import psutil

    try:
        return round(psutil.Process(pid).create_time())
    except (psutil.Error, ValueError, OverflowError):
        return None
