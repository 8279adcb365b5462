"""An earlier commit's library beside today's, in turns on one machine: is anything slower, is any score another?

    make bench COMPARE=fe30c15

Both sides are processes of their own with the trio open, started anew for each row of the table; they take turns, so
that a busy moment hits both. Printed are the best of all rounds on each side, the median over rounds of the ratio
(today / before; below 1 is faster), the peak memory of each process, and the score of each. Prints Markdown.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent


class Side:
    """A process that holds one version of the library."""

    def __init__(self, library: Path, *, shared: Path, threads: int, rows: int) -> None:
        self._process = subprocess.Popen(
            [sys.executable, str(HERE / "one_library.py"), str(shared), str(threads), str(rows)],
            env={**os.environ, "PYTHONPATH": str(library), "HF_HUB_OFFLINE": "1"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        self.works: list[str] = self._answer()

    def do(self, work: str) -> dict[str, float | str]:
        """Do it once."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{work}\n")
        self._process.stdin.flush()
        answer: dict[str, float | str] = self._answer()
        return answer

    def __enter__(self) -> Side:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.communicate()

    def _answer(self):
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise SystemExit(f"the library's process ended with {self._process.wait()} before it answered")
        return json.loads(line)


def check_out(commit: str, folder: Path) -> Path:
    """The package as it was at `commit`."""
    archive = subprocess.run(
        ["git", "-C", str(HERE.parent), "archive", commit, "uds_lens"], check=True, capture_output=True
    )
    subprocess.run(["tar", "-x", "-C", str(folder)], input=archive.stdout, check=True)
    return folder


def main() -> None:
    """Parse, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("commit", help="the earlier commit")
    parser.add_argument("--shared", type=Path, default=Path("../shared"), help="folder with data/ and models/")
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--limit", type=int, default=0, help="only the first rows; 0 means all")
    parser.add_argument("--only", help="the one work whose name holds this text")
    asked = parser.parse_args()
    settings = {"shared": asked.shared.resolve(), "threads": asked.threads, "rows": asked.limit}
    with tempfile.TemporaryDirectory() as folder:
        earlier = check_out(asked.commit, Path(folder))
        with Side(HERE.parent, **settings) as side:
            works = [name for name in side.works if (asked.only or "") in name]
        print(f"{asked.threads} threads, {asked.rounds} rounds; before is {asked.commit}\n")
        columns = ("work", "s, before", "s, today", "today / before", "CPU", "GiB, before", "GiB, today")
        print(f"| {' | '.join(columns)} | score, before | score, today |")
        print("|---|---|---|---|---|---|---|---|---|")
        for work in works:
            with Side(earlier, **settings) as before, Side(HERE.parent, **settings) as today:
                rounds = [(before.do(work), today.do(work)) for _ in range(asked.rounds)]
            best = [min(float(turn[side]["seconds"]) for turn in rounds) for side in (0, 1)]
            wall, cpu = (
                statistics.median(float(new[key]) / float(old[key]) for old, new in rounds)
                for key in ("seconds", "cpu")
            )
            scores = " | ".join(str(side["score"]) for side in rounds[-1])
            peaks = " | ".join(f"{float(side['peak']) / (1 << 20):.2f}" for side in rounds[-1])
            print(
                f"| {work} | {best[0]:.2f} | {best[1]:.2f} | {wall:.2f} | {cpu:.2f} | {peaks} | {scores} |", flush=True
            )


if __name__ == "__main__":
    main()
