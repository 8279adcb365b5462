"""Depth in two processes: the first measures, and both get the best weights.

The two processes run this file too, started by torchrun.
"""

import os
import sys
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

import uds_lens as ul
from tests.training.test_depth_callback import CHOOSING, RUN, ascended, toy_baseline, toy_texts, weights
from tests.unlearning.test_joint_processes import started_twice
from uds_lens.training import DepthCallback, DepthCurve

pytestmark = pytest.mark.long


def test_two_processes_measure_and_keep_what_audits_of_the_checkpoints_say(tmp_path: Path) -> None:
    started_twice(__file__, tmp_path)
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


if __name__ == "__main__":
    out, world = Path(sys.argv[1]), ul.toy.load()
    callback = DepthCallback(toy_baseline(world), every=1, options=RUN)
    settings = {"max_steps": 3, "save_steps": 1, "per_device_train_batch_size": 2, "ddp_backend": "gloo", **CHOOSING}
    settings["eval_steps"] = 1
    trainer, _ = ascended(world, toy_texts(world), out / "out", callback, **settings)
    state = {name: weight.clone() for name, weight in weights(trainer.model).items()}
    save_file(state, out / f"{os.environ['RANK']}.safetensors", metadata={"points": str(callback.curve.points)})
