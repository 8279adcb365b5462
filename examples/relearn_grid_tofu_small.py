"""Relearn four unlearned models over a grid of settings, with retain90 as control, as docs/results/methods.md tells.

    python examples/depth_while_training.py --shared ../shared --out runs/depth_while_training --seeds 0
    python examples/relearn_grid_tofu_small.py --shared ../shared --models runs/depth_while_training/models

Written down before it was run: with the paper's setting, whose learning rate is one for larger models, less than 0.02
of EM comes back anywhere. The worst setting that keeps 80% of the utility brings back at least 0.1 of every model, and
its excess over retain's own worst, with settings chosen on one half of the authors and scored on the other, is largest
for IdkNLL, the shallowest of the four.

A part (--only NPO --rates 3e-4) is a process that can run beside others; --table puts all parts together.
"""

from __future__ import annotations

import argparse
import shutil
from pathlib import Path

import torch

import uds_lens as ul
from uds_lens.study import RelearnGrid, RelearnGridResults
from uds_lens.unlearning import TrainOptions

METHODS = ("NPO", "SimNPO", "IdkNLL", "RMU")
RATES, EPOCHS, SHARES = (1e-4, 3e-4, 1e-3), (1, 3), (0.25, 1.0)


def relearned(method: str, rates: tuple[float, ...], arguments: argparse.Namespace, out: Path) -> RelearnGridResults:
    """Relearn one model, and retain90, with some learning rates; what `out` holds is not measured again."""
    return ul.study.relearn_grid(
        arguments.models / f"{method}-seed0",
        arguments.shared / "models/tofu-small/retain90",
        ul.metrics.open_metric_data(f"tofu:{arguments.shared / 'data/tofu'}"),
        out=out,
        grid=RelearnGrid(learning_rate=rates, epochs=EPOCHS, share=SHARES),
        options=TrainOptions(device=arguments.device, progress=False),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--shared", type=Path, default=Path("../shared"))
    parser.add_argument("--models", type=Path, default=Path("runs/depth_while_training/models"))
    parser.add_argument("--out", type=Path, default=Path("runs/relearn_grid"))
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--only", nargs="*", default=METHODS, help="methods to relearn")
    parser.add_argument("--rates", nargs="*", type=float, default=RATES, help="learning rates of this part")
    parser.add_argument("--table", action="store_true", help="put all parts together")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    found = {}
    for method in arguments.only:
        if arguments.table:
            whole = arguments.out / method / "measured"
            whole.mkdir(parents=True, exist_ok=True)
            for file in arguments.out.glob(f"{method}-*/measured/*.json"):
                shutil.copy(file, whole)
            found[method] = relearned(method, RATES, arguments, arguments.out / method)
        else:
            for rate in arguments.rates:
                relearned(method, (rate,), arguments, arguments.out / f"{method}-{rate:g}")
    if found:
        print(table(found))


def table(found: dict[str, RelearnGridResults]) -> str:
    """The results as Markdown."""
    lines = [
        "| model | EM before | the paper's setting | worst setting | there | utility lost | retain90, its own worst "
        "| excess | chosen and scored on other authors |",
        "|---" * 9 + "|",
    ]
    for method, results in found.items():
        row, worst = results.summary(), results.worst("unlearned")
        setting, lost = ("none", "-") if worst is None else (worst["setting"], f"{100 * worst['utility_loss']:.0f}%")
        lines.append(
            f"| {method} | {row['unlearned_before']:.3f} | {row['unlearned_paper_after']:.3f} | {setting} | "
            f"{row['unlearned_worst_after']:.3f} | {lost} | {row['retain_worst_after']:.3f} "
            f"({row['retain_worst_setting']}) | {row['excess']:.3f} [{row['excess_low']:.3f}, {row['excess_high']:.3f}]"
            f" | {row['held_out_excess']:.3f} |"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    main()
