"""Robustness: does a metric hold when a model is quantised, or relearns as a model that never knew would?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from uds_lens.checked_arguments import arguments_checked
from uds_lens.errors import DataError
from uds_lens.meta.common_models import common_models, takes_part, why_none
from uds_lens.meta.declarations import Points
from uds_lens.meta.first_by_overall import FirstByOverall
from uds_lens.meta.perturbed import Perturbed, align
from uds_lens.meta.required_columns import POINTS, ROBUSTNESS
from uds_lens.meta.resampling import check_resampling
from uds_lens.meta.robustness_row import judge

if TYPE_CHECKING:
    import pandas as pd

_SETTINGS = {
    "none": (False, False),
    "utility": (True, False),
    "threshold": (False, True),
    "utility+threshold": (True, True),
}


@arguments_checked
def robustness(
    before: pd.DataFrame,
    *,
    quantised: pd.DataFrame | None = None,
    relearned: pd.DataFrame | None = None,
    retain_before: pd.DataFrame | None = None,
    retain_relearned: pd.DataFrame | None = None,
    thresholds: pd.DataFrame | Mapping[str, float] | None = None,
    min_utility: float | None = 0.8,
    symmetric: bool = True,
    faithful: pd.DataFrame | None = None,
    pools: pd.DataFrame | None = None,
    metrics: Sequence[str] | None = None,
    direction: Mapping[str, Points] | None = None,
    cluster: Sequence[str] = ("method", "run"),
    confidence: float = 0.95,
    n_resamples: int = 2000,
    seed: int = 0,
) -> pd.DataFrame:
    """Q, R and robustness of every metric over the models that pass the filters.

    Symmetric: `Q = 1 - |m' - m| / (|m'| + |m| + 1e-10)` and `R = 1 - |Du - Dr| / (|Du| + |Dr| + 1e-10)`, with D
    the change of m by relearning, u the model and r retain. One-directional: `Q = min(m / m', 1)`, 1 where `m' <=
    m`; `R = 1` where `Du <= max(Dr, 0)`, else `max(Dr, 0) / Du`. Both are averaged over models; `Rob = HM(mean Q,
    mean R)`.

    Dr comes from few relearnings of one or few models and is shared by all models, so its interval is carried into R:
    `r_shift_low` and `r_shift_high` are the extremes of mean R over it. Where it contains 0 retain may not move at
    all and R is undefined; `r_at_shift` still tells the number at the mean. A metric with one value for all models
    before and after would earn Q = 1 by the 1e-10; its Q and R are undefined too, and models that do not move are
    counted.

    Models of a run, and runs of a method, are alike, so the intervals of Q and R take whole methods as clusters: they
    speak of other methods. `q_runs_low` and its like take runs: they speak of more runs of these methods. Both are t
    intervals with Satterthwaite's degrees of freedom on the logit scale; with fewer than five clusters there is none.
    They take the shift of retain as it is: read them beside `r_shift_low` and `r_shift_high`.

    Args:
        before: Unlearned models: `model`, metrics, and `utility_rel` for its filter.
        quantised: The same models quantised, by the names in `model`.
        relearned: The same models after relearning; several rows of a model (seeds) are averaged.
        retain_before: One row per retain model.
        retain_relearned: One row per relearning of retain; with several retain models `model` names its start.
        thresholds: Cut on m per metric (mapping, or the result of `thresholds`): only models with `m <= threshold`
            count. None turns the filter off.
        min_utility: Only models with `utility_rel` of at least this count. None turns the filter off.
        symmetric: Penalise both directions, as the UDS paper; False: only knowledge that comes back.
        faithful: Result of `faithfulness`: gives `relative_move` its unit.
        pools: Models that know and models that do not, as in `faithfulness`: adds `p_first`. Whole runs of the pools,
            whole clusters of the unlearned models and relearnings of retain are drawn anew; filters stay as they are.
        metrics: Which columns; None takes the declared metrics, or those of `direction`.
        direction: What a higher value means, for metrics that are not declared.
        cluster: Columns of `before` that say which models belong together, outermost first; those that it lacks are
            passed over. Empty if all models are independent.
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
        >>> retain = pd.DataFrame({"x": [0.1]})
        >>> again = pd.DataFrame({"x": [0.3, 0.31, 0.29]})
        >>> row = robustness(before, quantised=after, relearned=after, retain_before=retain, retain_relearned=again,
        ...                  direction={"x": "knowledge"}).iloc[0]
        >>> f"{row['n']} {row['q']:.3f} {row['r']:.3f} {row['rob']:.3f}"
        '1 0.800 0.667 0.727'

    References:
        Lee, Kim and Jo (2026), arXiv 2605.24614; Dorna et al. (2025), OpenUnlearning.
    """
    import pandas as pd

    check_resampling(confidence, n_resamples)
    found = align(
        before,
        quantised,
        relearned,
        retain_before,
        retain_relearned,
        thresholds=thresholds,
        min_utility=min_utility,
        symmetric=symmetric,
        metrics=metrics,
        direction=direction,
        confidence=confidence,
        cluster=cluster,
    )
    setting = next(
        name for name, on in _SETTINGS.items() if on == (min_utility is not None, thresholds is not None)
    )
    rows = [
        judge(
            each,
            setting,
            thresholds is not None,
            _distance(faithful, each.metric),
            confidence,
        )
        for each in found
    ]
    if pools is not None:
        shares = FirstByOverall(pools, before, metrics, direction, n_resamples, seed).shares(found, rows)
        rows = [row | {"p_first": share} for row, share in zip(rows, shares, strict=True)]
    return pd.DataFrame(rows, columns=list(ROBUSTNESS))


@arguments_checked
def robustness_by_filter(
    before: pd.DataFrame,
    *,
    quantised: pd.DataFrame | None = None,
    relearned: pd.DataFrame | None = None,
    retain_before: pd.DataFrame | None = None,
    retain_relearned: pd.DataFrame | None = None,
    thresholds: pd.DataFrame | Mapping[str, float] | None = None,
    min_utility: float | None = 0.8,
    symmetric: bool = True,
    faithful: pd.DataFrame | None = None,
    pools: pd.DataFrame | None = None,
    metrics: Sequence[str] | None = None,
    direction: Mapping[str, Points] | None = None,
    cluster: Sequence[str] = ("method", "run"),
    confidence: float = 0.95,
    n_resamples: int = 2000,
    seed: int = 0,
) -> pd.DataFrame:
    """The same under every setting of the filters, side by side, on each metric's own models and on common ones.

    Under a threshold every metric is judged on other models; the common ones are those that pass for all metrics and
    have all values. A metric without a threshold, or without any value, does not take part in finding them; one that
    lets no model pass leaves no common model, and the reason names it.

    Args:
        before: As in `robustness`.
        quantised: As in `robustness`.
        relearned: As in `robustness`.
        retain_before: As in `robustness`.
        retain_relearned: As in `robustness`.
        thresholds: As in `robustness`; None leaves the settings with a threshold out.
        min_utility: As in `robustness`; None leaves the settings with utility out.
        symmetric: As in `robustness`.
        faithful: As in `robustness`.
        pools: As in `robustness`.
        metrics: As in `robustness`.
        direction: As in `robustness`.
        cluster: As in `robustness`.
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
        >>> table = robustness_by_filter(before, quantised=after, thresholds={"x": 0.5}, direction={"x": "knowledge"})
        >>> table[table["models"] == "own"].set_index("filter")["n"].to_dict()
        {'none': 2, 'utility': 2, 'threshold': 1, 'utility+threshold': 1}
    """
    import pandas as pd

    check_resampling(confidence, n_resamples)
    drawn = None if pools is None else FirstByOverall(pools, before, metrics, direction, n_resamples, seed)
    rows = []
    for setting, (by_utility, by_threshold) in _SETTINGS.items():
        if (by_utility and min_utility is None) or (by_threshold and thresholds is None):
            continue
        found = align(
            before,
            quantised,
            relearned,
            retain_before,
            retain_relearned,
            thresholds=thresholds if by_threshold else None,
            min_utility=min_utility if by_utility else None,
            symmetric=symmetric,
            metrics=metrics,
            direction=direction,
            confidence=confidence,
            cluster=cluster,
        )
        shared = common_models(found)
        for models in ("own", "common"):
            chosen = found if models == "own" else [each.only(shared) for each in found]
            judged = []
            for whole, each in zip(found, chosen, strict=True):
                distance = _distance(faithful, each.metric)
                row = judge(each, setting, by_threshold, distance, confidence) | {"models": models}
                if models == "common" and not shared.any() and takes_part(whole):
                    row |= dict.fromkeys(("q_reason", "r_reason"), why_none(found))
                judged.append(row)
            if drawn is not None:
                shares = drawn.shares(chosen, judged)
                judged = [row | {"p_first": share} for row, share in zip(judged, shares, strict=True)]
            rows += judged
    return pd.DataFrame(rows, columns=list(ROBUSTNESS))


@arguments_checked
def perturbation_points(
    before: pd.DataFrame,
    *,
    quantised: pd.DataFrame | None = None,
    relearned: pd.DataFrame | None = None,
    retain_before: pd.DataFrame | None = None,
    retain_relearned: pd.DataFrame | None = None,
    thresholds: pd.DataFrame | Mapping[str, float] | None = None,
    min_utility: float | None = 0.8,
    symmetric: bool = True,
    metrics: Sequence[str] | None = None,
    direction: Mapping[str, Points] | None = None,
) -> pd.DataFrame:
    """Every model of every metric before and after: what Q and R are averages of.

    Args:
        before: As in `robustness`.
        quantised: As in `robustness`.
        relearned: As in `robustness`.
        retain_before: As in `robustness`.
        retain_relearned: As in `robustness`.
        thresholds: As in `robustness`.
        min_utility: As in `robustness`.
        symmetric: As in `robustness`.
        metrics: As in `robustness`.
        direction: As in `robustness`.

    Returns:
        One row per metric and model, columns as in `uds_lens.meta.POINTS`; NaN where a state was not measured.

    Raises:
        DataError: A column is missing or holds no numbers; a perturbed model is not in `before`.
        ConfigError: A direction is not known.

    Example:
        >>> import pandas as pd
        >>> before = pd.DataFrame({"model": ["a"], "x": [0.75]})
        >>> after = pd.DataFrame({"model": ["a"], "x": [0.25]})
        >>> points = perturbation_points(before, quantised=after, min_utility=None, direction={"x": "erasure"})
        >>> points[["before", "quantised", "q"]].round(2).values.tolist()
        [[0.25, 0.75, 0.5]]
    """
    import pandas as pd

    found = align(
        before,
        quantised,
        relearned,
        retain_before,
        retain_relearned,
        thresholds=thresholds,
        min_utility=min_utility,
        symmetric=symmetric,
        metrics=metrics,
        direction=direction,
        confidence=0.95,
    )
    tables = [_points(each) for each in found]
    return pd.concat(tables, ignore_index=True)[list(POINTS)]


def _points(each: Perturbed) -> pd.DataFrame:
    import pandas as pd

    shift = np.nan if each.shift is None else each.shift.mean
    return pd.DataFrame(
        {
            "model": list(each.models),
            "metric": each.metric,
            "before": each.before,
            "quantised": np.nan if each.quantised is None else each.quantised,
            "relearned": np.nan if each.relearned is None else each.relearned,
            "change": np.nan if each.change is None else each.change,
            "shift": shift,
            "q": np.nan if each.quantised is None else each.q(),
            "r": np.nan if each.relearned is None else each.r(shift),
            "useful": each.useful,
            "forgot": each.forgot,
            "kept": each.kept,
        }
    )


def _distance(faithful: pd.DataFrame | None, metric: str) -> float:
    """|mean_P - mean_N| of a metric."""
    if faithful is None:
        return float("nan")
    missing = [name for name in ("metric", "mean_p", "mean_n") if name not in faithful.columns]
    if missing:
        raise DataError(f"faithful lacks {', '.join(missing)}: pass the result of faithfulness(...).")
    row = faithful[faithful["metric"] == metric]
    return abs(float(row["mean_p"].iloc[0]) - float(row["mean_n"].iloc[0])) if len(row) else float("nan")
