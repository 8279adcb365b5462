"""How large the two pages are, and how long a browser takes to open them.

    python benchmarks/page_opening.py

The dashboard is that of the UDS paper's 152 models, the report one of 20 audits (400 examples, 32 layers).
Every first open is that of a browser just started, with an empty profile; then the same page again in the same
browser. A page is open when its first figures are drawn and the switches work. Prints Markdown.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
from pathlib import Path

import uds_lens as ul

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))


def opened(page: Path, rounds: int) -> tuple[list[float], list[float]]:
    """Seconds of first and of second opens."""
    from report.chromium import Chromium

    first, again = [], []
    for _ in range(rounds):
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
            browser = Chromium(Path(profile))
            try:
                first.append(browser.open(page))
                again.append(browser.open(page))
                if browser.problems or any(not url.startswith(("file:", "data:")) for url in browser.requests):
                    raise SystemExit(f"{page.name}: {browser.problems or browser.requests}")
            finally:
                browser.close()
    return first, again


def main() -> None:
    """Parse, measure, print."""
    from synthetic_audits import synthetic_audit

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        config = ul.AuditConfig(n_bootstrap=100)
        many = {f"m{i}": synthetic_audit(n=400, layers=32, seed=i, erased=i / 20, config=config) for i in range(20)}
        pages = {
            "dashboard, 152 published models": ul.report.dashboard(
                ul.meta.read_published(), Path(folder) / "dashboard.html"
            ),
            "report, 20 audits of 400 examples and 32 layers": ul.report.write(many, Path(folder) / "report.html"),
        }
        print("| page | MB | s, first open: median (slowest) | s, again: median (slowest) | rounds |")
        print("|---|---|---|---|---|")
        for name, page in pages.items():
            shown = [f"{statistics.median(all_):.2f} ({max(all_):.2f})" for all_ in opened(page, asked.rounds)]
            print(f"| {name} | {page.stat().st_size / 1e6:.2f} | {' | '.join(shown)} | {asked.rounds} |")


if __name__ == "__main__":
    main()
