"""The tables of a dashboard, with their texts.

First the texts (metrics, methods, sources and cautions), then models with scores, metrics, and missing values.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from uds_lens import meta
from uds_lens._settings import validated
from uds_lens._types import NonNegativeInt
from uds_lens.errors import DataError, UdsLensError
from uds_lens.meta import ModelTable, Published, ScoreParts, Stability
from uds_lens.meta._columns import REASONS, ROBUSTNESS, SUMMARY
from uds_lens.meta._direction import Points
from uds_lens.meta._ranking import View, empty_parts, score_cautions
from uds_lens.meta._tables import require_one_setup
from uds_lens.metrics import METRICS
from uds_lens.plots._style import require
from uds_lens.results._other_cautions import (
    PUBLISHED,
    about_missing_scores,
    about_new_variants,
    about_overlap,
    about_ties,
    few_filtered,
    few_pool_models,
    not_ranked,
    sentence,
    significant_differences,
)

if TYPE_CHECKING:
    import pandas as pd


# Texts stored next to the templates: formulas and meanings of metrics, names of methods as their authors write them
# (for methods of this package, the UDS paper and Open-Unlearning's trainers), and publications.
_TEXTS = json.loads((Path(__file__).parent / "page" / "words.json").read_text(encoding="utf-8"))

_ALSO = {"s_mia_zlib": "s_mia_loss", "s_mia_min_k": "s_mia_loss", "s_mia_min_kpp": "s_mia_loss"}


def definition(metric: str) -> Sequence[str] | None:
    """Return the formula and meaning of a metric; None if this package does not define the metric.

    >>> definition("s_mia_zlib")[0] == definition("s_mia_loss")[0], definition("mine")
    (True, None)
    """
    return _TEXTS["definitions"].get(
        "fisher_masked" if metric.startswith("fisher_masked_0.") else _ALSO.get(metric, metric)
    )


def method_name(method: str) -> str:
    """Write a method's name as its authors do, and leave unknown names as they are.

    >>> method_name("simnpo"), method_name("GradAscent"), method_name("mine")
    ('SimNPO', 'GradAscent', 'mine')
    """
    return str(_TEXTS["methods"].get(str(method).lower().replace("_", ""), method))


class Source(NamedTuple):
    """A publication: authors, year and title, and the URL (empty if there is none)."""

    text: str
    url: str


def sources(metrics: Iterable[str], methods: Iterable[str]) -> list[Source]:
    """Return the publications cited on the page, the UDS paper first."""
    named, used = [str(name) for name in metrics], {str(method).lower() for method in methods}
    wanted = ["uds", "open_unlearning"]
    if named or used & {"graddiff", "idknll", "idkdpo"}:
        wanted.append("tofu")
    for key in ("es", "em", "rouge", "mia_loss", "mia_zlib", "mia_min_k", "mia_min_kpp", "cka", "logit_lens"):
        wanted += [key] if any(name in (key, f"s_{key}") for name in named) else []
    for key in ("s_mia", "fisher"):
        wanted += [key] if any(name.startswith(key) for name in named) else []
    with_papers = ("npo", "simnpo", "altpo", "rmu", "undial", "wga", "satimp", "ceu", "pdu", "rr", "rmulat", "undo")
    wanted += [key for key in with_papers if key in used]
    return [Source(*_TEXTS["papers"][key]) for key in (*wanted, *(["hanley", "delong", "holm"] if named else []))]


FULL_FILTER = "utility+threshold"  # the paper's filter: enough utility, and unlearned according to the metric


def metric_label(name: str) -> str:
    """Return a metric's label in this package or, if it has none, its name."""
    return METRICS[name].label if name in METRICS else name


def labels(metrics: pd.DataFrame) -> dict[str, str]:
    """Return the label of each metric in a table or, if it has none, its name."""
    column = metrics["label"] if "label" in metrics.columns else [None] * len(metrics)
    return {
        str(name): label if isinstance(label, str) else str(name)
        for name, label in zip(metrics["metric"], column, strict=True)
    }


def default_title(tables: Tables) -> str:
    """Return the question that the tables can answer; without pools and perturbations, no metric is judged."""
    questions = ["which metrics can be trusted"] if len(tables.metrics) else []
    questions += [("and " if questions else "") + "which methods forget"] if len(tables.models) else []
    asked = ", ".join(questions) or "what do the tables show"
    return f"{asked[:1].upper()}{asked[1:]}?"


def judged(tables: Tables, setting: str, models: str = "own") -> pd.DataFrame:
    """Return F, Q, R, Rob and Overall with ranks at one filter setting, for one metric per family."""
    import pandas as pd

    rows = tables.robust[(tables.robust["filter"] == setting) & (tables.robust["models"] == models)]
    if not len(tables.main) or not len(rows):
        return pd.DataFrame(columns=list(SUMMARY))
    return meta.summary(tables.main, rows)


def _ranking(tables: Tables, by: View) -> pd.DataFrame:
    options = tables.options
    return meta.rank(tables.models, select_by=by, min_utility=options.min_utility, parts=options.parts)


def cautions(tables: Tables) -> list[str]:
    """Return cautions to read before quoting a number from the page."""
    return [
        *tables.gaps,
        *_same_variants(tables),
        *_open_order(tables),
        *_few_models(tables),
        *_ties(tables),
        *(PUBLISHED if tables.published else ()),
    ]


def _same_variants(tables: Tables) -> Iterator[str]:
    metrics = tables.metrics
    if "new_variants_low" not in metrics.columns or not metrics["new_variants_low"].notna().any():
        return
    top = metrics.loc[metrics["auc"].idxmax()]
    label = labels(metrics)[str(top["metric"])]
    yield about_new_variants(label, top["new_variants_low"], top["new_variants_high"])


def _open_order(tables: Tables) -> Iterator[str]:
    main, label = tables.main, labels(tables.metrics)
    if len(main) < 2 or main["auc"].notna().sum() < 2:
        return
    if tables.pairs is not None:
        yield significant_differences(tables.pairs, most=0)
        return
    top = main.sort_values("auc", ascending=False).iloc[:2].to_dict("records")
    if top[1]["high"] > top[0]["low"]:
        one, other = (f"{label[row['metric']]} {row['auc']:.3f} ({row['low']:.3f} to {row['high']:.3f})" for row in top)
        yield about_overlap(one, other)


def _few_models(tables: Tables) -> Iterator[str]:
    rows = tables.robust[(tables.robust["filter"] == FULL_FILTER) & (tables.robust["models"] == "own")]
    label = labels(tables.metrics)
    yield from few_filtered({label.get(row.metric, row.metric): float(row.n) for row in rows.itertuples()})
    if "caution" in rows.columns:
        for row in rows[rows["caution"].notna()].head(4).itertuples():
            yield f"{row.metric}: {row.caution}"


def _ties(tables: Tables) -> Iterator[str]:
    if not tables.ranked:
        return
    ranking = _ranking(tables, tables.options.select_by)
    ties = ranking[ranking["n_tied"] > 1].to_dict("records")
    if len(ties) > 2:
        yield about_ties({method_name(row["method"]): int(row["n_tied"]) for row in ties})
    else:
        for row in ties:
            yield f"{method_name(row['method'])}: {row['reason']}."
    scores = tables.models["score_with"]
    yield from about_missing_scores(int((scores == 0).sum()), int(scores.isna().sum()), len(scores))


PUBLISHED_POOL = 30
"""Number of models in each pool of the UDS paper (section 5); its released files have no values for pool models."""


@validated
@dataclass(frozen=True, kw_only=True)
class DashboardOptions:
    """How a dashboard scores models and chooses configurations.

    Raises:
        ConfigError: A value is outside its range.
    """

    parts: ScoreParts = field(default_factory=ScoreParts)
    """Columns of the score; `direction` says what a higher value of an undeclared metric means."""
    min_utility: float | None = None
    """Initial minimum `utility_rel` of a candidate; None for no minimum."""
    select_by: View = "without"
    """Initial rule that selects a method's configuration: the score without or with depth."""
    title: str | None = None
    """Heading of the page; None uses the question that the tables can answer."""
    n_resamples: NonNegativeInt = 1000
    """Number of resamples for each bootstrap."""


@dataclass(frozen=True, eq=False, kw_only=True)
class Tables:
    """The tables of a dashboard; a missing table is None or empty."""

    models: pd.DataFrame  # unlearned models, with the columns of `uds_lens.meta.score_models`
    references: pd.DataFrame  # `full` and `retain`, with the same columns
    # One row per metric: `metric`, `label`, `tags`, `family`, F with its intervals, means of the pools.
    metrics: pd.DataFrame
    robust: pd.DataFrame  # Q, R, Rob and n by metric and filter setting: columns of `COLUMNS["robustness"]`
    pools: pd.DataFrame | None  # models with and without the knowledge
    cuts: pd.DataFrame | None  # thresholds between the pools
    pairs: pd.DataFrame | None  # differences between metrics
    points: pd.DataFrame | None  # models before and after quantisation and relearning
    stability: Mapping[str, Stability]  # rank probabilities by the rule that selects configurations
    directions: Mapping[str, Points]  # what a higher value means for each metric in the score
    gaps: tuple[str, ...]  # notes on tables that could not be made or are based on few models
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
        """The metrics that represent their families."""
        return self.metrics[self.metrics["metric"] == self.metrics["family"]]


def gather(
    models: pd.DataFrame | ModelTable,
    *,
    pools: pd.DataFrame | None = None,
    robust: pd.DataFrame | None = None,
    points: pd.DataFrame | None = None,
    options: DashboardOptions | None = None,
) -> Tables:
    """Make all tables of a dashboard; the arguments are those of `uds_lens.report.dashboard`."""
    import pandas as pd

    options = options or DashboardOptions()
    table = models if isinstance(models, ModelTable) else None
    frame: Any = models if table is None else table.frame
    require(frame, ["model"], source="a table of models (uds_lens.meta.COLUMNS['models'])")
    if frame["model"].duplicated().any():
        twice = frame["model"][frame["model"].duplicated()].iloc[0]
        raise DataError(f"the model {str(twice)!r} occurs twice: expected one row per model.")
    gaps: list[str] = []
    reasons = pd.DataFrame(columns=list(REASONS)) if table is None else table.reasons
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
        robust=pd.DataFrame(columns=list(ROBUSTNESS)) if robust is None else robust,
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
    """Split a table into unlearned models, references (no method, no pool), and pool models."""
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
    """Add the columns of the score; if methods cannot be ranked, add a note that says why."""
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
            raise DataError("the table lacks the column 'method', the unlearning method of each model.")
        ways = meta.directions(unlearned, list(dict.fromkeys(parts.metrics)), parts.direction)
        unlearned, references = scored(unlearned), scored(references)
    except UdsLensError as problem:
        gaps.append(f"Methods are not ranked: {problem}")
        return unlearned, references, {}
    if unlearned["score_with"].isna().all():
        gaps.append(not_ranked(empty_parts(unlearned, parts, reasons)))
    gaps += map(sentence, score_cautions(unlearned, parts))
    return unlearned, references, ways


def _judged(
    pools: pd.DataFrame | None, options: DashboardOptions, gaps: list[str]
) -> tuple[pd.DataFrame, pd.DataFrame | None, pd.DataFrame | None]:
    """Compute F, thresholds and pairwise differences from pool models."""
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
    if len(faithful):
        gaps += few_pool_models(int(sizes["n_p"]), int(sizes["n_n"]))
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
    """Return the paper's numbers, with intervals derived from its pool sizes."""
    frame = published.metrics.copy()
    ends = [meta.hanley_mcneil(float(auc), PUBLISHED_POOL, PUBLISHED_POOL) for auc in frame["auc"]]
    frame["low"], frame["high"] = [end[0] for end in ends], [end[1] for end in ends]
    return frame.assign(interval="hanley-mcneil", n_p=PUBLISHED_POOL, n_n=PUBLISHED_POOL)


def _published_robustness(published: Published) -> pd.DataFrame:
    """Return Q and R under both filters from the paper's files, and under the utility filter alone from its text."""
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
    joined = joined.reindex(columns=list(ROBUSTNESS))
    return joined.assign(rob=meta.summary(joined.assign(metric=joined.index, auc=1.0))["rob"].to_numpy())


def _with_families(metrics: pd.DataFrame) -> pd.DataFrame:
    """Group metrics that differ only in a setting (a number at the end); the middle setting represents the family."""
    stems: dict[str, list[str]] = {}
    for name in metrics["metric"]:
        stems.setdefault(re.sub(r"_\d+(\.\d+)?$", "", str(name)), []).append(str(name))
    main: dict[str, str] = {}
    for names in stems.values():
        ordered = sorted(names, key=lambda name: float(name.rsplit("_", 1)[1]) if len(names) > 1 else 0.0)
        main |= dict.fromkeys(names, ordered[(len(ordered) - 1) // 2])
    return metrics.assign(family=[main[str(name)] for name in metrics["metric"]])
