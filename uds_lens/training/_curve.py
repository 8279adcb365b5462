"""`DepthCurve`: depth and damage measured during training."""

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


RECORD = "depth.json"  # file name of a saved curve, next to a checkpoint's weights


@dataclass(frozen=True, kw_only=True)
class DepthPoint:
    """Measurements at one training step."""

    step: int
    """Number of optimiser steps taken; 0 is the model before training."""

    uds: FloatOrNaN
    """UDS on the measured examples, in [0, 1]; NaN if no example is measurable."""

    output_depth: FloatOrNaN = math.nan
    """Output depth, measured on the answers without patching, in [0, 1]; NaN if not measured."""

    damage: FloatOrNaN
    """Loss on retained facts divided by loss on forget facts; NaN without a control, or if nothing has been lost
    yet."""

    forget_loss: FloatOrNaN
    """Log-probability lost on forget facts by patching in the model's states, averaged over all layers, in nats per
    token; NaN if stage 2 was measured only at knowledge-encoding layers."""

    control_loss: FloatOrNaN
    """Log-probability lost on retained facts, computed in the same way; NaN without a control."""

    seconds: float
    """Duration of the measurement, in seconds."""

    @classmethod
    def of(cls, audit: DepthAudit, *, step: int, seconds: float) -> DepthPoint:
        """Make a point from an audit."""
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
    """Return a point as a `Trainer` logs it, without NaN values.

    >>> point = DepthPoint(step=4, uds=0.5, damage=math.nan, forget_loss=1.0, control_loss=math.nan, seconds=0.1)
    >>> logs_of(point)
    {'depth/uds': 0.5, 'depth/forget_loss': 1.0, 'depth/seconds': 0.1}
    """
    values = {f"depth/{name}": getattr(point, name) for name in LOGGED}
    return {name: value for name, value in values.items() if not math.isnan(value)}


def points_in(history: Sequence[Mapping[str, Any]]) -> list[DepthPoint]:
    """Recover the points from a `Trainer`'s log history, which is saved in its checkpoints."""
    return [
        DepthPoint(step=row["step"], **{name: row.get(f"depth/{name}", math.nan) for name in LOGGED})
        for row in history
        if "depth/seconds" in row
    ]


def best_of(points: Sequence[DepthPoint], max_damage: float | None) -> DepthPoint | None:
    """Return the deepest point with a damage of at most `max_damage` (the earliest if tied), or None.

    A point with a damage of NaN is always allowed, because nothing was lost on forget facts at that point.

    >>> a, b = (DepthPoint(step=s, uds=u, damage=d, forget_loss=1.0, control_loss=d, seconds=0.0)
    ...         for s, u, d in ((2, 0.4, 0.1), (4, 0.9, 0.8)))
    >>> best_of([a, b], None).step, best_of([a, b], 0.5).step
    (4, 2)
    """
    allowed = [p for p in points if not math.isnan(p.uds) and (max_damage is None or not p.damage > max_damage)]
    return max(allowed, key=lambda point: point.uds, default=None)


@dataclass(frozen=True, kw_only=True)
class DepthCurve:
    """Depth and damage by step, with the measured examples; saved as `depth.json` next to each checkpoint."""

    points: tuple[DepthPoint, ...]
    """Points in order of steps."""

    settings: Mapping[str, Any]
    """Settings of the callback."""

    measured: Sequence[Mapping[str, Any]]
    """Ids and subjects of the measured examples. A model chosen by the curve must be scored on other subjects."""

    baseline: str
    """Key of the baseline (`Baseline.key`)."""

    versions: Mapping[str, str] = field(default_factory=dict)
    """Versions of the packages that affect the numbers."""

    def to_frame(self) -> pd.DataFrame:
        """Return one row per step, with the fields of `DepthPoint` as columns."""
        import pandas as pd

        return pd.DataFrame([asdict(point) for point in self.points], columns=["step", *LOGGED])

    def best(self, *, max_damage: float | None = None) -> DepthPoint | None:
        """Return the deepest point with a damage of at most `max_damage` (the earliest if tied), or None."""
        return best_of(self.points, max_damage)

    def plot(self, *, utility: Mapping[int, float] | None = None, **look: Unpack[Look]) -> go.Figure:
        """Plot depth, damage and utility by step (see `uds_lens.plots.depth_by_step`).

        Args:
            utility: Utility in [0, 1] by step, for steps where it was measured.
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
            ResultFormatError: The directory holds another file with this name.
            StorageError: The file cannot be written.
        """
        place = located(folder) / RECORD
        values = {name: getattr(self, name) for name in _VALUES}
        Result(KIND, self.settings, provenance={"versions": self.versions}, values=values).save(place)
        return place

    @classmethod
    def load(cls, folder: str | os.PathLike[str]) -> DepthCurve:
        """Read the `depth.json` in a directory.

        Raises:
            ResultFormatError: The file is missing, was altered, or has an unsupported version.
        """
        saved = Result.load(located(folder) / RECORD, KIND)
        return cls(settings=saved.settings, **vars(saved.values), **saved.provenance)


@dataclass(frozen=True, kw_only=True)
class _Values:
    points: tuple[DepthPoint, ...]
    measured: tuple[dict[str, Any], ...]
    baseline: str


_VALUES = tuple(field.name for field in fields(_Values))


@dataclass(frozen=True, kw_only=True)
class _Origin:
    versions: dict[str, str]


KIND = Kind("DepthCurve", values=_Values, origin=_Origin)
"""Storage format of a curve."""
