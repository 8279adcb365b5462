"""What a value depends on, hashed: weights, metric, options, data. Work whose key is there is never done again."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from uds_lens.data import ForgetExample
from uds_lens.study.file_hashes import FileHashes
from uds_lens.study.measurement_settings import (
    audit_settings,
    elicitation_settings,
    metric_settings,
    training_settings,
)
from uds_lens.study.plan_records import StudyPlan, TrainingRows
from uds_lens.study.study_models import AUDIT, ELICITATION, StudyModel, StudyState, relearn_config
from uds_lens.study.toy_sources import toy_world
from uds_lens.study.training_answers import asked_rows, training_answers

RULES = 1
"""Counts up when equal plans begin to give other values."""

_WEIGHTS = (".safetensors", ".bin", ".json", ".jinja", ".model")
_RECORDS = ("unlearning.json", "relearning.json", "quantisation.json", "manifest.json")


def digest(value: Any) -> str:
    """BLAKE2b of plain values: 32 hexadecimal digits.

    >>> digest({"a": 1, "b": 2}) == digest({"b": 2, "a": 1})
    True
    """
    text = json.dumps(value, sort_keys=True, ensure_ascii=True, default=str)
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def rows_hash(rows: list[ForgetExample] | None) -> str | None:
    """Hash of everything in some examples but their place."""
    if rows is None:
        return None
    return digest([{**asdict(row), "row": 0} for row in rows])


class WorkKeys:
    """Keys of everything in a plan.

    Args:
        plan: The plan.
        remembered: File that keeps hashes of checkpoints, for as long as their files keep size and time.
    """

    def __init__(self, plan: StudyPlan, remembered: Path | None = None) -> None:
        self.plan, self._memory = plan, FileHashes(remembered)
        self._sources: dict[str, str] = {}
        self._weights: dict[tuple[str, str], str] = {}
        self._data: dict[TrainingRows, str | None] = {}
        measure = plan.measure
        self.asked = asked_rows(plan.data)
        self.data_hash = digest({name: rows_hash(rows) for name, rows in self.asked.sets.items()})
        self._options = {
            "metrics": asdict(metric_settings(measure)) | {"fluency": measure.fluency},
            AUDIT: _plain(audit_settings(measure)),
            ELICITATION: _plain(elicitation_settings(measure)),
        }

    def weights(self, model: StudyModel, state: StudyState) -> str:
        """What the weights of a model in a state depend on."""
        at = (model.model_id, state.label)
        if at not in self._weights:
            self._weights[at] = self._weights_of(model, state)
        return self._weights[at]

    def _weights_of(self, model: StudyModel, state: StudyState) -> str:
        start = self.source(model.source, model.revision)
        parts: dict[str, Any] = {"rules": RULES, "start": start}
        if model.config is not None:
            parts |= {
                "method": model.config.method,
                "config": model.config.to_dict(),
                "forget": [self._rows(part) for part in model.forget],
                "retain": [self._rows(part) for part in model.retain],
                "options": self._training(),
            }
        if state.state == "quantised":
            parts["quantised"] = "nf4"
        if state.state == "relearned":
            parts["relearned"] = {
                "config": relearn_config(self.plan, int(state.seed or 0)).to_dict(),
                "data": [self._rows(part) for part in self.plan.train.forget],
                "options": self._training(),
            }
        return digest(parts)

    def options_hash(self, item: str) -> str:
        """What is measured, and how."""
        return digest(self._options[item if item in (AUDIT, ELICITATION) else "metrics"])

    def items(self, model: StudyModel, state: StudyState) -> dict[str, str]:
        """The key of each thing that is measured of a model in a state."""
        weights = self.weights(model, state)
        references = [self.source(place, None) for place in (self.plan.full, self.plan.retain)]
        return {
            item: digest([weights, item, self.options_hash(item), self.data_hash, references])
            for item in model.items_of(state)
        }

    def source(self, place: str, revision: str | None) -> str:
        """What stands at a place: the hashes of its files, or the name on the Hub."""
        name = f"{place}@{revision}"
        if name not in self._sources:
            folder = located_source(place)
            self._sources[name] = digest(["hub", name] if isinstance(folder, str) else self._files(folder))
        return self._sources[name]

    def _rows(self, part: TrainingRows) -> str | None:
        if part not in self._data:
            self._data[part] = rows_hash(training_answers([part]))
        return self._data[part]

    def _files(self, folder: Path) -> dict[str, str]:
        files = (file for file in sorted(folder.iterdir()) if file.is_file() and file.suffix in _WEIGHTS)
        found = {file.name: self._memory.of(file) for file in files if file.name not in _RECORDS}
        self._memory.save()
        return found

    def _training(self) -> dict[str, Any]:
        """Options that change weights by more than rounding."""
        options = asdict(training_settings(self.plan))
        names = ("dtype", "save_dtype", "mixed_precision", "device_batch_size")
        return {name: options[name] for name in names}


def located_source(place: str) -> str | Path:
    """A checkpoint as the plan names it: a directory, or a Hub id.

    Raises:
        ConfigError: The toy world has none of that name, or there is no such directory.
    """
    from uds_lens.errors import ConfigError

    if place.startswith("toy:"):
        found = toy_world().checkpoints
        name = place.removeprefix("toy:")
        if name not in found:
            raise ConfigError(f"the toy world has no checkpoint {name[:40]!r}; it has {', '.join(found)}.")
        return found[name]
    path = Path(place)
    if path.is_dir():
        return path
    if path.is_absolute():
        raise ConfigError(
            f"no checkpoint at {place[-200:]!r}: expected a directory with a model, or a Hub id."
        )
    return place


def _plain(value: Any) -> Any:
    if value is None:
        return None
    if isinstance(value, tuple):
        return [_plain(part) if hasattr(part, "__dataclass_fields__") else part for part in value]
    return dict(asdict(value)) if not isinstance(value, Mapping) else dict(value)
