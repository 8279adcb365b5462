"""The directory of a study: plan, measured values, failures, models and audits."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import pandas as pd

from uds_lens._storage.files import check_writable, located, remove_inside
from uds_lens._storage.records import digest
from uds_lens._storage.results import Columns, Kind, Result
from uds_lens._types import FloatOrNaN
from uds_lens.errors import ConfigError, ResultFormatError
from uds_lens.results import DepthAudit
from uds_lens.study._keys import WorkKeys
from uds_lens.study._models import AUDIT, StudyModel, StudyState, study_models
from uds_lens.study._parts import failure_of
from uds_lens.study._plan import StudyPlan, as_mapping, plan


@dataclass(frozen=True, kw_only=True)
class Row:
    """One value."""

    metric: str  # its name
    value: FloatOrNaN  # NaN where it is undefined
    reason: str | None  # why the value is undefined
    n: int  # number of examples with a value
    seconds: float  # wall time on the model; metrics that share a pass each report the whole pass
    item: str  # item that the value comes from: a metric, `audit` or `elicitation`


@dataclass(frozen=True, kw_only=True)
class Part:
    """Values of one model in one state, measured together."""

    model: str  # its name
    state: str  # label of the state
    keys: Mapping[str, str]  # key of each measured item
    rows: tuple[Row, ...]  # the values
    fingerprint: str  # fingerprint of the measured weights
    parent: str | None  # fingerprint of the weights these were trained from; None for a given model
    seconds: float  # wall time; for the first state, including the time to make the model
    sample: Mapping[str, Any] | None = None  # how the questions were sampled; None if all were asked


_VALUES: Columns = {"metric": "string", "example_id": "string", "value": "double"}
_STUDY = Kind("Study")
PART = Kind("StudyPart", values=Part, tables={"values": _VALUES})
"""How a part is stored; any values per example form a table."""


class StudyFolder:
    """The files of a study."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path, self._read = located(path), dict[Path, Part]()

    @classmethod
    def begin(cls, wanted: StudyPlan, path: str | os.PathLike[str]) -> StudyFolder:
        """Start a new study, or replace the plan of an existing study."""
        folder = cls(check_writable(path, directory=True, replaced=False, format=_STUDY.format))
        Result(_STUDY, as_mapping(wanted)).save(folder.manifest)
        return folder

    @property
    def manifest(self) -> Path:
        """The file with the plan."""
        return self.path / "manifest.json"

    @cached_property
    def plan(self) -> StudyPlan:
        """The plan."""
        name = repr(str(self.path)[-200:])
        if not self.manifest.is_file():
            raise ResultFormatError(f"no study at {name}: expected a directory written by a sweep.")
        try:
            return plan(Result.load(self.manifest, _STUDY).settings)
        except ConfigError as error:
            raise ResultFormatError(f"{name[-102:]}: {str(error)[:300]}") from error

    @cached_property
    def models(self) -> list[StudyModel]:
        """All models, in order."""
        return study_models(self.plan)

    @cached_property
    def keys(self) -> WorkKeys:
        """Keys of all work."""
        return WorkKeys(self.plan, self.path / "hashes.json")

    # Locations of models and audits.

    def model_place(self, model: StudyModel) -> Path:
        """Return the directory of a model made here; each recipe has its own directory."""
        key = self.keys.weights(model, StudyState("before"))
        return self.path / "models" / f"{model.model_id}-{key[:8]}"

    def audit_place(self, model: StudyModel, state: StudyState) -> Path:
        """Return the directory of the audit of a model in a state."""
        return self.path / "audits" / f"{model.model_id}--{state.label}"

    # Finished work.

    def missing(self, model: StudyModel, state: StudyState) -> dict[str, str]:
        """Return the items still to be measured, with their keys."""
        done = self._done(model, state)
        return {item: key for item, key in self.keys.items(model, state).items() if key not in done}

    def left(self) -> list[StudyModel]:
        """List the models that have not been measured in all their states."""
        return [model for model in self.models if any(self.missing(model, state) for state in model.states)]

    def _done(self, model: StudyModel, state: StudyState) -> set[str]:
        """Return the keys of finished items."""
        return {key for part in self.parts(model, state) for key in part.keys.values()}

    def saved_audit(self, model: StudyModel, state: StudyState) -> DepthAudit | None:
        """Return a finished audit that differs from the planned audit only in settings applied to its deltas (tau)."""
        if AUDIT not in self.missing(model, state):
            return None
        try:
            audit = DepthAudit.load(self.audit_place(model, state))
        except ResultFormatError:
            return None
        return audit if self.keys.audit_key(model, state, audit.config) in self._done(model, state) else None

    def parts(self, model: StudyModel, state: StudyState) -> list[Part]:
        """Return all parts of a model in a state, sorted by name; broken parts are ignored and measured again."""
        places = sorted((self.path / "parts").glob(f"{model.model_id}--{state.label}--*"))
        for place in places:
            if place not in self._read and (found := _read(place)) is not None:
                self._read[place] = found.values
        parts = [self._read[place] for place in places if place in self._read]
        return [part for part in parts if (part.model, part.state) == (model.model_id, state.label)]

    def failure(self, model: StudyModel, state: StudyState) -> str | None:
        """Return why the last attempt to measure a state (or make its model) failed."""
        return failure_of(self.path, f"{model.model_id}--{state.label}") or failure_of(self.path, model.model_id)

    def examples(self, part: Part) -> pd.DataFrame | None:
        """Read the values per example of a part: `metric`, `example_id`, `value`; None if it has none."""
        rows = Result.load(self._place(part), PART).tables.get("values")
        return None if rows is None else pd.DataFrame(rows, columns=list(_VALUES))

    def write_part(self, part: Part, examples: pd.DataFrame | None = None) -> Path:
        """Write a part with its values per example."""
        place = self._place(part)
        if _read(place) is None:  # a broken part is replaced, so that the study continues
            remove_inside(self.path, place)
        tables = {} if examples is None else {"values": examples.to_dict("records")}
        Result(PART, dict(part.keys), values=part, tables=tables).save(place)
        return place

    def _place(self, part: Part) -> Path:
        return self.path / "parts" / f"{part.model}--{part.state}--{digest(dict(part.keys))[:12]}"


def _read(place: Path) -> Result | None:
    try:
        return Result.load(place, PART)
    except ResultFormatError:
        return None


def as_number(value: object) -> float:
    """Return a value for a row; NaN if it is not a finite number."""
    return float(value) if isinstance(value, int | float) and math.isfinite(value) else math.nan
