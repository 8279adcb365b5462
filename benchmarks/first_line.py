"""How long after its start `uds-lens audit` prints its first line: best, median and longest of ten.

python benchmarks/first_line.py --shared ../shared
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import tempfile
import time

from workloads import shared_parser


def main() -> None:
    """Start it, wait for the line, end it."""
    parser = shared_parser(__doc__)
    parser.add_argument("--repeats", type=int, default=10)
    asked = parser.parse_args()
    models = asked.shared / "models" / "tofu-small"
    data = asked.shared / "data" / "tofu" / "forget10_filtered.json"
    words = ["--full", models / "full", "--retain", models / "retain90", "--model", models / "retain95"]
    seconds, line = [], b""
    with tempfile.TemporaryDirectory() as folder:
        for number in range(asked.repeats):
            out = f"{folder}/{number}"
            begun = time.perf_counter()
            program = subprocess.Popen(
                [sys.executable, "-m", "uds_lens", "audit", *words, "--examples", data, "--out", out],
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
            )
            assert program.stderr is not None
            line = program.stderr.readline()
            seconds.append(time.perf_counter() - begun)
            program.kill()
            program.communicate()
    told = line.decode().strip()
    print(f"{told!r}: {min(seconds):.2f}, {statistics.median(seconds):.2f}, {max(seconds):.2f} s")


if __name__ == "__main__":
    main()
