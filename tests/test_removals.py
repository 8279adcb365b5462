"""Nothing outside the folder of a run is removed or replaced, as Python's own audit events tell it.

`tests/published` asks the same of downloads.
"""

import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

import pytest
from study.conftest import toy_plan

import uds_lens as ul

pytestmark = [pytest.mark.long, pytest.mark.filterwarnings("ignore::uds_lens.errors.UdsLensWarning")]

_EVENTS = ("os.remove", "os.rmdir", "os.rename", "os.truncate", "shutil.rmtree")

_recording: list[list[Path]] = []


def _listen(event: str, given: tuple) -> None:
    if event in _EVENTS:
        for place in given[: 2 if event == "os.rename" else 1]:
            if not isinstance(place, int) and os.path.isabs(place):  # below a tree, rmtree goes on with bare names
                for removed in _recording:
                    removed.append(Path(os.fsdecode(place)))


@cache
def _listening() -> None:
    sys.addaudithook(_listen)  # cannot be taken away again


@contextmanager
def recorded() -> Iterator[list[Path]]:
    """Record every place that is removed, renamed or replaced while the block runs."""
    _listening()
    removed: list[Path] = []
    _recording.append(removed)
    try:
        yield removed
    finally:
        _recording.remove(removed)


def outside(removed: list[Path], folder: Path) -> list[Path]:
    """The places that lie neither in a folder nor in a temporary one of this library."""
    resolved = [Path(os.path.realpath(place.parent)) / place.name for place in removed]
    places = [place for place in resolved if "__pycache__" not in place.parts]  # Python's own
    spilled = str(Path(tempfile.gettempdir()) / "uds_lens-")
    top = Path(os.path.realpath(folder))
    return [place for place in places if not (place.is_relative_to(top) or str(place).startswith(spilled))]


def test_what_goes_lies_in_the_folder_of_the_run(tmp_path, monkeypatch):
    """Training, interrupted and repeated, quantising, a sweep that makes its models, streaming, results saved twice."""
    world, run = ul.toy.load(), tmp_path / "run"
    rows, kept = world.examples[:4], world.retain_examples[:4]
    options = ul.unlearning.TrainOptions(redo=True)
    with recorded() as removed:
        for _ in range(2):
            made = ul.unlearning.unlearn(
                world.full, rows, kept, method=ul.unlearning.NPOConfig(epochs=1), out=run / "npo", options=options
            )
            audit = ul.DepthAudit.run(
                world.full, world.retain, made, rows, options=ul.RunOptions(stream=True, device="cpu")
            )
            audit.save(run / "audit")
        ul.unlearning.quantise(made, out=run / "nf4", device="cpu")
        sets = {"forget": [{"source": "toy:forget", "sample": 4}], "retain": [{"source": "toy:retain", "sample": 4}]}
        made_by = {"method": "ga", "settings": {"learning_rate": 1e-3, "epochs": 1, "batch_size": 4}}
        plan = toy_plan(["prob"], train=sets, unlearn=[made_by], perturb={"quantise": True})
        assert ul.study.run(plan, run / "sweep").is_complete
    assert any("npo" in str(place) for place in removed) and any("sweep" in place.parts for place in removed)
    assert outside(removed, run) == []
