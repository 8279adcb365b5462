"""Robustness: does a metric withstand quantisation, and does relearning change it as it does for retain?

The file begins with the filters for unlearned models, by utility and by a metric's own threshold, and ends with the
table that combines faithfulness and robustness.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd

from uds_lens.errors import ConfigError, DataError
from uds_lens.meta._columns import POINTS, ROBUSTNESS, SUMMARY
from uds_lens.meta._direction import Points, check_numbers, directions, oriented, oriented_columns
from uds_lens.meta._perturbation import (
    EPSILON,
    RetainShift,
    one_directional_quantisation,
    relearning_over_shifts,
    retain_shift,
    symmetric_quantisation,
)
from uds_lens.meta._pools import check_confidence, clustered_mean, dominated_by
from uds_lens.meta._ranking import places
from uds_lens.meta._tables import harmonic_means, require_same_conditions
from uds_lens.results._other_cautions import about_dominated, about_robustness

_UTILITY = "utility_rel"  # column of the utility filter


def as_cuts(thresholds: pd.DataFrame | Mapping[str, float]) -> dict[str, float]:
    """Return thresholds by metric, from a mapping, the result of `thresholds` or a table like it."""
    if not isinstance(thresholds, pd.DataFrame):
        return {str(name): float(cut) for name, cut in thresholds.items()}
    if missing := [name for name in ("metric", "threshold") if name not in thresholds.columns]:
        raise DataError(f"the thresholds lack the column {', '.join(missing)}: pass the result of thresholds(...).")
    rows = thresholds[thresholds["chosen"].astype(bool)] if "chosen" in thresholds.columns else thresholds
    twice = rows["metric"][rows["metric"].duplicated()]
    if len(twice):
        raise DataError(f"there are two thresholds for {twice.iloc[0]!r}: mark one with a column 'chosen'.")
    return {str(name): float(cut) for name, cut in zip(rows["metric"], rows["threshold"], strict=True)}


def useful_models(frame: pd.DataFrame, min_utility: float | None) -> np.ndarray:
    """Mark the models that keep enough utility; NaN is not enough, and without the filter all models are marked."""
    if min_utility is None:
        return np.ones(len(frame), dtype=bool)
    if not min_utility >= 0:
        raise ConfigError(f"min_utility must be >= 0 or None; got {min_utility!r}.")
    if _UTILITY not in frame.columns:
        raise DataError(
            f"the table lacks the column {_UTILITY!r} (utility relative to full): add it, or pass min_utility=None."
        )
    check_numbers(frame, [_UTILITY])
    return np.asarray(pd.to_numeric(frame[_UTILITY]).to_numpy(dtype=float) >= min_utility)


_FILTERS = {
    "none": (False, False),
    "utility": (True, False),
    "threshold": (False, True),
    "utility+threshold": (True, True),
}
"""Settings of the two filters: whether models are filtered by utility, and by threshold."""

_GRID = 101  # number of shifts in the interval at which mean R is computed, in addition to its turning points
_TURNS = 200  # maximum number of turning points at which mean R is computed; if there are more, every k-th is used


@dataclass(frozen=True, eq=False, kw_only=True)
class Tables:
    """Unlearned models and retain before and after the perturbations, with further data about the metrics."""

    before: pd.DataFrame
    """Unlearned models: `model`, metrics, and `utility_rel` for the utility filter."""

    quantised: pd.DataFrame | None = None
    """The same models after quantisation, matched by `model`."""

    relearned: pd.DataFrame | None = None
    """The same models after relearning; several rows of a model (seeds) are averaged."""

    retain_before: pd.DataFrame | None = None
    """One row per retain model."""

    retain_relearned: pd.DataFrame | None = None
    """One row per relearning of retain; with several retain models, `model` names the relearned model."""

    thresholds: pd.DataFrame | Mapping[str, float] | None = None
    """Cut on m per metric (mapping, or the result of `thresholds`): only models with `m <= threshold` are included.
    None turns the filter off."""

    faithful: pd.DataFrame | None = None
    """Result of `faithfulness`, which `relative_move` needs."""

    cluster: Sequence[str] = ("method", "run")
    """Columns of `before` that define clusters of models, outermost first; missing columns are ignored. Empty if all
    models are independent."""


def robustness(
    tables: Tables,
    *,
    metrics: Sequence[str] | None = None,
    direction: Mapping[str, Points] | None = None,
    min_utility: float | None = 0.8,
    symmetric: bool = True,
    confidence: float = 0.95,
) -> pd.DataFrame:
    """Compute Q, R and robustness of every metric over the models that pass the filters.

    Symmetric: `Q = 1 - |m' - m| / (|m'| + |m| + 1e-10)` and `R = 1 - |Du - Dr| / (|Du| + |Dr| + 1e-10)`, where Du is
    the change in the model's m under relearning and Dr the change in retain's m. One-directional: `Q = min(m / m', 1)`,
    and 1 if `m' <= m`; `R = 1` if `Du <= max(Dr, 0)`, else `max(Dr, 0) / Du`. Q and R are averaged over models; `Rob =
    HM(mean Q, mean R)`.

    Dr comes from few relearnings and is shared by all models, so the uncertainty of Dr is propagated to R:
    `r_shift_low` and `r_shift_high` are the extremes of mean R over the interval of Dr. If this interval contains 0,
    retain may not change at all, and R is undefined; `r_at_shift` still gives the value at the mean Dr. A metric with
    the same value for all models before and after would get Q = 1 only because of the 1e-10, so its Q and R are
    undefined too. `unmoved_q` and `unmoved_r` count the models that do not change.

    The intervals of Q and R use whole methods as clusters and hold for other methods. `q_runs_low` and similar columns
    use runs as clusters and hold for more runs of the same methods. Both kinds are t intervals on the logit scale, with
    Satterthwaite's degrees of freedom, and need at least five clusters. They may be too short if one method accounts
    for most of the distance from 0 or 1; `caution` then names the method, with an interval that allows for any other
    method. All these intervals take the shift of retain as given, so read them together with `r_shift_low` and
    `r_shift_high`.

    Args:
        tables: The models in all states; the threshold filter needs `thresholds`.
        metrics: As in `directions`.
        direction: As in `directions`.
        min_utility: Smallest `utility_rel` of the models included. None turns the filter off.
        symmetric: Penalise changes in both directions, as in the UDS paper; if False, only knowledge that comes back is
            penalised.
        confidence: Confidence level of the intervals.

    Returns:
        One row per metric, with the columns of `COLUMNS["robustness"]`.

    Raises:
        DataError: A column is missing or not numeric; a perturbed model is not in `before`.
        ConfigError: A metric has no direction.

    Example:
        >>> import pandas as pd
        >>> before = pd.DataFrame({"model": ["a", "b"], "x": [0.2, 0.1], "utility_rel": [0.9, 0.5]})
        >>> after = pd.DataFrame({"model": ["a", "b"], "x": [0.3, 0.4]})
        >>> retain, again = pd.DataFrame({"x": [0.1]}), pd.DataFrame({"x": [0.3, 0.31, 0.29]})
        >>> tables = Tables(before=before, quantised=after, relearned=after, retain_before=retain,
        ...                 retain_relearned=again)
        >>> row = robustness(tables, direction={"x": "knowledge"}).iloc[0]
        >>> f"{row['n']} {row['q']:.3f} {row['r']:.3f} {row['rob']:.3f}"
        '1 0.800 0.667 0.727'

    References:
        Lee, Kim and Jo (2026), arXiv 2605.24614; Dorna et al. (2025), OpenUnlearning.
    """
    check_confidence(confidence)
    ways = directions(tables.before, metrics, direction)
    states = _states(tables, ways, min_utility, symmetric, confidence)
    used = (min_utility is not None, tables.thresholds is not None)
    setting = next(name for name, filters in _FILTERS.items() if filters == used)
    rows = [_row(state, setting, confidence) for state in states]
    return pd.DataFrame(rows, columns=list(ROBUSTNESS))


def robustness_by_filter(
    tables: Tables,
    *,
    metrics: Sequence[str] | None = None,
    direction: Mapping[str, Points] | None = None,
    min_utility: float | None = 0.8,
    symmetric: bool = True,
    confidence: float = 0.95,
) -> pd.DataFrame:
    """Compute robustness under every filter setting, on each metric's own models and on common models.

    Arguments and errors are as in `robustness`; without `thresholds` or `min_utility`, settings with that filter are
    left out. Common models pass for all metrics and have all values; metrics without a threshold or without any values
    are ignored here. If no model passes for a metric, there are no common models, and the reason names the metric.

    Returns:
        One row per filter setting, kind of models (own, common) and metric, with the columns of
        `COLUMNS["robustness"]`.

    Example:
        >>> import pandas as pd
        >>> before = pd.DataFrame({"model": ["a", "b"], "x": [0.2, 0.6], "utility_rel": [0.9, 0.9]})
        >>> after = pd.DataFrame({"model": ["a", "b"], "x": [0.2, 0.6]})
        >>> tables = Tables(before=before, quantised=after, thresholds={"x": 0.5})
        >>> found = robustness_by_filter(tables, direction={"x": "knowledge"})
        >>> found[found["models"] == "own"].set_index("filter")["n"].to_dict()
        {'none': 2, 'utility': 2, 'threshold': 1, 'utility+threshold': 1}
    """
    check_confidence(confidence)
    ways = directions(tables.before, metrics, direction)
    filtered = _states(tables, ways, min_utility, symmetric, confidence)
    rows: list[dict[str, Any]] = []
    for setting, (by_utility, by_threshold) in _FILTERS.items():
        if (by_utility and min_utility is None) or (by_threshold and tables.thresholds is None):
            continue
        states = [state.with_filters(by_utility, by_threshold) for state in filtered]
        voting = [state.complete for state in states if state.takes_part]
        shared = np.logical_and.reduce([np.ones(len(tables.before), dtype=bool), *voting])
        for kind, chosen in (("own", states), ("common", [state.only(shared) for state in states])):
            judged = [_row(state, setting, confidence) | {"models": kind} for state in chosen]
            if kind == "common" and not shared.any():
                why = _why_none_common(states)
                for state, row in zip(states, judged, strict=True):
                    row |= {"q_reason": why, "r_reason": why} if state.takes_part else {}
            rows += judged
    return pd.DataFrame(rows, columns=list(ROBUSTNESS))


def perturbation_points(
    tables: Tables,
    *,
    metrics: Sequence[str] | None = None,
    direction: Mapping[str, Points] | None = None,
    min_utility: float | None = 0.8,
    symmetric: bool = True,
) -> pd.DataFrame:
    """List the values of every metric and model before and after: the points that Q and R are averaged over.

    Arguments and errors are those of `robustness`.

    Returns:
        One row per metric and model, with the columns of `COLUMNS["points"]`; NaN if a state was not measured.

    Example:
        >>> import pandas as pd
        >>> tables = Tables(before=pd.DataFrame({"model": ["a"], "x": [0.75]}),
        ...                 quantised=pd.DataFrame({"model": ["a"], "x": [0.25]}))
        >>> points = perturbation_points(tables, min_utility=None, direction={"x": "erasure"})
        >>> points[["before", "quantised", "q"]].round(2).values.tolist()
        [[0.25, 0.75, 0.5]]
    """
    ways = directions(tables.before, metrics, direction)
    parts = [
        state.models.assign(metric=state.metric, shift=state.shift.mean, r=state.r, kept=state.kept)
        for state in _states(tables, ways, min_utility, symmetric, confidence=0.95)
    ]
    return pd.concat(parts, ignore_index=True)[list(POINTS)]


@dataclass(frozen=True, eq=False, kw_only=True)
class _States:
    """One metric for all models in three states, and the models that pass the filters."""

    metric: str
    # One row per model: `before`, `quantised` and `relearned` (m; NaN where not measured), `change` (Du), `q`,
    # whether it is `useful` and `forgot`, and codes of its clusters (such as `in method`).
    models: pd.DataFrame
    given: tuple[str, ...]  # perturbations that were applied
    # Names of the codes by column, outermost first: methods and runs, or else the models themselves.
    clusters: Mapping[str, np.ndarray]
    shift: RetainShift
    pool_distance: float  # |mean_P - mean_N|; NaN where it is not known
    threshold: float
    # All thresholds that separate the pools equally well, including `threshold`; empty if there are no others.
    tied: tuple[float, ...]
    lacks_cut: bool  # whether thresholds are used but this metric has none
    symmetric: bool

    def __getitem__(self, name: str) -> np.ndarray:
        """Return a column of `models`."""
        return self.models[name].to_numpy()

    @property
    def kept(self) -> np.ndarray:
        """Models that pass both filters and have a value."""
        return np.asarray(self["useful"] & self["forgot"] & ~np.isnan(self["before"]))

    @property
    def complete(self) -> np.ndarray:
        """Models that pass and have a value in every state that was measured."""
        measured = [name for name in self.given if self.models[name].notna().any()]
        return np.asarray(self.kept & self.models[measured].notna().all(axis=1))

    @property
    def takes_part(self) -> bool:
        """Whether the metric has values and, if thresholds are used, a threshold."""
        return not self.lacks_cut and bool(self.models["before"].notna().any())

    def with_filters(self, by_utility: bool, by_threshold: bool) -> _States:
        """Turn off the filters that are not requested."""
        models = self.models if by_utility else self.models.assign(useful=True)
        if by_threshold:
            return replace(self, models=models)
        models = models.assign(forgot=True)
        return replace(self, models=models, threshold=math.nan, tied=(), lacks_cut=False)

    def only(self, mask: np.ndarray) -> _States:
        """Return this record for some of the models."""
        return replace(self, models=self.models[mask])

    @property
    def r(self) -> np.ndarray:
        """R of each model at the mean shift of retain."""
        return self.r_over(np.array([self.shift.mean]))[0]

    def r_over(self, shifts: np.ndarray) -> np.ndarray:
        """Return R of each model for several shifts of retain: shift x model."""
        return relearning_over_shifts(self["change"], shifts, symmetric=self.symmetric)


def _states(
    tables: Tables, ways: Mapping[str, Points], min_utility: float | None, symmetric: bool, confidence: float
) -> list[_States]:
    """Join the tables by the column `model`: one record per metric."""
    perturbed = (tables.quantised, tables.relearned, tables.retain_before, tables.retain_relearned)
    require_same_conditions(tables.before, *(frame for frame in perturbed if frame is not None))
    names = _models(tables.before, "before")
    if len(set(names)) < len(names):
        raise DataError("the table 'before' lists a model twice: its column 'model' must be unique.")
    thresholds = tables.thresholds
    cuts = None if thresholds is None else as_cuts(thresholds)
    clusters = _clusters(tables.before, tables.cluster, names)
    shared = pd.DataFrame({"model": names, "useful": useful_models(tables.before, min_utility)})
    shared = shared.assign(**{f"in {column}": codes for column, (_, codes) in clusters.items()})
    after = {role: _after(getattr(tables, role), ways, names, role) for role in ("quantised", "relearned")}
    quantisation = symmetric_quantisation if symmetric else one_directional_quantisation
    states = []
    for name, before in oriented_columns(tables.before, ways).items():
        cut = math.nan if cuts is None else cuts.get(name, math.nan)
        tied: list[float] = []
        if isinstance(thresholds, pd.DataFrame):
            tied = thresholds.loc[thresholds["metric"] == name, "threshold"].astype(float).tolist()
        shift = RetainShift(reason="R needs retain before and after relearning")
        if tables.retain_before is not None and tables.retain_relearned is not None:
            retain = (tables.retain_before, tables.retain_relearned)
            shift = retain_shift(*retain, name, direction=ways[name], confidence=confidence)
        quantised, relearned = (values.get(name, np.full(len(names), np.nan)) for values in after.values())
        models = shared.assign(
            before=before,
            quantised=quantised,
            relearned=relearned,
            change=relearned - before,
            q=quantisation(before, quantised),
            forgot=True if cuts is None else before <= cut,
        )
        states.append(
            _States(
                metric=name,
                models=models,
                given=tuple(role for role, values in after.items() if values),
                clusters={column: labels for column, (labels, _) in clusters.items()},
                shift=shift,
                pool_distance=_pool_distance(tables.faithful, name),
                threshold=cut,
                tied=tuple(tied) if len(tied) > 1 else (),
                lacks_cut=cuts is not None and math.isnan(cut),
                symmetric=symmetric,
            )
        )
    return states


def _models(frame: pd.DataFrame, role: str) -> list[str]:
    if "model" not in frame.columns:
        raise DataError(f"the table {role!r} lacks the column 'model', which says which rows belong to the same model.")
    return [str(name) for name in frame["model"]]


def _after(
    frame: pd.DataFrame | None, ways: Mapping[str, Points], models: Sequence[str], role: str
) -> dict[str, np.ndarray]:
    """Return m after a perturbation, by metric, averaged over the rows of each model; empty if it was not applied."""
    if frame is None:
        return {}
    names = _models(frame, role)
    if unknown := sorted(set(names) - set(models)):
        raise DataError(f"the table {role!r} has the model {unknown[0]!r}, which is not in the table 'before'.")
    m = {name: oriented(frame[name], points) if name in frame.columns else math.nan for name, points in ways.items()}
    means = pd.DataFrame(m, index=frame.index, dtype=float).groupby(names).mean().reindex(list(models))
    return {name: means[name].to_numpy() for name in ways}


def _clusters(
    before: pd.DataFrame, columns: Sequence[str], models: Sequence[str]
) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Return the names of clusters and the code of each model by column, outermost first.

    A column that is missing or has gaps is left out, and so is an outer column with a single value. Runs with the same
    name in two methods count as two runs.
    """
    usable = [name for name in columns if name in before.columns and before[name].notna().all()]
    labels = {"model": list(models)} if not usable else {}
    label = [""] * len(before)
    for name in usable:
        label = [f"{outer} {inner}".strip() for outer, inner in zip(label, before[name].astype(str), strict=True)]
        if name == usable[-1] or len(set(label)) > 1:
            labels[name] = label
    return {name: np.unique(np.asarray(values, dtype=str), return_inverse=True) for name, values in labels.items()}


def _row(states: _States, setting: str, confidence: float) -> dict[str, Any]:
    """Judge one metric under one filter setting: a row as in `COLUMNS["robustness"]`."""
    kept = states.only(states.kept)
    n, outer = len(kept.models), next(iter(kept.clusters))
    row: dict[str, Any] = {**dict.fromkeys(ROBUSTNESS, math.nan), "metric": states.metric, "filter": setting}
    row |= {"models": "own", "n": n, "threshold": states.threshold, "n_q": 0, "n_r": 0, "n_shift": 0}
    row |= dict.fromkeys(("unmoved_q", "unmoved_r", "above_r"), 0)
    row |= dict.fromkeys(("interval_reason", "q_reason", "r_reason", "caution"))
    row |= {"clusters": outer, "n_clusters": kept.models[f"in {outer}"].nunique()}
    if states.lacks_cut or not n:
        none = "no model passes the filters" if len(states.models) else "there is no model"
        why = "there is no threshold for this metric" if states.lacks_cut else none
        return row | {"q_reason": why, "r_reason": why}
    cautions: list[str] = []
    row |= _quantisation(kept, confidence, cautions)
    row |= _relearning(kept, confidence, cautions)
    row["rob"] = float(harmonic_means(np.array([[row["q"], row["r"]]]))[0])
    return row | {"caution": "; ".join(about_robustness(row, kept.tied, cautions)) or None}


def _quantisation(kept: _States, confidence: float, cautions: list[str]) -> dict[str, Any]:
    if "quantised" not in kept.given:
        return {"q_reason": "no quantised models were given"}
    measured = ~np.isnan(kept["q"])
    if not measured.any():
        return {"q_reason": "no model has a value after quantisation"}
    kept = kept.only(measured)
    before, after = kept["before"], kept["quantised"]
    moves, distance = np.abs(after - before), kept.pool_distance
    columns: dict[str, Any] = {
        "n_q": len(before),
        "unmoved_q": int((moves <= EPSILON).sum()),
        "relative_move": float(moves.mean()) / distance if distance > 0 else math.nan,
    }
    if _constant(before, after):
        return columns | {"q_reason": "constant: all models have the same value before and after"}
    columns["q"] = float(kept["q"].mean())
    return columns | _intervals("q", kept["q"], kept, confidence, cautions)


def _relearning(kept: _States, confidence: float, cautions: list[str]) -> dict[str, Any]:
    shift = kept.shift
    if "relearned" not in kept.given:
        return {"r_reason": "no relearned models were given"}
    columns: dict[str, Any] = {"shift": shift.mean, "shift_low": shift.low, "shift_high": shift.high}
    columns["n_shift"] = shift.n
    if math.isnan(shift.mean):
        return columns | {"r_reason": shift.reason}
    measured = ~np.isnan(kept["change"])
    if not measured.any():
        return columns | {"r_reason": "no model has a value after relearning"}
    kept = kept.only(measured)
    before, after, change = kept["before"], kept["relearned"], kept["change"]
    columns |= {
        "n_r": len(change),
        "unmoved_r": int((np.abs(change) <= EPSILON).sum()),
        "above_r": int((change > shift.mean + EPSILON).sum()),
        "r_at_shift": float(kept.r.mean()),
    }
    columns |= _intervals("r", kept.r, kept, confidence, cautions)
    if not math.isnan(shift.low):
        columns["r_shift_low"], columns["r_shift_high"] = _extremes(kept)
    if _constant(before, after):
        return columns | {"r_reason": "constant: all models have the same value before and after"}
    if shift.contains_zero:
        known = (
            f"its shift is {shift.mean:.3g} in a single relearning"
            if math.isnan(shift.low)
            else f"the interval of its shift, {shift.low:.3g} to {shift.high:.3g}, contains 0"
        )
        return columns | {"r_reason": f"retain might not move at all: {known}"}
    return columns | {"r": columns["r_at_shift"]}


def _extremes(kept: _States) -> tuple[float, float]:
    """Return the smallest and largest mean R over the interval of the shift: on a grid, and at turning points."""
    low, high = kept.shift.low, kept.shift.high
    turns = np.append(kept["change"], 0.0)
    inside = turns[(turns > low) & (turns < high)]
    if len(inside) > _TURNS:
        inside = np.sort(inside)[:: -(-len(inside) // _TURNS)]
    means = kept.r_over(np.concatenate([np.linspace(low, high, _GRID), inside])).mean(1)
    return float(means.min()), float(means.max())


def _intervals(
    prefix: str, values: np.ndarray, kept: _States, confidence: float, cautions: list[str]
) -> dict[str, Any]:
    """Return the intervals of mean Q or R: with the outermost clusters, and with the innermost."""
    outer, inner = next(iter(kept.clusters)), list(kept.clusters)[-1]
    codes = kept[f"in {outer}"]
    interval, reason = clustered_mean(values, codes, confidence)
    runs, _ = clustered_mean(values, kept[f"in {inner}"], confidence)
    columns: dict[str, Any] = {f"{prefix}_low": interval.low, f"{prefix}_high": interval.high}
    columns |= {f"{prefix}_runs_low": runs.low, f"{prefix}_runs_high": runs.high}
    if reason is not None:
        return columns | {"interval_reason": reason.replace("cluster", outer, 1)}
    if (most := dominated_by(values, codes, confidence)) is not None:
        end, which = 0 if values.mean() < 0.5 else 1, kept.clusters[outer][most.cluster]
        cautions.append(about_dominated(prefix.upper(), most.share, end, outer, which, *most.interval))
    return columns


def _pool_distance(faithful: pd.DataFrame | None, metric: str) -> float:
    if faithful is None:
        return math.nan
    if missing := [name for name in ("metric", "mean_p", "mean_n") if name not in faithful.columns]:
        raise DataError(f"faithful lacks {', '.join(missing)}: pass the result of faithfulness(...).")
    row = faithful[faithful["metric"] == metric]
    return abs(float(row["mean_p"].iloc[0]) - float(row["mean_n"].iloc[0])) if len(row) else math.nan


def _constant(before: np.ndarray, after: np.ndarray) -> bool:
    return len(before) > 1 and float(np.ptp(np.concatenate([before, after]))) <= EPSILON


def _why_none_common(states: Sequence[_States]) -> str:
    """Name the metrics that let no model pass, or say that each metric lets different models pass."""
    if not states[0]["useful"].any():
        return "no model passes the filters"
    blocking = [state.metric for state in states if state.takes_part and not state.complete.any()]
    if not blocking:
        return "no model is common to all metrics: each metric lets different models pass"
    named = ", ".join(blocking[:3]) + (f" and {len(blocking) - 3} more" if len(blocking) > 3 else "")
    return f"no model is common to all metrics: none passes the filters of {named}"


def summary(faithful: pd.DataFrame, robust: pd.DataFrame | None = None) -> pd.DataFrame:
    """Combine F, Q and R of every metric into robustness and Overall, and rank the metrics.

    `Rob = HM(Q, R)` and `Overall = HM(F, Rob)`; HM is the harmonic mean, 0 if a part is 0 and NaN if a part is NaN.

    Args:
        faithful: `metric` and `auc`, from `faithfulness` or `read_published(...).metrics`.
        robust: `metric`, `q`, `r` and perhaps `n`, from `robustness` under one filter setting; None if `faithful` has
            these columns.

    Returns:
        One row per metric of `faithful`, with the columns of `COLUMNS["summary"]`; higher is always better. Each rank
        covers only the metrics that have a value.

    Raises:
        DataError: A column is missing, a metric occurs twice, or a number is negative.

    Example:
        >>> import pandas as pd
        >>> row = summary(pd.DataFrame({"metric": ["x"], "auc": [0.9], "q": [0.9], "r": [0.6]})).iloc[0]
        >>> f"{row['rob']:.3f} {row['overall']:.3f}"
        '0.720 0.800'
    """
    robust = faithful if robust is None else robust
    left = _by_metric(faithful, ["auc"], "faithfulness(...)")
    right = _by_metric(robust, ["q", "r"], "robustness(...) at one filter setting").reindex(left.index)
    table = pd.DataFrame({"auc": left["auc"], "q": right["q"], "r": right["r"]}).astype(float)
    if (table < 0).any(axis=None):
        raise DataError("F, Q and R must be >= 0; the tables hold a negative number.")
    table["rob"] = harmonic_means(table[["q", "r"]].to_numpy())
    table["overall"] = harmonic_means(table[["auc", "rob"]].to_numpy())
    table["n"] = right["n"] if "n" in right.columns else np.nan
    for name in ("auc", "rob", "overall"):
        table[f"rank_{name}"] = places(table[name].to_numpy())
    table["reason"] = [_reason(left.loc[name], right.loc[name]) for name in table.index]
    return table.rename_axis("metric").reset_index()[list(SUMMARY)]


def _by_metric(frame: pd.DataFrame, columns: list[str], source: str) -> pd.DataFrame:
    if missing := [name for name in ("metric", *columns) if name not in frame.columns]:
        raise DataError(f"the table lacks {', '.join(missing)}: pass the result of {source}.")
    twice = frame["metric"][frame["metric"].duplicated()]
    if len(twice):
        raise DataError(f"{twice.iloc[0]!r} occurs twice: pass the result of {source}.")
    return frame.set_index("metric")


def _reason(left: pd.Series, right: pd.Series) -> str | None:
    reasons = []
    for row, value, name in ((left, "auc", "reason"), (right, "q", "q_reason"), (right, "r", "r_reason")):
        if pd.isna(row[value]):
            why = row.get(name)
            reasons.append(f"{value}: {why if isinstance(why, str) else 'not given'}")
    return "; ".join(reasons) or None
