"""Unlearned models that ship as differences to `full`: what is unpacked is what was packed, byte for byte."""

import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from uds_lens._storage.files import sha256_file
from uds_lens.errors import DataError, StorageError
from uds_lens.toy import _packed, load

SHIPPED = {
    "altpo": "5d71f81fca5ac36e",
    "ga": "8acdc9f5088479ef",
    "graddiff": "830385ae65ae3d31",
    "idkdpo": "5a8cf815d7198587",
    "idknll": "036308f5ca4cf346",
    "kl": "90c0542399cec8f9",
    "npo": "e193f8dbcb5fc63d",
    "rmu": "263ed424e5c123b0",
    "simnpo": "ee4202f3da790e29",
    "undial": "e136747a33103280",
}
"""First digits of the SHA-256 of the weights as they were trained, before they were packed."""


@pytest.fixture
def home(tmp_path, monkeypatch):
    """An empty `HF_HOME`."""
    monkeypatch.setattr(_packed, "HF_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


def test_the_shipped_models_are_unpacked_to_the_bytes_that_were_trained(home):
    world = load()
    found = {name: sha256_file(place / "model.safetensors")[:16] for name, place in world.unlearned.items()}
    assert found == SHIPPED
    (folder,) = (home / "uds_lens").iterdir()  # nothing half-written is left
    assert {place.parent for name, place in world.unlearned.items() if name != "npo"} == {folder}
    for place in world.unlearned.values():
        assert {file.name for file in place.iterdir()} == {file.name for file in world.full.iterdir()}
    before = folder.stat().st_mtime_ns
    assert load().unlearned == world.unlearned and folder.stat().st_mtime_ns == before  # once


def test_any_bits_come_back(home, tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(Path(__file__).resolve().parents[2] / "examples"))
    from toy_building.packing import pack

    world = tmp_path / "world"
    shutil.copytree(load().path, world)
    (world / "unlearned.xz").unlink()
    every = torch.arange(-(1 << 15), 1 << 15).to(torch.int16)  # both zeros, infinities, NaNs
    models = {"full": every, "unlearned/ga": every.flip(0), "unlearned/kl": every.roll(1), "unlearned/rmu": ~every}
    for place, bits in models.items():
        (world / place).mkdir(parents=True, exist_ok=True)
        save_file({"w": bits.view(torch.bfloat16)}, world / place / "model.safetensors")
    manifest = (world / "world.json").read_text("utf-8")
    assert '"kl": "unlearned/kl"' in manifest
    for place in ("graddiff", "simnpo", "idknll", "idkdpo", "altpo", "undial"):
        shutil.copytree(world / "unlearned/ga", world / "unlearned" / place)
    pack(world)
    assert [place.name for place in (world / "unlearned").iterdir()] == ["npo"]
    opened = load(world)
    for name in ("ga", "kl", "rmu"):
        weights = load_file(opened.unlearned[name] / "model.safetensors")["w"].view(torch.int16)
        assert weights.equal(models[f"unlearned/{name}"]), name
    assert np.array_equal(_packed.ordered(_packed.ordered(every.numpy())), every.numpy())


def test_two_processes_may_unpack_at_once(home, monkeypatch):
    unpack = _packed._unpack

    def slowly(content, full, into):
        unpack(content, full, into)
        shutil.copytree(into, folder)  # meanwhile, the other one

    source = load().path  # makes the folder whose name is needed
    (folder,) = (home / "uds_lens").iterdir()
    shutil.rmtree(folder)
    monkeypatch.setattr(_packed, "_unpack", slowly)
    assert _packed.unpacked(source / "unlearned.xz", source / "full") == folder
    assert list((home / "uds_lens").iterdir()) == [folder]


def test_errors_name_the_folder_and_the_fix(home):
    home.write_text("a file")
    with pytest.raises(StorageError, match="Set HF_HOME to a writable directory"):
        load()
    home.unlink()
    (load().unlearned["ga"] / "model.safetensors").unlink()
    with pytest.raises(DataError, match=r"toy-\w+.ga\. .* If you remove .*toy-\w+, its contents are unpacked again"):
        load()
