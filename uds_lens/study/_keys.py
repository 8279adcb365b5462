"""Keys of work items: hashes of weights, metric, options and data. An item is not measured again if its key exists."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

from uds_lens._storage.files import sha256_file
from uds_lens._storage.records import digest, program_digest
from uds_lens._storage.results import Kind, Result
from uds_lens._types import ChatStyleName
from uds_lens.data import ForgetExample
from uds_lens.errors import ConfigError, ModelError, ResultFormatError
from uds_lens.metrics._catalogue import resolve
from uds_lens.models._checkpoint import checkpoint_folders, place_of
from uds_lens.results import AuditConfig
from uds_lens.results._other_cautions import about_sample
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
from uds_lens.unlearning import MethodConfig
from uds_lens.unlearning._registry import DECLARED

T = TypeVar("T")

RULES = 1  # incremented when the same plan starts to give different values

_NO_VALUE = {"metrics": ("generation_rows", "fisher_memory_gb"), ELICITATION: ("rows_at_once",)}
"""Settings that affect only speed and memory. Keys always contain their defaults."""

RESCORED = ("tau", "confidence", "n_bootstrap", "words")
"""Settings of an audit that are applied to its saved deltas, so that changing them needs no model."""

_HASHES = Kind("FileHashes")

_WEIGHTS = (".safetensors", ".bin", ".json", ".jinja", ".model")
_RECORDS = ("unlearning.json", "relearning.json", "finetuning.json", "quantisation.json", "manifest.json")


def rows_hash(rows: Sequence[ForgetExample] | None) -> str | None:
    """Hash everything in the examples except their positions."""
    return None if rows is None else digest([{**asdict(row), "row": 0} for row in rows])


def located_source(place: str) -> str | Path:
    """Return the directory or Hub id of a checkpoint named in a plan."""
    if place.startswith("toy:"):
        checkpoints = toy_world().checkpoints
        name = place.removeprefix("toy:")
        if name not in checkpoints:
            raise ConfigError(f"the toy world has no checkpoint {name[:40]!r}; it has {', '.join(checkpoints)}.")
        return checkpoints[name]
    if place.startswith("package:"):
        return place_of(place)
    path = Path(place)
    if path.is_absolute() and not path.exists():
        raise ConfigError(f"no checkpoint at {place[-200:]!r}: expected a directory with a model, or a Hub id.")
    return path if path.exists() else place


def folders_of(checkpoint: Path) -> list[Path]:
    """Return the paths of a checkpoint's weights; a folder without weights raises an error later, when it is opened."""
    try:
        return [Path(place) for place in checkpoint_folders(checkpoint)]
    except ModelError:
        return [checkpoint]


class FileHashes:
    """SHA-256 of large files, cached while a file's size and modification time stay the same."""

    def __init__(self, place: Path | None = None) -> None:
        self._place, self._known = place, {}
        if place is not None:
            with suppress(ResultFormatError):  # a missing or altered cache does no harm, because it only saves time
                self._known = Result.load(place, _HASHES).values

    def of(self, file: Path) -> str:
        """Return the hash of a file."""
        stat = file.stat()
        name = f"{file.resolve()}|{stat.st_size}|{stat.st_mtime_ns}"
        if name not in self._known:
            self._known[name] = sha256_file(file)
            if self._place is not None:
                Result(_HASHES, {}, values=self._known).save(self._place)
        return self._known[name]


class WorkKeys:
    """Keys for all items in a plan."""

    def __init__(self, plan: StudyPlan, remembered: Path | None = None) -> None:
        self.plan, self._hashes = plan, FileHashes(remembered)
        self._source, self._rows = cache(self._hash_of_source), cache(self._hash_of_rows)
        self._options, self._read = cache(self._hash_of_options), cache(read_rows)
        self.questions = read_questions(plan.data)
        sets = {name: getattr(self.questions, name) for name in (*SETS, "entities")}
        if plan.data.tofu is None:  # with TOFU, a missing set is treated as empty
            sets = {name: rows or None for name, rows in sets.items()}
        self.data_hash = digest({name: rows_hash(rows) for name, rows in sets.items()})

    @property
    def about_sample(self) -> str | None:
        """How the questions were sampled, in words; None if all are asked."""
        return None if self.questions.sample is None else about_sample(self.questions.sample)

    def weights(self, model: StudyModel, state: StudyState) -> str:
        """Return the key of the weights of a model in a state."""
        parts = [RULES, self._source(model.source, model.revision), state.state]
        if model.config is not None:
            parts.append(self._training(model.config, model.forget, model.retain))
        if state.state == "relearned":
            config = relearn_config(self.plan, int(state.seed or 0))
            parts.append(self._training(config, self.plan.train.forget))
        return digest(parts)

    def _training(self, config: MethodConfig, *rows: tuple[TrainingRows, ...]) -> list[Any]:
        """Return everything that a training run depends on, including options that change weights beyond rounding."""
        declared, options = DECLARED.get(config.method), training_settings(self.plan)
        names = ("dtype", "save_dtype", "mixed_precision", "device_batch_size")
        data = [[self._rows(part) for part in parts] for parts in rows]
        given = {name: getattr(options, name) for name in names}
        return [config.method, config.to_dict(), data, given, declared and declared.source]

    def items(self, model: StudyModel, state: StudyState) -> dict[str, str]:
        """Return the key of each item measured for a model in a given state."""
        hashes = {item: self.options_hash(model, state, item) for item in model.items_of(state)}
        return self._keys(model, state, hashes)

    def _keys(self, model: StudyModel, state: StudyState, options: Mapping[str, str]) -> dict[str, str]:
        whole = [self.weights(model, state), self.data_hash]
        whole += [self._source(place, None) for place in (self.plan.full, self.plan.retain)]
        return {item: digest([*whole, item, chosen]) for item, chosen in options.items()}

    def options_hash(self, model: StudyModel, state: StudyState, item: str) -> str:
        """Hash the settings of an item; settings that do not change its value are left at their defaults."""
        is_metric = item not in (AUDIT, ELICITATION)
        return self._options(item, style_of(self.plan.measure, item, model.role, state.state) if is_metric else None)

    def _hash_of_options(self, item: str, style: ChatStyleName | None) -> str:
        measure = self.plan.measure
        if item == AUDIT and (config := audit_settings(measure)) is not None:
            return digest(asdict(config))
        if item == ELICITATION and (asked := elicitation_settings(measure)) is not None:
            return digest([asked[0], asdict(_with_defaults(asked[1], _NO_VALUE[ELICITATION]))])
        tau = () if self._depends_on_tau(item) else ("tau",)
        options = _with_defaults(metric_settings(measure, style), (*_NO_VALUE["metrics"], *tau))
        own = [spec for spec in resolve([item], options=options) if not spec.is_ours]
        sources = {"sources": [program_digest(getattr(spec.score, "func", spec.score)) for spec in own]} if own else {}
        return digest({**options.to_dict(), "fluency": measure.fluency, **sources})

    def audit_key(self, model: StudyModel, state: StudyState, config: AuditConfig) -> str | None:
        """Return the key of the audit without the settings in `RESCORED`; None if other settings differ."""
        wanted = audit_settings(self.plan.measure)
        if wanted is None:
            return None
        if wanted.protocol == "auto":
            config = replace(config, protocol="auto")  # a finished audit records the prompts that were chosen
        if replace(config, **{name: getattr(wanted, name) for name in RESCORED}) != wanted:
            return None
        return self._keys(model, state, {AUDIT: digest(asdict(config))})[AUDIT]

    def _depends_on_tau(self, item: str) -> bool:
        """Check whether a metric reads UDS or Logit Lens passes; custom metrics are assumed to read both."""
        return any(
            not spec.origin.startswith("uds_lens.")
            or any(needed.kind in ("patched", "lens", "transplanted") for needed in spec.passes)
            for spec in resolve([item], options=metric_settings(self.plan.measure))
        )

    def _hash_of_source(self, place: str, revision: str | None) -> str:
        """Identify a checkpoint by the hashes of its files or by its name on the Hub."""
        folder = located_source(place)
        if isinstance(folder, str):
            return digest(["hub", f"{place}@{revision}"])
        return digest([self._files(path) if path.exists() else os.fspath(path) for path in folders_of(folder)])

    def _files(self, place: Path) -> dict[str, str]:
        """Hash the files of a checkpoint: a directory, or one file."""
        files = [place] if place.is_file() else [file for file in sorted(place.iterdir()) if file.suffix in _WEIGHTS]
        return {file.name: self._hashes.of(file) for file in files if file.is_file() and file.name not in _RECORDS}

    def _hash_of_rows(self, part: TrainingRows) -> str | None:
        return rows_hash(training_answers([part], read=self._read))


def _with_defaults(settings: T, names: Sequence[str]) -> T:
    """Return the settings with some of them reset to their defaults."""
    defaults = type(settings)()
    return replace(settings, **{name: getattr(defaults, name) for name in names})  # type: ignore[type-var]
