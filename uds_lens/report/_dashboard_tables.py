"""What a dashboard is about, in tables: models with scores, metrics with what is known of each, and what is missing."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from uds_lens import meta
from uds_lens.errors import DataError, UdsLensError
from uds_lens.meta import ModelTable, Points, Published, ScoreParts, Stability
from uds_lens.meta._ranking import FEW, View, empty_parts, score_cautions
from uds_lens.meta._tables import require_one_setup
from uds_lens.metrics import METRICS
from uds_lens.plots._style import require

if TYPE_CHECKING:
    import pandas as pd


# What the tables of a dashboard are too empty or too small for, in sentences.


def unscored(own: pd.DataFrame, parts: ScoreParts, reasons: pd.DataFrame | None) -> list[str]:
    """Why no model has a score, if none has."""
    if own["score_with"].notna().any():
        return []
    empty = empty_parts(own, parts, reasons)
    told = ", ".join(f"{name} ({why})" if why else name for name, why in empty.items())
    if not told:
        return ["Methods are not ranked: no model has all parts of the score."]
    return [f"Methods are not ranked: no model has a value of {told}, which the score is made of."]


def pool_cautions(faithful: pd.DataFrame) -> list[str]:
    """Metrics without F, and pools that are too small to say much."""
    told = [
        sentence(f"{row['metric']}: {row['reason']}")
        for row in faithful.to_dict("records")
        if isinstance(row["reason"], str)
    ]
    least = faithful[["n_p", "n_n"]].max()
    if len(faithful) and least.min() < FEW:
        told.append(
            f"F is from {least['n_p']:.0f} models that know and {least['n_n']:.0f} that do not: so few say nothing "
            "about the order of metrics."
        )
    return told


def sentence(text: str) -> str:
    """With a full stop; its first letter stays, which may begin a name.

    >>> sentence("es: constant")
    'es: constant.'
    """
    return text if text.endswith(".") else f"{text}."


_VIEWS: tuple[View, View] = ("without", "with")

PUBLISHED_POOL = 30
"""Models in each pool of the UDS paper (section 5 there); its files hold no value per model of the pools."""


@dataclass(frozen=True, eq=False, kw_only=True)
class Tables:
    """The tables of one dashboard; None or empty where there is nothing."""

    models: pd.DataFrame
    """Unlearned models: the table that was handed over, with the columns of `uds_lens.meta.score_models`."""
    references: pd.DataFrame
    """`full`, `retain`: the same columns."""
    metrics: pd.DataFrame
    """One row per metric: `metric`, `label`, `tags`, F with its interval, means of the pools; see `metric_table`."""
    robust: pd.DataFrame
    """Q, R, Rob and n of each metric at each filter setting: columns of `uds_lens.meta.ROBUSTNESS`."""
    pools: pd.DataFrame | None
    """Models that know and models that do not."""
    cuts: pd.DataFrame | None
    """Thresholds between them."""
    pairs: pd.DataFrame | None
    """Differences between metrics."""
    points: pd.DataFrame | None
    """Models before and after quantisation and relearning."""
    stability: Mapping[str, Stability]
    """How sure the places are, by the rule that selects configurations."""
    parts: ScoreParts
    """Columns of the score."""
    directions: Mapping[str, Points]
    """What a higher value of each metric of the score means."""
    gaps: tuple[str, ...]
    """What could not be made, and why; what is too little or too equal to say much."""
    reasons: pd.DataFrame
    """Why values are NaN: `model`, `metric`, `reason`."""
    source: str
    """Where the models come from."""
    published: bool
    """Whether these are the UDS paper's files."""
    min_utility: float | None
    """Smallest `utility_rel` of a candidate in the words of the page, and when it opens."""
    select_by: View
    """Rule that chooses configurations there."""

    @property
    def ranked(self) -> bool:
        """Whether methods can be ranked."""
        return "score_with" in self.models.columns and bool(len(self.models))


def gather(
    models: pd.DataFrame | ModelTable,
    *,
    pools: pd.DataFrame | None,
    robust: pd.DataFrame | None,
    points: pd.DataFrame | None,
    parts: ScoreParts | None,
    direction: Mapping[str, Points] | None,
    min_utility: float | None,
    select_by: View,
    n_resamples: int,
) -> Tables:
    """All tables of a dashboard from what was handed over; see `uds_lens.report.dashboard`."""
    import pandas as pd

    parts = parts or ScoreParts()
    if direction is not None:
        parts = replace(parts, direction=direction)
    table = models if isinstance(models, ModelTable) else None
    published = isinstance(models, Published)
    frame: Any = models if table is None else table.frame
    require(frame, ["model"], source="a table of models (uds_lens.meta.MODELS)")
    if frame["model"].duplicated().any():
        twice = frame["model"][frame["model"].duplicated()].iloc[0]
        raise DataError(f"the model {str(twice)!r} occurs twice: one row per model.")
    gaps: list[str] = []
    own, references, pooled = _split(frame)
    if isinstance(models, Published):
        references = pd.concat([references, models.references], ignore_index=True)
    require_one_setup(own)
    pools = pooled if pools is None and len(pooled) else pools
    own, references, ways = _scored(own, references, parts, gaps)
    if ways:
        reasons = None if table is None else table.reasons
        gaps += [*unscored(own, parts, reasons), *map(sentence, score_cautions(own, parts))]
    judged = _judged(pools, direction, n_resamples, gaps)
    if robust is not None and not len(judged["metrics"]):
        judged["metrics"] = _unjudged(robust)
    if isinstance(models, Published):
        judged["metrics"], robust = _as_published(models), _published_robustness(models)
    return Tables(
        models=own,
        references=references,
        metrics=_with_families(judged["metrics"]),
        robust=pd.DataFrame(columns=list(meta.ROBUSTNESS)) if robust is None else robust,
        pools=pools,
        cuts=judged["cuts"],
        pairs=judged["pairs"],
        points=points,
        stability=_stability(own, parts, min_utility, n_resamples, table, gaps),
        parts=parts,
        directions=ways,
        gaps=tuple(gaps),
        reasons=pd.DataFrame(columns=list(meta.REASONS)) if table is None else table.reasons,
        source="a data frame" if table is None else table.source,
        published=published,
        min_utility=min_utility,
        select_by=select_by,
    )


def _split(frame: pd.DataFrame) -> tuple[pd.DataFrame, pd.DataFrame, pd.DataFrame]:
    """Unlearned models, references (no method, no pool), and models of the pools."""
    none = np.zeros(len(frame), dtype=bool)
    pooled = frame["knows"].notna().to_numpy() if "knows" in frame.columns else none
    method = frame["method"].notna().to_numpy() if "method" in frame.columns else none
    named = frame["model"].isin(["full", "retain"]).to_numpy()
    own = method & ~named if method.any() else ~pooled & ~named
    rest = ~own & ~pooled
    parts = [frame[mask].reset_index(drop=True) for mask in (own, rest, pooled)]
    return parts[0], parts[1], parts[2]


def _scored(
    own: pd.DataFrame,
    references: pd.DataFrame,
    parts: ScoreParts,
    gaps: list[str],
) -> tuple[pd.DataFrame, pd.DataFrame, dict[str, Points]]:
    if not len(own):
        return own, references, {}
    try:
        if "method" not in own.columns:
            raise DataError("the table lacks the column 'method': which unlearning method made each model.")
        ways = meta.directions(own, list(dict.fromkeys(parts.metrics)), parts.direction)
        scored = [
            each.assign(
                **{
                    name: column
                    for name, column in meta.score_models(each, parts=parts).items()
                    if name != "model"
                }
            )
            if len(each)
            else each
            for each in (own, references)
        ]
    except UdsLensError as problem:
        gaps.append(f"Methods are not ranked: {problem}")
        return own, references, {}
    return scored[0], scored[1], ways


def _judged(
    pools: pd.DataFrame | None, direction: Mapping[str, Points] | None, n_resamples: int, gaps: list[str]
) -> dict[str, Any]:
    """F, thresholds and differences from models of known pools."""
    import pandas as pd

    nothing: dict[str, Any] = {
        "metrics": pd.DataFrame(columns=["metric", "auc"]),
        "cuts": None,
        "pairs": None,
    }
    if pools is None:
        return nothing
    try:
        faithful = meta.faithfulness(pools, direction=direction, n_resamples=n_resamples)
        cuts = meta.thresholds(pools, direction=direction)
        pairs = None
        if len(faithful) > 1:
            pairs = meta.compare_all(pools, direction=direction, n_resamples=n_resamples)
    except UdsLensError as problem:
        gaps.append(f"Metrics are not judged: {problem}")
        return nothing
    gaps += pool_cautions(faithful)
    chosen = cuts[cuts["chosen"].astype(bool)].set_index("metric")
    faithful["threshold"] = faithful["metric"].map(chosen["threshold"])
    faithful["label"] = [METRICS[name].label if name in METRICS else name for name in faithful["metric"]]
    return {"metrics": faithful, "cuts": cuts, "pairs": pairs}


def _unjudged(robust: pd.DataFrame) -> pd.DataFrame:
    """The metrics of Q and R where no pools give their F."""
    import pandas as pd

    names = list(dict.fromkeys(robust["metric"]))
    labels = [METRICS[name].label if name in METRICS else name for name in names]
    return pd.DataFrame({"metric": names, "label": labels, "auc": np.nan, "low": np.nan, "high": np.nan})


def _stability(
    own: pd.DataFrame,
    parts: ScoreParts,
    min_utility: float | None,
    n_resamples: int,
    table: ModelTable | None,
    gaps: list[str],
) -> dict[str, Stability]:
    if "score_with" not in own.columns or own["method"].nunique() < 2:
        return {}
    examples = None if table is None else table.examples
    try:
        found: dict[str, Stability] = {
            by: meta.stability(
                own,
                examples=examples,
                select_by=by,
                min_utility=min_utility,
                parts=parts,
                n_resamples=n_resamples,
            )
            for by in _VIEWS
        }
    except UdsLensError as problem:
        gaps.append(f"Places have no probabilities: {problem}")
        return {}
    told = dict.fromkeys(caution for each in found.values() for caution in each.cautions)
    gaps += map(sentence, told)
    return found


def _as_published(found: Published) -> pd.DataFrame:
    """The paper's numbers with the interval that the sizes of its pools allow."""
    frame = found.metrics.copy()
    ends = [meta.hanley_mcneil(float(auc), PUBLISHED_POOL, PUBLISHED_POOL) for auc in frame["auc"]]
    frame["low"], frame["high"] = [end[0] for end in ends], [end[1] for end in ends]
    frame["interval"], frame["n_p"], frame["n_n"] = "hanley-mcneil", PUBLISHED_POOL, PUBLISHED_POOL
    return frame


def _published_robustness(found: Published) -> pd.DataFrame:
    """Q and R under both filters as in the file, and under the utility filter alone as printed."""
    import pandas as pd

    useful = int((found.frame["utility_rel"] >= 0.8).sum())
    settings = (("utility+threshold", "q", "r", None), ("utility", "q_utility", "r_utility", useful))
    rows = []
    for setting, q, r, n in settings:
        for row in found.metrics.to_dict("records"):
            known = not np.isnan(row[q])
            rows.append(
                {
                    "metric": row["metric"],
                    "filter": setting,
                    "models": "own",
                    "n": (row["n"] if n is None else n) if known else np.nan,
                    "q": row[q],
                    "r": row[r],
                    "threshold": row["threshold"],
                }
            )
    frame = pd.DataFrame(rows).reindex(columns=list(meta.ROBUSTNESS))
    return frame.assign(rob=meta.summary(frame.assign(metric=frame.index, auc=1.0))["rob"].to_numpy())


def _with_families(metrics: pd.DataFrame) -> pd.DataFrame:
    """Which metrics are one metric at several settings, told by a number at the end: the middle one stands for all."""
    stems: dict[str, list[str]] = {}
    for name in metrics["metric"]:
        stems.setdefault(re.sub(r"_\d+(\.\d+)?$", "", str(name)), []).append(str(name))
    main: dict[str, str] = {}
    for names in stems.values():
        ordered = sorted(names, key=lambda name: float(name.rsplit("_", 1)[1]) if len(names) > 1 else 0.0)
        main |= dict.fromkeys(names, ordered[(len(ordered) - 1) // 2])
    return metrics.assign(family=[main[str(name)] for name in metrics["metric"]])
