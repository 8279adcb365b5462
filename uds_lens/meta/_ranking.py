"""Scores of models (memorization, privacy, utility), and the ranking of methods by their best configuration."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np
import pandas as pd

from uds_lens._types import check_choice
from uds_lens.errors import ConfigError, DataError
from uds_lens.meta._columns import RANKING, SHIFTS
from uds_lens.meta._direction import Points, check_numbers, directions
from uds_lens.meta._tables import harmonic_means, require_one_setup
from uds_lens.results._other_cautions import about_scores, about_tie


@dataclass(frozen=True, kw_only=True)
class ScoreParts:
    """The columns that make up a model's score."""

    memorization: tuple[str, ...] = ("es", "em", "paraprob", "truth_ratio")
    """Metrics of the first part, the harmonic mean of `1 - m`, with m oriented so that higher means more knowledge."""

    membership: tuple[str, ...] = ("s_mia_loss", "s_mia_zlib", "s_mia_min_k", "s_mia_min_kpp")
    """Metrics of the second part, oriented and combined in the same way."""

    depth: str = "uds"
    """The depth metric, which can be added to the second part; the score is computed with and without it."""

    utility: str = "utility_rel"
    """Column with the utility relative to `full`; capped at 1 here."""

    direction: Mapping[str, Points] | None = None
    """As in `directions`."""

    attacks: Mapping[str, str] | None = None
    """For `stability`: each normalised attack that is not declared, mapped to the metric whose per-example scores it is
    computed from."""

    def __post_init__(self) -> None:
        if not self.memorization or not self.membership:
            raise ConfigError("memorization and membership need at least one metric each.")

    @classmethod
    def preset(cls, name: Literal["open_unlearning", "open_unlearning_muse"]) -> ScoreParts:
        """Return the score parts available in Open-Unlearning's default configuration for TOFU or MUSE.

        That configuration lacks EM, fluency and three of the four attacks, so read its results with
        `read_open_unlearning(utility="model_utility")`.

        >>> ScoreParts.preset("open_unlearning").memorization
        ('es', 'paraprob', 'truth_ratio')
        """
        check_choice("preset", name, Literal["open_unlearning", "open_unlearning_muse"])
        if name == "open_unlearning":
            return cls(memorization=("es", "paraprob", "truth_ratio"), membership=("s_mia_min_k",))
        theirs = ("forget_knowmem_rouge", "forget_verbmem_rouge")
        ways: dict[str, Points] = {"es": "knowledge", **dict.fromkeys(theirs, "knowledge")}
        ways |= {"s_mia_min_k": "erasure", "uds": "erasure"}
        return cls(memorization=("es", *theirs), membership=("s_mia_min_k",), direction=ways)

    @property
    def metrics(self) -> tuple[str, ...]:
        """All metrics, without duplicates and without the utility."""
        return tuple(dict.fromkeys((*self.memorization, *self.membership, self.depth)))

    @property
    def columns(self) -> tuple[str, ...]:
        """All metrics and the utility, without duplicates."""
        return tuple(dict.fromkeys((*self.metrics, self.utility)))


def score_models(frame: pd.DataFrame, *, parts: ScoreParts | None = None) -> pd.DataFrame:
    """Score every model with and without the depth metric.

    `Mem = HM(1 - m of memorization)`, `MIA = HM(1 - m of membership)`, `score_without = HM(Mem, MIA, U)` and
    `score_with = HM(Mem, HM(MIA, depth), U)` with `U = min(utility_rel, 1)`; HM is the harmonic mean, 0 if a part
    is 0.

    Args:
        frame: One row per model, with `model` and the columns of `parts`.
        parts: Columns that make up each part; by default as in the UDS paper.

    Returns:
        `model`, `memorization`, `mia`, `depth`, `utility`, `utility_rel`, `score_without`, `score_with`, `zeros`
        (metrics by which nothing is forgotten) and `reason` (which values are missing), with the index of `frame`. A
        score is NaN if one of its parts is NaN.

    Raises:
        DataError: A column is missing, or a value lies outside [0, 1].
        ConfigError: A metric has no direction.

    Example:
        >>> import pandas as pd
        >>> frame = pd.DataFrame({"model": ["a"], "x": [0.5], "s": [0.5], "d": [1.0], "utility_rel": [1.2]})
        >>> ways = {"x": "knowledge", "s": "erasure", "d": "erasure"}
        >>> parts = ScoreParts(memorization=("x",), membership=("s",), depth="d", direction=ways)
        >>> score_models(frame, parts=parts)[["score_without", "score_with"]].round(4).values.tolist()
        [[0.6, 0.6667]]
    """
    parts = parts or ScoreParts()
    forgotten = forgotten_shares(frame, parts)
    scores = combined(forgotten, utility_of(frame, parts), parts)
    whole = {name: scores.pop(name) for name in ("score_without", "score_with")}
    columns = np.array(parts.columns, dtype=object)
    gaps = frame[list(columns)].isna().to_numpy()
    return pd.DataFrame(
        {
            "model": frame["model"] if "model" in frame.columns else frame.index.astype(str),
            **scores,
            "utility_rel": frame[parts.utility].astype(float),
            **whole,
            "zeros": sum((forgotten[name] == 0).astype(int) for name in parts.metrics),
            "reason": [f"no value of {', '.join(columns[row])}" if row.any() else None for row in gaps],
        },
        index=frame.index,
    )


def combined(forgotten: Mapping[str, np.ndarray], utility: np.ndarray, parts: ScoreParts) -> dict[str, np.ndarray]:
    """Return the parts of the score, and the score without and with depth; models are the last axis."""

    def mean(*arrays: np.ndarray) -> np.ndarray:
        return harmonic_means(np.stack(np.broadcast_arrays(*arrays), axis=-1))

    memorization = mean(*(forgotten[name] for name in parts.memorization))
    mia, depth = mean(*(forgotten[name] for name in parts.membership)), forgotten[parts.depth]
    return {
        "memorization": memorization,
        "mia": mia,
        "depth": depth,
        "utility": utility,
        "score_without": mean(memorization, mia, utility),
        "score_with": mean(memorization, mean(mia, depth), utility),
    }


def forgotten_shares(frame: pd.DataFrame, parts: ScoreParts) -> dict[str, np.ndarray]:
    """Return `1 - m` of every metric of the score, after checking that it lies between 0 and 1."""
    ways = directions(frame, parts.metrics, parts.direction)
    return {
        name: checked_share(name, values if ways[name] == "erasure" else 1 - values)
        for name, values in ((name, frame[name].to_numpy(dtype=float)) for name in ways)
    }


def checked_share(name: str, forgotten: np.ndarray) -> np.ndarray:
    """Clip rounding errors outside [0, 1], and raise `DataError` for values further outside."""
    outside = (forgotten < -1e-9) | (forgotten > 1 + 1e-9)
    if outside.any():
        raise DataError(
            f"a part of the score must lie between 0 and 1; {name!r} gives {float(forgotten[outside][0]):g} "
            "(0: known, 1: forgotten). Rescale it, or leave it out of ScoreParts."
        )
    return np.clip(forgotten, 0.0, 1.0)


def utility_of(frame: pd.DataFrame, parts: ScoreParts) -> np.ndarray:
    """Return the relative utility, capped at 1."""
    if parts.utility not in frame.columns:
        raise DataError(f"the table lacks the column {parts.utility!r} (utility relative to full).")
    check_numbers(frame, [parts.utility])
    values = pd.to_numeric(frame[parts.utility]).astype(float).to_numpy()
    if (values < 0).any():
        raise DataError(f"the column {parts.utility!r} must be >= 0; got {float(np.nanmin(values)):g}.")
    return np.minimum(values, 1.0)


View: TypeAlias = Literal["without", "with"]  # score without or with the depth metric

TIE = 1e-12  # scores closer than this are treated as equal


class Choice(NamedTuple):
    """The configuration that represents a method."""

    at: int  # its row
    tied: tuple[int, ...]  # all rows with the same score, including itself
    margin: float  # lead over the next score; 0 in a tie, NaN with one candidate


def rank(
    frame: pd.DataFrame,
    *,
    with_uds: bool = True,
    select_by: View = "without",
    min_utility: float | None = None,
    parts: ScoreParts | None = None,
) -> pd.DataFrame:
    """Rank methods by the score of their best configuration.

    The score is `HM(Mem, Privacy, U)`, with `Privacy = MIA` or `HM(MIA, UDS)` (see `score_models`). Either score may
    choose the configuration, whichever score ranks the methods; the paper chooses without UDS. If several
    configurations reach the same score, all are named. The configuration shown has the fewest parts at 0 and, among
    those, the highest harmonic mean of the other parts; the 1e-12 that the paper adds to each denominator has the same
    effect.

    Args:
        frame: One row per model, with `model`, `method` and the columns of `parts`.
        with_uds: Rank by the score with the depth metric.
        select_by: Choose the configuration by the score "without" or "with" the depth metric.
        min_utility: Smallest `utility_rel` of a candidate; None means no minimum.
        parts: Columns of the score; by default as in the UDS paper.

    Returns:
        One row per method, best first, with the columns of `COLUMNS["ranking"]`. A method without an eligible
        configuration comes last, with NaN and a reason.

    Raises:
        DataError: A column is missing, a value lies outside its range, or the columns `base` and `split` name several
            base models or splits (`select` picks one).
        ConfigError: `select_by` is unknown, or a metric has no direction.

    Example:
        >>> import pandas as pd
        >>> frame = pd.DataFrame({"model": ["a1", "b1"], "method": ["a", "b"], "x": [0.5, 0.2], "s": [0.9, 0.6],
        ...                       "d": [0.9, 0.1], "utility_rel": [1.0, 1.0]})
        >>> ways = {"x": "knowledge", "s": "erasure", "d": "erasure"}
        >>> parts = ScoreParts(memorization=("x",), membership=("s",), depth="d", direction=ways)
        >>> rank(frame, parts=parts)[["method", "rank", "rank_without"]].values.tolist()
        [['a', 1.0, 2.0], ['b', 2.0, 1.0]]
    """
    check_choice("select_by", select_by, View)
    scores = score_models(frame, parts=parts)
    rows = [_row(method, scores, rows, select_by, min_utility) for method, rows in configurations(frame).items()]
    table = pd.DataFrame(rows, columns=list(RANKING))
    table["score"] = table["score_with" if with_uds else "score_without"]
    for column, by in (("rank", "score"), ("rank_without", "score_without"), ("rank_with", "score_with")):
        table[column] = places(table[by].to_numpy(dtype=float))
    table["n_tied_rank"] = [int((table["rank"] == place).sum()) for place in table["rank"]]
    return table.sort_values(["rank", "method"], na_position="last", ignore_index=True)


def shifts(frame: pd.DataFrame, *, min_utility: float | None = None, parts: ScoreParts | None = None) -> pd.DataFrame:
    """Compare the configuration chosen for each method without and with the depth metric.

    The choice counts as unchanged if the configuration chosen without depth is tied for best with depth. Arguments and
    errors are as in `rank`.

    Returns:
        One row per method in order of appearance, with the columns of `COLUMNS["shifts"]`.

    Example:
        >>> import pandas as pd
        >>> frame = pd.DataFrame({"model": ["a1", "a2"], "method": ["a", "a"], "x": [0.2, 0.2], "s": [0.9, 0.8],
        ...                       "d": [0.1, 0.9], "utility_rel": [1.0, 1.0]})
        >>> ways = {"x": "knowledge", "s": "erasure", "d": "erasure"}
        >>> parts = ScoreParts(memorization=("x",), membership=("s",), depth="d", direction=ways)
        >>> shifts(frame, parts=parts)[["model_without", "model_with"]].values.tolist()
        [['a1', 'a2']]
    """
    scores = score_models(frame, parts=parts)
    model, depth = scores["model"].to_numpy(), scores["depth"].to_numpy()
    rows: list[dict[str, Any]] = []
    for method, candidates in configurations(frame).items():
        row: dict[str, Any] = {"method": method}
        rows.append(row)
        first = choose(scores, candidates, "without", min_utility)
        second = choose(scores, candidates, "with", min_utility)
        if first is not None and second is not None:
            at = first.at if first.at in second.tied else second.at
            row |= {
                "model_without": model[first.at],
                "model_with": model[at],
                "moved": bool(at != first.at),
                "depth_without": float(depth[first.at]),
                "depth_with": float(depth[at]),
                "depth_change": float(depth[at] - depth[first.at]),
            }
    return pd.DataFrame(rows, columns=list(SHIFTS))


def places(scores: np.ndarray) -> np.ndarray:
    """Return the ranks of scores, 1 for the highest; equal scores share the better rank, and NaN has no rank.

    >>> places(np.array([0.2, 0.9, 0.9, float("nan")])).tolist()
    [3.0, 1.0, 1.0, nan]
    """
    above = (scores[None, :] > scores[:, None] + TIE).sum(1) + 1.0
    return np.where(np.isnan(scores), math.nan, above)


def configurations(frame: pd.DataFrame) -> dict[str, np.ndarray]:
    """Return the rows of each method, in order of appearance."""
    if "method" not in frame.columns:
        raise DataError("the table lacks the column 'method', which names the unlearning method of each model.")
    if count := int(frame["method"].isna().sum()):
        raise DataError(f"the column 'method' is empty in {count} rows: leave out references such as full and retain.")
    require_one_setup(frame)
    names = frame["method"].astype(str).to_numpy(dtype=object)
    return {name: np.flatnonzero(names == name) for name in dict.fromkeys(names)}


def eligible(scores: pd.DataFrame, rows: np.ndarray, min_utility: float | None) -> np.ndarray:
    """Return the rows that are complete and keep enough utility."""
    kept = scores[["score_without", "score_with"]].notna().all(axis=1).to_numpy()
    if min_utility is not None:
        kept = kept & (scores["utility_rel"].to_numpy(dtype=float) >= min_utility)
    return rows[kept[rows]]


def choose(scores: pd.DataFrame, rows: np.ndarray, by: View, min_utility: float | None) -> Choice | None:
    """Return the best of the given rows by one of the two scores; None if no row is eligible."""
    candidates = eligible(scores, rows, min_utility)
    if not len(candidates):
        return None
    score = scores[f"score_{by}"].to_numpy(dtype=float)[candidates]
    tied = candidates[score >= score.max() - TIE].tolist()
    margin = 0.0
    if len(tied) == 1:
        margin = float(score.max() - np.sort(score)[-2]) if len(score) > 1 else math.nan
    at = min(tied, key=lambda row: (*_worth(scores, row, by), str(scores["model"].iloc[row])))
    return Choice(at, tuple(tied), margin)


def _worth(scores: pd.DataFrame, row: int, by: View) -> tuple[int, float]:
    """Return the sort key that breaks a tie: parts at 0, then the harmonic mean of the other parts."""
    names = ["memorization", "mia", *(["depth"] if by == "with" else []), "utility"]
    values = scores[names].iloc[row].to_numpy(dtype=float)
    positive = values[values > 0]
    rest = float(harmonic_means(positive)) if len(positive) else 0.0
    return int(scores["zeros"].iloc[row]) + int(values[-1] == 0), -rest


def _row(method: str, scores: pd.DataFrame, rows: np.ndarray, by: View, min_utility: float | None) -> dict[str, Any]:
    row: dict[str, Any] = {"method": method, "model": None, "tied": "", "n_configs": len(rows), "n_tied": 0}
    row |= {"n_eligible": len(eligible(scores, rows, min_utility)), "reason": None}
    choice = choose(scores, rows, by, min_utility)
    if choice is None:
        reasons = scores["reason"].iloc[rows].dropna()
        if len(reasons) == len(rows):
            return row | {"reason": reasons.iloc[0]}
        return row | {"reason": f"no complete configuration keeps {min_utility or 0:g} of the utility"}
    chosen = scores.iloc[choice.at]
    parts = ("memorization", "mia", "depth", "utility", "utility_rel")
    row |= {name: chosen[name] for name in ("model", *parts, "score_without", "score_with")}
    row |= {"n_tied": len(choice.tied), "margin": choice.margin}
    if len(choice.tied) > 1:
        row["tied"] = " ".join(str(scores["model"].iloc[at]) for at in choice.tied)
        row["reason"] = about_tie(len(choice.tied), float(chosen[f"score_{by}"]))
    return row


def empty_parts(frame: pd.DataFrame, parts: ScoreParts, reasons: pd.DataFrame | None = None) -> dict[str, str | None]:
    """Return the parts of the score for which no model has a value, with the most common reason.

    >>> import pandas as pd
    >>> frame = pd.DataFrame({"model": ["a"], "x": [float("nan")], "s": [1.0], "utility_rel": [1.0]})
    >>> why = pd.DataFrame({"model": ["a"], "metric": ["x"], "reason": ["empty in the file"]})
    >>> empty_parts(frame, ScoreParts(memorization=("x",), membership=("s",)), why)
    {'x': 'empty in the file', 'uds': None}
    """
    return {
        name: reason_of(name, frame, reasons) if name in frame.columns else None
        for name in parts.columns
        if name not in frame.columns or frame[name].isna().all()
    }


def reason_of(name: str, frame: pd.DataFrame, reasons: pd.DataFrame | None) -> str | None:
    """Return the most common reason among the models of `frame`; None if there is none."""
    if reasons is None or not len(reasons):
        return None
    given = reasons[(reasons["metric"] == name) & reasons["model"].isin(frame["model"])]["reason"]
    return str(given.value_counts().index[0]) if len(given) else None


def score_cautions(frame: pd.DataFrame, parts: ScoreParts) -> list[str]:
    """List cautions about a ranking: few models, and parts that are the same for all models.

    >>> import pandas as pd
    >>> frame = pd.DataFrame({"x": [0.5, 0.5], "s": [0.1, 0.2], "d": [0.3, 0.4], "utility_rel": [1.0, 0.9]})
    >>> for each in score_cautions(frame, ScoreParts(memorization=("x",), membership=("s",), depth="d")):
    ...     print(each)
    only 2 models have a score: P(first) is about these models only, and the order of methods is undecided
    x is 0.5 for all 2 models, so it cannot separate them
    """
    scored = frame[list(parts.columns)].astype(float).dropna()
    n = len(scored)
    spread = scored.max() - scored.min()
    constant = {name: float(scored[name].iloc[0]) for name in parts.columns if n > 1 and spread[name] <= TIE}
    return list(about_scores(n, constant))
