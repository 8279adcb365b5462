"""How far metrics could be trusted where that was tried: in the study of the small TOFU Llamas.

`trust.csv` is written by `studies/tofu_small/judge.py` from the study's table. There are two rules by which a metric is
warned of. The first, on the F of all models, was fixed before the study was complete. The second, on the worst pair of
kinds of models, was made after its results had been seen.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

HOLDS_TOO_LITTLE = 0.75
"""F below which, with its whole interval, a metric is warned of; the UDS paper draws its line there too."""

CHANCE = 0.5
"""F of a metric that knows nothing of what a model knows."""


_COLUMNS = {
    "F": "faithfulness",
    "low": "low",
    "high": "high",
    "Q": "quantisation",
    "R": "relearning",
    **{f"{name}_{end}": f"{name}_{end}" for name in ("variants", "new", "worst") for end in ("low", "high")},
    "worst": "worst",
}
"""Numbers of `trust.csv` and the fields they go to."""


@dataclass(frozen=True)
class Trust:
    """What the study found of one metric."""

    faithfulness: float
    """F: how often it ranks a model that was trained on the forget set above one that was not. 0.5 is chance."""

    low: float
    """Lower end of its 95 % interval for more runs of the study's six kinds of models, and for no other kind; Wilson's
    where F is 1."""

    high: float
    """Upper end."""

    quantisation: float
    """Q, over models that are still useful: how little 4 bits move it; NaN where undefined."""

    relearning: float
    """R, over the same: how alike relearning moves it in unlearned and in retain models; NaN where undefined."""

    variants_low: float = math.nan
    """Smallest F with one of the six kinds left out."""

    variants_high: float = math.nan
    """Largest."""

    new_low: float = math.nan
    """Lower end of the 95 % interval of F for kinds of models that the study did not have, with kinds as clusters;
    Wilson's for three kinds where F is 1."""

    new_high: float = math.nan
    """Upper end."""

    worst: float = math.nan
    """F in the worst of the nine pairs of a kind that knows and a kind that does not, 10 models each."""

    worst_low: float = math.nan
    """Lower end of its 95 % interval, over runs; not adjusted for being the worst of nine."""

    worst_high: float = math.nan
    """Upper end."""

    worst_pair: str = ""
    """Which pair that is."""

    @property
    def is_doubtful(self) -> bool:
        """Whether its interval lies below 0.75, or holds 0.5: then the library warns of it."""
        return self.high < HOLDS_TOO_LITTLE or self.low <= CHANCE <= self.high

    @property
    def fails_a_pair(self) -> bool:
        """Whether the interval of its worst pair of kinds reaches 0.5: then the library warns of it too.

        This rule was made after the results had been seen. With five runs a side, an F of 0.86 does not pass it.
        """
        return self.worst_low <= CHANCE

    def __str__(self) -> str:
        told = f"F {self.faithfulness:.2f}, 95 % {self.low:.2f} to {self.high:.2f} for the kinds of models it had"
        return (
            told
            if math.isnan(self.new_low)
            else f"{told}, {self.new_low:.2f} to {self.new_high:.2f} for new kinds"
        )


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
    found = {}
    for row in rows:
        numbers: dict[str, Any] = {field: float(row[name] or math.nan) for name, field in _COLUMNS.items()}
        found[row["metric"]] = Trust(**numbers, worst_pair=row["worst_pair"])
    return found
