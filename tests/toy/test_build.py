"""The script that builds the world: same seed, same bytes; a world that does not hold is refused."""

import dataclasses
import json
import sys
from pathlib import Path

import pytest
import torch

from uds_lens._storage.files import sha256_file
from uds_lens.toy import load

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


@pytest.fixture
def script(monkeypatch):
    """The script with a few steps of training only, and a recall that is not measured."""
    monkeypatch.syspath_prepend(str(EXAMPLES))
    import build_toy_world

    def shorter(schedule):
        return dataclasses.replace(schedule, steps=2)

    methods = {"npo": dataclasses.replace(build_toy_world.METHODS["npo"], epochs=1, warmup_epochs=0.0)}
    monkeypatch.setattr(build_toy_world, "BASE", shorter(build_toy_world.BASE))
    monkeypatch.setattr(build_toy_world, "FACTS", shorter(build_toy_world.FACTS))
    for module in ("unlearning", "measurement"):
        monkeypatch.setattr(sys.modules[f"toy_building.{module}"], "METHODS", methods)
    monkeypatch.setattr(build_toy_world, "METHODS", methods)
    monkeypatch.setattr(sys.modules["toy_building.training"], "BATCH", 12)
    measured = load().recall
    known = {name: dict(measured[name]) for name in ("full", "retain", "half", "npo")}
    monkeypatch.setattr(build_toy_world, "recall", lambda path, data: known[path.name])
    return build_toy_world, known


def run(module, monkeypatch, *arguments):
    monkeypatch.setattr(sys, "argv", ["build_toy_world.py", *map(str, arguments)])
    threads = torch.get_num_threads()
    try:
        module.main()
    finally:
        torch.set_num_threads(threads)


@pytest.mark.long
def test_one_seed_gives_one_world(script, monkeypatch, tmp_path, capsys):
    module, _ = script
    for name in ("one", "two"):
        run(module, monkeypatch, "--out", tmp_path / name)
    files = sorted(path.relative_to(tmp_path / "one") for path in (tmp_path / "one").rglob("*.*"))
    assert Path("unlearned/npo/model.safetensors") in files
    for file in files:
        assert sha256_file(tmp_path / "one" / file) == sha256_file(tmp_path / "two" / file), file
    world = load(tmp_path / "one")
    assert len({sha256_file(path / "model.safetensors") for path in world.checkpoints.values()}) == 4
    assert all((path / "model.safetensors").stat().st_mode & 0o444 == 0o444 for path in world.checkpoints.values())
    assert "Mean entity probability" in capsys.readouterr().out


def test_the_tokenizer_of_the_shipped_world_is_made_again(script):
    module, _ = script
    core = module.train_tokenizer(module.generate()).backend_tokenizer
    shipped = json.loads((load().full / "tokenizer.json").read_text("utf-8"))
    assert json.loads(core.to_str())["model"] == shipped["model"]


@pytest.mark.parametrize(
    ("name", "group", "value", "complaint"),
    [
        ("full", "forget", 0.79, "full recalls the forget entities"),
        ("retain", "forget", 0.21, "retain does not know"),
        ("full", "retain", 0.5, "full recalls retained facts"),
        ("retain", "retain", 0.5, "retain recalls retained facts"),
        ("half", "forget", 0.99, "half lies between"),
        ("npo", "retain", 0.5, "npo keeps 80%"),
        ("npo", "forget", 0.9, "npo lowers"),
    ],
)
def test_a_world_that_does_not_hold_is_refused(script, name, group, value, complaint):
    from toy_building.measurement import broken_promises

    _, known = script
    assert broken_promises(known, 5.0) == []
    known[name][group] = value
    assert any(complaint in promise for promise in broken_promises(known, 5.0))
    assert any("fits into 10 MB" in promise for promise in broken_promises(known, 10.5))


def test_a_trio_is_kept_and_a_refused_world_is_put_aside(script, monkeypatch, tmp_path):
    module, known = script
    known["full"]["forget"] = 0.1
    with pytest.raises(SystemExit, match="full recalls the forget entities"):
        run(module, monkeypatch, "--out", tmp_path / "new", "--trio", load().path)
    assert not (tmp_path / "new").exists()
    assert (tmp_path / "new.rejected" / "world.json").is_file()
    for name in ("full", "retain", "half"):
        file = Path(name) / "model.safetensors"
        assert sha256_file(tmp_path / "new.rejected" / file) == sha256_file(load().path / file)
