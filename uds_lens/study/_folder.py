"""The directory of a study: its plan, finished parts, failures, claims, models and their audits."""

from __future__ import annotations

import math
import os
import time
import uuid
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

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
    with_checksum,
)
from uds_lens._storage.claims import Claims
from uds_lens._storage.tables import LargeTableError, UnreadableTableError, read_parquet
from uds_lens._types import FloatOrNaN
from uds_lens.errors import ConfigError, ResultFormatError
from uds_lens.study._models import AUDIT, StudyModel, StudyState, study_models
from uds_lens.study._plan import StudyPlan, as_mapping, plan
from uds_lens.study._work_keys import WorkKeys

if TYPE_CHECKING:
    import pandas as pd

    from uds_lens.results import DepthAudit


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
                if file.name not in seen and (part := self.read_part(file)) is not None:
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
        parts = [self.read_part(file) for file in self._part_files(model, state)]
        return [part for part in parts if part and (part.model, part.state) == (model.model_id, state.label)]

    def read_part(self, file: Path) -> Part | None:
        """Read a part; None where it is broken, so that it is measured again."""
        return _read(file, PART, Part)

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
        failure = _read(file, FAILURE, Failure) if file.is_file() else None
        return failure if failure and failure.work == digest(self.keys.items(model, state)) else None

    def clear_failure(self, model: StudyModel, state: StudyState) -> None:
        """Remove the failure of a state that was measured after all."""
        self._failure_file(model, state).unlink(missing_ok=True)
        self._failed.discard((model.model_id, state.label))

    def _failure_file(self, model: StudyModel, state: StudyState) -> Path:
        return self.path / "failures" / f"{model.model_id}--{state.label}.json"


def _read(file: Path, format: str, kind: Any) -> Any:
    try:
        record = read_with_checksum(file, format=format, versions=(VERSION,))
        members = {name: value for name, value in record.items() if name not in ("format", "version")}
        return conform(kind, members, where=repr(file.name))
    except ResultFormatError:
        return None


def as_number(value: object) -> float:
    """Return a value for a row; NaN for what is no finite number."""
    return float(value) if isinstance(value, int | float) and math.isfinite(value) else math.nan
