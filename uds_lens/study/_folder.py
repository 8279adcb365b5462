"""The directory of a study: its plan, finished parts, failures, claims, models and their audits."""

from __future__ import annotations

import io
import math
import os
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from uds_lens._storage import (
    atomic_write_bytes,
    conform,
    located,
    plain,
    read_file,
    read_sealed,
    require_fresh,
    sealed,
    sha256_bytes,
)
from uds_lens._storage.claims import Claims
from uds_lens._types import FloatOrNaN
from uds_lens.errors import ConfigError, ResultFormatError
from uds_lens.study._models import AUDIT, StudyModel, StudyState, study_models
from uds_lens.study._plan import StudyPlan, as_mapping, plan
from uds_lens.study._work_keys import WorkKeys, digest

if TYPE_CHECKING:
    import pandas as pd

    from uds_lens.results import DepthAudit


FORMAT, PART, FAILURE = "uds_lens.Study", "uds_lens.StudyPart", "uds_lens.StudyFailure"
VERSION = 1
"""Version of the three formats; raised when older releases could misread a study."""

MANIFEST = "manifest.json"


@dataclass(frozen=True, kw_only=True)
class Row:
    """One value."""

    metric: str
    """Its name."""
    value: FloatOrNaN
    """NaN where it is undefined."""
    reason: str | None
    """Why."""
    n: int
    """Examples with a value."""
    seconds: float
    """Wall time on the model; metrics that share a pass each tell all of it."""
    item: str
    """The measured item: the metric, `audit` or `elicitation`."""


@dataclass(frozen=True, kw_only=True)
class Part:
    """Values of one model in one state, measured at one time."""

    model: str
    """Its name."""
    state: str
    """Label of the state."""
    keys: Mapping[str, str]
    """The key of each thing that was measured."""
    rows: tuple[Row, ...]
    """The values."""
    fingerprint: str
    """Of the weights that were measured."""
    parent: str | None
    """Of the weights they were made of; None for a model that was there."""
    seconds: Mapping[str, float]
    """Wall time of making, perturbing, measuring."""
    examples: str | None
    """File with the values per example."""
    examples_sha256: str | None = None
    """Its SHA-256; None where there is no file, or in parts written before files had one."""
    sample: Mapping[str, Any] | None = None
    """How the questions were chosen (`MetricData.sample`); None where all were asked, or in older parts."""


@dataclass(frozen=True, kw_only=True)
class Failure:
    """Why a model could not be measured in a state."""

    model: str
    """Its name."""
    state: str
    """Label of the state."""
    reason: str
    """The error, in a line."""
    trace: str
    """Where it happened."""
    when: float
    """Seconds of the epoch."""
    work: str
    """Hash of what was asked for: when that changes, the failure no longer counts."""


class StudyFolder:
    """The files of a study.

    Args:
        path: The directory.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = located(path)
        self.claims = Claims(self.path / "claims")
        self._done: dict[tuple[str, str], tuple[set[str], set[str]]] = {}

    @classmethod
    def begin(cls, wanted: StudyPlan, path: str | os.PathLike[str]) -> StudyFolder:
        """A new study, or an earlier one with this plan from now on.

        Raises:
            ResultFormatError: Something else stands there.
            StorageError: Nothing can be written there.
        """
        folder = cls(require_fresh(path, directory=True, format=FORMAT))
        record = {"format": FORMAT, "version": VERSION, "plan": plain(as_mapping(wanted))}
        content = sealed(record)
        manifest = folder.path / MANIFEST
        if not manifest.is_file() or manifest.read_bytes() != content:
            atomic_write_bytes(manifest, content)
        return folder

    @cached_property
    def plan(self) -> StudyPlan:
        """The plan.

        Raises:
            ResultFormatError: There is no study, or it is broken.
        """
        if not (self.path / MANIFEST).is_file():
            raise ResultFormatError(
                f"no study at {str(self.path)[-200:]!r}: expected a directory that a sweep wrote."
            )
        record = read_sealed(self.path / MANIFEST, format=FORMAT, versions=(VERSION,))
        if not isinstance(record.get("plan"), dict):
            raise ResultFormatError(f"{str(self.path)[-200:]!r} holds no plan: run the sweep again.")
        try:
            return plan(record["plan"])
        except ConfigError as error:
            raise ResultFormatError(f"{str(self.path)[-100:]!r}: {str(error)[:300]}") from error

    @cached_property
    def models(self) -> list[StudyModel]:
        """All models, in their order."""
        return study_models(self.plan)

    @cached_property
    def keys(self) -> WorkKeys:
        """Keys of all work."""
        return WorkKeys(self.plan, self.path / "hashes.json")

    def model_place(self, model: StudyModel) -> Path:
        """Where a model that is made here goes; another recipe is another place."""
        key = self.keys.weights(model, StudyState("before"))
        return self.path / "models" / f"{model.model_id}-{key[:8]}"

    def scratch(self, model: StudyModel) -> Path:
        """Where perturbed weights lie until they are measured; only who has the claim writes there."""
        return self.path / "scratch" / model.model_id

    def missing(self, model: StudyModel, state: StudyState) -> dict[str, str]:
        """Return what is still to be measured, with its keys."""
        wanted, accepted = self._wanted(model, state), self.keys.accepted(model, state)
        done = self._done_keys(model, state, accepted)
        return {item: key for item, key in wanted.items() if not accepted[item] & done}

    def _done_keys(
        self, model: StudyModel, state: StudyState, accepted: Mapping[str, frozenset[str]]
    ) -> set[str]:
        """Keys of what is done of a model in a state; files are read where those known do not cover what is asked."""
        done, seen = self._done.setdefault((model.model_id, state.label), (set(), set()))
        if all(keys & done for keys in accepted.values()):
            return done
        for file in self._files("parts", model, state):
            if file.name not in seen:
                part = self.read_part(file)
                if part is not None and self._has_examples(part):
                    seen.add(file.name)
                    done |= set(part.keys.values())
        return done

    def saved_audit(self, model: StudyModel, state: StudyState) -> DepthAudit | None:
        """Return a finished audit of a model that differs from the wanted one in settings such as tau alone.

        Its deltas are those that would be measured; None where there is none.
        """
        from uds_lens.results import DepthAudit

        if AUDIT not in self.missing(model, state):
            return None
        try:
            audit = DepthAudit.load(self.audit_place(model, state))
        except ResultFormatError:
            return None
        key = self.keys.audit_key(model, state, audit.config)
        return audit if key in self._done_keys(model, state, self.keys.accepted(model, state)) else None

    def audit_place(self, model: StudyModel, state: StudyState) -> Path:
        """Where the audit of a model in a state is saved."""
        return self.path / "audits" / f"{model.model_id}--{state.label}"

    def write_part(self, part: Part, examples: pd.DataFrame | None = None) -> Path:
        """Write a part; values per example first, so that a part that exists is complete."""
        name = f"{part.model}--{part.state}--{digest(dict(part.keys))[:12]}"
        if examples is not None and part.examples is not None:
            content = examples.to_parquet(index=False)
            atomic_write_bytes(self.path / part.examples, content)
            part = replace(part, examples_sha256=sha256_bytes(content))
        record = {"format": PART, "version": VERSION, **plain(asdict(part))}
        file = self.path / "parts" / f"{name}.json"
        atomic_write_bytes(file, sealed(record))
        return file

    def read_part(self, file: Path) -> Part | None:
        """A part; None where it is broken, so that it is measured again."""
        return _read(file, PART, Part)

    def examples(self, part: Part) -> pd.DataFrame | None:
        """Values per example of a part: `metric`, `example_id`, `value`; None where it has none.

        Raises:
            ResultFormatError: The file is missing, broken, or was altered.
        """
        import pandas as pd

        if part.examples is None:
            return None
        file = self.path / "examples" / Path(part.examples).name
        name = repr(str(file)[-200:])
        content = read_file(file)
        if part.examples_sha256 not in (None, sha256_bytes(content)):
            raise ResultFormatError(f"{name} was altered after it was saved: run the sweep again.")
        try:
            found = pd.read_parquet(io.BytesIO(content))
        except Exception as error:  # pyarrow has no common base class for its errors
            raise ResultFormatError(f"{name} holds no table: {str(error)[:160]}.") from error
        if missing := [name for name in ("metric", "example_id", "value") if name not in found]:
            raise ResultFormatError(f"{name} has no column {missing[0]!r}: run the sweep again.")
        return found

    def parts(self, model: StudyModel, state: StudyState) -> list[Part]:
        """All parts of a model in a state, in the order of their names."""
        found = [self.read_part(file) for file in self._files("parts", model, state)]
        whole = [part for part in found if part is not None]
        return [part for part in whole if (part.model, part.state) == (model.model_id, state.label)]

    def write_failure(self, model: StudyModel, state: StudyState, reason: str, trace: str) -> None:
        """Record why something could not be measured."""
        failure = Failure(
            model=model.model_id,
            state=state.label,
            reason=reason[:1000],
            trace=trace[-6000:],
            when=time.time(),
            work=digest(self._wanted(model, state)),
        )
        record = {"format": FAILURE, "version": VERSION, **plain(asdict(failure))}
        atomic_write_bytes(self._failure_file(model, state), sealed(record))

    def failure(self, model: StudyModel, state: StudyState) -> Failure | None:
        """Why it could not be measured, if it was tried and asked for in the same way."""
        file = self._failure_file(model, state)
        found = _read(file, FAILURE, Failure) if file.is_file() else None
        return found if found is not None and found.work == digest(self._wanted(model, state)) else None

    def clear_failure(self, model: StudyModel, state: StudyState) -> None:
        """Remove the failure of a state that was measured after all."""
        with suppress(FileNotFoundError):
            self._failure_file(model, state).unlink()

    def _has_examples(self, part: Part) -> bool:
        """Check that the values per example are intact; where not, all is measured again."""
        try:
            self.examples(part)
        except ResultFormatError:
            return False
        return True

    def _wanted(self, model: StudyModel, state: StudyState) -> dict[str, str]:
        return self.keys.items(model, state)

    def _files(self, kind: str, model: StudyModel, state: StudyState) -> Sequence[Path]:
        folder = self.path / kind
        start = f"{model.model_id}--{state.label}--"
        if not folder.is_dir():
            return []
        return sorted(
            file for file in folder.iterdir() if file.name.startswith(start) and file.suffix == ".json"
        )

    def _failure_file(self, model: StudyModel, state: StudyState) -> Path:
        return self.path / "failures" / f"{model.model_id}--{state.label}.json"


def _read(file: Path, format: str, kind: Any) -> Any:
    try:
        record = read_sealed(file, format=format, versions=(VERSION,))
        members = {name: value for name, value in record.items() if name not in ("format", "version")}
        return conform(kind, members, where=repr(file.name))
    except ResultFormatError:
        return None


def as_number(value: object) -> float:
    """A value for a row; what is no number is NaN."""
    return float(value) if isinstance(value, int | float) and math.isfinite(value) else math.nan
