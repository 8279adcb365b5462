"""Nothing of the user's is removed: what a run downloads lies in its own folder, and only whole checkpoints count."""

import hashlib
import shutil
from pathlib import Path

import huggingface_hub
import pytest

from uds_lens._storage.records import with_checksum
from uds_lens.errors import ModelError, ResultFormatError
from uds_lens.published import find
from uds_lens.published._run import HUB, RECORD, Downloads

from .conftest import commit_of, put_in_cache

NAME, FULL = find("retain").hub_id, find("full").hub_id


@pytest.fixture
def folder(hub, cache):
    """Where the user's cache keeps the model; nothing is there yet."""
    hub.refused = {}
    shutil.rmtree(cache)
    cache.mkdir()
    return cache / f"models--{NAME.replace('/', '--')}"


def weights(folder):
    return list(folder.glob("snapshots/*/model.safetensors"))


def everything(folder: Path) -> dict[str, str]:
    """Every file below a folder, by its contents."""
    files = (file for file in folder.rglob("*") if file.is_file())
    return {str(file.relative_to(folder)): hashlib.sha256(file.read_bytes()).hexdigest() for file in files}


@pytest.mark.parametrize("branches", [True, False])
def test_what_was_there_before_is_used_and_stays(folder, cache, tmp_path, branches):
    """Of a checkpoint that was asked for by its commit the cache has no branch."""
    put_in_cache(cache, NAME)
    if not branches:
        shutil.rmtree(folder / "refs")
    before = everything(cache)
    downloads = Downloads(tmp_path)
    downloads.revisions = {} if branches else {NAME: commit_of(NAME)}
    assert downloads.get(NAME).parents[1] == folder and downloads.get(FULL).parents[3] == tmp_path
    downloads.drop()
    assert everything(cache) == before and [place.name for place in tmp_path.iterdir()] == [RECORD]


def test_what_the_user_fetches_meanwhile_or_elsewhere_stays(folder, cache, tmp_path):
    """The folder goes on with another cache, as on another machine or with another HF_HOME."""
    Downloads(tmp_path).get(NAME)
    huggingface_hub.snapshot_download(NAME)
    put_in_cache(cache, FULL)
    before = everything(cache)
    again = Downloads(tmp_path)
    assert again.get(NAME).parents[1] == folder
    again.drop(but=[FULL])
    again.drop()
    assert everything(cache) == before and not (tmp_path / HUB).exists()


def test_a_folder_from_somebody_else_cannot_name_what_goes(folder, cache, tmp_path):
    """Neither by its record nor by links."""
    put_in_cache(cache, NAME)
    before = everything(cache)
    members = {"models": {}, "settings": {}, "provenance": {}, "files": {}, "values": {"revisions": {}}}
    record = {"format": "uds_lens.Downloads", "version": 1, **members}
    one, two = tmp_path / "one", tmp_path / "two"
    one.mkdir()
    (two / HUB).mkdir(parents=True)
    (one / HUB).symlink_to(cache)
    (two / HUB / folder.name).symlink_to(folder)
    for place in (one, two):
        (place / RECORD).write_bytes(with_checksum(record))
        Downloads(place).drop(but=[FULL])
        Downloads(place).drop()
        assert everything(cache) == before
    (one / RECORD).write_bytes(with_checksum({**record, "values": {"revisions": {}, "downloaded": [NAME]}}))
    with pytest.raises(ResultFormatError, match="unknown member 'downloaded'"):
        Downloads(one)


def test_a_refusal_leaves_nothing(folder, hub, tmp_path):
    hub.refused = {NAME: 403}
    with pytest.raises(ModelError, match="is gated"):
        Downloads(tmp_path).get(NAME)
    assert not (tmp_path / RECORD).exists()


def test_what_was_to_be_kept_stays_and_revisions_are_apart(folder, tmp_path):
    downloads = Downloads(tmp_path, keep=True)
    downloads.get(NAME)
    downloads.get(NAME, commit_of(NAME))
    assert set(downloads.revisions) == {NAME, f"{NAME}@{commit_of(NAME)}"}
    Downloads(tmp_path).drop()
    assert weights(folder) and not (tmp_path / HUB).exists()


def test_a_copy_without_weights_is_not_taken(folder, cache, tmp_path):
    put_in_cache(cache, NAME)
    (folder / "snapshots" / commit_of(NAME) / "model.safetensors").unlink()
    assert (Downloads(tmp_path).get(NAME) / "model.safetensors").is_file()
    with pytest.raises(ModelError, match="is not in the Hub cache, and nothing is downloaded offline"):
        Downloads(tmp_path / "other", offline=True).get(NAME)


def test_a_broken_record_is_named(tmp_path):
    (tmp_path / RECORD).write_text("{")
    with pytest.raises(ResultFormatError):
        Downloads(tmp_path)
