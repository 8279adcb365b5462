"""What a reader returns: a table of models, and why values are missing in it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from uds_lens.checked_arguments import arguments_checked

if TYPE_CHECKING:
    import pandas as pd


@arguments_checked
@dataclass(frozen=True, eq=False, kw_only=True)
class ModelTable:
    """Models with their metrics, as a reader found them."""

    frame: pd.DataFrame
    """One row per model: `model`, metrics by the names of `uds_lens.metrics.METRICS`, and what is known of `method`,
    `config`, `lr`, `epochs`, `utility_rel` and the rest of `uds_lens.meta.MODELS`."""

    reasons: pd.DataFrame
    """Why values are NaN: `model`, `metric`, `reason`."""

    source: str
    """Where it was read."""

    examples: pd.DataFrame | None = None
    """Values per example, where they were asked for: `model`, `metric`, `example_id`, `value`. Ids of the
    holdout set of an attack begin with "holdout/"."""

    def __len__(self) -> int:
        return len(self.frame)


@arguments_checked
@dataclass(frozen=True, eq=False, kw_only=True)
class Published(ModelTable):
    """What the UDS paper's repository publishes."""

    metrics: pd.DataFrame
    """The paper's judgement of 22 metrics: columns of `uds_lens.meta.PUBLISHED`."""

    references: pd.DataFrame
    """The models `full` and `retain`; `frame` holds the unlearned ones only."""
