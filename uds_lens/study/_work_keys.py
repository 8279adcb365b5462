"""Keys of work: hashes of weights, metric, options and data. Work whose key exists is never repeated."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from uds_lens._storage import atomic_write_bytes, read_sealed, sealed, sha256_file
from uds_lens.data import ForgetExample
from uds_lens.errors import ResultFormatError
from uds_lens.study._models import (
    AUDIT,
    ELICITATION,
    StudyModel,
    StudyState,
    read_questions,
    relearn_config,
    toy_world,
    training_answers,
)
from uds_lens.study._plan import (
    StudyPlan,
    TrainingRows,
    audit_settings,
    elicitation_settings,
    metric_settings,
    training_settings,
)

if TYPE_CHECKING:
    from uds_lens.results import AuditConfig


# Hashes of large files, kept for as long as a file has the same size and time.

FORMAT, VERSION = "uds_lens.FileHashes", 1


class FileHashes:
    """SHA-256 by file.

    Args:
        place: File that keeps them; None keeps them in memory.
    """

    def __init__(self, place: Path | None = None) -> None:
        self._place, self._known, self._new = place, self._read(place), False

    def of(self, file: Path) -> str:
        """The hash of a file."""
        stat = file.stat()
        name = f"{file.resolve()}|{stat.st_size}|{stat.st_mtime_ns}"
        if name not in self._known:
            self._known[name], self._new = sha256_file(file), True
        return self._known[name]

    def save(self) -> None:
        """Write what is new."""
        if self._place is not None and self._new:
            self._known = {**self._read(self._place), **self._known}
            record = {"format": FORMAT, "version": VERSION, "files": self._known}
            atomic_write_bytes(self._place, sealed(record))
            self._new = False

    @staticmethod
    def _read(place: Path | None) -> dict[str, str]:
        if place is None or not place.is_file():
            return {}
        try:
            files = read_sealed(place, format=FORMAT, versions=(VERSION,)).get("files")
        except ResultFormatError:  # it only saves time
            return {}
        return {str(k): str(v) for k, v in files.items()} if isinstance(files, dict) else {}


T = TypeVar("T")

RULES = 1
"""Counts up when equal plans begin to give other values."""

_NO_VALUE = {
    "metrics": ("generation_rows", "fisher_memory_gb"),
    ELICITATION: ("max_hours", "rows_at_once"),
}
"""Settings that change speed and memory and no value: keys are made with their defaults, whatever a plan says."""

RESCORED = ("tau", "confidence", "n_bootstrap")
"""Settings of an audit that are applied to its saved deltas: another value of one needs no model."""

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
        self.questions = read_questions(plan.data)
        self.data_hash = digest({name: rows_hash(rows) for name, rows in self.questions.sets.items()})
        self._audit, elicitation = audit_settings(measure), elicitation_settings(measure)
        self._metrics = metric_settings(measure)
        self._options = {
            "metrics": asdict(_with_defaults(self._metrics, _NO_VALUE["metrics"]))
            | {"fluency": measure.fluency},
            AUDIT: _plain(self._audit),
            ELICITATION: elicitation
            and _plain((elicitation[0], _with_defaults(elicitation[1], _NO_VALUE[ELICITATION]))),
        }
        self._as_given = {  # version 0.1.0 hashed every setting
            "metrics": asdict(self._metrics) | {"fluency": measure.fluency},
            AUDIT: _plain(self._audit),
            ELICITATION: _plain(elicitation),
        }

    def weights(self, model: StudyModel, state: StudyState) -> str:
        """Return the key of the weights of a model in a state."""
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
        """Hash the settings of an item; those that do not change the value of an item are left at their defaults."""
        options = self._options[self._kind(item)]
        if self._kind(item) == "metrics" and not self._depends_on_tau(item):
            options = {**options, "tau": type(self._metrics)().tau}
        return digest(options)

    def items(self, model: StudyModel, state: StudyState) -> dict[str, str]:
        """The key of each thing that is measured of a model in a state."""
        return {
            item: self._key(model, state, item, self.options_hash(item)) for item in model.items_of(state)
        }

    def accepted(self, model: StudyModel, state: StudyState) -> dict[str, frozenset[str]]:
        """The keys under which each thing may have been done: its own, and the one that version 0.1.0 gave it."""
        return {
            item: frozenset({key, self._key(model, state, item, digest(self._as_given[self._kind(item)]))})
            for item, key in self.items(model, state).items()
        }

    def audit_key(self, model: StudyModel, state: StudyState, config: AuditConfig) -> str | None:
        """Return the key of an audit of the same thing with other settings of `RESCORED`; None where others differ."""
        if self._audit is None or any(
            getattr(config, name) != value
            for name, value in asdict(self._audit).items()
            if name not in RESCORED
        ):
            return None
        return self._key(model, state, AUDIT, digest(_plain(config)))

    def _key(self, model: StudyModel, state: StudyState, item: str, options: str) -> str:
        references = [self.source(place, None) for place in (self.plan.full, self.plan.retain)]
        return digest([self.weights(model, state), item, options, self.data_hash, references])

    @staticmethod
    def _kind(item: str) -> str:
        return item if item in (AUDIT, ELICITATION) else "metrics"

    def _depends_on_tau(self, item: str) -> bool:
        """Check whether a metric reads UDS or Logit Lens passes; custom metrics are assumed to."""
        from uds_lens.metrics._catalogue import resolve

        return any(
            not spec.origin.startswith("uds_lens.")
            or any(each.kind in ("patched", "lens") for each in spec.passes)
            for spec in resolve([item], options=self._metrics)
        )

    def source(self, place: str, revision: str | None) -> str:
        """Identify a checkpoint: by the hashes of its files, or its name on the Hub."""
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


def _with_defaults(settings: T, names: Sequence[str]) -> T:
    """Return settings with some of them at their defaults."""
    defaults = type(settings)()
    return replace(settings, **{name: getattr(defaults, name) for name in names})  # type: ignore[type-var]


def _plain(value: Any) -> Any:
    if value is None:
        return None
    if isinstance(value, tuple):
        return [_plain(part) if hasattr(part, "__dataclass_fields__") else part for part in value]
    return dict(asdict(value)) if not isinstance(value, Mapping) else dict(value)
