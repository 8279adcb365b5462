"""Two processes train what one trains, to rounding: a last batch that does not divide counts every row once."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from accelerate.data_loader import BatchSamplerShard
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file
from torch.utils.data import BatchSampler

from tests.unlearning import joint_training
from tests.unlearning.conftest import Tiny
from tests.unlearning.test_visits import rows
from uds_lens.unlearning import read_record
from uds_lens.unlearning._data import TrainingData, VisitCollator, VisitDataset
from uds_lens.unlearning._passes import SideTotals, batch_totals
from uds_lens.unlearning._record import counted_twice


@given(n=st.integers(1, 30), world=st.integers(2, 4), share=st.integers(1, 5))
def test_processes_take_each_visit_once(n: int, world: int, share: int) -> None:
    """As accelerate cuts the data; what is left over is run and not counted."""
    visits = VisitDataset(TrainingData(forget=rows(n)), epochs=1, seed=0).filled_up(world * share)
    collate, batches = VisitCollator(pad_token_id=0), BatchSampler(range(len(visits)), share, drop_last=False)
    shards = [BatchSamplerShard(batches, world, rank) for rank in range(world)]
    passes = [[collate([visits[place] for place in taken]) for taken in shard] for shard in shards]
    assert len({len(taken) for taken in passes}) == 1, "no process waits for another"
    total = sum(batch_totals([batch])["forget"] for taken in passes for batch in taken)
    assert SideTotals(*total.tolist()) == SideTotals(n, 2 * n, n / 2)
    real = [batch["forget"] for taken in passes for batch in taken if "filler" not in batch["forget"]]
    assert sorted(id for batch in real for id in batch["input_ids"][:, 1].tolist()) == [*range(10, 10 + n)]


def test_results_of_several_processes_that_counted_rows_twice_are_known() -> None:
    old = {
        "n_devices": 2,
        "config": {"batch_size": 8, "epochs": 1},
        "options": {"device_batch_size": None},
        "data": {"forget": {"n": 11}},
    }
    assert counted_twice(old)
    assert not counted_twice({**old, "visits": 11})
    assert not counted_twice({**old, "n_devices": 1})
    assert not counted_twice({**old, "data": {"forget": {"n": 16}}})
    assert not counted_twice({**old, "data": {"forget": {"n": 10}}, "options": {"device_batch_size": 1}})


@pytest.fixture(scope="module")
def two(tiny: Tiny, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What two processes made."""
    out = tmp_path_factory.mktemp("two")
    here = Path(joint_training.__file__)
    env = {**os.environ, "PYTHONPATH": str(here.parents[2]), "OMP_NUM_THREADS": "1"}
    command = ["torch.distributed.run", "--standalone", "--nproc_per_node", "2", str(here)]
    done = subprocess.run(
        [sys.executable, "-m", *command, str(tiny.full), str(out)],
        env=env, capture_output=True, text=True, timeout=600, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-4000:]
    return out


@pytest.mark.long
def test_whole_runs_of_two_processes_are_those_of_one(tiny: Tiny, two: Path, tmp_path: Path) -> None:
    start = load_file(tiny.full / "model.safetensors")
    for single in joint_training.runs(tiny.full, tmp_path):
        one, both = read_record(single), read_record(two / single.name)
        assert (one["n_devices"], both["n_devices"]) == (1, 2)
        assert [x["loss"] for x in both["loss_curve"]] == pytest.approx(
            [x["loss"] for x in one["loss_curve"]], rel=1e-5
        )
        weights, joint = (load_file(x / "model.safetensors") for x in (single, two / single.name))
        update = sum((weights[name] - start[name]).square().sum() for name in weights).sqrt()
        apart = sum((weights[name] - joint[name]).square().sum() for name in weights).sqrt()
        assert apart < 1e-4 * update


@pytest.mark.long
def test_gradients_of_two_processes_are_those_of_one(tiny: Tiny, two: Path, tmp_path: Path) -> None:
    """Those of every objective of the package and of one of somebody's own."""
    joint = torch.load(two / "gradients.pt", weights_only=True)
    alone = joint_training.all_gradients(tiny.full, tmp_path)
    assert joint.keys() == alone.keys()
    for case, gradients in alone.items():
        largest = max(float(value.abs().max()) for value in gradients.values())
        assert largest > 0, case
        assert joint[case].keys() == gradients.keys(), case
        for name, value in gradients.items():
            torch.testing.assert_close(joint[case][name], value, rtol=0, atol=1e-6 * largest, msg=case)
