"""The loader of the toy world, and what is in the package."""

import json
import shutil
import time

import pytest

from uds_lens.errors import DataError
from uds_lens.toy import generate, load
from uds_lens.unlearning import METHODS, parse_name


def test_the_shipped_data_are_what_the_generator_makes():
    world = load()
    for group, rows in generate().items():
        assert json.loads((world.path / f"{group}.json").read_text("utf-8")) == rows


def test_load_finds_everything_fast():
    load()
    started = time.process_time()  # of this process alone: the machine may be busy
    world = load()
    assert time.process_time() - started < 1
    assert (len(world.examples), len(world.retain_examples), len(world.holdout_examples)) == (48, 192, 48)
    assert len(world.unlearned) == 10 and set(world.unlearned) <= set(METHODS)
    names = json.loads((world.path / "world.json").read_text("utf-8"))["unlearning"]  # how each was unlearned
    assert {method: parse_name(name).method for method, name in names.items()} == {m: m for m in world.unlearned}
    assert list(world.checkpoints)[:3] == ["full", "retain", "half"]
    assert set(world.recall) == set(world.checkpoints)
    assert all((path / "model.safetensors").is_file() for path in world.checkpoints.values())
    for word in (
        "<pre>Toy world at",
        *world.checkpoints,
        "192 facts about 24",
        f"{world.recall['full']['forget']:.3f}",
    ):
        assert word in world._repr_html_()
    assert world.examples[0].entity and len(world.examples[0].perturbed_answers) == 4


def test_everything_fits_into_ten_megabytes():
    world = load()
    files = [path for path in world.path.rglob("*") if path.is_file()]
    assert sum(path.stat().st_size for path in files) <= 10e6
    for checkpoint in world.checkpoints.values():
        assert sum(path.stat().st_size for path in checkpoint.iterdir()) <= 0.65e6
    assert not [path for path in files if path.suffix in {".bin", ".pt", ".pkl"}]


def test_errors_name_what_is_missing_and_the_fix(tmp_path):
    with pytest.raises(DataError, match=r"no toy world at .*build_toy_world\.py --out DIR"):
        load(tmp_path)
    shutil.copytree(load().path, tmp_path / "mine")
    world = load(tmp_path / "mine")  # another world can be loaded
    assert (world.full, world.examples) == (tmp_path / "mine" / "full", load().examples)
    (tmp_path / "mine" / "half" / "model.safetensors").unlink()
    with pytest.raises(DataError, match=r"missing: .*half"):
        load(tmp_path / "mine")
    (tmp_path / "mine" / "world.json").write_text("{")
    with pytest.raises(DataError, match=r"world\.json is not readable JSON"):
        load(tmp_path / "mine")
