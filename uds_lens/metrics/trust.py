"""How far metrics could be trusted where that was tried: in the study of the small TOFU Llamas.

`trust.csv` is written by `studies/tofu_small/judge.py` from the study's table; the rule by which a metric is warned of
was fixed before.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

HOLDS_TOO_LITTLE = 0.75
"""F below which, with its whole interval, a metric is warned of; the UDS paper draws its line there too."""

CHANCE = 0.5
"""F of a metric that knows nothing of what a model knows."""


@dataclass(frozen=True)
class Trust:
    """What the study found of one metric."""

    faithfulness: float
    """F: how often it ranks a model that was trained on the forget set above one that was not. 0.5 is chance."""

    low: float
    """Lower end of its 95 % interval, over runs of the same variants; Wilson's where F is 1."""

    high: float
    """Upper end."""

    quantisation: float
    """Q, over models that are still useful: how little 4 bits move it; NaN where undefined."""

    relearning: float
    """R, over the same: how alike relearning moves it in unlearned and in retain models; NaN where undefined."""

    @property
    def is_doubtful(self) -> bool:
        """Whether its interval lies below 0.75, or holds 0.5: then the library warns of it."""
        return self.high < HOLDS_TOO_LITTLE or self.low <= CHANCE <= self.high

    def __str__(self) -> str:
        return f"F {self.faithfulness:.2f}, 95 % {self.low:.2f} to {self.high:.2f}"


@cache
def studied() -> Mapping[str, Trust]:
    """What the study found, by metric; metrics that were not in it are not here.

    Example:
        >>> found = studied()["uds"]
        >>> 0 <= found.low <= found.faithfulness <= found.high <= 1
        True
    """
    with Path(__file__).with_name("trust.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    columns = ("F", "low", "high", "Q", "R")
    return {row["metric"]: Trust(*(float(row[name] or math.nan) for name in columns)) for row in rows}
