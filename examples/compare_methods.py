"""Do two unlearning methods differ? Several models against one baseline, fact by fact.

    python examples/compare_methods.py                                  # the toy world: offline, under a minute
    python examples/compare_methods.py --full ckpt/full --retain ckpt/retain --examples forget10.json \\
        --unlearned npo=ckpt/npo rmu=ckpt/rmu --out runs/compare

Prints the ranking, whether it depends on the threshold, and for each pair of models the mean difference of their facts'
scores with its interval. All models were asked the same facts, so differences are sharper than two intervals.
"""

from __future__ import annotations

import argparse
from itertools import combinations
from pathlib import Path

import pandas as pd

import uds_lens as ul


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--full", help="model trained on everything; default: the toy world")
    parser.add_argument("--retain", help="model that never saw the forget set")
    parser.add_argument("--examples", help="forget set with entities")
    parser.add_argument("--control", help="facts that full and retain both know, with entities")
    parser.add_argument("--unlearned", nargs="+", default=[], metavar="NAME=MODEL")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--out", type=Path, default=Path("runs/compare"))
    asked = parser.parse_args()
    given = [asked.full, asked.retain, asked.examples, asked.unlearned]
    if any(given) and not all(given):
        parser.error("name --full, --retain, --examples and --unlearned together, or none of them")

    if asked.full:
        full, retain, examples = asked.full, asked.retain, ul.load_examples(asked.examples)
        control = None if asked.control is None else ul.load_examples(asked.control)
        models = dict(word.split("=", maxsplit=1) for word in asked.unlearned)
    else:
        world = ul.toy.load()
        full, retain, examples, models = world.full, world.retain, world.examples, dict(world.unlearned)
        control = world.retain_examples[::4]  # facts that full and retain both know
    options = ul.RunOptions(device=asked.device)
    baseline = ul.Baseline.measure(full, retain, examples, control=control, options=options)
    audits = dict(zip(models, baseline.audit_all(list(models.values()), options=options), strict=True))

    print(ul.results.models_frame(audits).sort_values("uds").round(3).to_string(index=False))
    if control is not None:
        print("\nLoss on facts that were to be kept, as a share of the loss on forget facts:")
        print(damage(audits).round(4).to_string(index=False))
    if len(audits) > 2:
        print("\nRank correlation with the order above, by threshold:")
        print(ul.results.tau_rank_correlation(audits).round(3).to_string(index=False))
    print("\nMean difference per fact, 95% interval:")
    print(differences(audits).round(3).to_string(index=False))
    for name, audit in audits.items():
        for sentence in audit.warnings:
            print(f"! {name}: {sentence}")
    asked.out.mkdir(parents=True, exist_ok=True)
    print("\npage:", ul.report.write(audits, asked.out / "report.html"))


def damage(audits: dict[str, ul.DepthAudit]) -> pd.DataFrame:
    """One row per model: damage with its interval, and the losses it is made of."""
    found = {name: audit.damage_estimate for name, audit in audits.items()}
    return pd.DataFrame(
        {
            "model": list(found),
            "damage": [each.value for each in found.values()],
            "low": [each.interval.low for each in found.values()],
            "high": [each.interval.high for each in found.values()],
            "forget_loss": [each.forget_loss for each in found.values()],
            "control_loss": [each.control_loss for each in found.values()],
        }
    )


def differences(audits: dict[str, ul.DepthAudit]) -> pd.DataFrame:
    """One row per pair: mean of the facts' differences, over the facts that are measurable, and its interval."""
    rows = []
    for first, second in combinations(audits, 2):
        apart = audits[first].uds_per_example - audits[second].uds_per_example
        low, high = ul.results.bootstrap_interval(apart, clusters=audits[first].subjects, bounds=(-1.0, 1.0))
        rows.append({"first": first, "second": second, "difference": float(apart.nanmean()), "low": low, "high": high})
    return pd.DataFrame(rows, columns=["first", "second", "difference", "low", "high"])


if __name__ == "__main__":
    main()
