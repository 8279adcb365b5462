"""Robustness: does a metric hold when a model is quantised, or relearns as a model that never knew would?"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from uds_lens.errors import DataError
from uds_lens.meta._columns import POINTS, ROBUSTNESS, TIED_CUTS
from uds_lens.meta._direction import Points, directions, oriented
from uds_lens.meta._filters import as_cuts, forgotten, useful_models
from uds_lens.meta._perturbation import (
    EPSILON,
    RetainShift,
    one_directional_quantisation,
    relearning_over_shifts,
    retain_shift,
    symmetric_quantisation,
)
from uds_lens.meta._pools import (
    PoolBootstrap,
    check_resampling,
    clustered_mean,
    dominated_by,
    pair_kernel,
    split_pools,
)
from uds_lens.meta._summary import summary
from uds_lens.meta._tables import harmonic_means

if TYPE_CHECKING:
    import pandas as pd


_FILTERS = {
    "none": (False, False),
    "utility": (True, False),
    "threshold": (False, True),
    "utility+threshold": (True, True),
}
"""Filter settings: by utility, by threshold."""

_FEW = 10
"""Models below which a mean is quoted with a caution."""

_GRID = 101
"""Shifts at which mean R is taken across the interval of the shift, besides those where it may turn."""


@dataclass(frozen=True, eq=False, kw_only=True)
class Tables:
    """Unlearned models and retain before and after the perturbations, and what is known of the metrics."""

    before: pd.DataFrame
    """Unlearned models: `model`, metrics, and `utility_rel` for its filter."""

    quantised: pd.DataFrame | None = None
    """The same models quantised, by the names in `model`."""

    relearned: pd.DataFrame | None = None
    """The same models after relearning; several rows of a model (seeds) are averaged."""

    retain_before: pd.DataFrame | None = None
    """One row per retain model."""

    retain_relearned: pd.DataFrame | None = None
    """One row per relearning of retain; with several retain models `model` names its start."""

    thresholds: pd.DataFrame | Mapping[str, float] | None = None
    """Cut on m per metric (mapping, or the result of `thresholds`): only models with `m <= threshold` count. None
    turns the filter off."""

    faithful: pd.DataFrame | None = None
    """Result of `faithfulness`: gives `relative_move` its unit, and `tied_cuts` its Overall."""

    pools: pd.DataFrame | None = None
    """Models that know and models that do not, as in `faithfulness`: adds `p_first`. Whole runs of the pools, whole
    clusters of the unlearned models and relearnings of retain are resampled; filters stay as they are."""

    cluster: Sequence[str] = ("method", "run")
    """Columns of `before` that say which models belong together, outermost first; those that it lacks are ignored.
    Empty if all models are independent."""


def robustness(
    tables: Tables,
    *,
    metrics: Sequence[str] | None = None,
    direction: Mapping[str, Points] | None = None,
    min_utility: float | None = 0.8,
    symmetric: bool = True,
    confidence: float = 0.95,
    n_resamples: int = 2000,
    seed: int = 0,
) -> pd.DataFrame:
    """Compute Q, R and robustness of every metric over the models that pass the filters.

    Symmetric: `Q = 1 - |m' - m| / (|m'| + |m| + 1e-10)` and `R = 1 - |Du - Dr| / (|Du| + |Dr| + 1e-10)`, with D
    the change of m by relearning, u the model and r retain. One-directional: `Q = min(m / m', 1)`, 1 where `m' <=
    m`; `R = 1` where `Du <= max(Dr, 0)`, else `max(Dr, 0) / Du`. Both are averaged over models; `Rob = HM(mean Q,
    mean R)`.

    Dr comes from few relearnings of one or few models and is shared by all models, so its interval is carried into R:
    `r_shift_low` and `r_shift_high` are the extremes of mean R over it. Where it contains 0 retain may not move at
    all and R is undefined; `r_at_shift` still has the number at the mean. A metric with one value for all models
    before and after would earn Q = 1 by the 1e-10; its Q and R are undefined too, and models that do not move are
    counted.

    Models of a run, and runs of a method, are alike, so the intervals of Q and R take whole methods as clusters: they
    hold for other methods. `q_runs_low` and its like take runs: they hold for more runs of these methods. Both are t
    intervals with Satterthwaite's degrees of freedom on the logit scale; with fewer than five clusters there is none.
    They take the shift of retain as it is: read them beside `r_shift_low` and `r_shift_high`.

    Args:
        tables: The models in their states; with `thresholds` for that filter.
        metrics: Which columns; None takes the declared metrics, or those of `direction`.
        direction: What a higher value means, for metrics that are not declared.
        min_utility: Only models with `utility_rel` of at least this count. None turns the filter off.
        symmetric: Penalise both directions, as the UDS paper; False: only knowledge that comes back.
        confidence: Of the intervals.
        n_resamples: Resamples behind `p_first`.
        seed: Of these.

    Returns:
        One row per metric, columns as in `uds_lens.meta.ROBUSTNESS`.

    Raises:
        DataError: A column is missing or holds no numbers; a perturbed model is not in `before`.
        ConfigError: A direction is not known.

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
    import pandas as pd

    check_resampling(confidence, n_resamples)
    ways = directions(tables.before, metrics, direction)
    states = _align(tables, ways, min_utility, symmetric, confidence)
    aucs = _resampled_aucs(tables.pools, ways, n_resamples, seed)
    used = (min_utility is not None, tables.thresholds is not None)
    setting = next(name for name, filters in _FILTERS.items() if filters == used)
    rows = [_row(state, setting, tables, confidence) for state in states]
    return pd.DataFrame(_with_p_first(rows, states, aucs, seed), columns=list(ROBUSTNESS))


def robustness_by_filter(
    tables: Tables,
    *,
    metrics: Sequence[str] | None = None,
    direction: Mapping[str, Points] | None = None,
    min_utility: float | None = 0.8,
    symmetric: bool = True,
    confidence: float = 0.95,
    n_resamples: int = 2000,
    seed: int = 0,
) -> pd.DataFrame:
    """Compute robustness under every filter setting, on each metric's own models and on common ones.

    Under a threshold every metric is judged on other models; the common ones are those that pass for all metrics and
    have all values. A metric without a threshold, or without any value, does not take part in finding them; one that
    lets no model pass leaves no common model, and the reason names it.

    Args:
        tables: As in `robustness`; without `thresholds` the settings with a threshold are left out.
        metrics: As in `robustness`.
        direction: As in `robustness`.
        min_utility: As in `robustness`; None leaves the settings with utility out.
        symmetric: As in `robustness`.
        confidence: As in `robustness`.
        n_resamples: As in `robustness`.
        seed: As in `robustness`.

    Returns:
        One row per filter setting, kind of models (own, common) and metric; columns as in `uds_lens.meta.ROBUSTNESS`.

    Raises:
        DataError: A column is missing or holds no numbers; a perturbed model is not in `before`.
        ConfigError: A direction is not known.

    Example:
        >>> import pandas as pd
        >>> before = pd.DataFrame({"model": ["a", "b"], "x": [0.2, 0.6], "utility_rel": [0.9, 0.9]})
        >>> after = pd.DataFrame({"model": ["a", "b"], "x": [0.2, 0.6]})
        >>> tables = Tables(before=before, quantised=after, thresholds={"x": 0.5})
        >>> found = robustness_by_filter(tables, direction={"x": "knowledge"})
        >>> found[found["models"] == "own"].set_index("filter")["n"].to_dict()
        {'none': 2, 'utility': 2, 'threshold': 1, 'utility+threshold': 1}
    """
    import pandas as pd

    check_resampling(confidence, n_resamples)
    ways = directions(tables.before, metrics, direction)
    aucs = _resampled_aucs(tables.pools, ways, n_resamples, seed)
    rows: list[dict[str, Any]] = []
    for setting, (by_utility, by_threshold) in _FILTERS.items():
        if (by_utility and min_utility is None) or (by_threshold and tables.thresholds is None):
            continue
        given = tables if by_threshold else replace(tables, thresholds=None)
        states = _align(given, ways, min_utility if by_utility else None, symmetric, confidence)
        own = [_row(state, setting, given, confidence) for state in states]
        rows += _with_p_first(own, states, aucs, seed)
        shared = np.logical_and.reduce(
            [np.ones(len(tables.before), dtype=bool)] + [s.complete for s in states if s.takes_part]
        )
        common = [state.only(shared) for state in states]
        judged = [_row(state, setting, given, confidence) | {"models": "common"} for state in common]
        if not shared.any():
            why = _why_none_common(states)
            for state, row in zip(states, judged, strict=True):
                if state.takes_part:
                    row |= {"q_reason": why, "r_reason": why}
        rows += _with_p_first(judged, common, aucs, seed)
    return pd.DataFrame(rows, columns=list(ROBUSTNESS))


def perturbation_points(
    tables: Tables,
    *,
    metrics: Sequence[str] | None = None,
    direction: Mapping[str, Points] | None = None,
    min_utility: float | None = 0.8,
    symmetric: bool = True,
) -> pd.DataFrame:
    """List every model of every metric before and after: the points that Q and R average.

    Args:
        tables: As in `robustness`.
        metrics: As in `robustness`.
        direction: As in `robustness`.
        min_utility: As in `robustness`.
        symmetric: As in `robustness`.

    Returns:
        One row per metric and model, columns as in `uds_lens.meta.POINTS`; NaN where a state was not measured.

    Raises:
        DataError: A column is missing or holds no numbers; a perturbed model is not in `before`.
        ConfigError: A direction is not known.

    Example:
        >>> import pandas as pd
        >>> tables = Tables(before=pd.DataFrame({"model": ["a"], "x": [0.75]}),
        ...                 quantised=pd.DataFrame({"model": ["a"], "x": [0.25]}))
        >>> points = perturbation_points(tables, min_utility=None, direction={"x": "erasure"})
        >>> points[["before", "quantised", "q"]].round(2).values.tolist()
        [[0.25, 0.75, 0.5]]
    """
    import pandas as pd

    ways = directions(tables.before, metrics, direction)
    states = _align(tables, ways, min_utility, symmetric, confidence=0.95)
    parts = [
        pd.DataFrame(
            {
                "model": state.models,
                "metric": state.metric,
                "before": state.before,
                "quantised": state.quantised,
                "relearned": state.relearned,
                "change": state.change,
                "shift": state.shift.mean,
                "q": state.q,
                "r": state.r,
                "useful": state.useful,
                "forgot": state.forgot,
                "kept": state.kept,
            }
        )
        for state in states
    ]
    return pd.concat(parts, ignore_index=True)[list(POINTS)]


def tied_cuts(
    tables: Tables,
    *,
    metrics: Sequence[str] | None = None,
    direction: Mapping[str, Points] | None = None,
    min_utility: float | None = 0.8,
    symmetric: bool = True,
) -> pd.DataFrame:
    """Judge every metric at each of its best cuts, while the others keep theirs.

    Youden's J often has its maximum at several cuts. The lowest is taken, by convention; which models a metric calls
    unlearned, and so its Q, R and place, can differ with the next.

    Args:
        tables: As in `robustness`; `thresholds` is the result of `thresholds` with all cuts, `faithful` that of
            `faithfulness`.
        metrics: As in `robustness`.
        direction: As in `robustness`.
        min_utility: As in `robustness`; None leaves the setting with utility out.
        symmetric: As in `robustness`.

    Returns:
        One row per filter setting with a threshold, metric with several best cuts, and cut; columns as in
        `uds_lens.meta.TIED_CUTS`.

    Raises:
        DataError: A table or a column is missing, or holds no numbers; a perturbed model is not in `before`.
        ConfigError: A direction is not known.

    Example:
        >>> import pandas as pd
        >>> from uds_lens.meta import faithfulness, thresholds
        >>> pools = pd.DataFrame({"knows": [1, 1, 1, 0, 0, 0], "x": [0.9, 0.8, 0.3, 0.4, 0.2, 0.1]})
        >>> ways = {"x": "knowledge"}
        >>> before = pd.DataFrame({"model": ["a", "b"], "x": [0.2, 0.5]})
        >>> tables = Tables(before=before, quantised=before, thresholds=thresholds(pools, direction=ways),
        ...                 faithful=faithfulness(pools, direction=ways))
        >>> found = tied_cuts(tables, min_utility=None, direction=ways)
        >>> found[["threshold", "chosen", "n"]].round(2).values.tolist()
        [[0.25, True, 1], [0.6, False, 2]]
    """
    import pandas as pd

    cuts, faithful = tables.thresholds, tables.faithful
    if not isinstance(cuts, pd.DataFrame) or faithful is None:
        raise DataError("tied cuts need the results of thresholds(...) and faithfulness(...) in the tables.")
    tables = replace(tables, pools=None)
    rows: list[dict[str, Any]] = []
    for least in dict.fromkeys((None, min_utility)):
        given: dict[str, Any] = {"direction": direction, "min_utility": least, "symmetric": symmetric}
        base = robustness(tables, metrics=metrics, **given)
        tied = cuts[cuts["metric"].isin(base["metric"]) & (cuts["n_best"] > 1)]
        for cut in tied.to_dict("records"):
            metric = str(cut["metric"])
            at_cut = replace(tables, thresholds={metric: float(cut["threshold"])})
            own = robustness(at_cut, metrics=[metric], **given)
            table = summary(faithful, pd.concat([base[base["metric"] != metric], own], ignore_index=True))
            row = table.set_index("metric").loc[metric]
            leader = table.loc[table["rank_overall"] == 1, "metric"]
            rows.append(
                {name: cut[name] for name in ("metric", "threshold", "chosen", "n_best")}
                | {name: row[name] for name in ("n", "q", "r", "rob", "overall", "rank_overall", "reason")}
                | {"filter": own["filter"].iloc[0], "first": leader.iloc[0] if len(leader) else None}
            )
    return pd.DataFrame(rows, columns=list(TIED_CUTS))


@dataclass(frozen=True, eq=False, kw_only=True)
class _States:
    """One metric of all models in three states, oriented (m), and which models pass the filters."""

    metric: str
    models: np.ndarray
    before: np.ndarray
    quantised: np.ndarray | None
    relearned: np.ndarray | None
    shift: RetainShift
    threshold: float
    useful: np.ndarray
    forgot: np.ndarray
    symmetric: bool
    clusters: Mapping[str, np.ndarray]
    """Cluster of each model by column (method, run), outermost first; the models themselves without any."""
    tied: tuple[float, ...]
    """All cuts that separate the pools as well as `threshold`, itself among them; empty if it is the only one."""

    @property
    def kept(self) -> np.ndarray:
        """Models that pass both filters and have a value."""
        return self.useful & self.forgot & ~np.isnan(self.before)

    @property
    def complete(self) -> np.ndarray:
        """Models that pass and have a value in every state that was measured."""
        complete = self.kept
        for after in (self.quantised, self.relearned):
            if after is not None and not np.isnan(after).all():
                complete = complete & ~np.isnan(after)
        return complete

    @property
    def takes_part(self) -> bool:
        """Whether the metric has values and, where thresholds are used, one of its own."""
        without_cut = math.isnan(self.threshold) and not self.forgot.any()
        return not without_cut and not np.isnan(self.before).all()

    def only(self, mask: np.ndarray) -> _States:
        """Return the same for some of the models."""
        return replace(
            self,
            models=self.models[mask],
            before=self.before[mask],
            quantised=None if self.quantised is None else self.quantised[mask],
            relearned=None if self.relearned is None else self.relearned[mask],
            useful=self.useful[mask],
            forgot=self.forgot[mask],
            clusters={name: labels[mask] for name, labels in self.clusters.items()},
        )

    @property
    def change(self) -> np.ndarray:
        """Du; NaN without relearned models."""
        return np.full(len(self.models), np.nan) if self.relearned is None else self.relearned - self.before

    @property
    def q(self) -> np.ndarray:
        """Q of each model; NaN without quantised models."""
        if self.quantised is None:
            return np.full(len(self.models), np.nan)
        form = symmetric_quantisation if self.symmetric else one_directional_quantisation
        return form(self.before, self.quantised)

    @property
    def r(self) -> np.ndarray:
        """R of each model at the mean shift of retain."""
        return self.r_over(np.array([self.shift.mean]))[0]

    def r_over(self, shifts: np.ndarray) -> np.ndarray:
        """Return R of each model for each of several shifts of retain: shift x model."""
        return relearning_over_shifts(self.change, shifts, symmetric=self.symmetric)


def _align(
    tables: Tables,
    ways: Mapping[str, Points],
    min_utility: float | None,
    symmetric: bool,
    confidence: float,
) -> list[_States]:
    """Bring the tables together by the column `model`, one record per metric."""
    import pandas as pd

    names = _names(tables.before, "before")
    if len(set(names)) < len(names):
        raise DataError("the table before has a model twice: its column 'model' must be unique.")
    models, thresholds = np.array(names, dtype=object), tables.thresholds
    cuts = None if thresholds is None else as_cuts(thresholds)
    useful = useful_models(tables.before, min_utility)
    clusters = _clusters(tables.before, tables.cluster) or {"model": models}
    states = []
    for name, points in ways.items():
        m = oriented(tables.before[name], points).to_numpy()
        cut = math.nan if cuts is None else cuts.get(name, math.nan)
        tied: tuple[float, ...] = ()
        if isinstance(thresholds, pd.DataFrame):
            tied = tuple(map(float, thresholds.loc[thresholds["metric"] == name, "threshold"]))
        shift = RetainShift(math.nan, math.nan, math.nan, 0, 0, "R needs retain before and after relearning")
        if tables.retain_before is not None and tables.retain_relearned is not None:
            shift = retain_shift(
                tables.retain_before, tables.retain_relearned, name, direction=points, confidence=confidence
            )
        states.append(
            _States(
                metric=name,
                models=models,
                before=m,
                quantised=_after(tables.quantised, name, points, names, "quantised"),
                relearned=_after(tables.relearned, name, points, names, "relearned"),
                shift=shift,
                threshold=cut,
                useful=useful,
                forgot=np.ones(len(names), dtype=bool) if cuts is None else forgotten(m, cut),
                symmetric=symmetric,
                clusters=clusters,
                tied=tied if len(tied) > 1 else (),
            )
        )
    return states


def _names(frame: pd.DataFrame, role: str) -> list[str]:
    if "model" not in frame.columns:
        raise DataError(f"the table {role} lacks the column 'model': it says which rows are the same model.")
    return [str(name) for name in frame["model"]]


def _after(
    frame: pd.DataFrame | None, metric: str, points: Points, models: Sequence[str], role: str
) -> np.ndarray | None:
    """Return m after a perturbation, averaged over the rows of each model."""
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


def _clusters(before: pd.DataFrame, columns: Sequence[str]) -> dict[str, np.ndarray]:
    """Return the clusters of each model by column, outermost first.

    A column that is missing or has gaps is left out, and so is an outer one with a single value. Runs with the same
    name in two methods are two runs.
    """
    usable = [name for name in columns if name in before.columns and before[name].notna().all()]
    clusters: dict[str, np.ndarray] = {}
    label = np.full(len(before), "", dtype=object)
    for name in usable:
        pairs = zip(label, before[name].astype(str), strict=True)
        label = np.array([f"{outer} {inner}".strip() for outer, inner in pairs], dtype=object)
        if name == usable[-1] or len(set(label)) > 1:
            clusters[name] = label
    return clusters


def _row(states: _States, setting: str, tables: Tables, confidence: float) -> dict[str, Any]:
    """Judge one metric under one filter setting: a row as in `uds_lens.meta.ROBUSTNESS`, without `p_first`."""
    kept = states.only(states.kept)
    n, (name, outer) = len(kept.models), next(iter(kept.clusters.items()))
    row: dict[str, Any] = {**dict.fromkeys(ROBUSTNESS, math.nan), "metric": states.metric, "filter": setting}
    row |= {"models": "own", "n": n, "threshold": states.threshold, "n_q": 0, "n_r": 0, "n_shift": 0}
    row |= dict.fromkeys(("unmoved_q", "unmoved_r", "above_q", "above_r"), 0)
    row |= dict.fromkeys(("interval_reason", "q_reason", "r_reason", "caution"))
    row |= {"clusters": name, "n_clusters": len(set(outer))}
    why = None
    if tables.thresholds is not None and math.isnan(states.threshold):
        why = "there is no threshold for it"
    elif not n:
        why = "no model passes the filters" if len(states.models) else "there is no model"
    if why is not None:
        return row | {"q_reason": why, "r_reason": why}
    row |= _quantisation(kept, _pool_distance(tables.faithful, states.metric), confidence)
    row |= _relearning(kept, confidence)
    row["rob"] = float(harmonic_means(np.array([[row["q"], row["r"]]]))[0])
    return row | {"caution": _caution(row, kept)}


def _quantisation(kept: _States, distance: float, confidence: float) -> dict[str, Any]:
    if kept.quantised is None:
        return {"q_reason": "no quantised models were given"}
    measured = ~np.isnan(kept.q)
    if not measured.any():
        return {"q_reason": "no model has a value after quantisation"}
    kept = kept.only(measured)
    before, after = kept.before, np.asarray(kept.quantised)
    moves = np.abs(after - before)
    columns: dict[str, Any] = {
        "n_q": len(before),
        "unmoved_q": int((moves <= EPSILON).sum()),
        "above_q": int((after > before + EPSILON).sum()),
        "spearman_q": _spearman(before, after),
        "relative_move": float(moves.mean()) / distance if distance > 0 else math.nan,
    }
    if _constant(before, after):
        return columns | {"q_reason": "constant: all models have the same value before and after"}
    return columns | {"q": float(kept.q.mean())} | _intervals("q", kept, confidence)


def _relearning(kept: _States, confidence: float) -> dict[str, Any]:
    shift = kept.shift
    if kept.relearned is None:
        return {"r_reason": "no relearned models were given"}
    columns: dict[str, Any] = {"shift": shift.mean, "shift_low": shift.low, "shift_high": shift.high}
    columns["n_shift"] = shift.n
    if math.isnan(shift.mean):
        return columns | {"r_reason": shift.reason}
    measured = ~np.isnan(kept.change)
    if not measured.any():
        return columns | {"r_reason": "no model has a value after relearning"}
    kept = kept.only(measured)
    before, after, change = kept.before, np.asarray(kept.relearned), kept.change
    columns |= {
        "n_r": len(change),
        "unmoved_r": int((np.abs(change) <= EPSILON).sum()),
        "above_r": int((change > shift.mean + EPSILON).sum()),
        "spearman_r": _spearman(before, after),
        "r_at_shift": float(kept.r.mean()),
    }
    columns |= _intervals("r", kept, confidence)
    if not math.isnan(shift.low):
        # Mean R over the interval of the shift: its extremes lie on the grid, or where one model's R turns.
        turns = np.append(change, 0.0)
        inside = turns[(turns > shift.low) & (turns < shift.high)]
        means = kept.r_over(np.concatenate([np.linspace(shift.low, shift.high, _GRID), inside])).mean(1)
        columns |= {"r_shift_low": float(means.min()), "r_shift_high": float(means.max())}
    if _constant(before, after):
        return columns | {"r_reason": "constant: all models have the same value before and after"}
    if shift.contains_zero:
        known = (
            f"its shift is {shift.mean:.3g} in a single relearning"
            if math.isnan(shift.low)
            else f"the interval of its shift, {shift.low:.3g} to {shift.high:.3g}, contains 0"
        )
        return columns | {"r_reason": f"retain may not move at all: {known}"}
    return columns | {"r": columns["r_at_shift"]}


def _intervals(prefix: str, kept: _States, confidence: float) -> dict[str, Any]:
    """Return the interval of mean Q or R, with the outer clusters and with the innermost."""
    values = kept.q if prefix == "q" else kept.r
    name, outer = next(iter(kept.clusters.items()))
    (low, high), reason = clustered_mean(values, outer, confidence)
    (runs_low, runs_high), _ = clustered_mean(values, list(kept.clusters.values())[-1], confidence)
    columns: dict[str, Any] = {f"{prefix}_low": low, f"{prefix}_high": high}
    columns |= {f"{prefix}_runs_low": runs_low, f"{prefix}_runs_high": runs_high}
    if reason is not None:
        return columns | {"interval_reason": reason.replace("cluster", name, 1)}
    if (most := dominated_by(values, outer)) is not None:
        columns[f"_{prefix}_dominated"] = f"{name} {most}"
    return columns


def _pool_distance(faithful: pd.DataFrame | None, metric: str) -> float:
    """Return |mean_P - mean_N| of a metric; NaN where it is not known."""
    if faithful is None:
        return math.nan
    missing = [name for name in ("metric", "mean_p", "mean_n") if name not in faithful.columns]
    if missing:
        raise DataError(f"faithful lacks {', '.join(missing)}: pass the result of faithfulness(...).")
    row = faithful[faithful["metric"] == metric]
    return abs(float(row["mean_p"].iloc[0]) - float(row["mean_n"].iloc[0])) if len(row) else math.nan


def _constant(before: np.ndarray, after: np.ndarray) -> bool:
    return len(before) > 1 and float(np.ptp(np.concatenate([before, after]))) <= EPSILON


def _spearman(before: np.ndarray, after: np.ndarray) -> float:
    """Rank correlation; NaN with fewer than three models, or where one side is constant."""
    if len(before) < 3 or np.ptp(before) == 0 or np.ptp(after) == 0:
        return math.nan
    from scipy.stats import spearmanr

    return float(spearmanr(before, after).statistic)


def _caution(row: dict[str, Any], kept: _States) -> str | None:
    cautions = []
    if kept.tied:
        low, high = min(kept.tied), max(kept.tied)
        cautions.append(
            f"{len(kept.tied)} cuts separate the pools equally well ({low:.3g} to {high:.3g}, the lowest is used): "
            "the models, and so the numbers, depend on which is taken"
        )
    for name, mean in (("q", "q"), ("r", "r_at_shift")):
        most = row.pop(f"_{name}_dominated", None)
        if most is not None:
            cautions.append(
                f"more than half of how far {name.upper()} lies from {row[mean]:.0f} comes from {most}: its interval "
                "may be too short"
            )
    if row["n"] < _FEW:
        cautions.append(f"only {row['n']} models pass the filters")
    if row["n_q"] and 10 * row["unmoved_q"] >= row["n_q"]:
        cautions.append(
            f"quantisation does not move {row['unmoved_q']} of {row['n_q']} models, which earn Q = 1"
        )
    if row["n_r"] and 10 * row["unmoved_r"] >= row["n_r"]:
        cautions.append(f"relearning does not move {row['unmoved_r']} of {row['n_r']} models")
    if row["n_shift"] == 1:
        cautions.append("the shift of retain comes from a single relearning: R has no interval for it")
    for name, count in (("quantised", row["n_q"]), ("relearned", row["n_r"])):
        if count and count < row["n"]:
            cautions.append(f"{row['n'] - count} models have no {name} value")
    return "; ".join(cautions) or None


def _why_none_common(states: Sequence[_States]) -> str:
    """Say why no model is common: the metrics that let none pass, or that each passes others."""
    if not states[0].useful.any():
        return "no model passes the filters"
    blocking = [each.metric for each in states if each.takes_part and not each.complete.any()]
    if not blocking:
        return "no model is common to all metrics: each lets others pass"
    named = ", ".join(blocking[:3]) + (f" and {len(blocking) - 3} more" if len(blocking) > 3 else "")
    return f"no model is common to all metrics: none passes for {named}"


def _resampled_aucs(
    pools: pd.DataFrame | None, ways: Mapping[str, Points], n_resamples: int, seed: int
) -> dict[str, np.ndarray]:
    """Return F of each metric in every resample of the pools: whole runs, or single models without known runs."""
    if pools is None:
        return {}
    split = split_pools(pools, "knows", ("variant", "run"))
    bootstrap = PoolBootstrap(split, n_resamples, seed)
    aucs = {}
    for name, points in ways.items():
        if name not in split.frame.columns:
            continue
        m = oriented(split.frame[name], points).to_numpy()
        measured = ~np.isnan(m)
        kernel = pair_kernel(m[split.knows & measured], m[~split.knows & measured])
        if not kernel.size:
            aucs[name] = np.full(n_resamples, np.nan)
            continue
        draws = bootstrap.clustered(measured)
        if draws is None or draws.problem is not None:
            draws = bootstrap.independent(measured)
        aucs[name] = draws.aucs(kernel)
    return aucs


def _with_p_first(
    rows: Sequence[dict[str, Any]], states: Sequence[_States], aucs: Mapping[str, np.ndarray], seed: int
) -> list[dict[str, Any]]:
    """Add the share of resamples in which each metric has the highest Overall; ties are split.

    NaN for a metric without Q, R or F, and for all where only one has them.
    """
    ranked = [row["metric"] in aucs and not math.isnan(row["rob"]) for row in rows]
    if sum(ranked) < 2:
        return list(rows)
    overall = np.stack(
        [
            _resampled_overall(s, aucs[s.metric], seed)
            for s, known in zip(states, ranked, strict=True)
            if known
        ]
    )
    best = overall.max(0)
    first = (overall == best) & (best >= 0)
    shares = iter((first / np.maximum(first.sum(0), 1)).mean(1))
    return [
        row | {"p_first": float(next(shares))} if known else row
        for row, known in zip(rows, ranked, strict=True)
    ]


def _resampled_overall(states: _States, aucs: np.ndarray, seed: int) -> np.ndarray:
    """Return Overall in every resample of model clusters and of relearnings; -1 where no kept model was drawn."""
    n_resamples, rng = len(aucs), np.random.default_rng(seed)
    names, place = np.unique(next(iter(states.clusters.values())).astype(str), return_inverse=True)
    drawn = rng.multinomial(len(names), [1 / len(names)] * len(names), size=n_resamples)
    weights = drawn[:, place] * states.kept
    moved = np.array(states.shift.shifts)
    shifts = moved[rng.integers(len(moved), size=(n_resamples, len(moved)))].mean(1)
    r = states.r_over(shifts)
    q = np.broadcast_to(states.q, r.shape)
    rob = harmonic_means(np.stack([_weighted_mean(q, weights), _weighted_mean(r, weights)], axis=1))
    overall = harmonic_means(np.stack([np.clip(aucs, 0, 1), rob], axis=1))
    return np.where(np.isnan(overall), -1.0, overall)


def _weighted_mean(values: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Mean of each row over the models that have a value; NaN where none was drawn."""
    weights = weights * ~np.isnan(values)
    total = weights.sum(1)
    sums = (np.nan_to_num(values) * weights).sum(1)
    return np.divide(sums, total, out=np.full(len(total), np.nan), where=total > 0)
