"""Beside the study, on its first 100 rows of each set: the same models on all rows.

    python studies/tofu_small/full_size.py runs/tofu_small runs/full_size

Prints Markdown: for each metric the largest difference, and the rank correlation over the models that both hold.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import pandas as pd

import uds_lens as ul


def values(study: Path) -> tuple[pd.DataFrame, pd.Series]:
    """Values before anything is done to a model, one row per model; and the models' fingerprints."""
    table = ul.study.table(study)
    before = table[table["state"] == "before"]
    wide = before.pivot(index="model_id", columns="metric", values="value")
    return wide, before.drop_duplicates("model_id").set_index("model_id")["fingerprint"]


def main() -> None:
    """Compare what both hold."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("study", type=Path, help="of plan.toml")
    parser.add_argument("whole", type=Path, help="of full_size.toml")
    asked = parser.parse_args()
    (some, made), (every, again) = values(asked.study), values(asked.whole)
    both = every.index.intersection(some.index)
    alike = int((made[both] == again[both]).sum())
    print(f"{len(both)} models in both; {alike} of them are the same weights, byte for byte.\n")
    print("| metric | mean, first 100 | mean, all | largest difference | Spearman |\n|---|---|---|---|---|")
    for metric in every.columns.intersection(some.columns):
        pair = pd.DataFrame({"some": some.loc[both, metric], "every": every.loc[both, metric]}).dropna()
        if pair.empty:
            print(f"| {metric} | | | | |")
            continue
        apart = (pair["some"] - pair["every"]).abs().max()
        order = pair["some"].corr(pair["every"], method="spearman")
        print(f"| {metric} | {pair['some'].mean():.3f} | {pair['every'].mean():.3f} | {apart:.3f} | {order:.2f} |")


if __name__ == "__main__":
    main()
