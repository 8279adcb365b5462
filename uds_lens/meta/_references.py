"""Judging metrics by the references of many runs: is full ranked above retain, within each base model and split?"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import pandas as pd

from uds_lens.errors import DataError
from uds_lens.meta._columns import REFERENCES
from uds_lens.meta._direction import Points, directions
from uds_lens.meta._tables import SETUP


def references_apart(
    references: pd.DataFrame, *, metrics: Sequence[str], direction: Mapping[str, Points] | None = None
) -> pd.DataFrame:
    """Count the base models and splits in which a metric ranks full above retain.

    F over models of several base models would compare values that are not comparable. Here each full is compared with
    the retain of its own base model and split only: F within setups, `(right + tied / 2) / n`.

    Args:
        references: `role` ("full", "retain"), `base`, `split` and metrics, as in `ModelTable.references`.
        metrics: Columns to judge.
        direction: What a higher value means, for columns that are not metrics of ours.

    Returns:
        One row per metric, columns as in `uds_lens.meta.REFERENCES`.

    Raises:
        DataError: A column is missing, or no setup has both references.
        ConfigError: A metric has no direction.

    Example:
        >>> import pandas as pd
        >>> runs = pd.DataFrame({"role": ["full", "retain"], "base": "1B", "split": "forget10", "es": [0.9, 0.1]})
        >>> references_apart(runs, metrics=["es"])[["right", "tied", "n"]].values.tolist()
        [[1, 0, 1]]
    """
    if absent := [name for name in ("role", *SETUP) if name not in references.columns]:
        raise DataError(f"the table of references lacks {', '.join(absent)}.")
    pairs = []
    for _, group in references.groupby(list(SETUP), dropna=False, sort=False):
        full, retain = (group[group["role"] == role] for role in ("full", "retain"))
        if len(full) and len(retain):
            pairs.append((full.iloc[0], retain.iloc[0]))
    if not pairs:
        raise DataError("no base model and split has both full and retain.")
    rows = []
    for name, points in directions(references, metrics, direction).items():
        sign = 1.0 if points == "knowledge" else -1.0
        gaps = [sign * (float(full[name]) - float(retain[name])) for full, retain in pairs]
        defined = [gap for gap in gaps if not math.isnan(gap)]
        right, tied = sum(gap > 0 for gap in defined), sum(gap == 0 for gap in defined)
        share = (right + tied / 2) / len(defined) if defined else math.nan
        rows.append((name, points, share, right, tied, len(defined), min(defined, default=math.nan)))
    return pd.DataFrame(rows, columns=list(REFERENCES))
