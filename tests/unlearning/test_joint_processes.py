"""Two processes train what one trains, to rounding: a last batch that does not divide counts every row once."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from tests.unlearning import joint_training
from tests.unlearning.conftest import Tiny
from tests.unlearning.test_accumulation import agree
from uds_lens.unlearning import read_record

pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def two(tiny: Tiny, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What two processes made."""
    out = tmp_path_factory.mktemp("two")
    joint_training.started_twice(joint_training.__file__, tiny.full, out)
    return out


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


def test_gradients_of_two_processes_are_those_of_one(tiny: Tiny, two: Path, tmp_path: Path) -> None:
    """Those of every objective of the package and of a user's own."""
    joint = torch.load(two / "gradients.pt", weights_only=True)
    alone = joint_training.all_gradients(tiny.full, tmp_path)
    assert joint.keys() == alone.keys()
    for case, gradients in alone.items():
        agree(joint[case], gradients)
