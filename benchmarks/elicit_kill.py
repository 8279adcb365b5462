"""Kill an elicitation (SIGKILL) while it runs, and see that what was finished is not asked again.

    python benchmarks/elicit_kill.py --kills 6

The toy world, three models, four probes, greedy and sampled. After each kill the same call begins again; parts of the
last round are compared with those of a run that nobody killed, and a further call must make no forward pass at all.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import tempfile
import time
from pathlib import Path
from unittest.mock import patch

import pandas  # noqa: F401 - in this process already, so that a child does not spend its time on it
import torch
import transformers.models.llama.modeling_llama  # noqa: F401
from forking import forked

import uds_lens as ul
from uds_lens.elicitation import ActPert, ElicitationResults, ElicitOptions, elicit

PROBES = ("plain", "cloze", "start", ActPert())
OPTIONS = ElicitOptions(samples=4, temperature=1.0, max_new_tokens=16)


def ask(out: Path) -> ElicitationResults:
    world = ul.toy.load()
    return elicit(
        world.unlearned["idknll"],
        world.examples[:16],
        retain=world.retain,
        full=world.full,
        probes=PROBES,
        options=OPTIONS,
        run=ul.RunOptions(device="cpu", progress=False),
        out=out,
    )


def child(out: Path) -> int:
    """A run in a process of its own."""
    return forked(lambda: ask(out))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=6)
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args()
    torch.set_num_threads(1)
    order = random.Random(asked.seed)
    with tempfile.TemporaryDirectory() as folder:
        calm, killed = Path(folder) / "calm", Path(folder) / "killed"
        os.waitpid(child(Path(folder) / "first"), 0)
        began = time.perf_counter()
        os.waitpid(child(calm), 0)
        took = time.perf_counter() - began
        found, kept = [], True
        for _ in range(asked.kills):
            before = {file.name: file.stat().st_mtime_ns for file in (killed / "parts").glob("*.json")}
            worker = child(killed)
            time.sleep(order.uniform(0.3, 1.0) * took / 2)  # what is kept makes later rounds shorter
            os.kill(worker, signal.SIGKILL)
            os.waitpid(worker, 0)
            files = {file.name: file.stat().st_mtime_ns for file in (killed / "parts").glob("*.json")}
            kept &= before.items() <= files.items()
            found.append(len(files))
        os.waitpid(child(killed), 0)
        expected = ask(calm)
        forwards = []
        real = torch.nn.Embedding.forward  # a hook on a model would make it another model

        def counting(self, tokens):
            forwards.append(len(tokens))
            return real(self, tokens)

        with patch.object(torch.nn.Embedding, "forward", counting):
            again = ask(killed)
        left = sorted(str(file.name) for file in killed.rglob("*") if file.suffix not in (".json", ""))
    same = again.samples_frame().equals(expected.samples_frame())
    print(
        f"{asked.kills} kills, parts finished after each: {found} of {len(again.parts)}; finished parts were "
        f"{'kept' if kept else 'MADE AGAIN'}; the call after the last round made {len(forwards)} forward passes; all "
        f"{len(again.samples_frame())} texts and scores {'are' if same else 'ARE NOT'} those of the calm run; "
        f"left over: {left or 'nothing'}"
    )
    if not (same and kept) or forwards:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
