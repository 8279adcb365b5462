"""How much "1.0" itself moves: the same audit against retain models of several seeds, on small TOFU models.

    python examples/retain_seeds_tofu_small.py --shared ../shared --out runs/retain_seeds

Trains `base` on retain90 once for each seed (10 epochs of 3600 answers, AdamW, peak 1e-3, as `retain90` of the shared
data folder was), which takes a quarter of an hour and more for each on one core. A model that is already in --out is
not trained again.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch

from uds_lens.unlearning import RelearnConfig, TrainOptions, relearn

SEEDS = (1, 2, 3)


def trained(seed: int, shared: Path, out: Path, mixed_precision: str) -> Path:
    """`base`, taught the retain set once more with this seed: another order, nothing else differs."""
    return relearn(
        shared / "models/tofu-small/base",
        shared / "data/tofu/retain90.json",
        out=out / f"retain90_seed{seed}",
        epochs=10,
        config=RelearnConfig(
            learning_rate=1e-3, warmup_epochs=3.0, schedule="cosine", weight_decay=0.01, seed=seed
        ),
        options=TrainOptions(device="cpu", mixed_precision=mixed_precision, save_dtype="bfloat16"),
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--shared", type=Path, default=Path("../shared"))
    parser.add_argument("--out", type=Path, default=Path("runs/retain_seeds"))
    parser.add_argument("--seeds", type=int, nargs="+", default=SEEDS)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--mixed-precision", default="bfloat16", help="no is slower on most CPUs")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    for seed in args.seeds:
        trained(seed, args.shared, args.out, args.mixed_precision)


if __name__ == "__main__":
    main()
