"""What keeps models from being scored, and what makes a ranking say little."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from uds_lens.meta.model_scores import ScoreParts

if TYPE_CHECKING:
    import pandas as pd

FEW = 5
"""Models below which places and their probabilities are quoted with a caution."""


def empty_parts(
    frame: pd.DataFrame, parts: ScoreParts, reasons: pd.DataFrame | None = None
) -> dict[str, str | None]:
    """The parts of the score that no model has a value of, each with the reader's commonest reason.

    Example:
        >>> import pandas as pd
        >>> frame = pd.DataFrame({"model": ["a"], "x": [float("nan")], "s": [1.0], "utility_rel": [1.0]})
        >>> why = pd.DataFrame({"model": ["a"], "metric": ["x"], "reason": ["empty in the file"]})
        >>> empty_parts(frame, ScoreParts(memorization=("x",), membership=("s",)), why)
        {'x': 'empty in the file', 'uds': None}
    """
    found: dict[str, str | None] = {}
    for name in dict.fromkeys((*parts.metrics, parts.utility)):
        if name not in frame.columns:
            found[name] = None
        elif frame[name].isna().all():
            found[name] = reason_of(name, frame, reasons)
    return found


def reason_of(name: str, frame: pd.DataFrame, reasons: pd.DataFrame | None) -> str | None:
    """The reason that most models of `frame` share; None without one."""
    if reasons is None or not len(reasons):
        return None
    own = reasons[(reasons["metric"] == name) & reasons["model"].isin(frame["model"])]
    return str(own["reason"].value_counts().index[0]) if len(own) else None


def score_cautions(frame: pd.DataFrame, parts: ScoreParts) -> list[str]:
    """What to know before quoting a ranking: constant parts, and few models.

    Args:
        frame: Unlearned models with the columns of `parts`.
        parts: Columns of the score.

    Returns:
        Sentences; none where nothing is to be said or no model can be scored.

    Example:
        >>> import pandas as pd
        >>> frame = pd.DataFrame({"x": [0.5, 0.5], "s": [0.1, 0.2], "d": [0.3, 0.4], "utility_rel": [1.0, 0.9]})
        >>> for each in score_cautions(frame, ScoreParts(memorization=("x",), membership=("s",), depth="d")):
        ...     print(each)
        only 2 models have a score: P(first) is about these models alone, and the order of methods is open
        x is 0.5 for all 2 models: a part that is the same for all tells none apart
    """
    names = list(dict.fromkeys((*parts.metrics, parts.utility)))
    scored = frame[names].astype(float).dropna()
    n = len(scored)
    if not n:
        return []
    told = []
    if n < FEW:
        models = "model has" if n == 1 else "models have"
        told.append(
            f"only {n} {models} a score: P(first) is about these models alone, and the order of methods is open"
        )
    if n < 2:
        return told
    for name in names:
        values = scored[name].to_numpy()
        if float(np.ptp(values)) <= 1e-12:
            told.append(
                f"{name} is {values[0]:g} for all {n} models: a part that is the same for all tells none apart"
            )
    return told
