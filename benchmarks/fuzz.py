"""Hostile input by the thousand. Each part prints one line; the exit code is 1 where anything failed.

    python benchmarks/fuzz.py forget --count 10000

`forget`: malformed forget sets (JSON, JSON lines, CSV, Parquet, data frames, lists), each read or refused with a
message of less than 500 printable characters.

`results`: altered saved results (flipped bits, cuts, other values, other kinds and shapes; some sealed again), each
read as it was saved or refused; one that was sealed again may load, and then everything in it works.

`kills`: saves of a result of each kind and of reports that are killed at any moment; what stands there loads, and the
next save leaves nothing behind.

`report`: hostile texts in every field of a report, opened in a headless Chromium: nothing runs, nothing is missing.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))

from altered_results import KINDS, altered, contents, outcome, results as each_kind, save_all, scratch
from hostile_reports import hostile_audit, text
from malformed_sets import malformed, outcome as read_set
from report.chromium import Chromium
from report.test_browser import DRAWN, QUESTIONS
from synthetic_audits import synthetic_audit

from uds_lens._storage.files import atomic_write_text, generator
from uds_lens.report import render, write
from uds_lens.results import DepthAudit


def forget(count: int, seed: int) -> bool:
    """Read malformed forget sets; True when each was read or refused in words."""
    begun = time.perf_counter()
    said: Counter[str] = Counter()
    with tempfile.TemporaryDirectory() as folder:
        for number in range(count):
            told = read_set(malformed(random.Random(f"{seed} {number}"), Path(folder)))
            if told not in ("read", "refused"):
                print(f"{number}: {told}", file=sys.stderr)
                told = told.split(":")[0] if told.startswith("raw") else "bad message"
            said[told] += 1
    faults = count - said["read"] - said["refused"]
    raw = sum(n for told, n in said.items() if told.startswith("raw"))
    print(
        f"forget: {count} malformed sets, {said['refused']} refused in words, {said['read']} read, {raw} raw errors, "
        f"{faults - raw} bad messages ({time.perf_counter() - begun:.0f} s, seed {seed})"
    )
    return faults == 0


def results(count: int, seed: int) -> bool:
    """Load altered results; True when each was as saved or refused in words."""
    begun = time.perf_counter()
    said: Counter[str] = Counter()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        save_all(folder)
        original = {kind: contents(how.load(folder / kind)) for kind, how in KINDS.items()}
        for number in range(count):
            chance = random.Random(f"{seed} {number}")
            kind = chance.choice(sorted(KINDS))
            forged = altered(kind, folder / kind, folder / "copy", chance)
            told = outcome(kind, folder / "copy", original[kind], forged=forged)
            if told not in ("refused", "same", "forged"):
                print(f"{number}: {kind}: {told}", file=sys.stderr)
                told = told.split(" ")[0]
            said[told] += 1
    faults = count - said["refused"] - said["same"] - said["forged"]
    print(
        f"results: {count} altered results, {said['refused']} refused in words, {said['same']} loaded as saved, "
        f"{said['forged']} sealed again and fit, {said['altered']} altered and loaded, {said['raw']} raw errors, "
        f"{faults - said['altered'] - said['raw']} bad messages ({time.perf_counter() - begun:.0f} s, seed {seed})"
    )
    return faults == 0


def kills(count: int, seed: int) -> bool:
    """Kill processes that save; True when nothing was lost or left behind."""
    begun = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        told = killed_saves(Path(folder), count, random.Random(seed))
    faults = [problem for problem in told.problems if problem]
    for problem in faults:
        print(problem, file=sys.stderr)
    print(
        f"kills: {count} killed saves ({told.partial} left something half written), {len(faults)} results lost, "
        f"{told.left_mb:.1f} MB left behind, {told.after} files of it after the next save "
        f"({time.perf_counter() - begun:.0f} s, seed {seed})"
    )
    return not faults and told.after == 0


class KilledSaves(NamedTuple):
    """What became of the kills."""

    problems: list[str]
    """Results that were lost or broken."""
    partial: int
    """Kills that left something half written."""
    left_mb: float
    """Size of that."""
    after: int
    """What is left after the next save."""


def killed_saves(folder: Path, count: int, rng: random.Random) -> KilledSaves:
    """Kill `count` processes while they save a result of each kind and a report over what stands there."""
    place, made = folder / "place", each_kind()
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
    return KilledSaves(problems, partial, left, len(scratch(place)))


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


def report(count: int, seed: int) -> bool:
    """Draw reports full of hostile texts; True when nothing of them ran."""
    begun = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        told = hostile_reports(Path(folder), count, random.Random(seed))
    for problem in told.problems:
        print(problem, file=sys.stderr)
    print(
        f"report: {told.pages} pages with {told.texts} hostile texts in Chromium, {len(told.problems)} problems "
        f"(scripts run, requests, errors, texts missing) ({time.perf_counter() - begun:.0f} s, seed {seed})"
    )
    return not told.problems


class DrawnReports(NamedTuple):
    """What became of the pages."""

    pages: int
    """Pages that were drawn."""
    texts: int
    """Hostile texts in them."""
    problems: list[str]
    """Scripts that ran, requests, errors of the console, texts that are missing."""


def hostile_reports(folder: Path, count: int, rng: random.Random) -> DrawnReports:
    """Draw `count` reports, each with other texts."""
    browser, problems, texts = Chromium(folder / "profile"), [], 0
    try:
        for number in range(count):
            audits = {text(rng) or "a": hostile_audit(rng, seed) for seed in range(rng.choice((1, 3)))}
            page = write(audits, folder / "page.html", title=text(rng))
            texts += 60 * len(audits)
            problems += [f"{number}: {problem}" for problem in drawn(browser, page, audits)]
    finally:
        browser.close()
    return DrawnReports(count, texts, problems)


def drawn(browser: Chromium, page: Path, audits: dict[str, DepthAudit]) -> list[str]:
    """Open a page, draw every figure, open an example; what went wrong."""
    try:
        browser.open(page)
        title = browser.run("document.title")
        browser.run("dispatchEvent(new Event('beforeprint'))")
        browser.wait_for(DRAWN)
        browser.run("dispatchEvent(new Event('afterprint'))")
        browser.run("document.querySelector('#table .open').click()")
        browser.wait_for("document.querySelector('.detail .main-svg')")
        found = list(browser.problems)
        found += [
            f"asked for {url[:100]}"
            for url in browser.requests
            if not url.startswith(("data:", "blob:", "about:", "file:"))
        ]
        if browser.run("document.title") != title or title in ("run", "1"):
            found.append("a script ran")
        shown = {flat(words) for words in browser.run(QUESTIONS)}
        expected = [{flat(example.question) for example in audit.examples} for audit in audits.values()]
        if shown not in expected:
            missing = min((own - shown for own in expected), key=len)
            found.append(f"not shown: {ascii(sorted(missing))[:300]}")
    except (AssertionError, RuntimeError) as error:
        return [f"{type(error).__name__}: {str(error)[:300]}"]
    return found


def flat(words: str) -> str:
    """Text as a browser reads it: no NUL, no space around; the beginning tells texts apart."""
    return words.replace("\x00", "\ufffd").strip()[:500]


PARTS = {"forget": (forget, 10_000), "results": (results, 2_000), "kills": (kills, 100), "report": (report, 10)}


def main() -> None:
    """Run one part."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=PARTS)
    parser.add_argument("--count", type=int, default=None, help="how many tries")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    run, usual = PARTS[args.part]
    raise SystemExit(0 if run(usual if args.count is None else args.count, args.seed) else 1)


if __name__ == "__main__":
    main()
