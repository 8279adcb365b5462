"""The verdicts of `claims.md`, each from tables of the study: supported, contradicted or undecided.

Written before the study was complete. Every bound is that of the page; nothing here looks for a bound that fits.

Changed since, with the results seen: the intervals of Q and R keep the models of a run together (at first single models
were drawn, which made them too narrow), and there is none with fewer than five runs; claims e and f, for which the page
names no filter, are judged as the page has them (over useful models) before they are judged under both filters.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial

import numpy as np
import pandas as pd

import uds_lens as ul

UDS, LENS, CKA, FISHER, TRUTH = "uds", "logit_lens", "cka", "fisher_masked_0.001", "truth_ratio"
WHITE_BOX = (CKA, FISHER, LENS, UDS)
ROUGES = ("rouge", "para_rouge", "jailbreak_rouge")
FILTERS = ("utility", "utility+threshold")
OUTCOMES = ("prob", "rouge")
LEVEL = 0.05
RESAMPLES = 2000
POWERED = 2.8
"""Standard errors of a difference that is found with probability 0.8 at a level of 0.05."""

WRITTEN = ("utility",)
"""Where claims e and f are judged as `claims.md` has them: it names no filter for them."""

AS_WRITTEN = "as claims.md says it: over useful models"
AS_CODED = "as the code read it, before the study was complete: under both filters"

NO_SMALLEST = "; a share of resamples has no smallest detectable difference"


@dataclass(frozen=True)
class Verdict:
    """What became of a claim."""

    claim: str
    verdict: str
    why: str


@dataclass(frozen=True)
class Judged:
    """All tables a verdict may look at."""

    frames: ul.study.StudyFrames
    faithful: pd.DataFrame
    """`faithfulness`, by metric."""
    robust: pd.DataFrame
    """`robustness_by_filter`."""
    overall: dict[str, pd.DataFrame]
    """`summary` under each of the two filters, by metric."""
    metrics: tuple[str, ...]
    thresholds: dict[str, float]
    reordered: dict[str, float]
    """Share of resamples of the authors, all rows about one drawn together, in which depth changes places, by the rule
    that chooses. At first single rows were drawn, which are not independent; changed with the results seen."""
    changed: dict[str, bool]
    """Whether it does on all examples, by the same rule."""
    reordered_rows: dict[str, float] = field(default_factory=dict)
    """The same share over resamples of single rows."""


def verdicts(judged: Judged) -> list[Verdict]:
    """One for each claim, in the order of the page."""
    return [
        Verdict(claim, *check(judged))
        for claim, check in (
            ("a: UDS has the highest F", _first_by_f),
            ("b: Logit Lens is next to UDS among the white-box metrics", _lens_is_next),
            ("c: CKA and Fisher have F < 0.75", _below_three_quarters),
            ("d: the three ROUGE have R < 0.3", _rouges_break),
            (f"e: Truth Ratio has F > 0.9 and R < 0.3, {AS_WRITTEN}", partial(_truth_ratio, settings=WRITTEN)),
            (f"e, {AS_CODED}", partial(_truth_ratio, settings=FILTERS)),
            (f"f: Fisher has the lowest Q, {AS_WRITTEN}", partial(_fisher_last, settings=WRITTEN)),
            (f"f, {AS_CODED}", partial(_fisher_last, settings=FILTERS)),
            ("g: UDS has the highest Rob under both filters", _most_robust),
            ("h: UDS in the score changes the places of methods", _places_change),
            ("i: UDS predicts Prob and ROUGE after relearning best", _predicts),
        )
    ]


def judge(supported: bool, contradicted: bool) -> str:
    """The word for it; a claim cannot be both."""
    if supported and contradicted:
        raise ValueError("a claim is supported and contradicted at once: its bounds overlap")
    return "supported" if supported else "contradicted" if contradicted else "undecided"


def _first_by_f(judged: Judged) -> tuple[str, str]:
    pairs = ul.meta.compare_all(judged.frames.pools, metrics=judged.metrics, against=UDS, n_resamples=RESAMPLES)
    found = _told_pairs(pairs, of=UDS)
    f = judged.faithful["auc"]
    first = bool((f[UDS] >= f.drop(UDS)).all())
    above, below = found["above"], found["below"]
    words = (
        f"F of UDS {f[UDS]:.3f}, place {int(f.rank(ascending=False, method='min')[UDS])} of {len(f)}; "
        f"surely above {int(above.sum())} of {len(found)}, surely below {int(below.sum())}"
    )
    return judge(first and bool(above.all()), bool(below.any())), words + _smallest(found)


def _lens_is_next(judged: Judged) -> tuple[str, str]:
    pairs = ul.meta.compare_all(judged.frames.pools, metrics=(CKA, FISHER, LENS), against=LENS, n_resamples=RESAMPLES)
    found = _told_pairs(pairs, of=LENS)
    orders = {"F": _order(judged.faithful["auc"])} | {
        f"Overall, {name}": _order(table["overall"]) for name, table in judged.overall.items()
    }
    second = all(len(order) > 1 and order[1] == LENS for order in orders.values())
    before = any(
        other in order and (LENS not in order or order.index(other) < order.index(LENS))
        for order in orders.values()
        for other in found.index[found["below"]]
    )
    words = "; ".join(f"by {name}: {' > '.join(order)}" for name, order in orders.items())
    return judge(second and bool(found["above"].all()), before), words + _smallest(found)


def _below_three_quarters(judged: Judged) -> tuple[str, str]:
    ends = {name: interval_of_f(judged, name) for name in (CKA, FISHER)}
    supported = all(high < 0.75 for _, high in ends.values())
    contradicted = any(low > 0.75 for low, _ in ends.values())
    return judge(supported, contradicted), _told_intervals("F", judged.faithful["auc"], ends)


def _rouges_break(judged: Judged) -> tuple[str, str]:
    found = {(name, setting): _interval_of_r(judged, name, setting) for name in ROUGES for setting in FILTERS}
    supported = all(high < 0.3 for _, high in found.values())
    contradicted = any(all(found[name, setting][0] > 0.3 for setting in FILTERS) for name in ROUGES)
    return judge(supported, contradicted), _told_r(judged, ROUGES)


def _truth_ratio(judged: Judged, *, settings: Sequence[str]) -> tuple[str, str]:
    low, high = interval_of_f(judged, TRUTH)
    r = [_interval_of_r(judged, TRUTH, setting) for setting in settings]
    supported = low > 0.9 and all(end < 0.3 for _, end in r)
    contradicted = high < 0.9 or all(begin > 0.3 for begin, _ in r)
    told = _told_intervals("F", judged.faithful["auc"], {TRUTH: (low, high)})
    return judge(supported, contradicted), f"{told}; {_told_r(judged, (TRUTH,), settings)}"


def _fisher_last(judged: Judged, *, settings: Sequence[str]) -> tuple[str, str]:
    supported, contradicted, told = [], [], []
    for setting in settings:
        rows = _own(judged, setting).dropna(subset="q")
        if FISHER not in rows.index:
            return "undecided", f"{setting}: Q of Fisher is undefined"
        q, fisher, others = rows["q"].drop(FISHER), rows.loc[FISHER], rows.drop(FISHER)
        supported.append(bool((q > fisher["q"]).all() and (others["q_runs_low"] > fisher["q_runs_high"]).all()))
        lower = others.index[others["q_runs_high"] < fisher["q_runs_low"]]
        contradicted.append(bool(len(lower)))
        place = int(rows["q"].rank(ascending=False, method="min").get(FISHER, math.nan)) if q.size else 0
        told.append(
            f"{setting}: Q {fisher['q']:.3f} {_told_ends(fisher['q_runs_low'], fisher['q_runs_high'])}"
            f"{_detectable(fisher['q_runs_low'], fisher['q_runs_high'])}, for other methods "
            f"{_told_ends(fisher['q_low'], fisher['q_high'])}, place {place} of {int(rows['q'].notna().sum())}"
            + (f"; surely lower: {', '.join(lower)}" if len(lower) else "")
        )
    return judge(all(supported), all(contradicted)), "; ".join(told)


def _most_robust(judged: Judged) -> tuple[str, str]:
    first, shares, told = [], [], []
    for setting in FILTERS:
        rob = _own(judged, setting)["rob"]
        share = _share_first_by_rob(judged, with_threshold="threshold" in setting)
        leader = next(iter(_order(rob, among=judged.metrics)), "nobody")
        first.append(leader == UDS)
        shares.append(share)
        told.append(
            f"{setting}: Rob {rob.get(UDS, math.nan):.3f}, first is {leader}; UDS is first in {share:.1%} of resamples"
        )
    supported = all(first) and all(share >= 0.95 for share in shares)
    contradicted = not any(first) and all(share <= 0.05 for share in shares)
    return judge(supported, contradicted), "; ".join(told) + NO_SMALLEST


def _places_change(judged: Judged) -> tuple[str, str]:
    shares = judged.reordered
    supported = all(judged.changed.values()) and all(share >= 0.95 for share in shares.values())
    contradicted = not any(judged.changed.values()) and all(share <= 0.05 for share in shares.values())
    told = "; ".join(
        f"chosen {rule} depth: places {'change' if judged.changed[rule] else 'stay'}, in {share:.1%} of resamples of "
        "the authors they change"
        + (f" ({judged.reordered_rows[rule]:.1%} if single rows are drawn)" if judged.reordered_rows else "")
        for rule, share in shares.items()
    )
    return judge(supported, contradicted), told + NO_SMALLEST


def _predicts(judged: Judged) -> tuple[str, str]:
    supported, contradicted, told = [], [], []
    for outcome in OUTCOMES:
        table = predictors(judged, outcome)
        others = table.drop(UDS)
        supported.append(bool(table["rho"].abs().idxmax() == UDS and (others["above"]).all()))
        contradicted.append(bool(others["below"].any()))
        order = table["rho"].abs().sort_values(ascending=False)
        told.append(
            f"{outcome}: UDS's absolute rho {abs(table.loc[UDS, 'rho']):.3f}, place "
            f"{list(order.index).index(UDS) + 1} of {len(order)}; first is {order.index[0]} "
            f"({order.iloc[0]:.3f}); surely above {int(others['above'].sum())}, "
            f"surely below {int(others['below'].sum())}{_smallest(others)}"
        )
    return judge(all(supported), any(contradicted)), "; ".join(told)


def predictors(judged: Judged, outcome: str) -> pd.DataFrame:
    """Rank correlation of each metric before relearning with one after it, and whether UDS is better than it.

    Runs are drawn with replacement within methods, both lengths of a run together; p values of the differences of
    absolute correlations are from the bootstrap's standard error and Holm-adjusted over the other metrics.
    """
    from scipy.stats import rankdata

    before = judged.frames.before.set_index("model")
    after = judged.frames.relearned.groupby("model")[outcome].mean()
    names = [name for name in judged.metrics if name in before]
    frame = before[["method", "run", *names]].join(after.rename("_after"), how="inner").dropna()
    values = frame[[*names, "_after"]].to_numpy(dtype=float)

    def correlations(rows: np.ndarray) -> np.ndarray:
        ranked = rankdata(values[rows], axis=0)
        ranked -= ranked.mean(0)
        scale = np.sqrt((ranked**2).sum(0))
        with np.errstate(invalid="ignore"):
            return (ranked[:, :-1] * ranked[:, -1:]).sum(0) / (scale[:-1] * scale[-1])

    rho = correlations(np.arange(len(values)))
    draws = [np.abs(correlations(rows)) for rows in _drawn_runs(frame, RESAMPLES)]
    at = names.index(UDS)
    spread = np.stack([draw[at] - draw for draw in draws])
    table = pd.DataFrame({"rho": rho, "difference": abs(rho[at]) - np.abs(rho)}, index=names)
    table["standard_error"] = np.nanstd(spread, axis=0, ddof=1)
    return _adjusted(table, table.index != UDS)


def _adjusted(table: pd.DataFrame, tested: np.ndarray) -> pd.DataFrame:
    from scipy.stats import norm

    with np.errstate(divide="ignore", invalid="ignore"):
        z = table["difference"] / table["standard_error"]
    p = np.where(tested & (table["standard_error"] > 0), 2 * norm.sf(np.abs(z)), np.nan)
    sure = np.array(ul.results.holm(p.tolist())) < LEVEL
    return table.assign(above=sure & (table["difference"] > 0), below=sure & (table["difference"] < 0))


def _drawn_runs(frame: pd.DataFrame, count: int) -> list[np.ndarray]:
    rng = np.random.default_rng(0)
    position = np.arange(len(frame))
    by_method = [
        [position[(frame["run"] == run).to_numpy() & (frame["method"] == method).to_numpy()] for run in runs]
        for method, runs in frame.groupby("method")["run"].unique().items()
    ]
    return [
        np.concatenate([runs[i] for runs in by_method for i in rng.integers(len(runs), size=len(runs))])
        for _ in range(count)
    ]


def _share_first_by_rob(judged: Judged, *, with_threshold: bool) -> float:
    """In how many resamples of the models, and of retain's relearnings, UDS has the highest Rob."""
    ways = ul.meta.directions(judged.frames.before, judged.metrics)
    frames = judged.frames
    before = frames.before.set_index("model")
    states = {
        name: getattr(frames, name).groupby("model").mean(numeric_only=True).reindex(before.index)
        for name in ("quantised", "relearned")
    }
    useful = (before["utility_rel"] >= 0.8).to_numpy()
    rng = np.random.default_rng(0)
    drawn = rng.integers(len(before), size=(RESAMPLES, len(before)))
    shifted = rng.integers(len(frames.retain_relearned), size=(RESAMPLES, len(frames.retain_relearned)))
    rob = np.full((len(judged.metrics), RESAMPLES), -np.inf)
    for i, name in enumerate(judged.metrics):

        def m(frame: pd.DataFrame, name: str = name) -> np.ndarray:
            found = frame[name].to_numpy(dtype=float)
            return found if ways[name] == "knowledge" else 1 - found

        now, packed, again = m(before), m(states["quantised"]), m(states["relearned"])
        passes = useful & ~np.isnan(now)
        if with_threshold:
            passes &= now <= judged.thresholds.get(name, math.nan)
        q = ul.meta.symmetric_quantisation(now, packed)
        start = m(frames.retain_before).mean()
        shifts = m(frames.retain_relearned) - start
        for draw in range(RESAMPLES):
            rows = drawn[draw][passes[drawn[draw]]]
            shift = float(shifts[shifted[draw]].mean())
            r = ul.meta.symmetric_relearning((again - now)[rows], shift)
            parts = [float(np.nanmean(part)) for part in (q[rows], r) if not np.isnan(part).all() and len(part)]
            if len(parts) == 2 and min(parts) > 0:
                rob[i, draw] = 2 / (1 / parts[0] + 1 / parts[1])
    best = rob.max(0)
    at = judged.metrics.index(UDS)
    return float(((rob[at] == best) & np.isfinite(best)).mean())


def _told_pairs(pairs: pd.DataFrame, *, of: str) -> pd.DataFrame:
    """Differences `of` - other with whether the adjusted interval leaves 0 out: cluster bootstrap, else DeLong."""
    flipped = pairs["other"] == of
    sign = np.where(flipped, -1, 1)
    p = pairs["cluster_p_holm"].fillna(pairs["p_holm"])
    found = pd.DataFrame(
        {
            "difference": sign * pairs["difference"],
            "standard_error": pairs["cluster_standard_error"].fillna(pairs["standard_error"]),
        }
    )
    found.index = pd.Index(np.where(flipped, pairs["one"], pairs["other"]))
    sure = (p < LEVEL).to_numpy()
    return found.assign(above=sure & (found["difference"] > 0), below=sure & (found["difference"] < 0))


def _smallest(found: pd.DataFrame) -> str:
    """The smallest differences the data could have shown."""
    detectable = POWERED * found["standard_error"].replace(0, np.nan).dropna()
    if not len(detectable):
        return ""
    return f"; smallest detectable difference {detectable.min():.3f} to {detectable.max():.3f}"


def _own(judged: Judged, setting: str) -> pd.DataFrame:
    rows = judged.robust
    return rows[(rows["filter"] == setting) & (rows["models"] == "own")].set_index("metric")


def _order(values: pd.Series, among: Sequence[str] = WHITE_BOX) -> list[str]:
    return list(values.reindex(list(among)).dropna().sort_values(ascending=False, kind="stable").index)


def interval_of_f(judged: Judged, name: str) -> tuple[float, float]:
    """Over runs of the same variants; Wilson's where a metric tells all models apart, and no resample differs."""
    row = judged.faithful.loc[name]
    ends = row["cluster_low"], row["cluster_high"]
    return (row["low"], row["high"]) if any(math.isnan(end) for end in ends) else ends


def _interval_of_r(judged: Judged, name: str, setting: str) -> tuple[float, float]:
    """Of the runs and of retain's shift, whichever reaches further; NaN where R is undefined, or runs are too few."""
    row = _own(judged, setting).loc[name]
    if math.isnan(row["r"]) or math.isnan(row["r_runs_low"]):
        return math.nan, math.nan
    return float(np.nanmin([row["r_runs_low"], row["r_shift_low"]])), float(
        np.nanmax([row["r_runs_high"], row["r_shift_high"]])
    )


def _told_intervals(what: str, values: pd.Series, ends: dict[str, tuple[float, float]]) -> str:
    return "; ".join(
        f"{what} of {name} {values[name]:.3f} [{low:.3f}, {high:.3f}]{_detectable(low, high)}"
        for name, (low, high) in ends.items()
    )


def _detectable(low: float, high: float) -> str:
    """The smallest distance from a bound that the data could have shown, from an interval of 95%."""
    return f" (detectable {POWERED * (high - low) / (2 * 1.96):.3f})" if high > low else ""


def _told_ends(low: float, high: float) -> str:
    return "(no interval: fewer than five clusters)" if math.isnan(low) else f"[{low:.3f}, {high:.3f}]"


def _told_r(judged: Judged, names: Sequence[str], settings: Sequence[str] = FILTERS) -> str:
    words = []
    for name in names:
        for setting in settings:
            row = _own(judged, setting).loc[name]
            low, high = _interval_of_r(judged, name, setting)
            r = (
                f"{row['r']:.3f} {_told_ends(low, high)}{_detectable(low, high)}, for other methods "
                f"{_told_ends(row['r_low'], row['r_high'])}"
                if not math.isnan(row["r"])
                else f"undefined: {row['r_reason']}"
            )
            words.append(f"R of {name}, {setting} {r}, n {int(row['n'])}")
    return "; ".join(words)
