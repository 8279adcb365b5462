"""Two processes train what one trains, to rounding: a last batch that does not divide counts every row once.

The two processes run this file too, started by torchrun.
"""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from tests.unlearning.conftest import QUICK, Tiny, people
from tests.unlearning.test_accumulation import CASES, MarginConfig, agree, gradients, margin
from uds_lens.unlearning import (
    RelearnConfig,
    _trainer as unlearning_trainer,
    make_config,
    objective,
    read_record,
    relearn,
    unlearn,
    withdraw_objective,
)
from uds_lens.unlearning._data import length_groups
from uds_lens.unlearning._job import Parent

pytestmark = pytest.mark.long


def started_twice(script: str, *words: object) -> None:
    """Run a script in two processes, as torchrun does."""
    here = Path(__file__)
    env = {**os.environ, "PYTHONPATH": f"{here.parents[2]}{os.pathsep}{here.parents[1]}", "OMP_NUM_THREADS": "1"}
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2"]
    command = [*torchrun, *map(str, (script, *words))]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr[-4000:]


UNEVEN = ({"n": 3, "passes": 2}, {"n": 3, "steps": 2, "passes": 2}, {"n": 3, "steps": 3, "passes": 4})
"""The last of the batches of four, over two processes: three rows; two rows, in two groups by length, and none for the
other process; one row, where each process accumulates two passes."""

EPOCHS = 3
"""Of 11 rows in batches of 8: the last batch has one row."""


@contextmanager
def prepared() -> Iterator[None]:
    """Declare an objective of a user's own, and make groups of one row."""
    objective(MarginConfig, needs=("retain",))(margin)
    unlearning_trainer.length_groups = lambda batch: length_groups(batch, rows=1)
    try:
        yield
    finally:
        unlearning_trainer.length_groups = length_groups
        withdraw_objective("margin")


def all_gradients(full: Path, folder: Path) -> dict[str, dict[str, torch.Tensor]]:
    """Return the gradients of the last step by case, with groups by length of one row each."""
    model = AutoModelForCausalLM.from_pretrained(full, dtype=torch.float64, attn_implementation="eager")
    parent = Parent(model.eval(), AutoTokenizer.from_pretrained(full), "tiny", "")
    cases = [(m, more, shape) for m, more in (*CASES, ("margin", {})) for shape in UNEVEN]
    found = {}
    for i, (method, more, shape) in enumerate(cases):
        own = folder / f"{i}-{os.environ.get('RANK')}"
        own.mkdir()
        with prepared():
            found[json.dumps([method, more, shape])] = gradients(method, parent, own, **more, **shape)[0]
    return found


def runs(full: Path, folder: Path) -> list[Path]:
    """Train and return whole runs, as a user starts them."""
    rows = people(("Ada Vey", "Bo Lund", "Cyr Moss", "Dee Park", "Eli Roth", "Fay Senn"))[:11]
    quick = {"learning_rate": 2e-3, "batch_size": 8, "warmup_epochs": 0.0, "epochs": EPOCHS}
    options, again = replace(QUICK, device_batch_size=2), RelearnConfig(epochs=EPOCHS, batch_size=8, learning_rate=1e-3)
    return [
        unlearn(full, rows, rows[:5], method=make_config("npo", quick), out=folder / "npo", options=options),
        relearn(full, rows, out=folder / "again", options=QUICK, config=again),
    ]


@pytest.fixture(scope="module")
def two(tiny: Tiny, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What two processes made."""
    out = tmp_path_factory.mktemp("two")
    started_twice(__file__, tiny.full, out)
    return out


def test_whole_runs_of_two_processes_are_those_of_one(tiny: Tiny, two: Path, tmp_path: Path) -> None:
    start = load_file(tiny.full / "model.safetensors")
    for single in runs(tiny.full, tmp_path):
        one, both = read_record(single), read_record(two / single.name)
        assert (one["n_devices"], both["n_devices"]) == (1, 2)
        assert [x["loss"] for x in both["loss_curve"]] == pytest.approx(
            [x["loss"] for x in one["loss_curve"]], rel=1e-5
        )
        weights, joint = (load_file(x / "model.safetensors") for x in (single, two / single.name))
        update = sum((weights[name] - start[name]).square().sum() for name in weights).sqrt()
        apart = sum((weights[name] - joint[name]).square().sum() for name in weights).sqrt()
        assert apart < 1e-4 * update


def test_gradients_of_two_processes_are_those_of_one(tiny: Tiny, two: Path, tmp_path: Path) -> None:
    """Those of every objective of the package and of a user's own."""
    joint = torch.load(two / "gradients.pt", weights_only=True)
    alone = all_gradients(tiny.full, tmp_path)
    assert joint.keys() == alone.keys()
    for case, own in alone.items():
        agree(joint[case], own)


if __name__ == "__main__":
    full, out = Path(sys.argv[1]), Path(sys.argv[2])
    runs(full, out)
    found = all_gradients(full, out)
    if os.environ["RANK"] == "0":
        torch.save(found, out / "gradients.pt")
