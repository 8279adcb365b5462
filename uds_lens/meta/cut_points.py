"""Where to cut a metric so that it calls a model unlearned."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from uds_lens.checked_arguments import arguments_checked
from uds_lens.meta.declarations import Points
from uds_lens.meta.direction import directions, oriented
from uds_lens.meta.pools import split_pools
from uds_lens.meta.required_columns import THRESHOLDS

if TYPE_CHECKING:
    import pandas as pd


@arguments_checked
def thresholds(
    frame: pd.DataFrame,
    *,
    metrics: Sequence[str] | None = None,
    direction: Mapping[str, Points] | None = None,
    label: str = "knows",
    models: pd.DataFrame | None = None,
) -> pd.DataFrame:
    """Every cut that separates the pools best, by Youden's J.

    `J = share of P above the cut - share of N above it`. Cuts lie midway between neighbouring pool values. Where
    several reach the largest J the lowest is chosen, the most careful one: "unlearned" means `m <= threshold`. The
    others are rows too, because the number of models called unlearned can differ much between them.

    Args:
        frame: One row per model: metrics and `label`.
        metrics: Which columns; None takes the declared metrics, or those of `direction`.
        direction: What a higher value means, for metrics that are not declared.
        label: Column with the pool.
        models: Unlearned models with the same metrics, to count those at or below each cut.

    Returns:
        One row per metric and best cut, columns as in `uds_lens.meta.THRESHOLDS`; a row with NaN and a reason where
        no cut is better than chance.

    Raises:
        DataError: A column is missing or holds no numbers; a pool is empty.
        ConfigError: A direction is not known.

    Example:
        >>> import pandas as pd
        >>> frame = pd.DataFrame({"knows": [1, 1, 1, 0, 0, 0], "x": [0.9, 0.8, 0.3, 0.4, 0.2, 0.1]})
        >>> found = thresholds(frame, direction={"x": "knowledge"})
        >>> found[["threshold", "chosen", "n_n_below"]].round(3).values.tolist()
        [[0.25, True, 2], [0.6, False, 3]]
    """
    import pandas as pd

    ways = directions(frame, metrics, direction)
    pools = split_pools(frame, label, ())
    rows: list[dict[str, Any]] = []
    for name, points in ways.items():
        m = oriented(pools.frame[name], points).to_numpy()
        p, n = m[pools.knows & ~np.isnan(m)], m[~pools.knows & ~np.isnan(m)]
        others = None
        if models is not None and name in models.columns:
            others = oriented(models[name], points).to_numpy()
        rows += _rows(name, points, p, n, others)
    return pd.DataFrame(rows, columns=list(THRESHOLDS))


def _rows(
    name: str, points: Points, p: np.ndarray, n: np.ndarray, others: np.ndarray | None
) -> list[dict[str, Any]]:
    empty = {
        **dict.fromkeys(THRESHOLDS, math.nan),
        "metric": name,
        "chosen": True,
        "n_best": 0,
        "reason": None,
    }
    if not len(p) or not len(n):
        return [{**empty, "reason": f"no model of {'P' if not len(p) else 'N'} has a value"}]
    levels = np.unique(np.concatenate([p, n]))
    cuts = (levels[:-1] + levels[1:]) / 2
    # Counts instead of shares: equal J must be equal to the last bit.
    p_below = (p[:, None] <= cuts).sum(0)
    n_below = (n[:, None] <= cuts).sum(0)
    scaled = n_below * len(p) - p_below * len(n)
    if not len(cuts) or scaled.max() <= 0:
        return [{**empty, "reason": "no cut puts more of P than of N above it"}]
    best = np.flatnonzero(scaled == scaled.max())
    return [
        {
            **empty,
            "threshold": float(cuts[at]),
            "value": float(cuts[at] if points == "knowledge" else 1 - cuts[at]),
            "chosen": place == 0,
            "youden": float(scaled[at]) / (len(p) * len(n)),
            "accuracy": float(len(p) - p_below[at] + n_below[at]) / (len(p) + len(n)),
            "n_best": len(best),
            "n_p_below": int(p_below[at]),
            "n_n_below": int(n_below[at]),
            "n_models": math.nan if others is None else int((others <= cuts[at]).sum()),
        }
        for place, at in enumerate(best)
    ]
