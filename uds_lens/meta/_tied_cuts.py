"""Cuts that separate the pools equally well, and what the order of the metrics would be with each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from uds_lens.meta._columns import TIED_CUTS
from uds_lens.meta._direction import Points
from uds_lens.meta._robustness import robustness
from uds_lens.meta._summary import summary

if TYPE_CHECKING:
    import pandas as pd


def tied_cuts(
    before: pd.DataFrame,
    *,
    thresholds: pd.DataFrame,
    faithful: pd.DataFrame,
    quantised: pd.DataFrame | None = None,
    relearned: pd.DataFrame | None = None,
    retain_before: pd.DataFrame | None = None,
    retain_relearned: pd.DataFrame | None = None,
    min_utility: float | None = 0.8,
    symmetric: bool = True,
    metrics: Sequence[str] | None = None,
    direction: Mapping[str, Points] | None = None,
) -> pd.DataFrame:
    """Judge every metric at each of its best cuts, while the others keep theirs.

    Youden's J often has its maximum at several cuts. The lowest is taken, by convention; which models a metric calls
    unlearned, and so its Q, R and place, can be others with the next.

    Args:
        before: As in `robustness`.
        thresholds: Result of `thresholds`, with all cuts.
        faithful: Result of `faithfulness`, for Overall.
        quantised: As in `robustness`.
        relearned: As in `robustness`.
        retain_before: As in `robustness`.
        retain_relearned: As in `robustness`.
        min_utility: As in `robustness`; None leaves the setting with utility out.
        symmetric: As in `robustness`.
        metrics: As in `robustness`.
        direction: As in `robustness`.

    Returns:
        One row per filter setting with a threshold, metric with several best cuts, and cut; columns as in
        `uds_lens.meta.TIED_CUTS`.

    Raises:
        DataError: A column is missing or holds no numbers; a perturbed model is not in `before`.
        ConfigError: A direction is not known.

    Example:
        >>> import pandas as pd
        >>> from uds_lens.meta import faithfulness, thresholds
        >>> pools = pd.DataFrame({"knows": [1, 1, 1, 0, 0, 0], "x": [0.9, 0.8, 0.3, 0.4, 0.2, 0.1]})
        >>> ways = {"x": "knowledge"}
        >>> before = pd.DataFrame({"model": ["a", "b"], "x": [0.2, 0.5]})
        >>> table = tied_cuts(before, quantised=before, thresholds=thresholds(pools, direction=ways), min_utility=None,
        ...                   faithful=faithfulness(pools, direction=ways), direction=ways)
        >>> table[["threshold", "chosen", "n"]].round(2).values.tolist()
        [[0.25, True, 1], [0.6, False, 2]]
    """
    import pandas as pd

    given: dict[str, Any] = {
        "quantised": quantised,
        "relearned": relearned,
        "retain_before": retain_before,
        "retain_relearned": retain_relearned,
        "symmetric": symmetric,
        "direction": direction,
    }
    rows: list[dict[str, Any]] = []
    for least in dict.fromkeys((None, min_utility)):
        base = robustness(before, thresholds=thresholds, min_utility=least, metrics=metrics, **given)
        tied = thresholds[thresholds["metric"].isin(base["metric"]) & (thresholds["n_best"] > 1)]
        for cut in tied.to_dict("records"):
            metric = str(cut["metric"])
            own = robustness(
                before,
                thresholds={metric: float(cut["threshold"])},
                min_utility=least,
                metrics=[metric],
                **given,
            )
            table = summary(faithful, pd.concat([base[base["metric"] != metric], own], ignore_index=True))
            row = table.set_index("metric").loc[metric]
            leader = table.loc[table["rank_overall"] == 1, "metric"]
            rows.append(
                {
                    "metric": metric,
                    "filter": own["filter"].iloc[0],
                    **{name: cut[name] for name in ("threshold", "chosen", "n_best")},
                    **{
                        name: row[name]
                        for name in ("n", "q", "r", "rob", "overall", "rank_overall", "reason")
                    },
                    "first": leader.iloc[0] if len(leader) else None,
                }
            )
    return pd.DataFrame(rows, columns=list(TIED_CUTS))
