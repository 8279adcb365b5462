"""Faithfulness and robustness together: one table that judges metrics."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from uds_lens.errors import DataError
from uds_lens.meta._columns import SUMMARY
from uds_lens.meta._ranking import places
from uds_lens.meta._tables import harmonic_means


def summary(
    faithful: pd.DataFrame,
    robust: pd.DataFrame | None = None,
    *,
    printed: pd.DataFrame | None = None,
    decimals: int = 3,
) -> pd.DataFrame:
    """Combine F, Q and R of every metric into robustness and Overall, with places.

    `Rob = HM(Q, R)` and `Overall = HM(F, Rob)`; HM is the harmonic mean, 0 if a part is 0 and NaN if one is NaN.

    Args:
        faithful: `metric` and `auc`, from `faithfulness` or `read_published(...).metrics`.
        robust: `metric`, `q`, `r` and perhaps `n` and `p_first`, from `robustness` at one filter setting; None:
            `faithful` has them.
        printed: `metric` with `rob_printed` and `overall_printed` to compare with; adds `rob_agrees` and
            `overall_agrees` (missing where nothing is printed).
        decimals: Of the comparison.

    Returns:
        One row per metric of `faithful`, columns as in `uds_lens.meta.SUMMARY`; higher is better everywhere. Places
        count only metrics that have the number.

    Raises:
        DataError: A column is missing, a metric occurs twice, or a number is negative.

    Example:
        >>> import pandas as pd
        >>> row = summary(pd.DataFrame({"metric": ["x"], "auc": [0.9], "q": [0.9], "r": [0.6]})).iloc[0]
        >>> f"{row['rob']:.3f} {row['overall']:.3f}"
        '0.720 0.800'
    """
    robust = faithful if robust is None else robust
    left = _by_metric(faithful, ["auc"], "faithfulness(...)")
    right = _by_metric(robust, ["q", "r"], "robustness(...) at one filter setting").reindex(left.index)
    table = pd.DataFrame({"auc": left["auc"], "q": right["q"], "r": right["r"]}).astype(float)
    if (table < 0).any(axis=None):
        raise DataError("F, Q and R must be >= 0; the tables hold a negative number.")
    table["rob"] = harmonic_means(table[["q", "r"]].to_numpy())
    table["overall"] = harmonic_means(table[["auc", "rob"]].to_numpy())
    for name in ("n", "p_first"):
        table[name] = right[name] if name in right.columns else np.nan
    for name in ("auc", "rob", "overall"):
        table[f"rank_{name}"] = places(table[name].to_numpy())
    table["reason"] = [_reason(left.loc[name], right.loc[name]) for name in table.index]
    table = table.rename_axis("metric").reset_index()[list(SUMMARY)]
    if printed is None:
        return table
    reported = _by_metric(printed, ["rob_printed", "overall_printed"], "read_published(...).metrics")
    for name in ("rob", "overall"):
        expected: Any = reported[f"{name}_printed"].reindex(table["metric"]).to_numpy(dtype=float)
        # Half a unit in the last place, and a hair for binary fractions.
        close = np.abs(table[name].to_numpy(dtype=float) - expected) <= 0.5 * 10.0**-decimals + 1e-9
        table[f"{name}_printed"] = expected
        table[f"{name}_agrees"] = np.where(np.isnan(expected), None, close)
    return table


def _by_metric(frame: pd.DataFrame, columns: list[str], source: str) -> pd.DataFrame:
    if missing := [name for name in ("metric", *columns) if name not in frame.columns]:
        raise DataError(f"the table lacks {', '.join(missing)}: pass the result of {source}.")
    twice = frame["metric"][frame["metric"].duplicated()]
    if len(twice):
        raise DataError(f"{twice.iloc[0]!r} occurs twice: pass the result of {source}.")
    return frame.set_index("metric")


def _reason(left: pd.Series, right: pd.Series) -> str | None:
    reasons = []
    for row, value, name in ((left, "auc", "reason"), (right, "q", "q_reason"), (right, "r", "r_reason")):
        if pd.isna(row[value]):
            why = row.get(name)
            reasons.append(f"{value}: {why if isinstance(why, str) else 'not given'}")
    return "; ".join(reasons) or None
