"""Keys of work: hashes of weights, metric, options and data. Work whose key exists is never repeated."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import asdict, replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from uds_lens._storage import atomic_write_bytes, digest, read_with_checksum, sha256_file, with_checksum
from uds_lens.data import ForgetExample, chat_style_named
from uds_lens.errors import ConfigError, ModelError, ResultFormatError
from uds_lens.metrics._catalogue import resolve
from uds_lens.study._models import (
    AUDIT,
    ELICITATION,
    StudyModel,
    StudyState,
    read_questions,
    read_rows,
    relearn_config,
    toy_world,
    training_answers,
)
from uds_lens.study._plan import (
    SETS,
    StudyPlan,
    TrainingRows,
    audit_settings,
    elicitation_settings,
    metric_settings,
    style_of,
    training_settings,
)
from uds_lens.unlearning._registry import DECLARED

if TYPE_CHECKING:
    from uds_lens.results import AuditConfig


T = TypeVar("T")

RULES = 1  # counts up when equal plans begin to give other values

_NO_VALUE = {"metrics": ("generation_rows", "fisher_memory_gb"), ELICITATION: ("max_hours", "rows_at_once")}
"""Settings that change speed and memory and no value: keys are made with their defaults, whatever a plan says."""

RESCORED = ("tau", "confidence", "n_bootstrap")
"""Settings of an audit that are applied to its saved deltas: changing one needs no model."""

_WEIGHTS = (".safetensors", ".bin", ".json", ".jinja", ".model")
_RECORDS = ("unlearning.json", "relearning.json", "finetuning.json", "quantisation.json", "manifest.json")


def rows_hash(rows: Sequence[ForgetExample] | None) -> str | None:
    """Hash everything in some examples but their position."""
    return None if rows is None else digest([{**asdict(row), "row": 0} for row in rows])


def _settings_of(config: AuditConfig) -> dict[str, Any]:
    """Return the settings of an audit; those that studies from before lack, or had another default of, as they were."""
    settings = asdict(config)
    if config.stand_in != "counterfactual":
        settings["counterfactual"] = "other"
    return {name: value for name, value in settings.items() if (name, value) != ("words", "unlearning")}


def located_source(place: str) -> str | Path:
    """Return a checkpoint that a plan names: a directory, or a Hub id."""
    if place.startswith("toy:"):
        checkpoints = toy_world().checkpoints
        name = place.removeprefix("toy:")
        if name not in checkpoints:
            raise ConfigError(f"the toy world has no checkpoint {name[:40]!r}; it has {', '.join(checkpoints)}.")
        return checkpoints[name]
    if place.startswith("package:"):
        from uds_lens.models._checkpoint import place_of

        return place_of(place)
    path = Path(place)
    if path.is_absolute() and not path.exists():
        raise ConfigError(f"no checkpoint at {place[-200:]!r}: expected a directory with a model, or a Hub id.")
    return path if path.exists() else place


def folders_of(checkpoint: Path) -> list[Path]:
    """Return the places of a checkpoint's weights; a folder that holds none fails by itself when it is opened."""
    from uds_lens.models import checkpoint_folders

    try:
        return [Path(place) for place in checkpoint_folders(checkpoint)]
    except ModelError:
        return [checkpoint]


class FileHashes:
    """SHA-256 of large files, kept for as long as a file has the same size and time."""

    _FORMAT, _VERSION = "uds_lens.FileHashes", 1

    def __init__(self, place: Path | None = None) -> None:
        self._place, self._known, self._new = place, self._read(place), False

    def of(self, file: Path) -> str:
        """Return the hash of a file."""
        stat = file.stat()
        name = f"{file.resolve()}|{stat.st_size}|{stat.st_mtime_ns}"
        if name not in self._known:
            self._known[name], self._new = sha256_file(file), True
        return self._known[name]

    def save(self) -> None:
        """Write new hashes."""
        if self._place is not None and self._new:
            self._known = {**self._read(self._place), **self._known}
            record = {"format": self._FORMAT, "version": self._VERSION, "files": self._known}
            atomic_write_bytes(self._place, with_checksum(record))
            self._new = False

    @classmethod
    def _read(cls, place: Path | None) -> dict[str, str]:
        if place is None:
            return {}
        try:
            files = read_with_checksum(place, format=cls._FORMAT, versions=(cls._VERSION,)).get("files")
        except ResultFormatError:  # not there or altered: it only saves time
            return {}
        return {str(k): str(v) for k, v in files.items()} if isinstance(files, dict) else {}


class WorkKeys:
    """Keys of everything in a plan."""

    def __init__(self, plan: StudyPlan, remembered: Path | None = None) -> None:
        self.plan, self.hashes = plan, FileHashes(remembered)
        self.source, self._rows = cache(self._source), cache(self._hash_of_rows)
        self._weights: dict[tuple[str, str], str] = {}
        self._option_hashes: dict[tuple[str, str | None], str] = {}
        self._read = cache(read_rows)
        self.questions = read_questions(plan.data)
        sets = {name: getattr(self.questions, name) for name in (*SETS, "entities")}
        if plan.data.tofu is None:  # a set of TOFU that is not there counts as empty
            sets = {name: rows or None for name, rows in sets.items()}
        self.data_hash = digest({name: rows_hash(rows) for name, rows in sets.items()})
        self._audit, self._metrics = audit_settings(plan.measure), metric_settings(plan.measure)
        elicitation = elicitation_settings(plan.measure)
        self._options: dict[str, Any] = {
            "metrics": _with_defaults(self._metrics, _NO_VALUE["metrics"]).to_dict()
            | {"fluency": plan.measure.fluency},
            AUDIT: None if self._audit is None else _settings_of(self._audit),
            ELICITATION: None
            if elicitation is None
            else [elicitation[0], asdict(_with_defaults(elicitation[1], _NO_VALUE[ELICITATION]))],
        }

    @property
    def about_sample(self) -> str | None:
        """How the questions were sampled, in words; None where all are asked."""
        from uds_lens.metrics._data import about_sample

        return None if self.questions.sample is None else about_sample(self.questions.sample)

    def weights(self, model: StudyModel, state: StudyState) -> str:
        """Return the key of the weights of a model in a state."""
        at = (model.model_id, state.label)
        if at not in self._weights:
            parts: dict[str, Any] = {"rules": RULES, "start": self.source(model.source, model.revision)}
            if model.config is not None:
                parts |= {
                    "method": model.config.method,
                    "config": model.config.to_dict(),
                    "forget": [self._rows(part) for part in model.forget],
                    "retain": [self._rows(part) for part in model.retain],
                    "options": self._training(),
                }
                declared = DECLARED.get(model.config.method)
                if declared is not None and declared.source is not None:
                    parts["source of the method"] = declared.source
            if state.state == "quantised":
                parts["quantised"] = "nf4"
            if state.state == "relearned":
                parts["relearned"] = {
                    "config": relearn_config(self.plan, int(state.seed or 0)).to_dict(),
                    "data": [self._rows(part) for part in self.plan.train.forget],
                    "options": self._training(),
                }
            self._weights[at] = digest(parts)
        return self._weights[at]

    def items(self, model: StudyModel, state: StudyState) -> dict[str, str]:
        """Return the key of each item that is measured of a model in a state."""
        items = model.items_of(state)
        return {item: self._key(model, state, item, self.options_hash(model, state, item)) for item in items}

    def options_hash(self, model: StudyModel, state: StudyState, item: str) -> str:
        """Hash the settings of an item; those that do not change its value are left at their defaults."""
        is_metric = item not in (AUDIT, ELICITATION)
        style = style_of(self.plan.measure, item, model.role, state.state) if is_metric else None
        if (item, style) not in self._option_hashes:
            options = self._options["metrics" if is_metric else item]
            if is_metric and not self._depends_on_tau(item):
                options = options | {"tau": type(self._metrics)().tau}
            if style is not None:
                options = options | asdict(chat_style_named(style))
            self._option_hashes[item, style] = digest(options)
        return self._option_hashes[item, style]

    def audit_key(self, model: StudyModel, state: StudyState, config: AuditConfig) -> str | None:
        """Return the key of the audit with other settings of `RESCORED`; None where others differ."""
        wanted = self._options[AUDIT]
        if wanted is not None and wanted["protocol"] == "auto":
            config = replace(config, protocol="auto")  # a finished audit holds the prompts that were chosen
        settings = _settings_of(config)
        if wanted is None or any(settings.get(name) != wanted[name] for name in wanted if name not in RESCORED):
            return None
        return self._key(model, state, AUDIT, digest(settings))

    def _key(self, model: StudyModel, state: StudyState, item: str, options: str) -> str:
        references = [self.source(place, None) for place in (self.plan.full, self.plan.retain)]
        return digest([self.weights(model, state), item, options, self.data_hash, references])

    def _depends_on_tau(self, item: str) -> bool:
        """Check whether a metric reads UDS or Logit Lens passes; custom metrics are assumed to."""
        return any(
            not spec.origin.startswith("uds_lens.")
            or any(needed.kind in ("patched", "lens", "transplanted") for needed in spec.passes)
            for spec in resolve([item], options=self._metrics)
        )

    def _source(self, place: str, revision: str | None) -> str:
        """Identify a checkpoint: by the hashes of its files, or its name on the Hub."""
        folder = located_source(place)
        if isinstance(folder, str):
            return digest(["hub", f"{place}@{revision}"])
        parts = [self._files(path) if path.exists() else os.fspath(path) for path in folders_of(folder)]
        self.hashes.save()
        return digest(parts if len(parts) > 1 else parts[0])

    def _files(self, place: Path) -> dict[str, str]:
        """Hash the files of a checkpoint: a directory, or one file."""
        files = [place] if place.is_file() else [file for file in sorted(place.iterdir()) if file.suffix in _WEIGHTS]
        return {file.name: self.hashes.of(file) for file in files if file.is_file() and file.name not in _RECORDS}

    def _hash_of_rows(self, part: TrainingRows) -> str | None:
        return rows_hash(training_answers([part], read=self._read))

    def _training(self) -> dict[str, Any]:
        """Options that change weights by more than rounding."""
        options = training_settings(self.plan)
        names = ("dtype", "save_dtype", "mixed_precision", "device_batch_size")
        return {name: getattr(options, name) for name in names}


def _with_defaults(settings: T, names: Sequence[str]) -> T:
    """Return settings with some of them at their defaults."""
    defaults = type(settings)()
    return replace(settings, **{name: getattr(defaults, name) for name in names})  # type: ignore[type-var]
