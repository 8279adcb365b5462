"""Saves that are killed at a random moment, and what they leave."""

import os
import random
import signal
import time
from pathlib import Path
from typing import NamedTuple

from altered_results import KINDS, results, scratch
from synthetic_audits import synthetic_audit

from uds_lens._storage.files import atomic_write_text, generator
from uds_lens.report import render


class Told(NamedTuple):
    """What became of the kills."""

    problems: list[str]
    """Results that were lost or broken."""
    partial: int
    """Kills that left something half written."""
    left_mb: float
    """Size of that."""
    after: int
    """What is left after the next save."""


def killed_saves(folder: Path, count: int, rng: random.Random) -> Told:
    """Kill `count` processes while they save a result of each kind and a report over what stands there."""
    place, made = folder / "place", results()
    place.mkdir()
    large, page = synthetic_audit(n=400, layers=16), render(made["audit"])

    def save_everything(first: int = 0) -> None:
        kinds = [*made.items(), ("audit", large)]
        for kind, result in [*kinds[first:], *kinds[:first]]:
            KINDS[kind].save(result, place / kind)
        atomic_write_text(place / "report.html", page)

    save_everything()
    begun = time.perf_counter()
    save_everything()
    took = time.perf_counter() - begun
    (place / "audit" / "notes.txt").write_text("of somebody else")
    problems, partial, left = [], 0, 0.0
    for number in range(count):
        first = rng.randrange(len(made) + 1)
        child = os.fork()
        if not child:
            while True:
                save_everything(first)
        time.sleep(0.02 + rng.random() * took)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        problems += [f"{number}: {problem}" for problem in broken(place)]
        size = scratch_size(place)
        partial, left = partial + (size > 0), max(left, size / 1e6)
    save_everything()
    return Told(problems, partial, left, len(scratch(place)))


def broken(place: Path) -> list[str]:
    """What does not load, is cut or is gone."""
    found = []
    for kind, how in KINDS.items():
        try:
            how.load(place / kind)
        except Exception as error:
            found.append(f"{kind}: {type(error).__name__}: {error}")
    page = place / "report.html"
    text = page.read_text(encoding="utf-8") if page.is_file() else ""
    if not (generator() in text and text.rstrip().endswith("</html>")):
        found.append("report.html is cut")
    if not (place / "audit" / "notes.txt").is_file():
        found.append("what else stood in a result is gone")
    return found


def scratch_size(place: Path) -> int:
    return sum(file.stat().st_size for top in scratch(place) for file in (top, *top.rglob("*")) if file.is_file())
