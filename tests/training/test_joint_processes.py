"""Depth in two processes: the first measures, and both get the best weights."""

from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file

import uds_lens as ul
from tests.training import joint_training
from tests.training.test_depth_callback import RUN, toy_baseline
from tests.unlearning.joint_training import started_twice
from uds_lens.training import DepthCallback, DepthCurve

pytestmark = pytest.mark.long


def test_two_processes_measure_and_keep_what_audits_of_the_checkpoints_say(tmp_path: Path) -> None:
    started_twice(joint_training.__file__, tmp_path)
    curve, out = DepthCurve.load(tmp_path / "out"), tmp_path / "out"
    measured = DepthCallback(toy_baseline(ul.toy.load()), every=1, options=RUN).measured
    for point in curve.points[1:]:
        assert measured.audit(out / f"checkpoint-{point.step}", options=RUN).uds == point.uds
    deepest = curve.best()
    assert deepest is not None
    told = set()
    for rank in (0, 1):
        with safe_open(tmp_path / f"{rank}.safetensors", framework="pt") as file:
            told.add(file.metadata()["points"])
        kept = out / f"checkpoint-{deepest.step}/model.safetensors"
        own, best = (load_file(file) for file in (tmp_path / f"{rank}.safetensors", kept))
        assert all(torch.equal(own[name], best[name]) for name in best)
    assert len(told) == 1
