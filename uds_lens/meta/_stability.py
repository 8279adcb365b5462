"""Stability of a ranking of methods over resamples of configurations and of examples."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from uds_lens._types import check_choice
from uds_lens.errors import DataError
from uds_lens.meta._columns import SCORES, SPLIT_HALF, STABILITY, SWAPS
from uds_lens.meta._direction import declared_base, directions
from uds_lens.meta._pools import check_resampling
from uds_lens.meta._ranking import (
    TIE,
    ScoreParts,
    Scores,
    View,
    checked_share,
    choose,
    eligible,
    forgotten_shares,
    methods_of,
    score_models,
    utility_of,
)

if TYPE_CHECKING:
    import pandas as pd


RETAIN = "retain"
"""Name of the reference model among the values per example."""

HOLDOUT = "holdout/"
"""How the ids of examples begin that no model was trained on."""


@dataclass(frozen=True, eq=False)
class ExampleAttack:
    """The scores of an attack: on forget and holdout examples, of all models and of retain."""

    values: np.ndarray
    """Example x model; NaN where an example has no score."""

    reference: np.ndarray
    """The same for retain, one column less: per example."""

    holdout: np.ndarray
    """Which examples are of the holdout set."""

    def closeness(self, weights: np.ndarray) -> np.ndarray:
        """`1 - min(|AUC - AUC_retain| / AUC_retain, 1)` of every model in every resample.

        Args:
            weights: Resample x example.

        Returns:
            Resample x model; NaN where the AUC of retain is 0, or a resample has none of a set.
        """
        retain = self.area(self.reference, weights)[:, None]
        areas = np.stack([self.area(column, weights) for column in self.values.T], axis=1)
        apart = np.divide(np.abs(areas - retain), retain, out=np.full(areas.shape, np.nan), where=retain > 0)
        return 1 - np.minimum(apart, 1.0)

    def area(self, scores: np.ndarray, weights: np.ndarray) -> np.ndarray:
        """Probability that a holdout example scores above a forget example, ties half, in every resample.

        Args:
            scores: One per example; NaN leaves an example out.
            weights: Resample x example.
        """
        forget, other = (np.flatnonzero(~np.isnan(scores) & here) for here in (~self.holdout, self.holdout))
        below = scores[forget][:, None] < scores[other][None, :]
        kernel = below + np.float32(0.5) * (scores[forget][:, None] == scores[other][None, :])
        # Counts times halves: exact in float32, and twice as fast.
        reached = weights[:, forget].astype(np.float32) @ kernel.astype(np.float32)
        drawn = weights[:, other]
        total = weights[:, forget].sum(1) * drawn.sum(1)
        above = (reached.astype(float) * drawn).sum(1)
        return np.divide(above, total, out=np.full(len(weights), np.nan), where=total > 0)


def check_closeness(metric: str, stated: np.ndarray, attack: ExampleAttack, names: list[str]) -> None:
    """Raise unless the attack on all examples gives the values of the table."""
    found = attack.closeness(np.ones((1, len(attack.reference))))[0]
    off = ~(np.abs(stated - found) <= 1e-3)
    if off.any():
        at = int(off.argmax())
        raise DataError(
            f"the examples behind {metric!r} give {found[at]:.4g} for {names[at]!r}, the table says "
            f"{stated[at]:.4g}: they must be the attack's scores of the model and of retain. "
            "Leave the attack out of the examples otherwise."
        )


@dataclass(frozen=True, eq=False)
class ExampleValues:
    """The parts of the score with what is known of them per example."""

    ids: tuple[str, ...]
    """All examples of all metrics."""

    means: Mapping[str, np.ndarray]
    """Metrics that are means: example x model, oriented so that more is forgotten; NaN where there is no value."""

    attacks: Mapping[str, ExampleAttack]
    """Attacks that are normalised by retain, by the name of the normalised one."""

    constant: Mapping[str, np.ndarray]
    """Metrics that stay as they are: `1 - m` per model."""

    utility: np.ndarray
    """Capped usefulness per model."""

    clusters: np.ndarray | None = None
    """Number of each example's subject: those of one are drawn together; None draws single examples."""

    @property
    def fixed(self) -> tuple[str, ...]:
        """Parts that cannot be taken anew."""
        return tuple(self.constant)

    @classmethod
    def of(cls, frame: pd.DataFrame, examples: pd.DataFrame, parts: ScoreParts) -> ExampleValues:
        """Sort the values of a long table by metric, example and model.

        Raises:
            DataError: A column is missing, no model is known, a value occurs twice, or the mean of a metric's
                examples is not the value in the frame.
        """
        missing = [
            name for name in ("model", "metric", "example_id", "value") if name not in examples.columns
        ]
        if missing:
            raise DataError(f"the examples lack the column {', '.join(missing)}.")
        if "model" not in frame.columns:
            raise DataError("the table lacks the column 'model': the examples name their models.")
        names = [str(name) for name in frame["model"]]
        named = examples["model"].astype(str)
        if len(examples) and not named.isin(names).any():
            raise DataError(
                f"the examples are of none of the models in the table: they name {named.iloc[0]!r}, the table "
                f"{', '.join(map(repr, names[:3]))}."
            )
        # A reader's examples are of references and pool models too, which are no candidates.
        examples = examples[named.isin([*names, RETAIN])]
        ways = directions(frame, list(dict.fromkeys(parts.metrics)), parts.direction)
        constant = forgotten_shares(frame, parts)
        ids = tuple(dict.fromkeys(examples["example_id"].astype(str)))
        means = {}
        for name, points in ways.items():
            own = examples[examples["metric"] == name]
            if not len(own) or _with_holdout(own):
                continue
            table = _table(own, ids, names, name)
            if np.isnan(table).all(0).any():
                continue  # a model without values per example: the metric stays as it is for all
            _check(name, frame[name].to_numpy(dtype=float), np.nanmean(table, axis=0), names)
            means[name] = table if points == "erasure" else 1 - table
            del constant[name]
        made_of = {**_declared(constant, examples), **(parts.attacks or {})}
        found = _attacks(frame, examples, ids, names, made_of)
        left = {name: share for name, share in constant.items() if name not in found}
        return cls(ids, means, found, left, utility_of(frame, parts), _subjects(examples, ids))

    def bootstrap(self, n_resamples: int, rng: np.random.Generator) -> np.ndarray:
        """How often each example counts: resample x example; forget and holdout examples are drawn apart.

        Where subjects are known, whole subjects are drawn: what is asked about one is not independent.
        """
        weights = np.zeros((n_resamples, len(self.ids)))
        for own in self._sets():
            drawn = own if self.clusters is None else self.clusters[own]
            codes = np.unique(drawn, return_inverse=True)[1]
            n = codes.max() + 1
            weights[:, own] = rng.multinomial(n, [1 / n] * n, size=n_resamples)[:, codes]
        return weights

    def halves(self, n_splits: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
        """Random halves of both sets, as weights 0 and 1: split x example, twice."""
        first = np.zeros((n_splits, len(self.ids)))
        for own in self._sets():
            order = rng.random((n_splits, len(own))).argsort(1)
            first[:, own] = order < (len(own) + 1) // 2
        return first, 1 - first

    def _sets(self) -> list[np.ndarray]:
        holdout = np.array([name.startswith(HOLDOUT) for name in self.ids], dtype=bool)
        return [own for own in (np.flatnonzero(~holdout), np.flatnonzero(holdout)) if len(own)]


def resampled_scores(values: ExampleValues, weights: np.ndarray, parts: ScoreParts) -> Scores:
    """Score of every model in every resample.

    Args:
        values: What is known per example.
        weights: Resample x example.
        parts: What the score is made of.

    Returns:
        Arrays of resample x model; NaN where a resample holds no example of a metric.
    """
    shape = (len(weights), len(values.utility))
    forgotten = {name: np.broadcast_to(share, shape) for name, share in values.constant.items()}
    for name, table in values.means.items():
        there = ~np.isnan(table)
        total = weights @ np.where(there, table, 0.0)
        count = weights @ there.astype(float)
        share = np.divide(total, count, out=np.full(shape, np.nan), where=count > 0)
        forgotten[name] = checked_share(name, share)
    for name, attack in values.attacks.items():
        forgotten[name] = checked_share(name, attack.closeness(weights))
    return Scores.of(forgotten, np.broadcast_to(values.utility, shape), parts)


def _subjects(examples: pd.DataFrame, ids: tuple[str, ...]) -> np.ndarray | None:
    """Number the subjects of the examples; one without a subject is a subject of its own."""
    from uds_lens.results._intervals import cluster_codes

    if "subject" not in examples.columns:
        return None
    known = examples.dropna(subset="subject").astype({"example_id": str}).drop_duplicates("example_id")
    subject = dict(zip(known["example_id"], known["subject"].astype(str), strict=True))
    return cluster_codes([subject.get(name) for name in ids])


def _with_holdout(own: pd.DataFrame) -> bool:
    return bool(own["example_id"].astype(str).str.startswith(HOLDOUT).any())


def _declared(names: Mapping[str, np.ndarray], examples: pd.DataFrame) -> dict[str, str]:
    """The attack that each normalised one is made of, by the declarations of the metrics."""
    if not _with_holdout(examples):
        return {}
    found = {name: declared_base(name) for name in names}
    return {name: base for name, base in found.items() if base is not None}


def _attacks(
    frame: pd.DataFrame,
    examples: pd.DataFrame,
    ids: tuple[str, ...],
    names: list[str],
    made_of: Mapping[str, str],
) -> dict[str, ExampleAttack]:
    """The attacks whose scores are known for all models and for retain."""
    holdout = np.array([name.startswith(HOLDOUT) for name in ids], dtype=bool)
    found = {}
    for name, attack in made_of.items():
        own = examples[examples["metric"] == attack]
        if name not in frame.columns or not len(own) or not _with_holdout(own):
            continue
        columns = [*dict.fromkeys([*names, RETAIN])]
        table = _table(own, ids, columns, attack)
        complete = ~np.isnan(table[~holdout]).all(0) & ~np.isnan(table[holdout]).all(0)
        if not complete.all():
            continue
        reference = table[:, columns.index(RETAIN)]
        found[name] = ExampleAttack(table[:, : len(names)], reference, holdout)
        check_closeness(name, frame[name].to_numpy(dtype=float), found[name], names)
    return found


def _table(own: pd.DataFrame, ids: tuple[str, ...], names: list[str], metric: str) -> np.ndarray:
    """Values of one metric: example x model."""
    twice = own.duplicated(["model", "example_id"])
    if twice.any():
        row = own[twice].iloc[0]
        at = str(row["example_id"])[:40]
        raise DataError(f"the examples have two values of {metric!r} for {row['model']!r}, {at!r}.")
    wide = own.assign(model=own["model"].astype(str), example_id=own["example_id"].astype(str))
    pivoted = wide.pivot(index="example_id", columns="model", values="value").reindex(
        index=list(ids), columns=names
    )
    return pivoted.to_numpy(dtype=float)


def _check(metric: str, stated: np.ndarray, found: np.ndarray, names: list[str]) -> None:
    off = np.abs(stated - found) > 1e-3
    if off.any():
        at = int(off.argmax())
        raise DataError(
            f"the examples of {metric!r} have the mean {found[at]:.4g} for {names[at]!r}, the table says "
            f"{stated[at]:.4g}: "
            "they must be the values the metric is the mean of. Leave the metric out of the examples if it is no mean."
        )


_SPLITS = 200
"""Random halves: only means over them are told, which settle sooner than the ends of intervals."""

_VIEWS: tuple[View, View] = ("without", "with")


@dataclass(frozen=True, eq=False)
class Stability:
    """A ranking over resamples of configurations and of examples."""

    ranks: pd.DataFrame
    """How likely each place is for each method: columns of `uds_lens.meta.STABILITY`."""

    scores: pd.DataFrame
    """Score of each method with its interval: columns of `uds_lens.meta.SCORES`."""

    swaps: pd.DataFrame
    """How likely each method is above each other one: columns of `uds_lens.meta.SWAPS`."""

    split_half: pd.DataFrame
    """The optimism of choosing and scoring on the same examples: columns of `uds_lens.meta.SPLIT_HALF`; empty
    without examples."""

    reordered: Mapping[str, float]
    """Share of resamples, of configurations and of examples, in which the places of the methods are not the same with
    depth in the score as without it; NaN where nothing can vary."""

    fixed: tuple[str, ...]
    """Parts of the score that the bootstrap over examples leaves as they are: no means of values per example."""

    cautions: tuple[str, ...] = ()
    """Sentences about what cannot vary in these resamples, and so has no probability (NaN) or one that is too sure."""

    @property
    def varying(self) -> tuple[str, ...]:
        """Return the ways of resampling, "configurations" and "examples", in which any score can change."""
        known = self.ranks[self.ranks["probability"].notna()]
        return tuple(dict.fromkeys(known["resampled"]))


def stability(
    frame: pd.DataFrame,
    *,
    examples: pd.DataFrame | None = None,
    select_by: View = "without",
    min_utility: float | None = None,
    parts: ScoreParts | None = None,
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
            models that are not in `frame` are left out, except those of the model "retain", whose attacks are the
            reference; without it attacks stay as they are.
        select_by: As in `rank`.
        min_utility: As in `rank`.
        parts: Columns of the score; default those of the UDS paper.
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
        >>> ways = {"x": "knowledge", "s": "erasure", "d": "erasure"}
        >>> parts = ScoreParts(memorization=("x",), membership=("s",), depth="d", direction=ways)
        >>> found = stability(frame, parts=parts, n_resamples=200)
        >>> first = found.ranks.query("view == 'with' and rank == 1").set_index("method")["probability"]
        >>> bool(0.6 < first["a"] < 0.9)  # a is best unless both draws are a1: 3 in 4
        True
    """
    check_choice("select_by", select_by, View)
    check_resampling(confidence, n_resamples)
    parts = parts or ScoreParts()
    scores = score_models(frame, parts=parts)
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
        values = ExampleValues.of(frame, examples, parts)
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
    cautions = []
    single = [name for name, rows in groups.items() if len(rows) == 1]
    if len(single) == len(groups):
        cautions.append(
            "every method has one eligible configuration: drawing configurations anew changes nothing, and P(first) "
            "over them is undefined"
        )
    elif single:
        one = "one eligible configuration" if len(single) == 1 else "one eligible configuration each"
        cautions.append(
            f"{', '.join(single)}: {one}, whose score never changes when configurations are drawn anew; P(first) over "
            "configurations is too sure of these"
        )
    metrics = dict.fromkeys(parts.metrics)
    if not examples:
        return tuple(cautions)
    if len(fixed) == len(metrics):
        cautions.append(
            "no part of the score has values per example of every model: drawing examples anew changes nothing, and "
            "P(first) over them is undefined"
        )
    else:
        left = ", ".join((*fixed, parts.utility))
        cautions.append(f"examples drawn anew leave {left} as they are: P(first) over examples is too sure")
    return tuple(cautions)


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
