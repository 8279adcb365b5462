"""Train in two processes while depth is measured: started by `test_joint_processes.py` with torchrun."""

import os
import sys
from pathlib import Path

from safetensors.torch import save_file

import uds_lens as ul
from tests.training.test_depth_callback import CHOOSING, RUN, ascended, toy_baseline, toy_texts, weights
from uds_lens.training import DepthCallback

if __name__ == "__main__":
    out, world = Path(sys.argv[1]), ul.toy.load()
    callback = DepthCallback(toy_baseline(world), every=1, options=RUN)
    settings = {"max_steps": 3, "save_steps": 1, "per_device_train_batch_size": 2, "ddp_backend": "gloo", **CHOOSING}
    settings["eval_steps"] = 1
    trainer, _ = ascended(world, toy_texts(world), out / "out", callback, **settings)
    state = {name: weight.clone() for name, weight in weights(trainer.model).items()}
    save_file(state, out / f"{os.environ['RANK']}.safetensors", metadata={"points": str(callback.curve.points)})
