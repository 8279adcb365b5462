"""Is what is shallow what comes out? Probes of elicitation on small unlearned TOFU models, beside their depth.

    python benchmarks/elicit_models.py --models runs/unlearned
    python benchmarks/elicit_unlearned.py --models runs/unlearned --out runs/elicit-unlearned
    python benchmarks/elicit_unlearned.py --models runs/unlearned --out runs/elicit-unlearned --limit 100 \\
        --probes plain cloze start icl mask+icl aoa 'actpert(layer=3, antithetic=True)'

Every model of --models, and retain95, against retain90 and full: greedy, 64 tokens, forget10. Prints Markdown: what
comes out beyond retain with its interval over authors and its share, UDS, and Spearman's rho of UDS with what `cloze`
brings beyond retain, example by example. What is finished is kept in --out.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from elicit_models import rows

import uds_lens as ul
from uds_lens.elicitation import ElicitOptions, depth_correlation, elicit

PROBES = ("plain", "cloze")
RUN = ul.RunOptions(device="cpu", progress=False)


def depth_of(model: Path, baseline: ul.Baseline, out: Path) -> ul.DepthAudit:
    """The audit by patching; kept beside the elicitation."""
    place = out / "depth" / model.name
    if not place.is_dir():
        baseline.audit(model, options=RUN).save(place)
    return ul.DepthAudit.load(place)


def baseline_of(small: Path, scored: list[ul.ForgetExample], out: Path) -> ul.Baseline:
    """Stage 1, measured once."""
    place = out / "baseline"
    if not place.is_dir():
        ul.Baseline.measure(small / "full", small / "retain90", scored, options=RUN).save(place)
    return ul.Baseline.load(place)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shared", type=Path, default=Path("../shared"))
    parser.add_argument("--models", type=Path, default=Path("runs/unlearned"))
    parser.add_argument("--out", type=Path, default=Path("runs/elicit-unlearned"))
    parser.add_argument("--limit", type=int, default=None, help="examples, by author; default all 400")
    parser.add_argument("--only", nargs="*", help="names of models; default all of --models")
    parser.add_argument("--probes", nargs="*", default=PROBES)
    parser.add_argument("--threads", type=int, default=1)
    asked = parser.parse_args()
    torch.set_num_threads(asked.threads)
    small = asked.shared / "models/tofu-small"
    examples = rows(asked.shared, asked.limit)
    names = asked.only or sorted(place.name for place in asked.models.iterdir() if place.is_dir())
    models = [small / "retain95", *(asked.models / name for name in names)]
    baseline = baseline_of(small, [row for row in rows(asked.shared) if row.entity], asked.out)
    tables, correlations = [], []
    for model in models:
        found = elicit(
            model,
            examples,
            retain=small / "retain90",
            full=small / "full",
            probes=asked.probes,
            options=ElicitOptions(samples=0, max_new_tokens=64),
            run=RUN,
            out=asked.out,
        )
        depth = depth_of(model, baseline, asked.out)
        tables.append((model.name, depth, found))
        correlations.append(depth_correlation(found.with_depth(depth), probe="cloze"))
        print(f"{model.name} done", flush=True)
    first = tables[0][2].summary()
    print("\n| probe | full | retain90 | power P | asked |\n|---|---|---|---|---|")
    for row in first.itertuples():
        power = f"{row.power:+.3f} [{row.power_low:+.3f}, {row.power_high:+.3f}]"
        print(f"| {row.probe} | {row.full:.3f} | {row.retain:.3f} | {power} | {row.n} |")
    print("\n| model | UDS | probe | score | beyond retain B | adjusted p | share E |\n" + "|---" * 7 + "|")
    for name, depth, found in tables:
        told = f"{depth.uds:.3f}"
        for row in found.summary().itertuples():
            share = (
                "no power" if row.share != row.share else f"{row.share:.2f} [{row.share_low:.2f}, {row.share_high:.2f}]"
            )
            beyond = f"{row.beyond_retain:+.3f} [{row.beyond_low:+.3f}, {row.beyond_high:+.3f}]"
            print(f"| {name} | {told} | {row.probe} | {row.unlearned:.3f} | {beyond} | {row.p_holm:.2g} | {share} |")
    print("\n| model | UDS | 95% interval | rho of UDS with cloze B | 95% interval | examples |\n" + "|---" * 6 + "|")
    for (name, depth, _), rho in zip(tables, correlations, strict=True):
        low, high = depth.uds_interval
        print(
            f"| {name} | {depth.uds:.3f} | {low:.3f} to {high:.3f} | {rho.rho:+.2f} | "
            f"{rho.interval.low:+.2f} to {rho.interval.high:+.2f} | {rho.n} |"
        )


if __name__ == "__main__":
    main()
