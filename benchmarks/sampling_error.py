"""Does the error that is printed with `--limit` match how far samples lie from the full set?

    python benchmarks/sampling_error.py --shared ../shared

Audits small Llamas on all of TOFU's forget10, draws many samples of the scores as `limit` does, and compares the
spread of their UDS with the standard error that each sample reports, and how often its interval holds the UDS of all.
No model runs more than once.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np

import uds_lens as ul
from uds_lens.results._intervals import sample_error

LIMITS = (20, 30, 40, 60, 120, 240)
UNLEARNED = ("retain99", "retain95", "base")


def main() -> None:
    """Audit, draw, print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shared", type=Path, required=True, help="folder with models/tofu-small and data/tofu")
    parser.add_argument("--draws", type=int, default=1000)
    asked = parser.parse_args()
    models, examples = (
        asked.shared / "models/tofu-small",
        ul.data.load_tofu(asked.shared / "data/tofu", "forget10_filtered"),
    )
    draws = {
        limit: [[e.id for e in ul.data.sample_examples(examples, limit, seed=seed)] for seed in range(asked.draws)]
        for limit in LIMITS
    }
    baseline = ul.Baseline.measure(models / "full", models / "retain90", examples)
    print(
        "| unlearned | UDS, all | interval over authors, width | limit | spread of samples | standard error reported "
        "| ratio | 95% intervals that cover UDS of all |\n|---|---|---|---|---|---|---|---|"
    )
    for unlearned in UNLEARNED:
        audit = baseline.audit(models / unlearned)
        place, scores = {e.id: i for i, e in enumerate(audit.examples)}, audit.uds_per_example
        for limit in LIMITS:
            means, errors, held = [], [], []
            for drawn in draws[limit]:
                kept = [place[name] for name in drawn if name in place]
                values = scores[kept]
                found = sample_error(
                    values,
                    of=len(examples),
                    drawn=limit,
                    subjects=[audit.examples[i].subject for i in kept],
                    bounds=(0.0, 1.0),
                )
                means.append(float(values.nanmean()))
                errors.append(found.standard_error)
                held.append(found.interval.low <= audit.uds <= found.interval.high)
            spread = float(np.std(means, ddof=1))
            error = float(np.sqrt(np.mean(np.square(errors))))
            low, high = audit.uds_interval
            print(
                f"| {unlearned} | {audit.uds:.3f} | {high - low:.3f} | {limit} | {spread:.4f} | {error:.4f} "
                f"| {error / spread:.2f} | {np.mean(held):.1%} |"
            )


if __name__ == "__main__":
    main()
