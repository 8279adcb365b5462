"""`DepthCurve`: measurements during training, and the choice of the best step."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from uds_lens._storage.files import located
from uds_lens._storage.results import Kind, Result
from uds_lens._types import FloatOrNaN
from uds_lens.results import DepthAudit

if TYPE_CHECKING:
    import pandas as pd
    import plotly.graph_objects as go
    from typing_extensions import Unpack

    from uds_lens.plots import Look


RECORD = "depth.json"  # name of the record next to a checkpoint


@dataclass(frozen=True, kw_only=True)
class DepthPoint:
    """Measurements at one training step."""

    step: int
    """Optimiser steps taken; 0 is the model before training."""

    uds: FloatOrNaN
    """UDS on the measured examples, in [0, 1]; NaN if none is measurable."""

    output_depth: FloatOrNaN = math.nan
    """Output depth, from the answers without patching, in [0, 1]; NaN if it was not measured."""

    damage: FloatOrNaN
    """Loss on retained facts divided by loss on forget facts; NaN without a control, or if nothing is lost yet."""

    forget_loss: FloatOrNaN
    """Log-probability that patching in the model's states costs on forget facts, mean over all layers, in nats per
    token; NaN if stage 2 was measured only at knowledge-encoding layers."""

    control_loss: FloatOrNaN
    """The same on retained facts; NaN without a control."""

    seconds: float
    """Time of the measurement."""

    @classmethod
    def of(cls, audit: DepthAudit, *, step: int, seconds: float) -> DepthPoint:
        """Make a point from the numbers of an audit."""
        damage = audit.damage_estimate
        return cls(
            step=step,
            uds=audit.uds,
            output_depth=audit.output_depth,
            damage=damage.value,
            forget_loss=float(audit.s2_delta[~audit.uds_per_example.isnan()].double().mean()),
            control_loss=damage.control_loss,
            seconds=seconds,
        )


LOGGED = tuple(field.name for field in fields(DepthPoint) if field.name != "step")
"""Values logged by a `Trainer`, under names such as `depth/uds`."""


def logs_of(point: DepthPoint) -> dict[str, float]:
    """Return a point in the form logged by a `Trainer`; NaN values are left out.

    >>> point = DepthPoint(step=4, uds=0.5, damage=math.nan, forget_loss=1.0, control_loss=math.nan, seconds=0.1)
    >>> logs_of(point)
    {'depth/uds': 0.5, 'depth/forget_loss': 1.0, 'depth/seconds': 0.1}
    """
    values = {f"depth/{name}": getattr(point, name) for name in LOGGED}
    return {name: value for name, value in values.items() if not math.isnan(value)}


def points_in(history: Sequence[Mapping[str, Any]]) -> list[DepthPoint]:
    """Return the points in the log history of a `Trainer`, which its checkpoints keep."""
    return [
        DepthPoint(step=row["step"], **{name: row.get(f"depth/{name}", math.nan) for name in LOGGED})
        for row in history
        if "depth/seconds" in row
    ]


def best_of(points: Sequence[DepthPoint], max_damage: float | None) -> DepthPoint | None:
    """Return the deepest point whose damage is within a bound (the earliest, if several); None if there is none.

    A damage of NaN is within any bound: nothing was lost on forget facts, so nothing was damaged in the process.

    >>> a, b = (DepthPoint(step=s, uds=u, damage=d, forget_loss=1.0, control_loss=d, seconds=0.0)
    ...         for s, u, d in ((2, 0.4, 0.1), (4, 0.9, 0.8)))
    >>> best_of([a, b], None).step, best_of([a, b], 0.5).step
    (4, 2)
    """
    allowed = [p for p in points if not math.isnan(p.uds) and (max_damage is None or not p.damage > max_damage)]
    return max(allowed, key=lambda point: point.uds, default=None)


@dataclass(frozen=True, kw_only=True)
class DepthCurve:
    """Depth and damage by step, with the measured examples; written as `depth.json` next to each checkpoint."""

    points: tuple[DepthPoint, ...]
    """In the order of the steps."""

    settings: Mapping[str, Any]
    """Settings of the callback."""

    measured: Sequence[Mapping[str, Any]]
    """Examples that the curve is measured on: id and subject. A model chosen by the curve is scored on other
    subjects."""

    baseline: str
    """Key of the baseline (`Baseline.key`)."""

    seconds_estimated: FloatOrNaN = math.nan
    """Estimate of the time of all measurements, made before the first step of this process."""

    versions: Mapping[str, str] = field(default_factory=dict)
    """Versions of the packages that the numbers depend on."""

    def to_frame(self) -> pd.DataFrame:
        """Return one row per step: step, uds, output_depth, damage, forget_loss, control_loss, seconds."""
        import pandas as pd

        return pd.DataFrame([asdict(point) for point in self.points], columns=["step", *LOGGED])

    def best(self, *, max_damage: float | None = None) -> DepthPoint | None:
        """Return the deepest point with a damage of at most `max_damage` (the earliest, if several), or None."""
        return best_of(self.points, max_damage)

    def plot(self, *, utility: Mapping[int, float] | None = None, **look: Unpack[Look]) -> go.Figure:
        """Draw depth, damage and utility by step (see `uds_lens.plots.depth_by_step`).

        Args:
            utility: Utility in [0, 1] by step, where it was measured.
            **look: Theme, title, width, height (`uds_lens.plots.Look`).
        """
        from uds_lens import plots

        frame = self.to_frame()
        if utility is not None:
            frame["utility"] = frame["step"].map(dict(utility))
        return plots.depth_by_step(frame, **look)

    def save(self, folder: str | os.PathLike[str]) -> Path:
        """Write `depth.json` into a directory.

        Raises:
            ResultFormatError: Another file of this name is there.
            StorageError: The system refuses.
        """
        place = located(folder) / RECORD
        values = {name: getattr(self, name) for name in _VALUES}
        Result(KIND, self.settings, provenance={"versions": self.versions}, values=values).save(place)
        return place

    @classmethod
    def load(cls, folder: str | os.PathLike[str]) -> DepthCurve:
        """Read the `depth.json` in a directory.

        Raises:
            ResultFormatError: It is missing, altered, or of another version.
        """
        saved = Result.load(located(folder) / RECORD, KIND)
        return cls(settings=saved.settings, **vars(saved.values), **saved.provenance)


@dataclass(frozen=True, kw_only=True)
class _Values:
    points: tuple[DepthPoint, ...]
    measured: tuple[dict[str, Any], ...]
    baseline: str
    seconds_estimated: FloatOrNaN


_VALUES = tuple(field.name for field in fields(_Values))


@dataclass(frozen=True, kw_only=True)
class _Origin:
    versions: dict[str, str]


KIND = Kind("DepthCurve", values=_Values, origin=_Origin)
"""How a curve is stored."""
