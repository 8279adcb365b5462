"""Does elicitation say 0 of retain, 1 of full, and "no power" where full itself says nothing?

    python benchmarks/elicit_controls.py --out runs/elicit-controls --probes plain cloze
    python benchmarks/elicit_controls.py --out runs/elicit-controls --probes aoa icl --limit 60

Asks the small TOFU models greedily, 64 tokens, on forget10: retain90 against itself, full against itself,
`plain` beside the metric `rouge` at that length, and probes under which even full says little. Prints Markdown. Parts
that are finished are kept in --out.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import torch
from elicit_models import rows

import uds_lens as ul
from uds_lens.elicitation import ElicitOptions, elicit

PROBES = ("plain", "cloze", "aoa", "icl")
TOKENS = 64


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shared", type=Path, default=Path("../shared"))
    parser.add_argument("--out", type=Path, default=Path("runs/elicit-controls"))
    parser.add_argument("--limit", type=int, default=None, help="questions, by author; default all 400")
    parser.add_argument("--probes", nargs="*", default=PROBES)
    parser.add_argument("--threads", type=int, default=1)
    asked = parser.parse_args()
    torch.set_num_threads(asked.threads)
    examples = rows(asked.shared, asked.limit)
    models = asked.shared / "models/tofu-small"
    options = ElicitOptions(samples=0, max_new_tokens=TOKENS)
    found = {
        name: elicit(
            models / name,
            examples,
            retain=models / "retain90",
            full=models / "full",
            probes=asked.probes,
            options=options,
            run=ul.RunOptions(device="cpu", progress=False),
            out=asked.out,
        )
        for name in ("full", "retain90")
    }
    own, full = found["retain90"].summary(), found["full"].summary()
    print(f"retain90 against itself: largest |B| {own['beyond_retain'].abs().max()}")
    powered = full["share"].notna()
    shares = sorted(set(full.loc[powered, "share"]))
    print(f"full against itself: shares {shares}, {int((~powered).sum())} without power")
    for name, results in found.items() if "plain" in asked.probes else ():
        measured = ul.metrics.evaluate(
            models / name,
            examples,
            metrics=["rouge"],
            options=ul.metrics.MetricOptions(max_new_tokens=TOKENS),
            run=ul.RunOptions(device="cpu", progress=False),
        )["rouge"]
        ours = results.mean("unlearned", "plain")
        theirs = np.array(measured.per_example, dtype=float)
        print(
            f"{name}: plain {np.nanmean(ours):.4f}, rouge {measured.value:.4f}, largest difference of an example "
            f"{np.abs(ours - theirs).max():.2g}"
        )
    print("\n| probe | full | retain90 | power P | share of full | asked |\n|---|---|---|---|---|---|")
    for row in full.itertuples():
        share = "no power" if row.share != row.share else f"{row.share:.2f}"
        print(
            f"| {row.probe} | {row.full:.3f} | {row.retain:.3f} | {row.power:+.3f} "
            f"[{row.power_low:+.3f}, {row.power_high:+.3f}] | {share} | {row.n} |"
        )
    print()
    for sentence in found["full"].warnings:
        print(f"! {sentence}")


if __name__ == "__main__":
    main()
