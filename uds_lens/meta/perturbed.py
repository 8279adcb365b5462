"""One metric before and after the perturbations, model by model, in one place."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from uds_lens.errors import DataError
from uds_lens.meta.clustered_means import cluster_levels
from uds_lens.meta.declarations import Points
from uds_lens.meta.direction import directions, oriented
from uds_lens.meta.filters import as_cuts, forgotten, useful_models
from uds_lens.meta.perturbation import (
    one_directional_quantisation,
    one_directional_relearning,
    symmetric_quantisation,
    symmetric_relearning,
)
from uds_lens.meta.relearned_retain import RetainShift, retain_shift

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True, eq=False, kw_only=True)
class Perturbed:
    """A metric of all models in three states, and who passes the filters."""

    metric: str
    models: tuple[str, ...]
    before: np.ndarray
    quantised: np.ndarray | None
    relearned: np.ndarray | None
    shift: RetainShift | None
    threshold: float
    useful: np.ndarray
    forgot: np.ndarray
    symmetric: bool
    clusters: Mapping[str, np.ndarray]
    """Cluster of each model by column (method, run), outermost first; empty where the table tells none."""
    tied: tuple[float, ...]
    """All cuts that separate the pools as well as `threshold`, itself among them; empty if it is the only one."""

    @property
    def kept(self) -> np.ndarray:
        """Models that pass both filters and have a value."""
        return self.useful & self.forgot & ~np.isnan(self.before)

    def only(self, mask: np.ndarray) -> Perturbed:
        """The same for some of the models."""
        return replace(
            self,
            models=tuple(name for name, there in zip(self.models, mask, strict=True) if there),
            before=self.before[mask],
            quantised=None if self.quantised is None else self.quantised[mask],
            relearned=None if self.relearned is None else self.relearned[mask],
            useful=self.useful[mask],
            forgot=self.forgot[mask],
            clusters={name: labels[mask] for name, labels in self.clusters.items()},
        )

    @property
    def change(self) -> np.ndarray | None:
        """Du."""
        return None if self.relearned is None else self.relearned - self.before

    def q(self) -> np.ndarray | None:
        """Q of each model."""
        if self.quantised is None:
            return None
        form = symmetric_quantisation if self.symmetric else one_directional_quantisation
        return form(self.before, self.quantised)

    def r(self, shift: float) -> np.ndarray | None:
        """R of each model for a shift of retain."""
        if self.change is None:
            return None
        form = symmetric_relearning if self.symmetric else one_directional_relearning
        return form(self.change, shift)


def align(
    before: pd.DataFrame,
    quantised: pd.DataFrame | None,
    relearned: pd.DataFrame | None,
    retain_before: pd.DataFrame | None,
    retain_relearned: pd.DataFrame | None,
    *,
    thresholds: pd.DataFrame | Mapping[str, float] | None,
    min_utility: float | None,
    symmetric: bool,
    metrics: Sequence[str] | None,
    direction: Mapping[str, Points] | None,
    confidence: float,
    cluster: Sequence[str] = (),
) -> list[Perturbed]:
    """Bring the tables together by the column `model`; several perturbed rows of one model are averaged."""
    names = _names(before, "before")
    if len(set(names)) < len(names):
        raise DataError("the table before has a model twice: its column 'model' must be unique.")
    cuts = None if thresholds is None else as_cuts(thresholds)
    useful = useful_models(before, min_utility)
    levels = cluster_levels(before, cluster)
    found = []
    for name, points in directions(before, metrics, direction).items():
        m = oriented(before[name], points).to_numpy()
        cut = math.nan if cuts is None else cuts.get(name, math.nan)
        shift = None
        if retain_before is not None and retain_relearned is not None:
            shift = retain_shift(
                retain_before, retain_relearned, name, direction=points, confidence=confidence
            )
        found.append(
            Perturbed(
                metric=name,
                models=tuple(names),
                before=m,
                quantised=_after(quantised, name, points, names, "quantised"),
                relearned=_after(relearned, name, points, names, "relearned"),
                shift=shift,
                threshold=cut,
                useful=useful,
                forgot=np.ones(len(names), dtype=bool) if cuts is None else forgotten(m, cut),
                symmetric=symmetric,
                clusters=levels,
                tied=_tied(thresholds, name),
            )
        )
    return found


def _tied(thresholds: pd.DataFrame | Mapping[str, float] | None, metric: str) -> tuple[float, ...]:
    if thresholds is None or isinstance(thresholds, Mapping):
        return ()
    cuts = thresholds.loc[thresholds["metric"] == metric, "threshold"]
    return tuple(float(cut) for cut in cuts) if len(cuts) > 1 else ()


def _names(frame: pd.DataFrame, role: str) -> list[str]:
    if "model" not in frame.columns:
        raise DataError(f"the table {role} lacks the column 'model': it says which rows are the same model.")
    return [str(name) for name in frame["model"]]


def _after(
    frame: pd.DataFrame | None, metric: str, points: Points, models: Sequence[str], role: str
) -> np.ndarray | None:
    if frame is None:
        return None
    names = _names(frame, role)
    unknown = sorted(set(names) - set(models))
    if unknown:
        raise DataError(f"the table {role} has the model {unknown[0]!r}, which is not in the table before.")
    if metric not in frame.columns:
        return np.full(len(models), math.nan)
    means = oriented(frame[metric], points).groupby(names).mean()
    return means.reindex(list(models)).to_numpy(dtype=float)
