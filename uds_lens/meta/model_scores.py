"""The score of one model: what is forgotten, what leaks, how useful it still is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from uds_lens.checked_arguments import arguments_checked
from uds_lens.errors import ConfigError, DataError
from uds_lens.meta.declarations import Points
from uds_lens.meta.direction import directions
from uds_lens.meta.harmonic_columns import harmonic_means

if TYPE_CHECKING:
    import pandas as pd


@arguments_checked
@dataclass(frozen=True, kw_only=True)
class ScoreParts:
    """Which columns make up the score of a model."""

    memorization: tuple[str, ...] = ("es", "em", "paraprob", "truth_ratio")
    """Metrics of the first part: harmonic mean of `1 - m`, m being turned so that more means more knowledge."""

    membership: tuple[str, ...] = ("s_mia_loss", "s_mia_zlib", "s_mia_min_k", "s_mia_min_kpp")
    """Metrics of the second part, in the same way."""

    depth: str = "uds"
    """The metric that the score is formed with and without; joins the second part."""

    utility: str = "utility_rel"
    """Column with the usefulness relative to `full`; capped at 1 here."""

    def __post_init__(self) -> None:
        if not self.memorization or not self.membership:
            raise ConfigError("memorization and membership need at least one metric each.")

    @property
    def metrics(self) -> tuple[str, ...]:
        """All metrics, without the utility."""
        return (*self.memorization, *self.membership, self.depth)


@arguments_checked
def score_models(
    frame: pd.DataFrame,
    *,
    parts: ScoreParts | None = None,
    direction: Mapping[str, Points] | None = None,
) -> pd.DataFrame:
    """Score every model with and without the depth metric.

    `Mem = HM(1 - m of memorization)`, `MIA = HM(1 - m of membership)`, `score_without = HM(Mem, MIA, U)` and
    `score_with = HM(Mem, HM(MIA, depth), U)` with `U = min(utility_rel, 1)`; HM is the harmonic mean, 0 if a part
    is 0.

    Args:
        frame: One row per model: `model`, the columns of `parts`.
        parts: Which columns; default those of the UDS paper.
        direction: What a higher value means, for metrics that are not declared.

    Returns:
        `model`, `memorization`, `mia`, `depth`, `utility`, `utility_rel`, `score_without`, `score_with`, `zeros`
        (metrics at which nothing is forgotten) and `reason` (which values are missing), index as in `frame`. NaN
        where a part is NaN.

    Raises:
        DataError: A column is missing, or a value lies outside 0 to 1.
        ConfigError: A direction is not known.

    Example:
        >>> import pandas as pd
        >>> frame = pd.DataFrame({"model": ["a"], "x": [0.5], "s": [0.5], "d": [1.0], "utility_rel": [1.2]})
        >>> parts = ScoreParts(memorization=("x",), membership=("s",), depth="d")
        >>> ways = {"x": "knowledge", "s": "erasure", "d": "erasure"}
        >>> score_models(frame, parts=parts, direction=ways)[["score_without", "score_with"]].round(4).values.tolist()
        [[0.6, 0.6667]]
    """
    import pandas as pd

    parts = parts or ScoreParts()
    forgotten = forgotten_shares(frame, parts, direction)
    scores = Scores.of(forgotten, utility_of(frame, parts), parts)
    missing = [
        ", ".join(name for name in (*parts.metrics, parts.utility) if pd.isna(row[name])) or None
        for _, row in frame[[*dict.fromkeys((*parts.metrics, parts.utility))]].iterrows()
    ]
    return pd.DataFrame(
        {
            "model": frame["model"] if "model" in frame.columns else frame.index.astype(str),
            "memorization": scores.memorization,
            "mia": scores.mia,
            "depth": scores.depth,
            "utility": scores.utility,
            "utility_rel": frame[parts.utility].astype(float),
            "score_without": scores.without,
            "score_with": scores.with_depth,
            "zeros": sum((forgotten[name] == 0).astype(int) for name in parts.metrics),
            "reason": [None if names is None else f"no value of {names}" for names in missing],
        },
        index=frame.index,
    )


@dataclass(frozen=True, eq=False)
class Scores:
    """The parts of the score, and the score; models are the last axis."""

    memorization: np.ndarray
    mia: np.ndarray
    depth: np.ndarray
    utility: np.ndarray
    without: np.ndarray
    with_depth: np.ndarray

    @classmethod
    def of(cls, forgotten: Mapping[str, np.ndarray], utility: np.ndarray, parts: ScoreParts) -> Scores:
        """Put the parts together."""
        memorization = harmonic_means(_stacked([forgotten[name] for name in parts.memorization]))
        mia = harmonic_means(_stacked([forgotten[name] for name in parts.membership]))
        depth = forgotten[parts.depth]
        privacy = harmonic_means(_stacked([mia, depth]))
        without = harmonic_means(_stacked([memorization, mia, utility]))
        with_depth = harmonic_means(_stacked([memorization, privacy, utility]))
        return cls(memorization, mia, depth, utility, without, with_depth)


def _stacked(arrays: Sequence[np.ndarray]) -> np.ndarray:
    return np.stack(np.broadcast_arrays(*arrays), axis=-1)


def forgotten_shares(
    frame: pd.DataFrame, parts: ScoreParts, direction: Mapping[str, Points] | None
) -> dict[str, np.ndarray]:
    """`1 - m` of every metric of the score, checked to lie within 0 and 1."""
    ways = directions(frame, list(dict.fromkeys(parts.metrics)), direction)
    return {name: checked_share(name, forgotten_share(frame[name], points)) for name, points in ways.items()}


def forgotten_share(values: pd.Series, points: Points) -> np.ndarray:
    """`1 - m`: the value of a metric of erasure as it is, `1 - value` of one of knowledge."""
    numbers = values.to_numpy(dtype=float)
    return numbers if points == "erasure" else 1 - numbers


def checked_share(name: str, forgotten: np.ndarray) -> np.ndarray:
    """What is forgotten; rounding beyond 0 and 1 is cut, more is an error."""
    with np.errstate(invalid="ignore"):
        outside = (forgotten < -1e-9) | (forgotten > 1 + 1e-9)
    if outside.any():
        raise DataError(
            f"a part of the score must lie within 0 and 1; {name!r} gives {float(forgotten[outside][0]):g} "
            "(0: known, 1: forgotten). Rescale it, or leave it out of ScoreParts."
        )
    return np.clip(forgotten, 0.0, 1.0)


def utility_of(frame: pd.DataFrame, parts: ScoreParts) -> np.ndarray:
    """The usefulness, capped at 1."""
    import pandas as pd

    if parts.utility not in frame.columns:
        raise DataError(f"the table lacks the column {parts.utility!r}: utility over that of full.")
    values = pd.to_numeric(frame[parts.utility], errors="coerce").astype(float).to_numpy()
    if (values < 0).any():
        raise DataError(f"the column {parts.utility!r} must be >= 0; got {float(np.nanmin(values)):g}.")
    return np.minimum(values, 1.0)
