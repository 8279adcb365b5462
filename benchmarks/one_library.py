"""One library's side of `compare_commits.py`: opens a trio, then does each work it is told, once per line of input.

It uses only calls that every release has, so that an earlier commit's library runs it as well as today's. What it
prints is one JSON object a line.
"""

from __future__ import annotations

import json
import resource
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch

import uds_lens as ul


def last_loss(model: Path, examples: list[ul.ForgetExample]) -> float:
    """Train for one epoch and throw the result away; the loss of the last step."""
    options = ul.unlearning.TrainOptions(device="cpu", progress=False, checkpoint_every=0)
    with tempfile.TemporaryDirectory() as folder:
        trained = ul.unlearning.relearn(model, examples, out=Path(folder) / "relearned", options=options)
        return float(ul.unlearning.read_record(trained)["loss_curve"][-1]["loss"])


def main() -> None:
    """Arguments: the shared folder, the number of threads, the number of rows (0: all)."""
    shared, threads, limit = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    torch.set_num_threads(threads)
    models = shared / "models" / "tofu-small"
    examples = ul.load_examples(shared / "data" / "tofu" / "forget10_filtered.json")[: limit or None]
    data = ul.metrics.load_tofu_data(shared / "data" / "tofu", split="forget10")
    options = ul.RunOptions(progress=False, check_memory=False, device="cpu")
    with (
        ul.open_model(models / "full", device="cpu") as full,
        ul.open_model(models / "retain90", device="cpu") as retain,
        ul.open_model(models / "retain95", device="cpu") as unlearned,
    ):
        baseline = ul.Baseline.measure(full, retain, examples, options=options)
        with baseline.recorded(options=options) as recorded:
            works: dict[str, Callable[[], float]] = {
                "whole audit": lambda: ul.DepthAudit.run(full, retain, unlearned, examples, options=options).uds,
                "one more model, full recorded again": lambda: baseline.audit(unlearned, options=options).uds,
                "one more model, recording kept": lambda: recorded.audit(unlearned).uds,
                "the same from directories, opening included": lambda: (
                    ul.DepthAudit.run(
                        models / "full", models / "retain90", models / "retain95", examples, options=options
                    ).uds
                ),
                "Extraction Strength and Probability": lambda: (
                    ul.metrics.evaluate(models / "retain95", data, metrics=["es", "prob"], run=options)["prob"].value
                ),
                "one epoch of relearning": lambda: last_loss(models / "retain90", examples),
            }
            print(json.dumps(list(works)), flush=True)
            for line in sys.stdin:
                begun, spent = time.perf_counter(), time.process_time()
                score = works[line.strip()]()
                seconds, cpu = time.perf_counter() - begun, time.process_time() - spent
                peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss  # of the process so far, in KiB
                print(json.dumps({"seconds": seconds, "cpu": cpu, "score": repr(score), "peak": peak}), flush=True)


if __name__ == "__main__":
    main()
