"""Stability of a ranking of methods under resampling of configurations and of examples."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from uds_lens._types import check_choice
from uds_lens.errors import DataError
from uds_lens.meta._columns import SCORES, STABILITY, SWAPS
from uds_lens.meta._direction import directions
from uds_lens.meta._pools import check_resampling
from uds_lens.meta._ranking import (
    TIE,
    ScoreParts,
    View,
    checked_share,
    choose,
    combined,
    configurations,
    eligible,
    forgotten_shares,
    score_models,
    utility_of,
)
from uds_lens.metrics import METRICS
from uds_lens.results._other_cautions import about_resampling

RETAIN = "retain"  # name of the reference model among the values per example
HOLDOUT = "holdout/"  # prefix of the ids of examples that no model was trained on


@dataclass(frozen=True, eq=False)
class ExampleAttack:
    """Scores of an attack on forget and holdout examples, for all models and for retain."""

    values: np.ndarray  # example x model; NaN where an example has no score
    reference: np.ndarray  # scores of retain, per example
    holdout: np.ndarray  # which examples belong to the holdout set

    def closeness(self, weights: np.ndarray) -> np.ndarray:
        """Compute `1 - min(|AUC - AUC_retain| / AUC_retain, 1)` of every model in every resample."""
        retain = self.area(self.reference, weights)[:, None]
        areas = np.stack([self.area(column, weights) for column in self.values.T], axis=1)
        apart = np.divide(np.abs(areas - retain), retain, out=np.full(areas.shape, np.nan), where=retain > 0)
        return 1 - np.minimum(apart, 1.0)

    def area(self, scores: np.ndarray, weights: np.ndarray) -> np.ndarray:
        """Return P(a holdout example scores above a forget example) for each resample; ties count half."""
        forget, other = (np.flatnonzero(~np.isnan(scores) & here) for here in (~self.holdout, self.holdout))
        below = scores[forget][:, None] < scores[other][None, :]
        kernel = below + np.float32(0.5) * (scores[forget][:, None] == scores[other][None, :])
        # Products of counts and halves are exact in float32, which is twice as fast.
        reached = weights[:, forget].astype(np.float32) @ kernel.astype(np.float32)
        drawn = weights[:, other]
        total = weights[:, forget].sum(1) * drawn.sum(1)
        above = (reached.astype(float) * drawn).sum(1)
        return np.divide(above, total, out=np.full(len(weights), np.nan), where=total > 0)


@dataclass(frozen=True, eq=False)
class ExampleValues:
    """The parts of the score, with their values per example where available."""

    holdout: np.ndarray  # marks the examples, among those of all metrics, that no model was trained on
    # Metrics that are means: example x model, oriented so that higher means forgotten; NaN where there is no value.
    means: Mapping[str, np.ndarray]
    attacks: Mapping[str, ExampleAttack]  # attacks normalised by retain, by the name of the normalised attack
    constant: Mapping[str, np.ndarray]  # metrics that are not resampled: `1 - m` per model
    utility: np.ndarray  # utility per model, capped at 1
    # The subject's number for each example; examples of a subject are drawn together. None draws single examples.
    clusters: np.ndarray | None

    @classmethod
    def of(cls, frame: pd.DataFrame, examples: pd.DataFrame, parts: ScoreParts) -> ExampleValues:
        """Sort the values of a long table by metric, example and model."""
        if missing := [name for name in ("model", "metric", "example_id", "value") if name not in examples]:
            raise DataError(f"the examples lack the column {', '.join(missing)}.")
        if "model" not in frame.columns:
            raise DataError("the table lacks the column 'model', which the examples refer to.")
        names = [str(name) for name in frame["model"]]
        named = examples["model"].astype(str)
        if len(examples) and not named.isin(names).any():
            raise DataError(
                f"the examples belong to none of the models in the table: they name {named.iloc[0]!r}, but the table "
                f"has {', '.join(map(repr, names[:3]))}."
            )
        # A reader's examples include those of references and pool models, which are not candidates.
        examples = examples.assign(model=named, example_id=examples["example_id"].astype(str))
        examples = examples[named.isin([*names, RETAIN])]
        constant = forgotten_shares(frame, parts)
        ids = tuple(dict.fromkeys(examples["example_id"]))
        holdout = np.array([name.startswith(HOLDOUT) for name in ids], dtype=bool)
        columns = [*dict.fromkeys([*names, RETAIN])]
        by_metric = dict(iter(examples.groupby("metric")))
        means, attacks = {}, {}
        for name, points in directions(frame, parts.metrics, parts.direction).items():
            if name not in by_metric:
                continue
            table = _table(by_metric[name], ids, columns)
            if not np.isnan(table[holdout]).all():
                continue  # an attack's value is not a mean
            table = table[:, : len(names)]
            if not np.isnan(table).all(0).any():  # if a model has no values, the metric is not resampled
                means_of = (
                    "the values the metric is the mean of. Leave the metric out of the examples if it is not a mean."
                )
                _check(frame[name], np.nanmean(table, axis=0), names, f"examples of {name!r} have the mean", means_of)
                means[name] = table if points == "erasure" else 1 - table
                del constant[name]
        for name, base in ({**_declared(constant), **(parts.attacks or {})} if holdout.any() else {}).items():
            if name not in frame.columns or base not in by_metric:
                continue
            table = _table(by_metric[base], ids, columns)
            if any(np.isnan(table[part]).all(0).any() for part in (~holdout, holdout)):
                continue  # a model or retain lacks one of the two sets
            attack = ExampleAttack(table[:, : len(names)], table[:, columns.index(RETAIN)], holdout)
            scores_of = (
                "the attack's scores of the model and of retain. Otherwise leave the attack out of the examples."
            )
            whole = attack.closeness(np.ones((1, len(ids))))[0]
            _check(frame[name], whole, names, f"examples of {name!r} give", scores_of)
            attacks[name] = attack
            constant.pop(name, None)
        return cls(holdout, means, attacks, constant, utility_of(frame, parts), _subjects(examples, ids))

    def bootstrap(self, n_resamples: int, rng: np.random.Generator) -> np.ndarray:
        """Draw the weight of each example: resample x example; forget and holdout examples are drawn separately.

        If subjects are known, whole subjects are drawn, since questions about the same subject are not independent.
        """
        weights = np.zeros((n_resamples, len(self.holdout)))
        for rows in self._sets():
            drawn = rows if self.clusters is None else self.clusters[rows]
            codes = np.unique(drawn, return_inverse=True)[1]
            n = codes.max() + 1
            weights[:, rows] = rng.multinomial(n, [1 / n] * n, size=n_resamples)[:, codes]
        return weights

    def _sets(self) -> list[np.ndarray]:
        return [rows for rows in map(np.flatnonzero, (~self.holdout, self.holdout)) if len(rows)]

    def scores(self, weights: np.ndarray, parts: ScoreParts) -> np.ndarray:
        """Score every model in every resample."""
        shape = (len(weights), len(self.utility))
        forgotten = {name: np.broadcast_to(share, shape) for name, share in self.constant.items()}
        for name, table in self.means.items():
            there = ~np.isnan(table)
            total = weights @ np.where(there, table, 0.0)
            count = weights @ there.astype(float)
            share = np.divide(total, count, out=np.full(shape, np.nan), where=count > 0)
            forgotten[name] = checked_share(name, share)
        for name, attack in self.attacks.items():
            forgotten[name] = checked_share(name, attack.closeness(weights))
        scores = combined(forgotten, np.broadcast_to(self.utility, shape), parts)
        return np.stack([scores[f"score_{view}"] for view in _VIEWS])


def _table(rows: pd.DataFrame, ids: tuple[str, ...], names: list[str]) -> np.ndarray:
    """Return the values of one metric: example x model."""
    twice = rows.duplicated(["model", "example_id"])
    if twice.any():
        row = rows[twice].iloc[0]
        at = str(row["example_id"])[:40]
        raise DataError(f"the examples have two values of {row['metric']!r} for {row['model']!r}, {at!r}.")
    wide = rows.pivot(index="example_id", columns="model", values="value")
    return wide.reindex(index=list(ids), columns=names).to_numpy(dtype=float)


def _check(column: pd.Series, values: np.ndarray, names: list[str], what: str, expected: str) -> None:
    """Raise an error unless the examples reproduce the values of the table."""
    stated = column.to_numpy(dtype=float)
    off = ~(np.abs(stated - values) <= 1e-3)
    if off.any():
        at = int(off.argmax())
        raise DataError(
            f"the {what} {values[at]:.4g} for {names[at]!r}, but the table says {stated[at]:.4g}: the examples must be "
            f"{expected}"
        )


def _subjects(examples: pd.DataFrame, ids: tuple[str, ...]) -> np.ndarray | None:
    """Number the subjects of the examples; an example without a subject is a subject of its own."""
    if "subject" not in examples.columns:
        return None
    by_example = examples.dropna(subset="subject").drop_duplicates("example_id")
    subject = dict(zip(by_example["example_id"], by_example["subject"].astype(str), strict=True))
    return pd.factorize(pd.Series([subject.get(name, (name,)) for name in ids], dtype=object))[0]


def _declared(names: Mapping[str, np.ndarray]) -> dict[str, str]:
    """Return the attack that each normalised attack is computed from, according to the metrics' declarations."""
    return {name: METRICS[name].uses[0] for name in names if name in METRICS and len(METRICS[name].uses) == 1}


_VIEWS: tuple[View, View] = ("without", "with")


@dataclass(frozen=True, eq=False)
class Stability:
    """A ranking under resampling of configurations and of examples."""

    ranks: pd.DataFrame
    """Probability of each rank for each method, with the columns of `COLUMNS["stability"]`."""

    scores: pd.DataFrame
    """Score of each method with its interval, with the columns of `COLUMNS["scores"]`."""

    swaps: pd.DataFrame
    """Probability that one method is above another, with the columns of `COLUMNS["swaps"]`."""

    reordered: Mapping[str, float]
    """Share of resamples (of configurations, of examples) in which adding depth to the score changes the methods'
    ranks; NaN if nothing can vary."""

    fixed: tuple[str, ...]
    """Parts of the score that the bootstrap over examples does not resample, because they are not means of values per
    example."""

    cautions: tuple[str, ...] = ()
    """Warnings about what cannot vary in these resamples, so that probabilities are NaN or overconfident."""

    @property
    def varying(self) -> tuple[str, ...]:
        """Return the ways of resampling, "configurations" and "examples", in which a score can change."""
        judged = self.ranks[self.ranks["probability"].notna()]
        return tuple(dict.fromkeys(judged["resampled"]))


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
    """Repeat the ranking with resampled configurations of each method, and with resampled examples.

    Over configurations: for each method, as many configurations as it has are drawn with replacement, and the best one
    drawn is chosen. Over examples: forget and holdout examples are drawn separately, with replacement, and the same
    ones are used for all models and metrics; whole subjects are drawn if a column `subject` names them. Means over
    examples, and attacks normalised by retain's AUC (`1 - min(|AUC - AUC_retain| / AUC_retain, 1)`), are recomputed,
    and the configurations are chosen again. A part of the score without values per example for each model is not
    resampled and is named in `fixed`; the spread is then a lower bound.

    If nothing can vary, there are no probabilities. Over configurations, nothing can vary if each method has only one
    eligible configuration; over examples, if no part of the score has values per example. Ranks, `p_best` and swaps are
    then NaN, as is the interval of a method with one configuration, and `cautions` says so.

    Args:
        frame: One row per model, with `model`, `method` and the columns of `parts`.
        examples: Table with `model`, `metric`, `example_id` and `value`, as returned by the readers
            (`ModelTable.examples`). Models that are not in `frame` are left out, except the model "retain", whose
            attacks are the reference; without it, attacks are not resampled.
        select_by: As in `rank`.
        min_utility: As in `rank`.
        parts: Columns of the score; by default as in the UDS paper.
        confidence: Confidence level of the percentile intervals.
        n_resamples: Number of resamples.
        seed: Seed of the resampling.

    Returns:
        The tables. Methods without an eligible configuration are left out.

    Raises:
        DataError: A column is missing, a value lies outside its range, or no example belongs to a model in `frame`.
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
    table = score_models(frame, parts=parts)
    of_method = configurations(frame)
    choices = {method: choose(table, rows, select_by, min_utility) for method, rows in of_method.items()}
    chosen = {method: choice.at for method, choice in choices.items() if choice is not None}
    if not chosen:
        raise DataError("no method has an eligible configuration: see rank(frame) for the reasons.")
    candidates = {method: eligible(table, of_method[method], min_utility) for method in chosen}
    rng = np.random.default_rng(seed)
    whole = np.stack([table[f"score_{view}"].to_numpy(dtype=float) for view in _VIEWS])
    by = _VIEWS.index(select_by)
    drawn = {method: rng.choice(rows, size=(n_resamples, len(rows))) for method, rows in candidates.items()}
    varies = {method: len(rows) > 1 for method, rows in candidates.items()}
    best = {name: _best(whole[:, None, :], drawn[name], False, chosen[name], by) for name in candidates}
    tables = [_tables("configurations", best, chosen, whole, varies, confidence)]
    fixed = parts.metrics
    if examples is not None:
        values = ExampleValues.of(frame, examples, parts)
        fixed = tuple(values.constant)
        scores = values.scores(values.bootstrap(n_resamples, rng), parts)
        varies = dict.fromkeys(candidates, set(fixed) != set(parts.metrics))
        best = {name: _best(scores, rows[None], True, chosen[name], by) for name, rows in candidates.items()}
        tables.append(_tables("examples", best, chosen, whole, varies, confidence))
    return Stability(
        ranks=pd.DataFrame([row for ranks, *_ in tables for row in ranks], columns=list(STABILITY)),
        scores=pd.DataFrame([row for _, scores, *_ in tables for row in scores], columns=list(SCORES)),
        swaps=pd.DataFrame([row for _, _, swaps, _ in tables for row in swaps], columns=list(SWAPS)),
        reordered={rows[0]["resampled"]: share for rows, _, _, share in tables},
        fixed=fixed,
        cautions=tuple(
            about_resampling(
                [name for name, rows in candidates.items() if len(rows) == 1],
                len(candidates),
                (*fixed, parts.utility),
                examples=examples is not None,
                nothing=len(fixed) == len(parts.metrics),
            )
        ),
    )


def _best(
    scores: np.ndarray, rows: np.ndarray, tied_first: bool, chosen: int, by: int
) -> tuple[np.ndarray, np.ndarray]:
    """Choose a configuration of a method in each resample; return its scores (view x resample) and its row.

    `scores` is view x resample (or 1) x model, `rows` are the candidates of each resample (or 1). In a tie, the
    configuration chosen on all data is preferred.
    """
    resample = np.arange(max(len(rows), scores.shape[1]))
    drawn = np.broadcast_to(rows, (len(resample), rows.shape[1]))
    scores = np.broadcast_to(scores, (2, len(resample), scores.shape[2]))
    selection = np.take_along_axis(scores[by], drawn, axis=1)
    top = selection >= selection.max(1, keepdims=True) - TIE
    preferred = (top & (drawn == chosen)).any(1)
    best = np.where(preferred, chosen, drawn[resample, (top if tied_first else selection).argmax(1)])
    return scores[:, resample, best], best


def _tables(
    resampled: str,
    best: Mapping[str, tuple[np.ndarray, np.ndarray]],
    chosen: Mapping[str, int],
    whole: np.ndarray,
    varies: Mapping[str, bool],
    confidence: float,
) -> tuple[list[dict[str, Any]], list[dict[str, Any]], list[dict[str, Any]], float]:
    """Return rows of ranks, scores and swaps for one way of resampling, and how often depth reorders the methods."""
    any_varies = any(varies.values())

    def share(hits: np.ndarray, known: bool) -> float:
        """Average over resamples; NaN if they cannot differ."""
        return float(hits.mean()) if known else math.nan

    ranks, table, swaps, places = [], [], [], []
    for view, name in enumerate(_VIEWS):
        key = {"resampled": resampled, "view": name}
        score = {method: scores[view] for method, (scores, _) in best.items()}
        stacked = np.stack(list(score.values()))
        place = (stacked[None] > stacked[:, None] + TIE).sum(1) + 1
        places.append(place)
        for i, (method, (_, rows)) in enumerate(best.items()):
            ranks += [
                {"method": method, **key, "rank": at, "probability": share(place[i] == at, any_varies)}
                for at in range(1, len(best) + 1)
            ]
            ends = np.quantile(score[method], [0.5 - confidence / 2, 0.5 + confidence / 2])
            low, high = ends if varies[method] else (math.nan, math.nan)
            table.append(
                {
                    "method": method,
                    **key,
                    "score": float(whole[view][chosen[method]]),
                    "low": float(low),
                    "high": float(high),
                    "p_best": share(place[i] == 1, any_varies),
                    "n_chosen": len(np.unique(rows)),
                    "p_chosen": float((rows == chosen[method]).mean()),
                }
            )
            for other in (name for name in score if name != method):
                ahead = score[method] - score[other]
                over = (score[method] > score[other] + TIE) + 0.5 * (np.abs(ahead) <= TIE)
                probability = share(over, varies[method] or varies[other])
                swaps.append({**key, "above": method, "below": other, "probability": probability})
    return ranks, table, swaps, share((places[0] != places[1]).any(0), any_varies)
