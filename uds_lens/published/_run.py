"""Carrying out a plan of published models: a study whose models come from the Hub and go when they are measured."""

from __future__ import annotations

import logging
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from huggingface_hub.constants import HF_HUB_CACHE

from uds_lens import study
from uds_lens._storage import atomic_directory
from uds_lens.errors import ConfigError, Setting
from uds_lens.published._downloads import Downloads
from uds_lens.published._registry import find
from uds_lens.study import StudyModel, StudyPlan, StudyStatus
from uds_lens.study._folder import StudyFolder
from uds_lens.study._models import study_models
from uds_lens.study._plan import metric_settings, require_packages_of, style_of
from uds_lens.study._status import estimate, weight_bytes
from uds_lens.study._work_keys import located_source
from uds_lens.study._worker import ModelRunner, Weights

_LOG = logging.getLogger("uds_lens.study")

RECORD = "downloads.json"  # file of a study's folder with the commits of its models


def run(
    plan: str | os.PathLike[str] | Mapping[str, Any] | StudyPlan,
    out: str | os.PathLike[str],
    *,
    keep_downloads: bool = False,
) -> StudyStatus:
    """Measure the models of a plan, downloaded one at a time and removed when they are measured.

    At no time are more than two models on the disk by this call: full or retain, and the model that is measured. It
    may be killed and repeated: finished models are not downloaded again, and what a killed download left is removed.
    Models that were in the Hub's cache before stay there. `downloads.json` in the folder keeps the commit of each
    model, which later calls with this folder take again. Download sizes, disk and time are logged first
    (`uds_lens.study`).

    Args:
        plan: What to measure: a file, or the result of `plan`.
        out: Directory of the study.
        keep_downloads: Leave the models in the Hub's cache.

    Returns:
        Progress of the study; `failed` names what could not be measured, and why, gated models among them.

    Raises:
        ConfigError: The plan cannot be carried out, or the disk is too small.
        ModelError: full or retain cannot be had.
        ResultFormatError: `out` holds something else.
        MissingDependencyError: The plan needs a package that is not installed.
    """
    wanted = study.plan(plan)
    require_packages_of(wanted)
    folder = StudyFolder.begin(wanted, out)
    if not any(folder.missing(model, state) for model in folder.models for state in model.states):
        return study.status(folder)
    runner = PublishedRunner(wanted, folder.path, keep_downloads=keep_downloads)
    runner.downloads.drop(but=(wanted.full, wanted.retain))  # what an earlier call left
    _tell_downloads(folder, runner, keep=keep_downloads)
    runner.open_references()
    status = study.run(wanted, out, runner=runner)
    runner.downloads.drop()
    return status


class PublishedRunner(ModelRunner):
    """Measures the models of a plan, which it downloads before and removes after."""

    def __init__(self, plan: StudyPlan, folder: Path, *, keep_downloads: bool = False) -> None:
        super().__init__(plan, folder)
        self.downloads = Downloads(folder / RECORD, keep=keep_downloads, offline=self.run.offline)
        self._shell, self._measured = folder / "retain-without-weights", False
        self._problem: Exception | None = None

    def open_references(self) -> None:
        """Download full and retain."""
        self.full, self.retain = self._place(self.plan.full), self._place(self.plan.retain)

    def make(self, model: StudyModel, place: Path) -> Weights:
        """Return the weights of a model, alone on the disk but for full."""
        if self._problem is not None:
            raise self._problem  # what other models need of full and retain cannot be had
        if not self._measured:
            try:
                self.open_references()
                self._measure_references()
            except Exception as error:
                self._problem = error
                raise
        if model.is_made:
            return super().make(model, place)
        if model.source != self.plan.retain:
            self._close_retain()
        self.downloads.drop(but=(self.plan.full, model.source))
        return self._place(model.source, model.revision)

    def bytes_of(self, source: str) -> int:
        """Return the size of a checkpoint's weights in float32, known before it is downloaded."""
        entry = (find(source) or find(self.plan.full)) if _on_the_hub(source) else None
        return weight_bytes(source) if entry is None else 4 * entry.group.parameters

    def _place(self, source: str, revision: str | None = None) -> str | Path:
        return self.downloads.get(source, revision) if _on_the_hub(source) else located_source(source)

    def _measure_references(self) -> None:
        """Measure all that other models need of retain: it is not opened again."""
        from uds_lens.metrics import METRICS, evaluate

        if self.plan.measure.audit is not None:
            _ = self._baseline
        asked = {
            (item, style_of(self.plan.measure, item, model.role, state.state))
            for model in study_models(self.plan)
            for state in model.states
            for item in model.items_of(state)
            if item in METRICS
        }
        for style in sorted({style for _, style in asked}, key=str):
            names = [name for name in METRICS if (name, style) in asked and _needs_retain(name)]
            if names:
                evaluate(
                    self.full,
                    self.data,
                    metrics=names,
                    retain=self.retain,
                    full=self.full,
                    options=metric_settings(self.plan.measure, style),
                    run=self.run,
                    cache=self._cache,
                )
        self._measured = True

    def _close_retain(self) -> None:
        """Let its configuration and tokenizer stand for retain, so that its weights can go."""
        if not _on_the_hub(self.plan.retain) or self.retain == self._shell:
            return
        with atomic_directory(self._shell, own=()) as shell:
            for file in Path(self.retain).iterdir():
                if file.suffix != ".safetensors":
                    shutil.copyfile(file, shell / file.name)
        self._cache.stand_in(self.retain, self._shell)
        self.retain = self._shell


def _needs_retain(metric: str) -> bool:
    from uds_lens.metrics._catalogue import resolve

    return any("retain" in spec.needs for spec in resolve([metric]))


def _on_the_hub(source: str) -> bool:
    return isinstance(located_source(source), str)


def _tell_downloads(folder: StudyFolder, runner: PublishedRunner, *, keep: bool) -> None:
    """Log what will be downloaded and how long it takes, and refuse what the disk cannot hold."""
    left = [model for model in folder.models if any(folder.missing(model, state) for state in model.states)]
    sources = {folder.plan.full, folder.plan.retain, *(model.source for model in left)}
    there, gb = {source for source in sources if _on_the_hub(source) and runner.downloads.has(source)}, 1e9
    sizes = [runner.bytes_of(source) / 2 for source in sources - there if _on_the_hub(source)]  # in bfloat16
    if there:
        _LOG.info("%d models are in the Hub's cache already", len(there))
    _LOG.info("%s", estimate(folder, bytes_of=runner.bytes_of))
    if not sizes:
        return
    at_once = sum(sizes if keep else sorted(sizes)[-2:])
    place = Path(HF_HUB_CACHE)
    while not place.exists():
        place = place.parent
    free = shutil.disk_usage(place).free
    _LOG.info(
        "%d models to download, %.3g GB in all, at most %.2g GB of them on the disk at a time (%.3g GB free)",
        len(sizes),
        sum(sizes) / gb,
        at_once / gb,
        free / gb,
    )
    if at_once > free:
        raise ConfigError(
            f"the models take {at_once / gb:.1f} GB at a time in {str(place)!r}, {free / gb:.1f} are free: set HF_HOME "
            "to a larger disk",
            *((", or leave out ", Setting("keep_downloads", True)) if keep else ()),
            ".",
        )
