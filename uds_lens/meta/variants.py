"""Faithfulness by kind of training: each variant of P against each of N, and with one of them left out."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from uds_lens.checked_arguments import arguments_checked
from uds_lens.errors import DataError
from uds_lens.meta.declarations import Points
from uds_lens.meta.direction import directions, oriented
from uds_lens.meta.placements import NO_INTERVAL, clustered_interval, pair_kernel
from uds_lens.meta.pools import split_pools
from uds_lens.meta.required_columns import LEAVE_ONE_OUT, VARIANTS
from uds_lens.meta.resampling import check_resampling

if TYPE_CHECKING:
    import pandas as pd


@arguments_checked
def variant_table(
    frame: pd.DataFrame,
    *,
    metrics: Sequence[str] | None = None,
    direction: Mapping[str, Points] | None = None,
    label: str = "knows",
    variant: str = "variant",
    run: str = "run",
    confidence: float = 0.95,
) -> pd.DataFrame:
    """F between each variant of P and each variant of N.

    A high F over all models can hide a variant that a metric misreads; with three variants per pool nine numbers
    show it. Each has an interval for more runs of these two variants: t on the logit scale with runs as clusters,
    Wilson's with the smaller number of runs where F is 0 or 1. The lowest of nine numbers is low by chance too; nothing
    is adjusted for that.

    Args:
        frame: One row per model: metrics, `label`, `variant`.
        metrics: Which columns; None takes the declared metrics, or those of `direction`.
        direction: What a higher value means, for metrics that are not declared.
        label: Column with the pool.
        variant: Column with the kind of training.
        run: Column with the training run; without it, or where it has gaps, there is no interval.
        confidence: Of the intervals.

    Returns:
        One row per metric and pair of variants, columns as in `uds_lens.meta.VARIANTS`; `auc` is NaN where one of
        the two has no value, the interval where one of them has a single run.

    Raises:
        DataError: A column is missing; a pool is empty.
        ConfigError: A direction is not known.

    Example:
        >>> import pandas as pd
        >>> frame = pd.DataFrame({"knows": [1, 1, 1, 0, 0], "variant": list("abbcc"), "x": [0.9, 0.1, 0.6, 0.2, 0.3]})
        >>> variant_table(frame, direction={"x": "knowledge"})["auc"].tolist()
        [1.0, 0.5]
    """
    import pandas as pd

    check_resampling(confidence, 2)
    rows: list[dict[str, Any]] = []
    pools = split_pools(frame, label, (variant, run))
    for name, m, knows, names in _oriented(frame, metrics, direction, label, variant):
        there = ~np.isnan(m)
        for one in dict.fromkeys(names[knows]):
            for other in dict.fromkeys(names[~knows]):
                in_p = np.flatnonzero(knows & (names == one) & there)
                in_n = np.flatnonzero(~knows & (names == other) & there)
                p, n = m[in_p], m[in_n]
                kernel = pair_kernel(p, n)
                tied = float((p[:, None] == n[None, :]).mean()) if kernel.size else math.nan
                ends = NO_INTERVAL
                if kernel.size and pools.clusters is not None:
                    of_p, of_n = ([pools.clusters[i] for i in rows] for rows in (in_p, in_n))
                    ends = clustered_interval(kernel, of_p, of_n, confidence)
                rows.append(
                    {
                        "metric": name,
                        "variant_p": one,
                        "variant_n": other,
                        "auc": float(kernel.mean()) if kernel.size else math.nan,
                        "low": ends.low,
                        "high": ends.high,
                        "n_p": len(p),
                        "n_n": len(n),
                        "tied_share": tied,
                    }
                )
    return pd.DataFrame(rows, columns=list(VARIANTS))


@arguments_checked
def leave_one_variant_out(
    frame: pd.DataFrame,
    *,
    metrics: Sequence[str] | None = None,
    direction: Mapping[str, Points] | None = None,
    label: str = "knows",
    variant: str = "variant",
) -> pd.DataFrame:
    """F with each variant left out in turn: how much hangs on one of them.

    Args:
        frame: One row per model: metrics, `label`, `variant`.
        metrics: Which columns; None takes the declared metrics, or those of `direction`.
        direction: What a higher value means, for metrics that are not declared.
        label: Column with the pool.
        variant: Column with the kind of training.

    Returns:
        One row per metric and variant, columns as in `uds_lens.meta.LEAVE_ONE_OUT`; `auc` is NaN where nothing is
        left of a pool.

    Raises:
        DataError: A column is missing; a pool is empty.
        ConfigError: A direction is not known.

    Example:
        >>> import pandas as pd
        >>> frame = pd.DataFrame({"knows": [1, 1, 1, 0, 0], "variant": list("abbcd"), "x": [0.9, 0.1, 0.6, 0.2, 0.3]})
        >>> leave_one_variant_out(frame, direction={"x": "knowledge"})[["pool", "variant", "auc"]].values.tolist()
        [['P', 'a', 0.5], ['P', 'b', 1.0], ['N', 'c', 0.6666666666666666], ['N', 'd', 0.6666666666666666]]
    """
    import pandas as pd

    rows: list[dict[str, Any]] = []
    for name, m, knows, names in _oriented(frame, metrics, direction, label, variant):
        there = ~np.isnan(m)
        strata = [(bool(k), str(v)) for k, v in zip(knows[there], names[there], strict=True)]
        for stratum, auc, n_p, n_n in left_out(m[there], strata):
            pool = "P" if stratum[0] else "N"
            rows.append(
                {"metric": name, "pool": pool, "variant": stratum[1], "auc": auc, "n_p": n_p, "n_n": n_n}
            )
    return pd.DataFrame(rows, columns=list(LEAVE_ONE_OUT))


def left_out(m: np.ndarray, strata: Sequence[Any]) -> list[tuple[Any, float, int, int]]:
    """Each stratum `(pool, variant, ...)`: itself, F without it (NaN for an empty pool), what stays of P and N."""
    found = []
    for stratum in dict.fromkeys(strata):
        kept = [i for i, other in enumerate(strata) if other != stratum]
        p = m[[i for i in kept if strata[i][0]]]
        n = m[[i for i in kept if not strata[i][0]]]
        kernel = pair_kernel(p, n)
        found.append((stratum, float(kernel.mean()) if kernel.size else math.nan, len(p), len(n)))
    return found


def _oriented(
    frame: pd.DataFrame,
    metrics: Sequence[str] | None,
    direction: Mapping[str, Points] | None,
    label: str,
    variant: str,
) -> list[tuple[str, np.ndarray, np.ndarray, np.ndarray]]:
    ways = directions(frame, metrics, direction)
    pools = split_pools(frame, label, (variant, variant))
    if pools.problem is not None:
        raise DataError(f"{pools.problem}: it says which kind of training a model had.")
    names = pools.frame[variant].astype(str).to_numpy(dtype=object)
    return [
        (name, oriented(pools.frame[name], points).to_numpy(), pools.knows, names)
        for name, points in ways.items()
    ]
