"""Metrics of many models taken anew on resampled examples."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from uds_lens.errors import DataError
from uds_lens.meta.declarations import Points, declared_base
from uds_lens.meta.direction import directions
from uds_lens.meta.example_attacks import HOLDOUT, ExampleAttack, check_closeness
from uds_lens.meta.model_scores import ScoreParts, Scores, checked_share, forgotten_shares, utility_of

if TYPE_CHECKING:
    import pandas as pd


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
    def of(
        cls,
        frame: pd.DataFrame,
        examples: pd.DataFrame,
        parts: ScoreParts,
        direction: Mapping[str, Points] | None,
        *,
        attacks: Mapping[str, str] | None = None,
        retain: str = "retain",
    ) -> ExampleValues:
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
        examples = examples[named.isin([*names, retain])]
        ways = directions(frame, list(dict.fromkeys(parts.metrics)), direction)
        constant = forgotten_shares(frame, parts, direction)
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
        found = _attacks(
            frame, examples, ids, names, {**_declared(constant, examples), **(attacks or {})}, retain
        )
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
    from uds_lens.results.intervals import cluster_codes

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
    retain: str,
) -> dict[str, ExampleAttack]:
    """The attacks whose scores are known for all models and for retain."""
    holdout = np.array([name.startswith(HOLDOUT) for name in ids], dtype=bool)
    found = {}
    for name, attack in made_of.items():
        own = examples[examples["metric"] == attack]
        if name not in frame.columns or not len(own) or not _with_holdout(own):
            continue
        columns = [*dict.fromkeys([*names, retain])]
        table = _table(own, ids, columns, attack)
        complete = ~np.isnan(table[~holdout]).all(0) & ~np.isnan(table[holdout]).all(0)
        if not complete.all():
            continue
        reference = table[:, columns.index(retain)]
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
