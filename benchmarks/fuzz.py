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
import random
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))


def forget(count: int, seed: int) -> bool:
    """Read malformed forget sets; True when each was read or refused in words."""
    from malformed_sets import malformed, outcome

    begun = time.perf_counter()
    said: Counter[str] = Counter()
    with tempfile.TemporaryDirectory() as folder:
        for number in range(count):
            told = outcome(malformed(random.Random(f"{seed} {number}"), Path(folder)))
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
    from altered_results import KINDS, altered, contents, outcome, save_all

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
    from killed_saves import killed_saves

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


def report(count: int, seed: int) -> bool:
    """Draw reports full of hostile texts; True when nothing of them ran."""
    from drawn_reports import hostile_reports

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
