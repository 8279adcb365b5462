"""A plan on the toy world, a runner that makes and measures nothing real, and parts that kill their process."""

import math
import os
import signal
from pathlib import Path

import pandas as pd
import pytest

from uds_lens.study import plan
from uds_lens.study._folder import Row, StudyFolder
from uds_lens.study._measuring import Measured

PLAN = {
    "name": "small",
    "full": "toy:full",
    "retain": "toy:retain",
    "data": {"forget": "toy:forget", "limit": 4},
    "train": {"forget": [{"source": "toy:forget", "sample": 4}], "retain": [{"source": "toy:retain", "sample": 4}]},
    "model": [{"name": "given", "path": "toy:npo", "method": "npo"}],
    "pool": [
        {
            "variant": "told",
            "knows": True,
            "start": "toy:retain",
            "data": [{"source": "toy:forget"}],
            "settings": {"learning_rate": [1e-3, 2e-3], "epochs": [2, 4]},
        },
        {
            "variant": "misled",
            "knows": False,
            "start": "toy:retain",
            "data": [{"source": "toy:forget", "answers": "wrong"}],
            "settings": {"learning_rate": [1e-3, 2e-3]},
        },
    ],
    "unlearn": [{"method": "npo", "settings": {"learning_rate": [1e-3, 2e-3], "epochs": 2}}],
    "perturb": {"quantise": True, "relearn": {"seeds": [0], "retain_seeds": [0, 1, 2]}},
    "measure": {"metrics": ["es", "uds"], "utility": ["retain_q_prob", "retain_truth_ratio"]},
}


def toy_plan(metrics: list[str], *, limit: int = 4, **more: object) -> dict:
    """What a plan needs to measure the toy models, and more."""
    models = {"full": "toy:full", "retain": "toy:retain", "data": {"forget": "toy:forget", "limit": limit}}
    return {"name": "toy", **models, "measure": {"metrics": metrics}, **more}


class Fake:
    """Weights are text files; values tell who was measured; `broken` names models or states that fail."""

    def __init__(self, broken=()):
        self.broken, self.made, self.measured, self.perturbed_at = set(broken), [], [], []

    def make(self, model, place: Path):
        if model.model_id in self.broken:
            raise ValueError(f"{model.model_id} cannot\nbe made")
        if not model.is_made:
            return model.source
        self.made.append(model.model_id)
        place.mkdir(parents=True, exist_ok=True)
        (place / "weights").write_text(model.model_id)
        return place

    def perturb(self, model, state, weights, scratch: Path):
        if state.state == "before":
            return weights
        (scratch / state.label).mkdir(parents=True)
        (scratch / state.label / "weights").write_text(state.label)
        self.perturbed_at.append(scratch / state.label)
        return scratch / state.label

    def measure(self, model, state, weights, items):
        if (model.model_id, state.label) in self.broken:
            raise RuntimeError("no value")
        self.measured.append((model.model_id, state.label, items))
        rows = []
        for item in items:
            undefined = item == "es" and model.role == "retain"
            value, reason = (math.nan, "nothing there") if undefined else (len(model.model_id) / 50, None)
            rows.append(Row(metric=item, value=value, reason=reason, n=3, seconds=0.1, item=item))
        frame = pd.DataFrame({"metric": list(items), "example_id": "0", "value": 0.5})
        return Measured(tuple(rows), f"weights of {model.model_id} {state.label}", frame)

    def parent_of(self, weights):
        return "parent"


class Killing:
    """Writes a file for each part; one of them kills its process, another raises. Processes of joblib import it."""

    def __init__(self, place: Path, *, deadly: str = "", broken: str = "") -> None:
        self.place, self.deadly, self.broken = place, deadly, broken

    def __call__(self, name: str) -> None:
        if name == self.deadly:
            os.kill(os.getpid(), signal.SIGKILL)
        if name == self.broken:
            raise ValueError("no\nvalue")
        (self.place / name).touch()


@pytest.fixture(autouse=True)
def _trusted(trusted):
    return


@pytest.fixture
def small() -> dict:
    return {**PLAN}


@pytest.fixture
def folder(small, tmp_path: Path) -> StudyFolder:
    return StudyFolder.begin(plan(small), tmp_path / "s")


@pytest.fixture
def fake() -> type[Fake]:
    return Fake
