"""Compare what `DepthCallback` says its measurements will take with what they take: `python benchmarks/depth_cost.py`.

A toy model (with --shared DIR the small TOFU Llama) unlearns for --steps epochs of few facts and is measured at every
step, on 48 forget and 48 retained facts. On a machine that is shared with other work, --clock cpu counts the time of
the processor and not that of the wall.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path

import torch

import uds_lens as ul
from uds_lens.unlearning import TrainOptions, make_config, unlearn


def asked(shared: Path | None) -> tuple[Path, Path, list[ul.ForgetExample], list[ul.ForgetExample]]:
    """Return full, retain, forget facts and retained ones."""
    if shared is None:
        world = ul.toy.load()
        return world.full, world.retain, list(world.examples), list(world.retain_examples[: len(world.examples)])
    models, tofu = shared / "models/tofu-small", shared / "data/tofu"
    forget = ul.data.sample_examples(ul.load_examples(tofu / "forget10_filtered.json"), 48)
    known = ul.annotate(ul.load_tofu(tofu, "retain_perturbed"), by="difference").examples
    return models / "full", models / "retain90", list(forget), list(ul.data.sample_examples(known, 48))


def main() -> None:
    """Print told and measured seconds as Markdown."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--shared", type=Path)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--clock", choices=("wall", "cpu"), default="wall")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    if arguments.clock == "cpu":
        time.perf_counter = time.process_time
    run = ul.RunOptions(device="cpu", progress=False)
    full, retain, forget, kept = asked(arguments.shared)
    baseline = ul.Baseline.measure(full, retain, forget, control=kept, options=run)
    config = make_config("npo", {"epochs": arguments.steps, "batch_size": 8, "learning_rate": 3e-4, "warmup_epochs": 0})
    print(f"| repetition | measurements | told, s | measured, s | ratio |\n{'|---' * 5}|")
    for number in range(1, arguments.repeats + 1):
        depth = ul.training.DepthCallback(baseline, every=1, options=run)
        options = TrainOptions(device="cpu", progress=False, callbacks=(depth,), checkpoint_every=0)
        with tempfile.TemporaryDirectory() as folder:
            unlearn(full, forget[:8], kept[:8], method=config, out=Path(folder) / "out", options=options)
        told, spent = depth.seconds_estimated, sum(point.seconds for point in depth.curve.points)
        print(f"| {number} | {len(depth.curve.points)} | {told:.2f} | {spent:.2f} | {spent / told:.3f} |", flush=True)


if __name__ == "__main__":
    main()
