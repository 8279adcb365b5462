"""The tables of a dashboard: models with scores, metrics with what is known of each, and what is missing."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from uds_lens import meta
from uds_lens._settings import validated
from uds_lens._types import NonNegativeInt
from uds_lens.errors import DataError, UdsLensError
from uds_lens.meta import ModelTable, Points, Published, ScoreParts, Stability
from uds_lens.meta._ranking import FEW, View, empty_parts, score_cautions
from uds_lens.meta._tables import require_one_setup
from uds_lens.plots._style import require
from uds_lens.report._dashboard_words import metric_label

if TYPE_CHECKING:
    import pandas as pd

PUBLISHED_POOL = 30
"""Models in each pool of the UDS paper (section 5 there); its files hold no value per model of the pools."""


@validated
@dataclass(frozen=True, kw_only=True)
class DashboardOptions:
    """How a dashboard scores models and chooses configurations.

    Raises:
        ConfigError: A value is outside its range.
    """

    parts: ScoreParts = field(default_factory=ScoreParts)
    """Columns of the score; its `direction` says what a higher value means, for metrics that are not declared."""
    min_utility: float | None = None
    """Smallest `utility_rel` of a candidate when the page opens; None takes all."""
    select_by: View = "without"
    """Choose a method's configuration by the score without or with depth, when the page opens."""
    title: str | None = None
    """Heading of the page; None asks what the tables can answer."""
    n_resamples: NonNegativeInt = 1000
    """Of the bootstraps."""


@dataclass(frozen=True, eq=False, kw_only=True)
class Tables:
    """The tables of one dashboard; None or empty where there is nothing."""

    models: pd.DataFrame  # unlearned models, with the columns of `uds_lens.meta.score_models`
    references: pd.DataFrame  # `full`, `retain`: the same columns
    # One row per metric: `metric`, `label`, `tags`, `family`, F with its intervals, means of the pools.
    metrics: pd.DataFrame
    robust: pd.DataFrame  # Q, R, Rob and n of each metric at each filter setting: columns of `uds_lens.meta.ROBUSTNESS`
    pools: pd.DataFrame | None  # models that know and models that do not
    cuts: pd.DataFrame | None  # thresholds between them
    pairs: pd.DataFrame | None  # differences between metrics
    points: pd.DataFrame | None  # models before and after quantisation and relearning
    stability: Mapping[str, Stability]  # probabilities of places, by the rule that selects configurations
    directions: Mapping[str, Points]  # what a higher value of each metric of the score means
    gaps: tuple[str, ...]  # what could not be made, and why; what is too small to say much
    reasons: pd.DataFrame  # why values are NaN: `model`, `metric`, `reason`
    source: str  # where the models come from
    published: bool  # whether these are the UDS paper's files
    options: DashboardOptions

    @property
    def ranked(self) -> bool:
        """Whether methods can be ranked."""
        return "score_with" in self.models.columns and bool(len(self.models))

    @property
    def main(self) -> pd.DataFrame:
        """The metrics that stand for their family."""
        return self.metrics[self.metrics["metric"] == self.metrics["family"]]


def gather(
    models: pd.DataFrame | ModelTable,
    *,
    pools: pd.DataFrame | None = None,
    robust: pd.DataFrame | None = None,
    points: pd.DataFrame | None = None,
    options: DashboardOptions | None = None,
) -> Tables:
    """Make all tables of a dashboard; arguments as for `uds_lens.report.dashboard`."""
    import pandas as pd

    options = options or DashboardOptions()
    table = models if isinstance(models, ModelTable) else None
    frame: Any = models if table is None else table.frame
    require(frame, ["model"], source="a table of models (uds_lens.meta.MODELS)")
    if frame["model"].duplicated().any():
        twice = frame["model"][frame["model"].duplicated()].iloc[0]
        raise DataError(f"the model {str(twice)!r} occurs twice: one row per model.")
    gaps: list[str] = []
    reasons = pd.DataFrame(columns=list(meta.REASONS)) if table is None else table.reasons
    unlearned, references, pooled = _split(frame)
    if table is not None and table.references is not None:
        references = pd.concat([references, table.references], ignore_index=True)
    require_one_setup(unlearned)
    pools = pooled if pools is None and len(pooled) else pools
    unlearned, references, ways = _scored(unlearned, references, options.parts, reasons, gaps)
    metrics, cuts, pairs = _judged(pools, options, gaps)
    if robust is not None and not len(metrics):
        names = list(dict.fromkeys(robust["metric"]))
        metrics = pd.DataFrame({"metric": names, "label": [metric_label(name) for name in names], "auc": np.nan})
        metrics["low"] = metrics["high"] = np.nan
    if isinstance(models, Published):
        metrics, robust = _published_metrics(models), _published_robustness(models)
    return Tables(
        models=unlearned,
        references=references,
        metrics=_with_families(metrics),
        robust=pd.DataFrame(columns=list(meta.ROBUSTNESS)) if robust is None else robust,
        pools=pools,
        cuts=cuts,
        pairs=pairs,
        points=points,
        stability=_stability(unlearned, options, None if table is None else table.examples, gaps),
        directions=ways,
        gaps=tuple(gaps),
        reasons=reasons,
        source="a data frame" if table is None else table.source,
        published=isinstance(models, Published),
        options=options,
    )


def _split(frame: pd.DataFrame) -> list[pd.DataFrame]:
    """Split into unlearned models, references (no method, no pool), and models of the pools."""
    none = np.zeros(len(frame), dtype=bool)
    pooled = frame["knows"].notna().to_numpy() if "knows" in frame.columns else none
    method = frame["method"].notna().to_numpy() if "method" in frame.columns else none
    named = frame["model"].isin(["full", "retain"]).to_numpy()
    unlearned = (method if method.any() else ~pooled) & ~named
    masks = (unlearned, ~unlearned & ~pooled, pooled)
    return [frame[mask].reset_index(drop=True) for mask in masks]


def _scored(
    unlearned: pd.DataFrame, references: pd.DataFrame, parts: ScoreParts, reasons: pd.DataFrame, gaps: list[str]
) -> tuple[pd.DataFrame, pd.DataFrame, dict[str, Points]]:
    """Add the columns of the score, and say why methods are not ranked."""
    if not len(unlearned):
        return unlearned, references, {}

    def scored(frame: pd.DataFrame) -> pd.DataFrame:
        if not len(frame):
            return frame
        wanted = [name for name in (*parts.metrics, parts.utility) if name in unlearned.columns]
        frame = frame.reindex(columns=[*frame.columns, *(name for name in wanted if name not in frame.columns)])
        columns = meta.score_models(frame, parts=parts).drop(columns="model")
        return frame.assign(**{name: columns[name] for name in columns})

    try:
        if "method" not in unlearned.columns:
            raise DataError("the table lacks the column 'method': which unlearning method made each model.")
        ways = meta.directions(unlearned, list(dict.fromkeys(parts.metrics)), parts.direction)
        unlearned, references = scored(unlearned), scored(references)
    except UdsLensError as problem:
        gaps.append(f"Methods are not ranked: {problem}")
        return unlearned, references, {}
    if unlearned["score_with"].isna().all():
        empty = empty_parts(unlearned, parts, reasons)
        without = ", ".join(f"{name} ({why})" if why else name for name, why in empty.items())
        no_value = f"no model has a value of {without}, which the score needs."
        gaps.append(f"Methods are not ranked: {no_value if without else 'no model has all parts of the score.'}")
    gaps += map(sentence, score_cautions(unlearned, parts))
    return unlearned, references, ways


def sentence(text: str) -> str:
    """Add a full stop; the first letter stays, which may begin a name.

    >>> sentence("es: constant")
    'es: constant.'
    """
    return text if text.endswith(".") else f"{text}."


def _judged(
    pools: pd.DataFrame | None, options: DashboardOptions, gaps: list[str]
) -> tuple[pd.DataFrame, pd.DataFrame | None, pd.DataFrame | None]:
    """Return F, thresholds and pairwise differences from models of known pools."""
    import pandas as pd

    nothing = pd.DataFrame(columns=["metric", "auc"]), None, None
    if pools is None:
        return nothing
    direction, n_resamples = options.parts.direction, options.n_resamples
    try:
        faithful = meta.faithfulness(pools, direction=direction, n_resamples=n_resamples)
        cuts = meta.thresholds(pools, direction=direction)
        pairs = None
        if len(faithful) > 1:
            pairs = meta.compare_all(pools, direction=direction, n_resamples=n_resamples)
    except UdsLensError as problem:
        gaps.append(f"Metrics are not judged: {problem}")
        return nothing
    gaps += [
        sentence(f"{row['metric']}: {row['reason']}")
        for row in faithful.to_dict("records")
        if isinstance(row["reason"], str)
    ]
    sizes = faithful[["n_p", "n_n"]].max()
    if len(faithful) and sizes.min() < FEW:
        gaps.append(
            f"F is from {sizes['n_p']:.0f} models that know and {sizes['n_n']:.0f} that do not: too few to order "
            "metrics."
        )
    chosen = cuts[cuts["chosen"].astype(bool)].set_index("metric")
    faithful["threshold"] = faithful["metric"].map(chosen["threshold"])
    faithful["label"] = [metric_label(name) for name in faithful["metric"]]
    return faithful, cuts, pairs


def _stability(
    unlearned: pd.DataFrame, options: DashboardOptions, examples: Any, gaps: list[str]
) -> dict[str, Stability]:
    if "score_with" not in unlearned.columns or unlearned["method"].nunique() < 2:
        return {}
    views: tuple[View, View] = ("without", "with")
    try:
        stable: dict[str, Stability] = {
            by: meta.stability(
                unlearned,
                examples=examples,
                select_by=by,
                min_utility=options.min_utility,
                parts=options.parts,
                n_resamples=options.n_resamples,
            )
            for by in views
        }
    except UdsLensError as problem:
        gaps.append(f"Ranks have no probabilities: {problem}")
        return {}
    gaps += dict.fromkeys(sentence(caution) for stability in stable.values() for caution in stability.cautions)
    return stable


def _published_metrics(published: Published) -> pd.DataFrame:
    """Return the paper's numbers with the interval that the sizes of its pools allow."""
    frame = published.metrics.copy()
    ends = [meta.hanley_mcneil(float(auc), PUBLISHED_POOL, PUBLISHED_POOL) for auc in frame["auc"]]
    frame["low"], frame["high"] = [end[0] for end in ends], [end[1] for end in ends]
    return frame.assign(interval="hanley-mcneil", n_p=PUBLISHED_POOL, n_n=PUBLISHED_POOL)


def _published_robustness(published: Published) -> pd.DataFrame:
    """Return Q and R under both filters as in the file, and under the utility filter alone as printed."""
    import pandas as pd

    metrics, useful = published.metrics, int((published.frame["utility_rel"] >= 0.8).sum())
    frames = []
    for setting, q, r, n in (
        ("utility+threshold", "q", "r", metrics["n"]),
        ("utility", "q_utility", "r_utility", useful),
    ):
        frame = metrics[["metric", "threshold"]].assign(q=metrics[q], r=metrics[r], n=n, filter=setting)
        frame["n"] = frame["n"].where(frame["q"].notna())
        frames.append(frame)
    joined = pd.concat(frames, ignore_index=True).assign(models="own")
    joined = joined.reindex(columns=list(meta.ROBUSTNESS))
    return joined.assign(rob=meta.summary(joined.assign(metric=joined.index, auc=1.0))["rob"].to_numpy())


def _with_families(metrics: pd.DataFrame) -> pd.DataFrame:
    """Mark metrics that are one metric at several settings (a number at the end); the middle one stands for all."""
    stems: dict[str, list[str]] = {}
    for name in metrics["metric"]:
        stems.setdefault(re.sub(r"_\d+(\.\d+)?$", "", str(name)), []).append(str(name))
    main: dict[str, str] = {}
    for names in stems.values():
        ordered = sorted(names, key=lambda name: float(name.rsplit("_", 1)[1]) if len(names) > 1 else 0.0)
        main |= dict.fromkeys(names, ordered[(len(ordered) - 1) // 2])
    return metrics.assign(family=[main[str(name)] for name in metrics["metric"]])
