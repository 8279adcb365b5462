"""Run a plan for published models: a study that downloads models from the Hub and removes them once measured."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from huggingface_hub.constants import HF_HUB_CACHE

from uds_lens import study
from uds_lens._compat.huggingface_hub import asking_the_hub
from uds_lens._compat.transformers import is_offline
from uds_lens._storage.files import remove_inside
from uds_lens._storage.results import Kind, Result
from uds_lens.errors import ConfigError, ModelError, Setting
from uds_lens.models._checkpoint import not_on_the_hub
from uds_lens.published._registry import find
from uds_lens.study import StudyPlan, StudyStatus
from uds_lens.study._folder import StudyFolder
from uds_lens.study._keys import located_source
from uds_lens.study._measuring import ModelRunner, Weights
from uds_lens.study._models import StudyModel
from uds_lens.study._plan import require_packages_of
from uds_lens.study._run import free_bytes, weight_bytes

_LOG = logging.getLogger("uds_lens.study")

RECORD = "downloads.json"  # file in a study's folder with the commits of its models
HUB = "hub"  # subfolder of a study for downloads that are removed after use


def run(
    plan: str | os.PathLike[str] | Mapping[str, Any] | StudyPlan,
    out: str | os.PathLike[str],
    *,
    keep_downloads: bool = False,
) -> StudyStatus:
    """Measure the models in a plan, downloading one at a time and removing it once it is measured.

    Models in the Hub cache are used from there. Other models are downloaded into `hub/` in the study's folder, which
    holds three models at a time: full, retain, and the model being measured. Nothing outside the folder is removed. A
    call may be killed and repeated: finished models are not downloaded again, and the remains of a killed download are
    removed. `downloads.json` in the folder records the commit of each model, which later calls reuse. Download
    sizes and free disk space are logged first (logger `uds_lens.study`).

    Args:
        plan: What to measure: a file, or the result of `plan`.
        out: Directory of the study.
        keep_downloads: Download the models into the Hub cache and keep them there.

    Returns:
        Progress of the study; `failed` names the models that could not be measured, such as gated models, and why.

    Raises:
        ConfigError: The plan cannot be run, or the disk is too small.
        ModelError: full or retain cannot be downloaded.
        ResultFormatError: `out` holds something else.
        MissingDependencyError: The plan needs a package that is not installed.
    """
    wanted = study.plan(plan)
    require_packages_of(wanted)
    folder = StudyFolder.begin(wanted, out)
    if not folder.left():
        return study.status(folder)
    runner = PublishedRunner(wanted, folder.path, keep_downloads=keep_downloads)
    runner.downloads.drop(but=(wanted.full, wanted.retain))  # an earlier call may have left models
    _tell_downloads(folder, runner, keep=keep_downloads)
    runner.open_references()
    status = study.run(wanted, out, runner=runner)
    runner.downloads.drop()
    return status


class PublishedRunner(ModelRunner):
    """Measures the models in a plan; each model is downloaded first and removed afterwards."""

    def __init__(self, plan: StudyPlan, folder: Path, *, keep_downloads: bool = False) -> None:
        super().__init__(plan, folder)
        self.downloads = Downloads(folder, keep=keep_downloads, offline=self.run.offline)

    def open_references(self) -> None:
        """Download full and retain."""
        self.full, self.retain = self._place(self.plan.full), self._place(self.plan.retain)

    def make(self, model: StudyModel, place: Path) -> Weights:
        """Return the weights of a model, after removing all other downloads except full and retain."""
        if model.is_made:
            return super().make(model, place)
        self.downloads.drop(but=(self.plan.full, self.plan.retain, model.source))
        return self._place(model.source, model.revision)

    def bytes_of(self, source: str) -> int:
        """Return the size of a checkpoint's weights in float32, without downloading it."""
        entry = (find(source) or find(self.plan.full)) if _on_the_hub(source) else None
        return weight_bytes(source) if entry is None else 4 * entry.group.parameters

    def _place(self, source: str, revision: str | None = None) -> str | Path:
        return self.downloads.get(source, revision) if _on_the_hub(source) else located_source(source)


def _on_the_hub(source: str) -> bool:
    return isinstance(located_source(source), str)


def _tell_downloads(folder: StudyFolder, runner: PublishedRunner, *, keep: bool) -> None:
    """Log what will be downloaded, and raise an error if the disk is too small for it."""
    sources = {folder.plan.full, folder.plan.retain, *(model.source for model in folder.left())}
    there = [source for source in sources if _on_the_hub(source) and runner.downloads.has(source)]
    wanted = [source for source in sources if _on_the_hub(source) and source not in there]
    sizes = sorted(runner.bytes_of(source) / 2 for source in wanted)  # in bfloat16
    at_once, gb = sum(sizes if keep else sizes[-3:]), 1e9
    place = Path(HF_HUB_CACHE) if keep else folder.path
    free = free_bytes(place)
    _LOG.info(
        "%d models are already on this machine; %d models to download, %.3g GB in all, at most %.2g GB on the disk at "
        "a time (%.3g GB free)",
        *(len(there), len(sizes), sum(sizes) / gb, at_once / gb, free / gb),
    )
    if at_once > free:
        fix: tuple[Any, ...] = ("leave out ", Setting("keep_downloads", True), ", or set HF_HOME to")
        raise ConfigError(
            f"the models take up to {at_once / gb:.1f} GB at a time in {str(place)!r}, but only {free / gb:.1f} GB are "
            "free: ",
            *(fix if keep else ("take a folder on",)),
            " a larger disk.",
        )


# Models from the Hub: where they are stored, at which commits, and how downloads are removed.


class _Revisions(NamedTuple):
    revisions: dict[str, str]


_SAVED = Kind("Downloads", values=_Revisions)

_FILES = ("*.json", "*.safetensors", "*.model", "*.txt", "*.jinja")
"""Files that a checkpoint needs; copies of its weights in other formats are not downloaded."""


class Downloads:
    """Models of a study, in the user's Hub cache, where they stay, or in a cache inside the study's folder."""

    def __init__(self, folder: Path, *, keep: bool = False, offline: bool = False) -> None:
        self._folder, self._offline, self._own = folder, offline, folder / HUB
        self._goes_to = None if keep else self._own  # None: the user's cache
        self._record = folder / RECORD
        self.revisions: dict[str, str] = {}
        if self._record.is_file():
            self.revisions = Result.load(self._record, _SAVED).values.revisions

    def get(self, name: str, revision: str | None = None) -> Path:
        """Return the folder of a model, downloading it if needed; always at the commit that was seen first."""
        key = name if revision is None else f"{name}@{revision}"
        wanted = self.revisions.get(key, revision)
        folder = _whole(name, wanted, None)
        if folder is None and self._offline:
            folder = _whole(name, wanted, self._own)
            if folder is None:
                raise ModelError(_absent(name))
        if folder is None:  # even if the study has the model, because a killed call may have left it incomplete
            folder = self._download(name, wanted)
        if self.revisions.get(key) != folder.name:
            self.revisions[key] = folder.name
            Result(_SAVED, {}, values=_Revisions(self.revisions)).save(self._record)
        return folder

    def has(self, name: str) -> bool:
        """Return whether a complete copy of a model is on this machine."""
        wanted = self.revisions.get(name)
        return any(_whole(name, wanted, cache) is not None for cache in (None, self._own))

    def _download(self, name: str, revision: str | None) -> Path:
        from huggingface_hub import snapshot_download

        try:
            with asking_the_hub():
                return Path(
                    snapshot_download(name, revision=revision, cache_dir=self._goes_to, allow_patterns=list(_FILES))
                )
        except Exception as error:  # huggingface_hub has no common base class for its errors
            raise ModelError(_why_not(name, error)) from error

    def drop(self, *, but: Collection[str] = ()) -> None:
        """Remove the models that were downloaded into the study's folder, except those in `but`."""
        kept = {f"models--{name.replace('/', '--')}" for name in but}
        for place in list(self._own.glob("models--*")) if kept else [self._own]:
            if place.name not in kept:
                remove_inside(self._folder, place)


def _whole(name: str, revision: str | None, cache: Path | None) -> Path | None:
    """Return the folder of a model in a Hub cache (None: the user's cache); None if it is missing or incomplete."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import LocalEntryNotFoundError

    try:
        folder = snapshot_download(
            name, revision=revision, cache_dir=cache, local_files_only=True, allow_patterns=list(_FILES)
        )
    except LocalEntryNotFoundError:
        return None
    return Path(folder) if _is_whole(Path(folder)) else None


def _absent(name: str) -> str:
    return (
        f"{name!r} is not in the Hub cache, and nothing is downloaded offline: run `hf download {name}` on a "
        "machine with a connection, or repeat this command online."
    )


def _why_not(name: str, error: Exception) -> str:
    """Return why a model could not be downloaded."""
    from huggingface_hub.errors import GatedRepoError, RepositoryNotFoundError

    if isinstance(error, GatedRepoError):
        return (
            f"{name!r} is gated: accept its licence at https://huggingface.co/{name}, log in with `hf auth login`, and "
            "run the same command again."
        )
    if isinstance(error, RepositoryNotFoundError):
        return (
            f"there is no model {name!r} on the Hub, or it is private: its owner may have moved it. Leave it out of "
            "the plan."
        )
    if is_offline():
        return _absent(name)
    first = (str(error).strip() or type(error).__name__).splitlines()[0].rstrip(".")
    return not_on_the_hub(name, first, offline=False)


def _is_whole(folder: Path) -> bool:
    """Return whether a snapshot has its weights, in any format."""
    for index in (*folder.glob("*.safetensors.index.json"), *folder.glob("*.bin.index.json")):
        return all((folder / file).exists() for file in json.loads(index.read_text("utf-8"))["weight_map"].values())
    return any((*folder.glob("*.safetensors"), *folder.glob("pytorch_model*.bin")))
