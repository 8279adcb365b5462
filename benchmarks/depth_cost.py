"""Compare what `DepthCallback` says its measurements will take with what they take: `python benchmarks/depth_cost.py`.

A toy model unlearns for --steps steps and is measured every --every, on 48 forget and 48 retained facts. One row per
repetition; the first includes what a process does once. On a machine that is shared with other work, --clock cpu counts
the time of the processor and not that of the wall.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path

import torch

import uds_lens as ul
from uds_lens.unlearning import TrainOptions, make_config, unlearn


def main() -> None:
    """Print told and measured seconds as Markdown."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--every", type=int, default=3)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--clock", choices=("wall", "cpu"), default="wall")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    if arguments.clock == "cpu":
        time.perf_counter = time.process_time
    world, run = ul.toy.load(), ul.RunOptions(device="cpu", progress=False)
    kept = world.retain_examples[: len(world.examples)]
    baseline = ul.Baseline.measure(world.full, world.retain, world.examples, control=kept, options=run)
    config = make_config("npo", {"epochs": arguments.steps, "batch_size": len(kept), "learning_rate": 1e-3})
    print(f"| repetition | measurements | told, s | measured, s | ratio |\n{'|---' * 5}|")
    for number in range(1, arguments.repeats + 1):
        depth = ul.training.DepthCallback(baseline, every=arguments.every, options=run)
        options = TrainOptions(device="cpu", progress=False, callbacks=(depth,), checkpoint_every=0)
        with tempfile.TemporaryDirectory() as folder:
            unlearn(world.full, world.examples, kept, method=config, out=Path(folder) / "out", options=options)
        told, spent = depth.seconds_told, sum(point.seconds for point in depth.curve.points)
        print(f"| {number} | {len(depth.curve.points)} | {told:.2f} | {spent:.2f} | {spent / told:.3f} |", flush=True)


if __name__ == "__main__":
    main()
