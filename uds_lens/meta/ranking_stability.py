"""How much a ranking of methods owes to the configurations that were tried, and to the examples that were asked."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from uds_lens.checked_arguments import arguments_checked
from uds_lens.errors import DataError
from uds_lens.meta.declarations import Points
from uds_lens.meta.example_means import ExampleValues, resampled_scores
from uds_lens.meta.method_ranking import TIE, View, choose, eligible, methods_of
from uds_lens.meta.model_scores import ScoreParts, Scores, score_models
from uds_lens.meta.required_columns import SCORES, SPLIT_HALF, STABILITY, SWAPS
from uds_lens.meta.resampling import check_resampling
from uds_lens.types import check_choice

if TYPE_CHECKING:
    import pandas as pd

_SPLITS = 200
"""Random halves: only means over them are told, which settle sooner than the ends of intervals."""

_VIEWS: tuple[View, View] = ("without", "with")


@dataclass(frozen=True, eq=False)
class Stability:
    """What resampling does to a ranking."""

    ranks: pd.DataFrame
    """How likely each place is for each method: columns of `uds_lens.meta.STABILITY`."""

    scores: pd.DataFrame
    """Score of each method with its interval: columns of `uds_lens.meta.SCORES`."""

    swaps: pd.DataFrame
    """How likely each method is above each other one: columns of `uds_lens.meta.SWAPS`."""

    split_half: pd.DataFrame
    """What choosing the best configuration on the same examples adds: columns of `uds_lens.meta.SPLIT_HALF`; empty
    without examples."""

    reordered: Mapping[str, float]
    """Share of resamples, of configurations and of examples, in which the places of the methods are not the same with
    depth in the score as without it; NaN where nothing can vary."""

    fixed: tuple[str, ...]
    """Parts of the score that the bootstrap over examples leaves as they are: no means of values per example."""

    cautions: tuple[str, ...] = ()
    """What cannot vary in these resamples, and so has no probability (NaN) or one that is too sure; sentences without a
    full stop."""

    @property
    def varying(self) -> tuple[str, ...]:
        """Return the ways of resampling, "configurations" and "examples", in which any score can change."""
        known = self.ranks[self.ranks["probability"].notna()]
        return tuple(dict.fromkeys(known["resampled"]))


@arguments_checked
def stability(
    frame: pd.DataFrame,
    *,
    examples: pd.DataFrame | None = None,
    attacks: Mapping[str, str] | None = None,
    retain: str = "retain",
    select_by: View = "without",
    min_utility: float | None = None,
    parts: ScoreParts | None = None,
    direction: Mapping[str, Points] | None = None,
    confidence: float = 0.95,
    n_resamples: int = 1000,
    seed: int = 0,
) -> Stability:
    """Rank again and again: with other configurations of each method, and with other examples.

    Over configurations: each method's are drawn with replacement, as many as it has, and the best of those is chosen.
    Over examples: the examples are drawn with replacement, the same for all models and metrics, forget and holdout
    examples apart; whole subjects, where a column `subject` names them.
    Metrics that are means over examples are taken anew, and attacks that are normalised by retain's
    (`1 - min(|AUC - AUC_retain| / AUC_retain, 1)`) with them; then the choice is made anew. What has no values per
    example for each model stays as it is and is named in `fixed`: the spread is then a lower bound.

    What cannot vary has no probability: with one eligible configuration of each method nothing changes over
    configurations, and without a part of the score that has values per example nothing changes over examples. Places,
    `p_best` and swaps are then NaN rather than 0 and 1, and so is the interval of a method with one configuration;
    `cautions` says so.

    Args:
        frame: One row per model: `model`, `method`, the columns of `parts`.
        examples: `model`, `metric`, `example_id`, `value`, as the readers return it (`ModelTable.examples`). Those of
            models that are not in `frame` are left out, `retain`'s excepted.
        attacks: For each normalised attack the metric whose scores per example it is made of; beside the declared
            ones.
        retain: Name of retain in `examples`, whose attacks are the reference; without it attacks stay as they are.
        select_by: As in `rank`.
        min_utility: As in `rank`.
        parts: Columns of the score; default those of the UDS paper.
        direction: What a higher value means, for metrics that are not declared.
        confidence: Of the percentile intervals.
        n_resamples: Number of resamples; also of random halves, up to 200.
        seed: Of the resampling.

    Returns:
        The tables. Methods without an eligible configuration are left out.

    Raises:
        DataError: A column is missing, a value lies outside its range, or no example is of a model in `frame`.
        ConfigError: `select_by` is unknown, or there are fewer than two resamples.

    Example:
        >>> import pandas as pd
        >>> frame = pd.DataFrame({"model": ["a1", "a2", "b1"], "method": ["a", "a", "b"], "x": [0.5, 0.1, 0.3],
        ...                       "s": 0.9, "d": 0.9, "utility_rel": 1.0})
        >>> parts = ScoreParts(memorization=("x",), membership=("s",), depth="d")
        >>> ways = {"x": "knowledge", "s": "erasure", "d": "erasure"}
        >>> found = stability(frame, parts=parts, direction=ways, n_resamples=200)
        >>> first = found.ranks.query("view == 'with' and rank == 1").set_index("method")["probability"]
        >>> bool(0.6 < first["a"] < 0.9)  # a is best unless both draws are a1: 3 in 4
        True
    """
    check_choice("select_by", select_by, View)
    check_resampling(confidence, n_resamples)
    parts = parts or ScoreParts()
    scores = score_models(frame, parts=parts, direction=direction)
    names = methods_of(frame)
    ready = eligible(scores, np.arange(len(scores)), min_utility)
    groups = {name: np.flatnonzero((names == name) & ready) for name in dict.fromkeys(names)}
    groups = {name: rows for name, rows in groups.items() if len(rows)}
    if not groups:
        raise DataError("no method has an eligible configuration: see rank(frame) for the reasons.")
    rng = np.random.default_rng(seed)
    whole = np.stack([scores[f"score_{view}"].to_numpy(dtype=float) for view in _VIEWS])
    chosen = {name: _choice(scores, rows, select_by, min_utility) for name, rows in groups.items()}
    picked = {name: rng.choice(rows, size=(n_resamples, len(rows))) for name, rows in groups.items()}
    found = [_Resampled("configurations", whole[:, None, :], picked, groups, chosen, whole, select_by)]
    halves, fixed = [], tuple(dict.fromkeys(parts.metrics))
    if examples is not None:
        values = ExampleValues.of(frame, examples, parts, direction, attacks=attacks, retain=retain)
        fixed = values.fixed
        weights = values.bootstrap(n_resamples, rng)
        anew = _stacked(resampled_scores(values, weights, parts))
        vary = set(fixed) != set(parts.metrics)
        found.append(_Resampled("examples", anew, None, groups, chosen, whole, select_by, vary))
        first, second = values.halves(min(n_resamples, _SPLITS), rng)
        pair = (
            _stacked(resampled_scores(values, first, parts)),
            _stacked(resampled_scores(values, second, parts)),
        )
        halves = _split_half(pair, groups, select_by)
    return _tables(found, halves, fixed, confidence, _cautions(groups, fixed, parts, examples is not None))


def _cautions(
    groups: Mapping[str, np.ndarray], fixed: tuple[str, ...], parts: ScoreParts, examples: bool
) -> tuple[str, ...]:
    """Say what the resamples leave as it is."""
    told = []
    single = [name for name, rows in groups.items() if len(rows) == 1]
    if len(single) == len(groups):
        told.append(
            "every method has one eligible configuration: drawing configurations anew changes nothing, and P(first) "
            "over them is undefined"
        )
    elif single:
        one = "one eligible configuration" if len(single) == 1 else "one eligible configuration each"
        told.append(
            f"{', '.join(single)}: {one}, whose score never changes when configurations are drawn anew; P(first) over "
            "configurations is too sure of these"
        )
    metrics = dict.fromkeys(parts.metrics)
    if not examples:
        return tuple(told)
    if len(fixed) == len(metrics):
        told.append(
            "no part of the score has values per example of every model: drawing examples anew changes nothing, and "
            "P(first) over them is undefined"
        )
    else:
        left = ", ".join((*fixed, parts.utility))
        told.append(f"examples drawn anew leave {left} as they are: P(first) over examples is too sure")
    return tuple(told)


@dataclass(frozen=True, eq=False)
class _Resampled:
    """One way of resampling, ready to be counted."""

    name: str
    scores: np.ndarray
    """View x resample (or 1) x model."""
    picked: Mapping[str, np.ndarray] | None
    """Rows drawn per method; None: all of its rows in every resample."""
    groups: Mapping[str, np.ndarray]
    chosen: Mapping[str, int]
    whole: np.ndarray
    by: View
    vary: bool = True
    """Whether the scores of single configurations change; without `picked` nothing else can."""

    def varies(self, method: str) -> bool:
        """Return whether the score of a method can change from resample to resample."""
        return self.vary if self.picked is None else len(self.groups[method]) > 1

    def of_method(self, method: str) -> tuple[np.ndarray, np.ndarray]:
        """Scores (view x resample) of the configuration that is chosen in each resample, and which it is."""
        rows = self.groups[method]
        selection = self.scores[_VIEWS.index(self.by)]
        if self.picked is None:
            best = _argmax(selection[:, rows], rows, self.chosen[method])
            return self.scores[:, np.arange(len(selection)), best], best
        drawn = self.picked[method]
        at = selection[0][drawn]
        best = drawn[np.arange(len(drawn)), at.argmax(1)]
        top = np.abs(at - at.max(1, keepdims=True)) <= TIE
        best = np.where((top & (drawn == self.chosen[method])).any(1), self.chosen[method], best)
        return self.scores[:, 0, :][:, best], best


def _argmax(scores: np.ndarray, rows: np.ndarray, preferred: int) -> np.ndarray:
    """The best row of each resample; among ties the one that is chosen on all data, if it is one of them."""
    top = scores >= scores.max(1, keepdims=True) - TIE
    best = rows[top.argmax(1)]
    at = int(np.flatnonzero(rows == preferred)[0])
    return np.where(top[:, at], preferred, best)


def _choice(scores: pd.DataFrame, rows: np.ndarray, by: View, min_utility: float | None) -> int:
    found = choose(scores, rows, by, min_utility)
    return int(rows[0]) if found is None else found.at


def _stacked(scores: Scores) -> np.ndarray:
    return np.stack([scores.without, scores.with_depth])


def _tables(
    found: list[_Resampled],
    halves: list[dict[str, Any]],
    fixed: tuple[str, ...],
    confidence: float,
    cautions: tuple[str, ...],
) -> Stability:
    import pandas as pd

    ranks, table, swaps, reordered = [], [], [], {}
    for each in found:
        places = []
        methods = list(each.groups)
        drawn = {method: each.of_method(method) for method in methods}
        varies = {method: each.varies(method) for method in methods}
        known = any(varies.values())
        for place, view in enumerate(_VIEWS):
            key = {"resampled": each.name, "view": view}
            score = np.stack([drawn[method][0][place] for method in methods])
            above = (score[None] > score[:, None] + TIE).sum(1) + 1
            places.append(above)
            for i, method in enumerate(methods):
                ranks += [
                    {"method": method, **key, "rank": at, "probability": _share(above[i] == at, known)}
                    for at in range(1, len(methods) + 1)
                ]
                ends = np.quantile(score[i], [0.5 - confidence / 2, 0.5 + confidence / 2])
                low, high = ends if varies[method] else (math.nan, math.nan)
                best = drawn[method][1]
                table.append(
                    {
                        "method": method,
                        **key,
                        "score": float(each.whole[place][each.chosen[method]]),
                        "low": float(low),
                        "high": float(high),
                        "p_best": _share(above[i] == 1, known),
                        "n_chosen": len(set(best.tolist())),
                        "p_chosen": float((best == each.chosen[method]).mean()),
                    }
                )
                for j, other in enumerate(methods):
                    if i != j:
                        over = (score[i] > score[j] + TIE) + 0.5 * (np.abs(score[i] - score[j]) <= TIE)
                        known_pair = varies[method] or varies[other]
                        swaps.append(
                            {**key, "above": method, "below": other, "probability": _share(over, known_pair)}
                        )
        reordered[each.name] = _share((places[0] != places[1]).any(0), known)
    return Stability(
        ranks=pd.DataFrame(ranks, columns=list(STABILITY)),
        scores=pd.DataFrame(table, columns=list(SCORES)),
        swaps=pd.DataFrame(swaps, columns=list(SWAPS)),
        split_half=pd.DataFrame(halves, columns=list(SPLIT_HALF)),
        reordered=reordered,
        fixed=fixed,
        cautions=cautions,
    )


def _share(hits: np.ndarray, known: bool) -> float:
    """Mean over resamples; NaN where none of them can differ from another."""
    return float(hits.mean()) if known else math.nan


def _split_half(
    pair: tuple[np.ndarray, np.ndarray], groups: Mapping[str, np.ndarray], by: View
) -> list[dict[str, Any]]:
    rows = []
    one, other = pair
    at = np.arange(one.shape[1])
    for method, own in groups.items():
        chosen = [own[half[_VIEWS.index(by)][:, own].argmax(1)] for half in pair]
        for place, view in enumerate(_VIEWS):
            selected = (one[place][at, chosen[0]] + other[place][at, chosen[1]]) / 2
            fresh = (other[place][at, chosen[0]] + one[place][at, chosen[1]]) / 2
            rows.append(
                {
                    "method": method,
                    "view": view,
                    "selected": float(selected.mean()),
                    "fresh": float(fresh.mean()),
                    "optimism": float((selected - fresh).mean()),
                    "same": float((chosen[0] == chosen[1]).mean()),
                }
            )
    return rows
