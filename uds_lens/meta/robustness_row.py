"""The judgement of one metric under one filter setting."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from uds_lens.meta.clustered_means import clustered_mean, dominated_by, outer_and_inner
from uds_lens.meta.harmonic_columns import harmonic_means
from uds_lens.meta.perturbation import EPSILON, relearning_over_shifts
from uds_lens.meta.perturbed import Perturbed
from uds_lens.meta.placements import NO_INTERVAL
from uds_lens.meta.relearned_retain import RetainShift
from uds_lens.meta.required_columns import ROBUSTNESS

_FEW = 10
"""Models below which a mean is quoted with a caution."""

_GRID = 101
"""Shifts at which mean R is taken across the interval of the shift, besides those where it may turn."""


def judge(
    found: Perturbed,
    setting: str,
    with_threshold: bool,
    distance: float,
    confidence: float,
) -> dict[str, Any]:
    """One row as in `uds_lens.meta.ROBUSTNESS`, without `p_first`.

    Args:
        found: The metric in its states.
        setting: Name of the filter setting.
        with_threshold: Whether a threshold was asked for.
        distance: |mean_P - mean_N|; NaN if unknown.
        confidence: Of the intervals.
    """
    kept = found.only(found.kept)
    n = len(kept.models)
    row: dict[str, Any] = {**dict.fromkeys(ROBUSTNESS, math.nan), "metric": found.metric, "filter": setting}
    row |= {"models": "own", "n": n, "threshold": found.threshold, "n_q": 0, "n_r": 0, "n_shift": 0}
    row |= dict.fromkeys(("unmoved_q", "unmoved_r", "above_q", "above_r"), 0)
    name, outer, _ = outer_and_inner(kept.clusters, kept.models)
    row |= {"clusters": name, "n_clusters": len(set(outer)), "interval_reason": None}
    row |= {"q_reason": None, "r_reason": None, "caution": None}
    why = None
    if with_threshold and math.isnan(found.threshold):
        why = "there is no threshold for it"
    elif not n:
        why = "no model passes the filters" if len(found.models) else "there is no model"
    if why is not None:
        return row | {"q_reason": why, "r_reason": why}
    row |= _quantisation(kept, distance, confidence)
    row |= _relearning(kept, confidence)
    row["rob"] = float(harmonic_means(np.array([[row["q"], row["r"]]]))[0])
    return row | {"caution": _caution(row, kept)}


def _quantisation(kept: Perturbed, distance: float, confidence: float) -> dict[str, Any]:
    values = kept.q()
    if values is None or kept.quantised is None:
        return {"q_reason": "no quantised models were given"}
    there = ~np.isnan(values)
    if not there.any():
        return {"q_reason": "no model has a value after quantisation"}
    before, after = kept.before[there], kept.quantised[there]
    moves = np.abs(after - before)
    found: dict[str, Any] = {
        "n_q": int(there.sum()),
        "unmoved_q": int((moves <= EPSILON).sum()),
        "above_q": int((after > before + EPSILON).sum()),
        "spearman_q": _spearman(before, after),
        "relative_move": float(moves.mean()) / distance if distance > 0 else math.nan,
    }
    if _constant(before, after):
        return found | {"q_reason": "constant: all models have the same value before and after"}
    return (
        found
        | {"q": float(values[there].mean())}
        | _intervals("q", kept.only(there), values[there], confidence)
    )


def _relearning(kept: Perturbed, confidence: float) -> dict[str, Any]:
    if kept.relearned is None or kept.change is None:
        return {"r_reason": "no relearned models were given"}
    if kept.shift is None:
        return {"r_reason": "R needs retain before and after relearning"}
    shift = kept.shift
    found: dict[str, Any] = {"shift": shift.mean, "shift_low": shift.low, "shift_high": shift.high}
    found["n_shift"] = shift.n
    if math.isnan(shift.mean):
        return found | {"r_reason": shift.reason}
    there = ~np.isnan(kept.change)
    if not there.any():
        return found | {"r_reason": "no model has a value after relearning"}
    kept = kept.only(there)
    change, values = kept.change, kept.r(shift.mean)
    if change is None or values is None or kept.relearned is None:
        return found
    found |= {
        "n_r": len(change),
        "unmoved_r": int((np.abs(change) <= EPSILON).sum()),
        "above_r": int((change > shift.mean + EPSILON).sum()),
        "spearman_r": _spearman(kept.before, kept.relearned),
        "r_at_shift": float(values.mean()),
    }
    found |= _intervals("r", kept, values, confidence)
    if not math.isnan(shift.low):
        found["r_shift_low"], found["r_shift_high"] = _over_shift(kept, shift)
    if _constant(kept.before, kept.relearned):
        return found | {"r_reason": "constant: all models have the same value before and after"}
    if shift.contains_zero:
        return found | {"r_reason": f"retain may not move at all: {_interval_text(shift)}"}
    return found | {"r": found["r_at_shift"]}


def _interval_text(shift: RetainShift) -> str:
    if math.isnan(shift.low):
        return f"its shift is {shift.mean:.3g} in a single relearning"
    return f"the interval of its shift, {shift.low:.3g} to {shift.high:.3g}, contains 0"


def _over_shift(kept: Perturbed, shift: RetainShift) -> tuple[float, float]:
    """Extremes of mean R over the interval of the shift: on a grid, and where one model's R turns."""
    change = kept.change
    if change is None:
        return NO_INTERVAL.low, NO_INTERVAL.high
    turns = np.append(change, 0.0)
    inside = turns[(turns > shift.low) & (turns < shift.high)]
    shifts = np.concatenate([np.linspace(shift.low, shift.high, _GRID), inside])
    means = relearning_over_shifts(change, shifts, symmetric=kept.symmetric).mean(1)
    return float(means.min()), float(means.max())


def _intervals(prefix: str, kept: Perturbed, values: np.ndarray, confidence: float) -> dict[str, Any]:
    """Return the interval of a mean over models, with the outer clusters and with runs."""
    name, outer, inner = outer_and_inner(kept.clusters, kept.models)
    (low, high), reason = clustered_mean(values, outer, confidence)
    (runs_low, runs_high), _ = clustered_mean(values, inner, confidence)
    found: dict[str, Any] = {f"{prefix}_low": low, f"{prefix}_high": high}
    found |= {f"{prefix}_runs_low": runs_low, f"{prefix}_runs_high": runs_high}
    if reason is not None:
        return found | {"interval_reason": reason.replace("cluster", name, 1)}
    if (most := dominated_by(values, outer)) is not None:
        found[f"_{prefix}_dominated"] = f"{name} {most}"
    return found


def _constant(before: np.ndarray, after: np.ndarray) -> bool:
    both = np.concatenate([before, after])
    return len(before) > 1 and float(np.ptp(both)) <= EPSILON


def _spearman(before: np.ndarray, after: np.ndarray) -> float:
    """Rank correlation; NaN with fewer than three models, or where one side is constant."""
    if len(before) < 3 or np.ptp(before) == 0 or np.ptp(after) == 0:
        return math.nan
    from scipy.stats import spearmanr

    return float(spearmanr(before, after).statistic)


def _caution(row: dict[str, Any], kept: Perturbed) -> str | None:
    found = []
    if kept.tied:
        low, high = min(kept.tied), max(kept.tied)
        found.append(
            f"{len(kept.tied)} cuts separate the pools equally well ({low:.3g} to {high:.3g}, the lowest is used): "
            "the models, and so the numbers, hang on which is taken"
        )
    for name, mean in (("q", "q"), ("r", "r_at_shift")):
        most = row.pop(f"_{name}_dominated", None)
        if most is not None:
            found.append(
                f"more than half of how far {name.upper()} lies from {row[mean]:.0f} comes from {most}: its interval "
                "may be too short"
            )
    if row["n"] < _FEW:
        found.append(f"only {row['n']} models pass the filters")
    if row["n_q"] and 10 * row["unmoved_q"] >= row["n_q"]:
        found.append(
            f"quantisation does not move {row['unmoved_q']} of {row['n_q']} models, which earn Q = 1"
        )
    if row["n_r"] and 10 * row["unmoved_r"] >= row["n_r"]:
        found.append(f"relearning does not move {row['unmoved_r']} of {row['n_r']} models")
    if row["n_shift"] == 1:
        found.append("the shift of retain comes from a single relearning: R has no interval for it")
    for name, there in (("quantised", row["n_q"]), ("relearned", row["n_r"])):
        if there and there < row["n"]:
            found.append(f"{row['n'] - there} models have no {name} value")
    return "; ".join(found) or None
