"""Models from the Hub, one at a time: what was downloaded here, at which commit, and removing it."""

from __future__ import annotations

import json
import shutil
from collections.abc import Collection
from pathlib import Path
from typing import Any

from uds_lens._compat.huggingface_hub import asking_the_hub
from uds_lens._compat.transformers import is_offline
from uds_lens._storage import atomic_write_bytes, read_with_checksum, with_checksum
from uds_lens.errors import ModelError, ResultFormatError
from uds_lens.models._checkpoint import not_on_the_hub

_FORMAT, _VERSION = "uds_lens.Downloads", 1

_FILES = ("*.json", "*.safetensors", "*.model", "*.txt", "*.jinja")
"""What a checkpoint needs; copies of its weights in other formats stay on the Hub."""


class Downloads:
    """Models in the Hub's cache, and which of them came there by this record.

    What was in the cache before is never removed.
    """

    def __init__(self, record: Path, *, keep: bool = False, offline: bool = False) -> None:
        self._record, self._keep, self._offline = record, keep, offline
        saved: dict[str, Any] = {}
        if record.is_file():
            saved = read_with_checksum(record, format=_FORMAT, versions=(_VERSION,))
        try:
            self.revisions = {str(name): str(commit) for name, commit in dict(saved.get("revisions", {})).items()}
            self._ours = [str(name) for name in saved.get("downloaded", [])]
        except (TypeError, ValueError) as error:
            raise ResultFormatError(f"{str(record)[-200:]!r} holds no record of downloads: delete it.") from error

    def get(self, name: str, revision: str | None = None) -> Path:
        """Return the folder of a model, downloaded if it is not there; always at the commit that was first seen."""
        from huggingface_hub import snapshot_download
        from huggingface_hub.errors import LocalEntryNotFoundError

        key = name if revision is None else f"{name}@{revision}"
        wanted: dict[str, Any] = {"revision": self.revisions.get(key, revision), "allow_patterns": list(_FILES)}
        folder = None
        if name not in self._ours or self._offline:
            try:
                folder = snapshot_download(name, local_files_only=True, **wanted)
                if not self._offline and not _is_whole(Path(folder)):
                    folder = None  # somebody read its configuration or tokenizer alone
            except LocalEntryNotFoundError as error:
                if self._offline:
                    raise ModelError(_absent(name)) from error
                if not self._keep and not _snapshots(name):  # else somebody's copy lies there, which stays
                    self._ours.append(name)
                    self._save()  # before the first byte, so that a killed download is removed later
        if folder is None:
            try:
                folder = self._download(name, wanted)
            except ModelError:
                if name in self._ours and not _snapshots(name):  # nothing came: what lies there later is somebody's
                    self._ours.remove(name)
                    self._save()
                raise
        if self.revisions.get(key) != (commit := Path(folder).name):
            self.revisions[key] = commit
            self._save()
        return Path(folder)

    def has(self, name: str) -> bool:
        """Tell whether a model is in the cache, whole."""
        from huggingface_hub import snapshot_download
        from huggingface_hub.errors import LocalEntryNotFoundError

        try:
            return _is_whole(Path(snapshot_download(name, revision=self.revisions.get(name), local_files_only=True)))
        except LocalEntryNotFoundError:
            return False

    def _download(self, name: str, wanted: dict[str, Any]) -> str:
        from huggingface_hub import snapshot_download
        from huggingface_hub.errors import GatedRepoError, RepositoryNotFoundError

        try:
            with asking_the_hub():
                return str(snapshot_download(name, **wanted))
        except GatedRepoError as error:
            raise ModelError(
                f"{name!r} is gated: accept its licence at https://huggingface.co/{name}, log in with "
                "`hf auth login`, and run the same command again."
            ) from error
        except RepositoryNotFoundError as error:
            raise ModelError(
                f"there is no model {name!r} on the Hub, or it is private: its owner may have moved it. Leave it out "
                "of the plan."
            ) from error
        except Exception as error:  # the Hub's client has no common base class for its errors
            words = _absent(name) if is_offline() else not_on_the_hub(name, _first(error), offline=False)
            raise ModelError(words) from error

    def drop(self, *, but: Collection[str] = ()) -> None:
        """Remove what was downloaded here, except some."""
        if self._keep or not (gone := [name for name in self._ours if name not in but]):
            return
        from huggingface_hub import scan_cache_dir
        from huggingface_hub.constants import HF_HUB_CACHE
        from huggingface_hub.errors import CacheNotFound

        try:
            cache = scan_cache_dir(HF_HUB_CACHE)
        except (CacheNotFound, ValueError):
            cache = None
        if cache is not None:
            commits = [
                revision.commit_hash
                for repo in cache.repos
                if repo.repo_type == "model" and repo.repo_id in gone
                for revision in repo.revisions  # there were none before
            ]
            cache.delete_revisions(*commits).execute()
        for name in gone:  # killed before its first file was whole
            if not _snapshots(name):
                shutil.rmtree(_cached(name), ignore_errors=True)
        self._ours = [name for name in self._ours if name in but]
        self._save()

    def _save(self) -> None:
        record = {"format": _FORMAT, "version": _VERSION, "revisions": self.revisions, "downloaded": self._ours}
        atomic_write_bytes(self._record, with_checksum(record))


def _absent(name: str) -> str:
    return (
        f"{name!r} is not in the Hub's cache, and offline nothing is downloaded: run `hf download {name}` where there "
        "is a connection, or this command again online."
    )


def _first(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0].rstrip(".")


def _cached(name: str) -> Path:
    from huggingface_hub.constants import HF_HUB_CACHE

    return Path(HF_HUB_CACHE) / f"models--{name.replace('/', '--')}"


def _snapshots(name: str) -> list[Path]:
    return list(_cached(name).glob("snapshots/*"))


def _is_whole(folder: Path) -> bool:
    """Tell whether a snapshot has its weights, in any format."""
    for index in (*folder.glob("*.safetensors.index.json"), *folder.glob("*.bin.index.json")):
        return all((folder / file).exists() for file in json.loads(index.read_text("utf-8"))["weight_map"].values())
    return any((*folder.glob("*.safetensors"), *folder.glob("pytorch_model*.bin")))
