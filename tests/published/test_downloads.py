"""What somebody else put into the Hub's cache stays there, and only whole checkpoints count as present."""

import shutil

import huggingface_hub
import pytest

from uds_lens.errors import ModelError, ResultFormatError
from uds_lens.published import find
from uds_lens.published._run import Downloads

from .conftest import commit_of, put_in_cache

NAME = find("retain").hub_id


@pytest.fixture
def folder(hub, cache):
    """Where the cache keeps the model; nothing is there yet."""
    hub.refused = {}
    place = cache / f"models--{NAME.replace('/', '--')}"
    shutil.rmtree(place, ignore_errors=True)
    return place


def weights(folder):
    return list(folder.glob("snapshots/*/model.safetensors"))


@pytest.mark.parametrize("branches", [True, False])
def test_what_was_there_before_stays_and_what_came_goes(folder, cache, tmp_path, branches):
    """Of a checkpoint that was asked for by its commit the cache has no branch."""
    put_in_cache(cache, NAME)
    if not branches:
        shutil.rmtree(folder / "refs")
    downloads = Downloads(tmp_path / "d.json")
    assert downloads.get(NAME).name == commit_of(NAME) and downloads.get(find("full").hub_id).is_dir()
    downloads.drop()
    assert weights(folder) and list(cache.glob("models--*")) == [folder]
    (tmp_path / "d.json").write_text("{")
    with pytest.raises(ResultFormatError):
        Downloads(tmp_path / "d.json")


def test_what_came_after_a_refusal_stays(folder, hub, tmp_path):
    hub.refused = {NAME: 403}
    with pytest.raises(ModelError, match="is gated"):
        Downloads(tmp_path / "d.json").get(NAME)
    hub.refused = {}
    huggingface_hub.snapshot_download(NAME)
    Downloads(tmp_path / "d.json").drop()
    assert weights(folder)


def test_what_was_to_be_kept_stays_and_revisions_are_apart(folder, tmp_path):
    downloads = Downloads(tmp_path / "d.json", keep=True)
    downloads.get(NAME)
    downloads.get(NAME, commit_of(NAME))
    assert set(downloads.revisions) == {NAME, f"{NAME}@{commit_of(NAME)}"}
    Downloads(tmp_path / "d.json").drop()
    assert weights(folder)


def test_a_copy_without_weights_is_completed(folder, cache, tmp_path):
    put_in_cache(cache, NAME)
    (folder / "snapshots" / commit_of(NAME) / "model.safetensors").unlink()
    assert (Downloads(tmp_path / "d.json").get(NAME) / "model.safetensors").is_file()
