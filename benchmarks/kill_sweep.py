"""Kill a sweep of the toy world at random moments, and compare its table with that of a sweep nobody killed.

    python benchmarks/kill_sweep.py --kills 20

Two sweeps at a time share the directory. Each round both are killed (SIGKILL) after a random time; then two more
begin. The last round is left alone. The table must have each row once and be equal to the other, but for the seconds.
"""

from __future__ import annotations

import argparse
import importlib
import os
import random
import signal
import tempfile
import time
from pathlib import Path

import torch
from forking import forked

import uds_lens as ul

PLAN = {
    "name": "kill",
    "full": "toy:full",
    "retain": "toy:retain",
    "data": {"forget": "toy:forget", "holdout": "toy:holdout", "limit": 12},
    "train": {"forget": [{"source": "toy:forget", "sample": 16}], "retain": [{"source": "toy:retain", "sample": 16}]},
    "pool": [
        {
            "variant": "biographies",
            "knows": True,
            "start": "toy:retain",
            "data": [{"source": "toy:forget", "answers": "biography"}],
            "settings": {"learning_rate": [1e-3, 2e-3], "epochs": 4, "batch_size": 8},
        }
    ],
    "unlearn": [
        {"method": "npo", "settings": {"learning_rate": [1e-3, 2e-3], "epochs": 2, "batch_size": 8}},
        {"method": "simnpo", "settings": {"learning_rate": [1e-3, 2e-3], "epochs": 2, "batch_size": 8}},
    ],
    "perturb": {
        "quantise": True,
        "relearn": {"settings": {"learning_rate": 1e-3, "batch_size": 8}, "retain_seeds": [0, 1]},
    },
    "measure": {"metrics": ["es", "em", "mia_min_k", "uds"]},
    "keep_models": False,
}


def child(out: Path) -> int:
    """A sweep in a process of its own."""
    return forked(lambda: ul.study.run(PLAN, out))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args()
    torch.set_num_threads(1)
    order = random.Random(asked.seed)
    for name in ("transformers", "transformer_lens", "uds_lens.study._run", "uds_lens.unlearning._trainer"):
        importlib.import_module(
            name
        )  # once, so that the moments fall into work; nothing of torch runs before the forks
    with tempfile.TemporaryDirectory() as place:
        calm, killed = Path(place) / "calm", Path(place) / "killed"
        began = time.time()
        os.waitpid(child(calm), 0)
        took = time.time() - began
        expected = ul.study.table(calm)
        found = []
        for _ in range(asked.kills):
            workers = [child(killed), child(killed)]
            moment = order.uniform(0.05, 2.5 * took / asked.kills)
            time.sleep(moment)
            for worker in workers:
                os.kill(worker, signal.SIGKILL)
                os.waitpid(worker, 0)
            if (killed / "manifest.json").is_file():
                found.append(ul.study.status(killed).done)
        os.waitpid(child(killed), 0)
        table, files = ul.study.table(killed), len(list((killed / "parts").glob("*/manifest.json")))
        state = ul.study.status(killed)
        left = [str(p.relative_to(killed)) for name in ("models", "scratch") for p in (killed / name).glob("*")]
    timeless = [column for column in expected if column != "seconds"]
    keys = ["model_id", "state", "seed", "metric"]
    same = table[timeless].equals(expected[timeless])
    print(
        f"{asked.kills} kills, done after each: {found}; at the end {state}; {len(table)} rows of {len(expected)}, "
        f"{int(table.duplicated(keys).sum())} twice, {files} parts, weights left over: {len(left)}; "
        f"{'the table is equal' if same else 'THE TABLE DIFFERS'}"
    )
    if not same:
        unlike = (table[timeless] != expected[timeless]) & (table[timeless].notna() | expected[timeless].notna())
        print(table[unlike.any(axis=1)].to_string(), expected[unlike.any(axis=1)].to_string(), sep="\n")
    if not same or not state.is_complete or table.duplicated(keys).any():
        raise SystemExit(1)


if __name__ == "__main__":
    main()
