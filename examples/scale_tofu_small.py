"""What 0 and 1 mean, on small TOFU models: how much 1 moves with the seed of the retain model, and base instead of one.

    python examples/scale_tofu_small.py --shared ../shared --unlearned runs/tofu_small/models --out runs/scale

Trains `base` on retain90 once for each seed: AdamW, one cycle with its peak at 1e-3, as `retain90` of the shared data
folder was trained, for 2 epochs of 3600 answers instead of 10. That takes about three minutes for each on a core of its
own. A model that is already in --out is not trained again. Then audits models against all of these retain models at
once, and against `base` in their place (`--seeds` without numbers: that alone). Prints Markdown tables.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Literal

import torch

import uds_lens as ul
from uds_lens.unlearning import RelearnConfig, TrainOptions, relearn

SEEDS = (1, 2, 3)
EPOCHS = 2
REFERENCES = ("full", "retain99", "retain95", "retain90", "base")


def trained(seed: int, shared: Path, out: Path, mixed_precision: Literal["no", "bfloat16", "float16"]) -> Path:
    """`base`, taught the retain set once more with this seed: another order, nothing else differs."""
    return relearn(
        shared / "models/tofu-small/base",
        shared / "data/tofu/retain90.json",
        out=out / f"retain90_seed{seed}",
        config=RelearnConfig(
            epochs=EPOCHS,
            learning_rate=1e-3,
            warmup_epochs=0.3 * EPOCHS,
            schedule="cosine",
            weight_decay=0.01,
            seed=seed,
        ),
        options=TrainOptions(device="cpu", mixed_precision=mixed_precision, save_dtype="bfloat16"),
    )


def audited(retain: list[Path], models: dict[str, Path], shared: Path, **settings) -> dict[str, ul.DepthAudit]:
    """Audits of all models against one scale."""
    options = ul.RunOptions(device="cpu")
    baseline = ul.Baseline.measure(
        shared / "models/tofu-small/full",
        retain,
        ul.load_examples(shared / "data/tofu/forget10_filtered.json"),
        config=ul.AuditConfig(**settings),
        options=options,
    )
    return dict(zip(models, baseline.audit_all(list(models.values()), options=options), strict=True))


def seeds_table(audits: dict[str, ul.DepthAudit], names: list[str]) -> str:
    """Score against the mean of all retain models, and against each."""
    lines = [
        "| unlearned | mean S1 | 95% interval |" + "".join(f" {name} |" for name in names) + " lowest to highest |",
        "|---" * (4 + len(names)) + "|",
    ]
    for name, audit in audits.items():
        (low, high), (least, most, _) = audit.uds_interval, audit.retain_spread
        each = "".join(f" {uds:.3f} |" for uds in audit.uds_by_retain)
        lines.append(f"| {name} | {audit.uds:.3f} | {low:.3f} to {high:.3f} |{each} {least:.3f} to {most:.3f} |")
    return "\n".join(lines)


def stand_in_table(real: dict[str, ul.DepthAudit], base: dict[str, ul.DepthAudit]) -> str:
    """Score against retain90 and against base."""
    lines = [
        "| unlearned | against retain90 | 95% interval | against base | 95% interval | measured |",
        "|---" * 6 + "|",
    ]
    for name, audit in real.items():
        other = base[name]
        cells = [
            f"{each.uds:.3f} | {each.uds_interval.low:.3f} to {each.uds_interval.high:.3f}" for each in (audit, other)
        ]
        lines.append(f"| {name} | {cells[0]} | {cells[1]} | {audit.n_measured}, {other.n_measured} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shared", type=Path, default=Path("../shared"))
    parser.add_argument("--unlearned", type=Path, help="folder of models made by unlearn_tofu_small.py")
    parser.add_argument("--out", type=Path, default=Path("runs/scale"))
    parser.add_argument("--seeds", type=int, nargs="*", default=SEEDS)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument(
        "--mixed-precision", choices=["no", "bfloat16", "float16"], default="bfloat16", help="no is slower on most CPUs"
    )
    parser.add_argument("--no-audit", action="store_true", help="stop after training")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    seeds = {f"seed {seed}": trained(seed, args.shared, args.out, args.mixed_precision) for seed in args.seeds}
    if args.no_audit:
        return
    source = args.shared / "models/tofu-small"
    models = {name: source / name for name in REFERENCES}
    if args.unlearned:
        models |= {place.name.split("_")[0]: place for place in sorted(args.unlearned.iterdir()) if place.is_dir()}
    if seeds:
        retains = {"retain90": source / "retain90", **seeds}
        several = audited(list(retains.values()), {**models, **seeds}, args.shared)
        print(seeds_table(several, list(retains)), flush=True)
        print(several["full"].retains_frame()[["retain", "s1_mean"]], flush=True)
    real = audited([source / "retain90"], models, args.shared)
    base = audited([source / "base"], models, args.shared, stand_in="base")
    print(stand_in_table(real, base))
    print({"S1, retain90": float(real["full"].s1_delta.mean()), "S1, base": float(base["full"].s1_delta.mean())})


if __name__ == "__main__":
    main()
