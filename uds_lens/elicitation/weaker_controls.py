"""What stands in for a retain model that nobody has: references of other subjects, and questions that nobody learnt."""

from __future__ import annotations

import math
import random
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from jaxtyping import Float, Int

from uds_lens.elicitation.parts import HOLDOUT, Part
from uds_lens.elicitation.prompt import keyed_seed
from uds_lens.elicitation.scoring import cut, score_texts
from uds_lens.results import Contrast, Interval, contrast, holm
from uds_lens.results.contrasts import by_group, subject_groups

if TYPE_CHECKING:
    import pandas as pd

    from uds_lens.elicitation.results import ElicitationResults

_REFERENCES = 8
"""References of other subjects that a text is held against: the same for every text of a row."""


def control_frame(results: ElicitationResults) -> pd.DataFrame:
    """See `ElicitationResults.control_frame`."""
    import pandas as pd

    seed = results.options.seed
    groups = subject_groups([row.subject for row in results.examples])
    kept_out = subject_groups([row.subject for row in results.holdout])
    capacity = {audit.name for audit in results.audits if audit.capacity}
    rows: list[dict[str, Any]] = []
    for part in results.parts:
        if part.role != "unlearned" or part.audit in capacity:
            continue
        strange = _against_others(results, part)
        for statistic, over in _statistics(part):
            own = over(results, "unlearned", part)
            theirs = np.array([_reduced(strange.get(row), statistic) for row in range(len(own))])
            found = contrast(own - theirs, groups, seed=seed, bounds=(-1.0, 1.0))
            row = {"audit": part.audit, "decoding": part.decoding, "statistic": statistic, "n": found.n}
            row |= (
                {"unlearned": _mean(own), "others": _mean(theirs)} | _told("others", found) | {"p": found.p}
            )
            if results.holdout:
                away = over(results, HOLDOUT, part)
                row |= {"holdout": _mean(away)} | _told("holdout", unpaired(own, groups, away, kept_out))
            rows.append(row)
    for row, p in zip(rows, holm([row["p"] for row in rows]), strict=True):
        row["p_holm"] = p
    return pd.DataFrame(rows)


class Difference(NamedTuple):
    """A difference of two means over different questions."""

    value: float
    interval: Interval


def unpaired(
    one: Float[np.ndarray, "question"],
    one_groups: Int[np.ndarray, "question"],
    other: Float[np.ndarray, "other"],
    other_groups: Int[np.ndarray, "other"],
) -> Difference:
    """Difference of two means, with a 95 % interval over the subjects of both (Welch, cluster-robust errors).

    Args:
        one: Scores; NaN are left out.
        one_groups: Subject of each.
        other: Scores of other questions.
        other_groups: Subject of each.

    Returns:
        NaN where a side has no score; no interval where a side has fewer than two subjects.

    Example:
        >>> found = unpaired(np.array([1.0, 1.0, 0.8]), np.arange(3), np.array([0.1, 0.0, 0.2]), np.arange(3))
        >>> round(found.value, 3), found.interval.low > 0.5
        (0.833, True)
    """
    sides = [_side(one, one_groups), _side(other, other_groups)]
    value = sides[0][0] - sides[1][0]
    errors, counts = np.array([side[1] for side in sides]), np.array([side[2] for side in sides])
    if math.isnan(value) or (counts < 2).any():
        return Difference(value, Interval(math.nan, math.nan))
    error = float(np.sqrt((errors**2).sum()))
    if error == 0:
        return Difference(value, Interval(value, value))
    from scipy.stats import t

    freedom = error**4 / float((errors**4 / (counts - 1)).sum())
    reach = float(t.ppf(0.975, freedom)) * error
    return Difference(value, Interval(value - reach, value + reach))


def _side(scores: np.ndarray, groups: np.ndarray) -> tuple[float, float, int]:
    """Mean, its standard error over subjects, and how many subjects there are."""
    known = ~np.isnan(scores)
    if not known.any():
        return math.nan, math.nan, 0
    sums, counts = by_group(scores[known], groups[known])
    mean, m = float(sums.sum() / counts.sum()), len(sums)
    left = float(((sums - mean * counts) ** 2).sum())
    return mean, math.sqrt(left * m / max(1, m - 1)) / float(counts.sum()), m


def _against_others(results: ElicitationResults, part: Part) -> dict[int, np.ndarray]:
    """Recall `[reference, sample]` of each row's texts, of references that belong to other subjects."""
    openings = {audit.name: audit.opening for audit in results.audits}
    found = {}
    for said in part.said:
        example = results.examples[said.row]
        others = [
            other
            for other in part.said
            if other.row != said.row
            and (example.subject is None or results.examples[other.row].subject != example.subject)
            and other.reference != said.reference
        ]
        alike = [other for other in others if results.examples[other.row].type == example.type]
        pool = alike or others
        if not pool or not said.texts:
            continue
        draw = random.Random(keyed_seed(results.options.seed, example.id, "others"))
        texts = [
            cut(text, raw=results.protocol == "raw", opening=openings[part.audit]) for text in said.texts
        ]
        found[said.row] = np.array(
            [
                [score.recall for score in score_texts(texts, other.reference, None)]
                for other in draw.sample(pool, min(_REFERENCES, len(pool)))
            ]
        )
    return found


def _statistics(part: Part) -> list[tuple[str, Any]]:
    """Name, and how a role's scores are read."""
    found: list[tuple[str, Any]] = [
        ("mean", lambda results, role, part: results.mean(role, part.audit, part.decoding))
    ]
    if part.decoding == "sampled":
        found.append(("best", lambda results, role, part: results.best(role, part.audit, part.decoding)))
    return found


def _reduced(scores: np.ndarray | None, statistic: str) -> float:
    """Over samples as the row's own score is, then over references."""
    if scores is None:
        return math.nan
    over = scores.mean(1) if statistic == "mean" else scores.max(1)
    known = over[~np.isnan(over)]
    return float(known.mean()) if len(known) else math.nan


def _told(name: str, found: Contrast | Difference) -> dict[str, float]:
    low, high = found.interval
    return {f"beyond_{name}": found.value, f"{name}_low": low, f"{name}_high": high}


def _mean(values: np.ndarray) -> float:
    known = values[~np.isnan(values)]
    return float(known.mean()) if len(known) else math.nan
