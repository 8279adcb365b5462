"""Unlearned small TOFU models for the measurements of elicitation: trained where they are missing.

    python benchmarks/elicit_models.py --models runs/unlearned

The name of a model is its configuration (`uds_lens.unlearning.parse_name`); `_retain800` at its end means that only the
first 800 rows of retain90 were kept beside forget10. Arithmetic in float32.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path

import torch

import uds_lens as ul
from uds_lens.unlearning import TrainOptions, parse_name, read_record, unlearn

DETECTED = ("idknll_lr2e-04_alpha1_epoch4_retain800", "npo_lr2e-04_beta0.1_alpha1_epoch4_retain800")
"""One model that was taught to refuse and one that was not, trained alike."""

OTHERS = (
    "idknll_lr6e-04_alpha2_epoch3",
    "npo_lr3e-04_beta0.1_alpha5_epoch3",
    "simnpo_lr3e-04_beta4.5_alpha1_delta1_gamma0.125_epoch3",
    "rmu_lr1e-03_alpha5_layer4_scale30_epoch2",
    "graddiff_lr2e-04_alpha5_epoch3",
)
"""The settings of docs/results/elicitation.md."""


def trained(name: str, models: Path, shared: Path) -> Path:
    """The directory of a model; it is trained if it is not there."""
    out = models / name
    if out.is_dir():
        return out
    setting, _, rows = name.partition("_retain")
    retain = ul.load_examples(shared / "data/tofu/retain90.json")
    unlearn(
        shared / "models/tofu-small/full",
        shared / "data/tofu/forget10.json",
        retain[: int(rows)] if rows else retain,
        method=parse_name(setting),
        out=out,
        options=TrainOptions(device="cpu", checkpoint_every=0, progress=False),
    )
    record = read_record(out)
    print(f"{name}: {record['steps']} steps, {record['seconds']:.0f} s", flush=True)
    return out


def rows(shared: Path, limit: int | None = None) -> list[ul.ForgetExample]:
    """forget10 with the author's name, and the entity where one was marked (367 of 400 rows); or a sample by author."""
    marked = {row.id: row for row in ul.data.load_tofu(shared / "data/tofu", "forget10_filtered")}
    whole = ul.data.load_tofu(shared / "data/tofu", "forget10")
    joined = []
    for row in ul.data.with_author_names(whole):
        known = marked.get(row.id, row)
        joined.append(replace(row, prefix=known.prefix, entity=known.entity, type=known.type))
    return joined if limit is None else ul.data.sample_examples(joined, limit)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shared", type=Path, default=Path("../shared"))
    parser.add_argument("--models", type=Path, default=Path("runs/unlearned"))
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--only", nargs="*", default=[*DETECTED, *OTHERS])
    asked = parser.parse_args()
    torch.set_num_threads(asked.threads)
    for name in asked.only:
        trained(name, asked.models, asked.shared)


if __name__ == "__main__":
    main()
