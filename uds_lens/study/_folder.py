"""Keys of work: hashes of weights, metric, options and data. Work whose key exists is never repeated.

Then the directory of a study: its plan, finished parts, failures, claims, models and their audits.
"""

from __future__ import annotations

import math
import os
import time
import uuid
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from functools import cache, cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from uds_lens._storage import (
    atomic_write_bytes,
    check_writable,
    conform,
    digest,
    located,
    plain,
    read_file,
    read_with_checksum,
    sha256_bytes,
    sha256_file,
    with_checksum,
)
from uds_lens._storage.claims import Claims
from uds_lens._storage.tables import LargeTableError, UnreadableTableError, read_parquet
from uds_lens._types import FloatOrNaN
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
    study_models,
    toy_world,
    training_answers,
)
from uds_lens.study._plan import (
    SETS,
    StudyPlan,
    TrainingRows,
    as_mapping,
    audit_settings,
    elicitation_settings,
    metric_settings,
    plan,
    style_of,
    training_settings,
)
from uds_lens.unlearning._registry import DECLARED

if TYPE_CHECKING:
    import pandas as pd

    from uds_lens.results import AuditConfig, DepthAudit


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
        self.plan, self._hashes = plan, FileHashes(remembered)
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
        self._hashes.save()
        return digest(parts if len(parts) > 1 else parts[0])

    def _files(self, place: Path) -> dict[str, str]:
        """Hash the files of a checkpoint: a directory, or one file."""
        files = [place] if place.is_file() else [file for file in sorted(place.iterdir()) if file.suffix in _WEIGHTS]
        return {file.name: self._hashes.of(file) for file in files if file.is_file() and file.name not in _RECORDS}

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


FORMAT, PART, FAILURE = "uds_lens.Study", "uds_lens.StudyPart", "uds_lens.StudyFailure"
VERSION = 1  # version of the three formats; raised when older releases could misread a study

MANIFEST = "manifest.json"


@dataclass(frozen=True, kw_only=True)
class Row:
    """One value."""

    metric: str  # its name
    value: FloatOrNaN  # NaN where it is undefined
    reason: str | None  # why it is undefined
    n: int  # examples with a value
    seconds: float  # wall time on the model; metrics that share a pass each report all of it
    item: str  # the measured item: the metric, `audit` or `elicitation`


@dataclass(frozen=True, kw_only=True)
class Part:
    """Values of one model in one state, measured at one time."""

    model: str  # its name
    state: str  # label of the state
    keys: Mapping[str, str]  # key of each measured item
    rows: tuple[Row, ...]  # the values
    fingerprint: str  # fingerprint of the measured weights
    parent: str | None  # fingerprint of the weights they were trained from; None for a given model
    seconds: Mapping[str, float]  # wall time of making, perturbing, measuring
    examples: str | None = None  # file with the values per example; None where there are none
    examples_sha256: str | None = None  # its SHA-256; None where there is no file, or in older parts
    # How the questions were sampled (`MetricData.sample`); None where all were asked, or in older parts.
    sample: Mapping[str, Any] | None = None


@dataclass(frozen=True, kw_only=True)
class Failure:
    """Why a model could not be measured in a state."""

    model: str  # its name
    state: str  # label of the state
    reason: str  # the error, in a line
    trace: str  # traceback
    run: str  # name of the run in which it failed; another run tries again
    when: str  # time of the failure, for readers
    work: str  # hash of the requested items: when that changes, the failure no longer counts


class StudyFolder:
    """The files of a study."""

    def __init__(self, path: str | os.PathLike[str], *, run: str | None = None) -> None:
        self.path, self.run = located(path), run or uuid.uuid4().hex
        self.claims = Claims(self.path / "claims", run=self.run)
        self._done: dict[tuple[str, str], tuple[set[str], set[str]]] = {}
        self._failed: set[tuple[str, str]] = set()  # in this process; another run may write over the file

    @classmethod
    def begin(cls, wanted: StudyPlan, path: str | os.PathLike[str]) -> StudyFolder:
        """Start a new study, or give an earlier one this plan."""
        folder = cls(check_writable(path, directory=True, replaced=False, format=FORMAT))
        content = with_checksum({"format": FORMAT, "version": VERSION, "plan": plain(as_mapping(wanted))})
        manifest = folder.path / MANIFEST
        if not manifest.is_file() or manifest.read_bytes() != content:
            atomic_write_bytes(manifest, content)
        return folder

    @cached_property
    def plan(self) -> StudyPlan:
        """The plan."""
        name = repr(str(self.path)[-200:])
        if not (self.path / MANIFEST).is_file():
            raise ResultFormatError(f"no study at {name}: expected a directory written by a sweep.")
        record = read_with_checksum(self.path / MANIFEST, format=FORMAT, versions=(VERSION,))
        if not isinstance(record.get("plan"), dict):
            raise ResultFormatError(f"{name} holds no plan: run the sweep again.")
        try:
            return plan(record["plan"])
        except ConfigError as error:
            raise ResultFormatError(f"{name[-102:]}: {str(error)[:300]}") from error

    @cached_property
    def models(self) -> list[StudyModel]:
        """All models, in their order."""
        return study_models(self.plan)

    @cached_property
    def keys(self) -> WorkKeys:
        """Keys of all work."""
        return WorkKeys(self.plan, self.path / "hashes.json")

    # Where what is made lies.

    def model_place(self, model: StudyModel) -> Path:
        """Return the directory of a model that is made here; another recipe has another one."""
        key = self.keys.weights(model, StudyState("before"))
        return self.path / "models" / f"{model.model_id}-{key[:8]}"

    def scratch(self, model: StudyModel) -> Path:
        """Return the directory of perturbed weights until they are measured; only the claim's holder writes there."""
        return self.path / "scratch" / model.model_id

    def audit_place(self, model: StudyModel, state: StudyState) -> Path:
        """Return the directory of the audit of a model in a state."""
        return self.path / "audits" / f"{model.model_id}--{state.label}"

    # What is done.

    def missing(self, model: StudyModel, state: StudyState) -> dict[str, str]:
        """Return the items still to be measured, with their keys."""
        wanted = self.keys.items(model, state)
        done = self._done_keys(model, state, set(wanted.values()))
        return {item: key for item, key in wanted.items() if key not in done}

    def _done_keys(self, model: StudyModel, state: StudyState, wanted: set[str]) -> set[str]:
        """Keys of finished items; files are read only where those known do not cover what is wanted."""
        done, seen = self._done.setdefault((model.model_id, state.label), (set(), set()))
        if not wanted <= done:
            for file in self._part_files(model, state):
                if file.name not in seen and (part := read_record(file, PART, Part)) is not None:
                    with suppress(ResultFormatError):  # without its values per example all is measured again
                        self._check_examples(part)
                        seen.add(file.name)
                        done |= set(part.keys.values())
        return done

    def saved_audit(self, model: StudyModel, state: StudyState) -> DepthAudit | None:
        """Return a finished audit that differs from the wanted one only in settings applied to its deltas (tau)."""
        from uds_lens.results import DepthAudit

        if AUDIT not in self.missing(model, state):
            return None
        try:
            audit = DepthAudit.load(self.audit_place(model, state))
        except ResultFormatError:
            return None
        key = self.keys.audit_key(model, state, audit.config)
        return audit if key in self._done_keys(model, state, {str(key)}) else None

    def parts(self, model: StudyModel, state: StudyState) -> list[Part]:
        """Return all parts of a model in a state, sorted by file name."""
        parts = [read_record(file, PART, Part) for file in self._part_files(model, state)]
        return [part for part in parts if part and (part.model, part.state) == (model.model_id, state.label)]

    def examples(self, part: Part) -> pd.DataFrame | None:
        """Read the values per example of a part: `metric`, `example_id`, `value`; None where it has none."""
        if part.examples is None:
            return None
        content = self._check_examples(part)
        name = repr(part.examples[-200:])
        try:
            table = read_parquet(content)
        except (UnreadableTableError, LargeTableError) as error:
            raise ResultFormatError(f"{name} holds no table: {str(error)[:160]}.") from error
        if lacking := {"metric", "example_id", "value"} - set(table.column_names):
            raise ResultFormatError(f"{name} has no column {min(lacking)!r}: run the sweep again.")
        return table.to_pandas()

    def _check_examples(self, part: Part) -> bytes:
        """Read the file with the values per example, if it is as it was saved."""
        if part.examples is None:
            return b""
        file = self.path / "examples" / Path(part.examples).name
        content = read_file(file)
        if part.examples_sha256 not in (None, sha256_bytes(content)):
            name = repr(str(file)[-200:])
            raise ResultFormatError(f"{name} was altered after it was saved: run the sweep again.")
        return content

    def write_part(self, part: Part, examples: pd.DataFrame | None = None) -> Path:
        """Write a part; values per example first, so that a part that exists is complete."""
        name = f"{part.model}--{part.state}--{digest(dict(part.keys))[:12]}"
        if examples is not None:
            content = examples.to_parquet(index=False)
            place = part.examples or f"examples/{name}.parquet"
            part = replace(part, examples=place, examples_sha256=sha256_bytes(content))
            atomic_write_bytes(self.path / place, content)
        file = self.path / "parts" / f"{name}.json"
        atomic_write_bytes(file, with_checksum({"format": PART, "version": VERSION, **plain(asdict(part))}))
        return file

    def _part_files(self, model: StudyModel, state: StudyState) -> list[Path]:
        start = f"{model.model_id}--{state.label}--"
        try:
            names = sorted(os.listdir(self.path / "parts"))
        except OSError:
            return []
        return [self.path / "parts" / n for n in names if n.startswith(start) and n.endswith(".json")]

    # What failed.

    def write_failure(self, model: StudyModel, state: StudyState, reason: str, trace: str) -> None:
        """Record why something could not be measured."""
        failure = Failure(
            model=model.model_id,
            state=state.label,
            reason=reason[:1000],
            trace=trace[-6000:],
            run=self.run,
            when=time.strftime("%Y-%m-%d %H:%M:%S %z"),
            work=digest(self.keys.items(model, state)),
        )
        record = {"format": FAILURE, "version": VERSION, **plain(asdict(failure))}
        atomic_write_bytes(self._failure_file(model, state), with_checksum(record))
        self._failed.add((model.model_id, state.label))

    def has_failed(self, model: StudyModel, state: StudyState) -> bool:
        """Return whether it was tried in this run, and could not be measured."""
        failure = self.failure(model, state)
        return (model.model_id, state.label) in self._failed or (failure is not None and failure.run == self.run)

    def failure(self, model: StudyModel, state: StudyState) -> Failure | None:
        """Return why it could not be measured, if the same items were tried."""
        file = self._failure_file(model, state)
        failure = read_record(file, FAILURE, Failure)
        return failure if failure and failure.work == digest(self.keys.items(model, state)) else None

    def clear_failure(self, model: StudyModel, state: StudyState) -> None:
        """Remove the failure of a state that was measured after all."""
        self._failure_file(model, state).unlink(missing_ok=True)
        self._failed.discard((model.model_id, state.label))

    def _failure_file(self, model: StudyModel, state: StudyState) -> Path:
        return self.path / "failures" / f"{model.model_id}--{state.label}.json"


def read_record(file: Path, format: str, kind: type[T]) -> T | None:
    """Read a part or a failure; None where there is none, or a broken one, so that it is measured again."""
    try:
        record = read_with_checksum(file, format=format, versions=(VERSION,))
        members = {name: value for name, value in record.items() if name not in ("format", "version")}
        return conform(kind, members, where=repr(file.name))
    except ResultFormatError:
        return None


def as_number(value: object) -> float:
    """Return a value for a row; NaN for what is no finite number."""
    return float(value) if isinstance(value, int | float) and math.isfinite(value) else math.nan
