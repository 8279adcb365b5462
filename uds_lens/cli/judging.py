"""Metrics judged from the tables of a command: faithfulness, robustness by filter, what they come to."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from uds_lens.cli.model_tables import Perturbed
from uds_lens.errors import DataError

if TYPE_CHECKING:
    import pandas as pd

    from uds_lens.meta import Points

USEFUL = 0.8
"""Smallest `utility_rel` of a model that counts for Q and R, as in the UDS paper."""


class Judged(NamedTuple):
    """What is known of the metrics; None where the tables for it were not handed over."""

    faithful: pd.DataFrame | None
    cuts: pd.DataFrame | None
    pairs: pd.DataFrame | None
    robust: pd.DataFrame | None
    points: pd.DataFrame | None
    ties: pd.DataFrame | None = None


def judged(
    frame: pd.DataFrame,
    pools: pd.DataFrame | None,
    perturbed: Perturbed,
    direction: Mapping[str, Points] | None,
    min_utility: float | None,
    *,
    metrics: Sequence[str] | None = None,
    symmetric: bool = True,
    pairs: bool = False,
) -> Judged:
    """Judge the metrics of a table.

    Args:
        frame: Models; those with `knows` are pool models, the others unlearned ones.
        pools: Pool models of a table of their own.
        perturbed: Tables of quantised and relearned models.
        direction: As in `uds_lens.meta`.
        min_utility: None takes `USEFUL` where the table has `utility_rel`.
        metrics: Which columns.
        symmetric: As in `uds_lens.meta.robustness`.
        pairs: Whether all pairs of metrics are compared.
    """
    from uds_lens import meta

    pooled = frame["knows"].notna() if "knows" in frame.columns else frame["model"].isna()
    if pools is None and pooled.any():
        pools = frame[pooled].reset_index(drop=True)
    faithful = cuts = differences = robust = points = ties = None
    if pools is not None:
        faithful = meta.faithfulness(pools, metrics=metrics, direction=direction)
        cuts = meta.thresholds(pools, metrics=metrics, direction=direction)
        if pairs and len(faithful) > 1:
            differences = meta.compare_all(pools, metrics=metrics, direction=direction)
    if perturbed.given:
        before = frame[~pooled].reset_index(drop=True)
        if not len(before):
            raise DataError(
                "Q and R need unlearned models: rows with an empty 'knows', by the names of the perturbed ones."
            )
        useful = USEFUL if min_utility is None and "utility_rel" in before.columns else min_utility
        given: dict[str, Any] = {
            **perturbed.frames(),
            "thresholds": cuts,
            "min_utility": useful,
            "symmetric": symmetric,
        }
        given |= {"metrics": metrics, "direction": direction}
        robust = meta.robustness_by_filter(before, faithful=faithful, pools=pools, **given)
        points = meta.perturbation_points(before, **given)
        if faithful is not None:
            ties = meta.tied_cuts(before, faithful=faithful, **given)
    return Judged(faithful, cuts, differences, robust, points, ties)
