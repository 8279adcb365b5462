"""The audit on real input: TOFU forget10 and small Llamas that saw all, some or none of it.

    python examples/audit_tofu_small.py --models ../shared/models/tofu-small --data ../shared/data/tofu

`full` saw the whole forget set, retain99, retain95 and retain90 all but 1%, 5% and 10% of TOFU; forget10 is what
retain90 never saw. Taken as "unlearned" models they must rank full < retain99 < retain95 < retain90, with full at 0
and retain90 at 1 (Table 2 of the UDS paper has the same order for Llama-3). Prints a Markdown table.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import uds_lens as ul

UNLEARNED = ("full", "retain99", "retain95", "retain90")


def main() -> None:
    """Measure the baseline once, audit the four models, print the table, check the order."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", type=Path, required=True, help="folder with full, retain90, retain95, retain99")
    parser.add_argument("--data", type=Path, required=True, help="folder with forget10_filtered.json")
    parser.add_argument("--limit", type=int, default=None, help="a random sample of so many rows")
    parser.add_argument("--dtypes", nargs="+", default=["float32"], help="also bfloat16, float16")
    parser.add_argument("--last-layer", default="resid_post", help="post_norm reproduces the released script")
    args = parser.parse_args()
    examples = ul.load_examples(args.data / "forget10_filtered.json", limit=args.limit)
    print("| dtype | unlearned | UDS | 95% interval | measured | not measurable | raw LER > 1 | raw LER < 0 |")
    print("|---|---|---|---|---|---|---|---|")
    for dtype in args.dtypes:
        config = ul.AuditConfig(dtype=dtype, last_layer=args.last_layer)
        begun = time.perf_counter()
        baseline = ul.Baseline.measure(args.models / "full", args.models / "retain90", examples, config=config)
        audits = baseline.audit_all([args.models / name for name in UNLEARNED])
        seconds = time.perf_counter() - begun
        for name, audit in zip(UNLEARNED, audits, strict=True):
            low, high = audit.uds_interval
            print(
                f"| {dtype} | {name} | {audit.uds:.4f} | {low:.3f} to {high:.3f} | {audit.n_measured} | "
                f"{audit.n_not_measurable} | {audit.over_erased_share:.1%} | {audit.negative_share:.1%} |"
            )
        print(f"\n{dtype}: baseline and four audits in {seconds:.1f} s, engine {baseline.provenance['engine']}\n")
        scores = [audit.uds for audit in audits]
        if scores != sorted(set(scores)):
            raise SystemExit(f"the order full < retain99 < retain95 < retain90 does not hold: {scores}")


if __name__ == "__main__":
    main()
