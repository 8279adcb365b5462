"""What a study measured, as the tables that the functions of `uds_lens.meta` take."""

from __future__ import annotations

import math
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypedDict

from uds_lens.checked_arguments import arguments_checked
from uds_lens.errors import DataError
from uds_lens.study.study_folder import StudyFolder
from uds_lens.study.study_table import table

if TYPE_CHECKING:
    import pandas as pd


class PerturbedFrames(TypedDict):
    """What `uds_lens.meta.robustness` and its kin take of a study."""

    before: pd.DataFrame
    quantised: pd.DataFrame
    relearned: pd.DataFrame
    retain_before: pd.DataFrame
    retain_relearned: pd.DataFrame


@dataclass(frozen=True, kw_only=True)
class StudyFrames:
    """The tables of `uds_lens.meta`: one row per model, metrics as columns."""

    pools: pd.DataFrame
    """Models that know or never knew, for `faithfulness`, `compare` and `thresholds`."""

    before: pd.DataFrame
    """Unlearned models, for `robustness` and `rank`; with `utility` and `utility_rel` where they were measured."""

    quantised: pd.DataFrame
    """The same in 4 bits."""

    relearned: pd.DataFrame
    """The same after relearning, one row per seed."""

    retain_before: pd.DataFrame
    """Retain models."""

    retain_relearned: pd.DataFrame
    """Retain models after relearning, one row per seed."""

    full: pd.DataFrame
    """The model that knows."""

    reasons: pd.DataFrame
    """Why values are NaN: `model`, `state`, `metric`, `reason`."""

    @property
    def states(self) -> PerturbedFrames:
        """All states by the names of the arguments: `uds_lens.meta.robustness(**frames.states)`."""
        return {
            "before": self.before,
            "quantised": self.quantised,
            "relearned": self.relearned,
            "retain_before": self.retain_before,
            "retain_relearned": self.retain_relearned,
        }


@arguments_checked
def frames(out: str | os.PathLike[str] | StudyFolder | pd.DataFrame, *, plan: Any = None) -> StudyFrames:
    """The tables that `uds_lens.meta` takes.

    `utility_rel` is the metric of that name where it was measured; else the harmonic mean of the plan's `utility`
    metrics over that of `full`, uncapped.

    Args:
        out: Directory of the study, or its long table.
        plan: The plan, where `out` is a table; else it is in the directory.

    Returns:
        The tables; a state that was not measured has no rows.

    Raises:
        DataError: The table has a model, state, seed and metric twice.
        ResultFormatError: There is no study, or it is broken.
    """
    import pandas as pd

    if isinstance(out, pd.DataFrame):
        long, utility = out, tuple(plan.measure.utility) if plan is not None else ()
    else:
        folder = out if isinstance(out, StudyFolder) else StudyFolder(out)
        long, utility = table(folder), folder.plan.measure.utility
    twice = long.duplicated(["model_id", "state", "seed", "metric"])
    if twice.any():
        row = long[twice].iloc[0]
        raise DataError(f"the table has {row['metric']!r} of {row['model_id']!r}, {row['state']}, twice.")
    full = _wide(long[(long["role"] == "full") & (long["state"] == "before")])

    def of(role: str, state: str) -> pd.DataFrame:
        wide = _wide(long[(long["role"] == role) & (long["state"] == state)])
        return with_utility(wide, full, utility) if state == "before" and role != "pool" else wide

    undefined = long[long["value"].isna()]
    return StudyFrames(
        pools=of("pool", "before"),
        before=of("unlearned", "before"),
        quantised=of("unlearned", "quantised"),
        relearned=of("unlearned", "relearned"),
        retain_before=of("retain", "before"),
        retain_relearned=of("retain", "relearned"),
        full=with_utility(full, full, utility),
        reasons=undefined.rename(columns={"model_id": "model"})[["model", "state", "metric", "reason"]],
    )


def with_utility(wide: pd.DataFrame, full: pd.DataFrame, parts: tuple[str, ...]) -> pd.DataFrame:
    """Add `utility`, the harmonic mean of `parts`, and `utility_rel`, the same over full's.

    Nothing is added where a metric of that name was measured, and NaN where a part is missing.
    """
    parts = tuple(name for name in parts if name not in ("utility", "utility_rel"))
    if not parts or "utility_rel" in wide.columns or "utility" in wide.columns:
        return wide
    if not set(parts) <= set(wide.columns) or not len(full) or not set(parts) <= set(full.columns):
        return wide.assign(utility=math.nan, utility_rel=math.nan)

    def mean(frame: pd.DataFrame) -> pd.Series:
        values = frame[list(parts)].astype(float)
        found = len(parts) / (1 / values.where(values > 0)).sum(axis=1, skipna=False)
        return found.mask((values == 0).any(axis=1) & values.notna().all(axis=1), 0.0)

    utility = mean(wide)
    return wide.assign(utility=utility, utility_rel=utility / float(mean(full).iloc[0]))


def _wide(long: pd.DataFrame) -> pd.DataFrame:
    facts = ["model", "knows", "variant", "run", "method", "config", "lr", "epochs"]
    renamed = long.rename(columns={"model_id": "model"})
    if not len(renamed):
        return renamed[facts].reset_index(drop=True)
    by = renamed.assign(_seed=renamed["seed"].astype("float").fillna(-1))
    values = by.pivot(index=["model", "_seed"], columns="metric", values="value")
    values = values[list(dict.fromkeys(renamed["metric"]))].reset_index()
    known = renamed.drop_duplicates("model")[facts]
    return known.merge(values.drop(columns="_seed"), on="model").rename_axis(columns=None)
