"""Compare a run with the published values: differences, their explanations, and verdicts."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from uds_lens import meta, plots, study
from uds_lens.errors import DataError, warn_once
from uds_lens.meta import Published, read_published
from uds_lens.meta._columns import REASONS
from uds_lens.meta._pools import SMALLEST
from uds_lens.plots._style import count
from uds_lens.published._measured import MeasuredRun, read_run, same_prompts
from uds_lens.published._registry import (
    KNOWN_PROBLEMS,
    MARGIN,
    MARGINS,
    POOL_VALUES,
    VALUES,
    models,
    pool_values,
    values,
)
from uds_lens.results._other_cautions import about_published

if TYPE_CHECKING:
    import plotly.graph_objects as go
    from typing_extensions import Unpack

    from uds_lens.plots import Look

COMPARED = {
    "group": "models measured against the same full and retain",
    "model": "name on the authors' page",
    "metric": "name",
    "measured": "value in the run; NaN if the run has no value",
    "published": "value as printed",
    "low": "smallest value that rounds to the published value",
    "high": "largest such value",
    "kind": "exact, rounded, capped, or by definition",
    "difference": "measured - published",
    "beyond": "distance from the range of the published value; 0 within this range",
    "margin": "distance that counts as agreement",
    "verdict": "agrees, differs, differs as expected, or no value",
    "expect": "differences between the two measurements, and known problems with the published value",
}
"""Columns of `Comparison.frame`."""

BY_METRIC = {
    "metric": "name",
    "n": "models with both values",
    "agree": "number of models whose difference is within the margin",
    "differ": "number of models whose difference exceeds the margin without an explanation",
    "expected": "number of models whose difference exceeds the margin but is explained by a different measurement",
    "spearman": "rank correlation of measured and published values; NaN with fewer than 3 models or if either is "
    "constant",
    "mean_difference": "mean of measured - published",
    "largest_difference": "the difference with the largest absolute value, with its sign",
    "largest_model": "the model with the largest difference",
    "known": "known problems with the published values",
}
"""Columns of `Comparison.by_metric`."""

OF_POOLS = {
    "metric": "name",
    "quantity": "auc (F), mean_p, mean_n, q, r",
    "measured": "value of the run",
    "published": "value as printed",
    "beyond": "distance from the range of values that round to it",
    "n": "models measured",
    "of": "models of the paper",
    "verdict": "agrees, differs, or incomplete",
}
"""Columns of `Comparison.of_pools`."""

COLUMNS = {
    "values": VALUES,
    "pool_values": POOL_VALUES,
    "compared": COMPARED,
    "by_metric": BY_METRIC,
    "of_pools": OF_POOLS,
}
"""The columns of each table, by its name."""

_POOL_MARGIN = 0.02  # distance that counts as agreement for F, pool means, Q and R; F changes in steps of 1/900
_ROUNDING = 4  # a different dtype or last layer can explain a difference of up to this many margins


_COUNTED = {
    "differs": ("differs", "differ"),
    "differs as expected": ("differs as expected", "differ as expected"),
    "no value": ("is missing", "are missing"),
    "agrees": ("agrees", "agree"),
}
"""Wording of a verdict after a count of values: singular and plural."""


@dataclass(frozen=True, eq=False, kw_only=True)
class Comparison:
    """Comparison of a run with the published values; made by `compare`."""

    frame: pd.DataFrame
    """One row per model and metric with a published value, with the columns of `COLUMNS["compared"]`."""
    by_metric: pd.DataFrame
    """One row per metric, with the columns of `COLUMNS["by_metric"]`."""
    of_pools: pd.DataFrame
    """F, pool means, Q and R, with the columns of `COLUMNS["of_pools"]`; empty without pool models."""
    unknown: tuple[str, ...]
    """Models in the run that are not among the published models."""
    source: str
    """The run."""
    measured_by: str
    """What produced the run: study, released script, or Open-Unlearning."""

    @property
    def agrees(self) -> bool:
        """Whether something was measured and nothing differs without an explanation."""
        differs = (self.frame["verdict"] == "differs").any() or (self.of_pools["verdict"] == "differs").any()
        return not differs and bool(self.frame["measured"].notna().any() or len(self.of_pools))

    def plot(self, **look: Unpack[Look]) -> go.Figure:
        """Draw every difference, one row per metric (`uds_lens.plots.differences_by_metric`)."""
        return plots.differences_by_metric(self.frame, **look)

    def __str__(self) -> str:
        counts = self.frame["verdict"].value_counts()
        verdicts = ", ".join(f"{n} {_COUNTED[str(verdict)][n != 1]}" for verdict, n in counts.items())
        return f"{count(len(self.frame), 'value')} of {count(self.frame['model'].nunique(), 'model')}: {verdicts}"


def compare(run: str | os.PathLike[str], *, margins: Mapping[str, float] | None = None) -> Comparison:
    """Compare the values in a run with the values published for the same models.

    A published value that is rounded, capped at 1 or set by definition stands for a range; a measured value within this
    range does not differ. If a difference exceeds the margin, the row says whether the two values were measured
    differently: other prompts, references, tau or questions explain a difference of any size; another dtype or last
    layer explains up to four margins.

    Args:
        run: Folder of `run` or of any study, run folders of the UDS paper's released script, or Open-Unlearning's
            saves.
        margins: Differences that count as agreement, by metric; they replace the defaults.

    Returns:
        Every value with its verdict, and the agreement by metric.

    Raises:
        DataError: There is no run, or none of its models is published.
        ResultFormatError: A file is broken.

    Example:
        >>> compare("nowhere")
        Traceback (most recent call last):
            ...
        uds_lens.errors.DataError: no run at 'nowhere': expected the folder of uds-lens published run (or of a sweep),
        run folders of the UDS paper's released script, or Open-Unlearning's saves.
    """
    measured = read_run(run)
    before = measured.frame[measured.frame["state"] == "before"]
    both = before.merge(values(), on=["group", "model", "metric"], suffixes=("", "_published"))
    limits = {**MARGINS, **(margins or {})}
    both["margin"] = [limits.get(metric, MARGIN) for metric in both["metric"]]
    both["difference"] = both["measured"] - both["published"]
    both["beyond"] = _distance(both)
    judged = [_verdict(row) for row in both.to_dict("records")]
    both["verdict"], both["expect"] = [verdict for verdict, _ in judged], [words for _, words in judged]
    return Comparison(
        frame=both[list(COMPARED)].reset_index(drop=True),
        by_metric=_by_metric(both),
        of_pools=_of_pools(measured),
        unknown=measured.unknown,
        source=measured.source,
        measured_by=measured.kind,
    )


def _distance(rows: pd.DataFrame) -> pd.Series:
    """Return how far measured values lie outside the ranges of the published values; NaN without a value."""
    outside = np.maximum(rows["low"] - rows["measured"], rows["measured"] - rows["high"])
    return outside.clip(lower=0.0)


def _verdict(row: Mapping[str, Any]) -> tuple[str, str]:
    """Return the verdict on a value, with remarks."""
    if math.isnan(row["measured"]):
        return "no value", str(row["reason"] or "not measured")
    prompts_differ = not same_prompts(row["prompts"], row["prompts_published"])
    known = KNOWN_PROBLEMS.get(row["metric"], "")
    words = about_published(row, prompts_differ=prompts_differ, known=known)
    if row["beyond"] <= row["margin"]:
        return "agrees", words
    explained = prompts_differ or bool(row["otherwise"]) or bool(row["sampled"])
    rounded = row["dtype"] != "bfloat16" or (row["metric"] == "uds" and row["last_layer"] != "post_norm")
    explained = explained or (rounded and row["beyond"] <= _ROUNDING * row["margin"])
    return "differs as expected" if explained else "differs", words


def _by_metric(both: pd.DataFrame) -> pd.DataFrame:
    rows = []
    for metric, group in both.groupby("metric", sort=False):
        complete = group[group["measured"].notna()]
        varied = len(complete) > 2 and complete["measured"].nunique() > 1 and complete["published"].nunique() > 1
        largest = complete.loc[complete["difference"].abs().idxmax()] if len(complete) else None
        rows.append(
            {
                "metric": metric,
                "n": len(complete),
                "agree": int((complete["verdict"] == "agrees").sum()),
                "differ": int((complete["verdict"] == "differs").sum()),
                "expected": int((complete["verdict"] == "differs as expected").sum()),
                "spearman": complete["measured"].corr(complete["published"], method="spearman") if varied else math.nan,
                "mean_difference": complete["difference"].mean() if len(complete) else math.nan,
                "largest_difference": math.nan if largest is None else largest["difference"],
                "largest_model": None if largest is None else largest["model"],
                "known": KNOWN_PROBLEMS.get(str(metric), ""),
            }
        )
    return pd.DataFrame(rows, columns=list(BY_METRIC))


def _of_pools(run: MeasuredRun) -> pd.DataFrame:
    """Compare the published values of pools and perturbed models, if the run has them."""
    empty = pd.DataFrame(columns=list(OF_POOLS))
    if run.folder is None or not (run.frame["role"] == "pool").any():
        return empty
    frames, published = study.frames(run.folder), pool_values()
    pools, of = frames.pools, len(models(role="pool"))
    names = [name for name in published["metric"].unique() if name in pools.columns]
    if not names or pools["knows"].nunique() < 2 or len(pools) < SMALLEST:
        return empty
    parts = [meta.faithfulness(pools, metrics=names)[["metric", "auc", "mean_p", "mean_n"]]]
    if len(frames.quantised) or len(frames.relearned):
        tables = frames.tables(thresholds=meta.thresholds(pools, metrics=names))
        if "utility_rel" in tables.before.columns:
            parts.append(meta.robustness(tables, metrics=names)[["metric", "q", "r"]])
        else:
            warn_once(
                "Q and R are not compared: the published values cover only models that keep 80% of full's "
                "utility, and this run did not measure utility. Add the metric utility_rel to the plan."
            )
    measured = pd.concat([part.melt("metric", var_name="quantity", value_name="measured") for part in parts])
    rows = published.merge(measured.dropna(subset="measured"), on=["metric", "quantity"])
    rows = rows.assign(beyond=_distance(rows), n=len(pools), of=of)
    verdicts = np.where(rows["beyond"] <= _POOL_MARGIN, "agrees", "differs")
    rows["verdict"] = "incomplete" if len(pools) < of else verdicts
    return rows[list(OF_POOLS)]


_MEASURED = "(measured)"


def beside(run: str | os.PathLike[str]) -> Published:
    """Add the models in a run to the published models, as a table for `uds-lens rank` and `dashboard`.

    Args:
        run: As for `compare`; models of groups other than tofu-1b are left out.

    Returns:
        The table of `uds_lens.meta.read_published` with an additional row for each measured model: its name and method
        end in "(measured)", so that measured and published models are ranked in one table.

    Raises:
        DataError: There is no run, or none of its models is published.
    """
    published, measured_run = read_published(), read_run(run)
    frame = measured_run.frame[(measured_run.frame["group"] == "tofu-1b") & (measured_run.frame["state"] == "before")]
    if not len(frame):
        raise DataError(f"{measured_run.source[-200:]!r} holds none of the 1B models with published values.")
    wide = frame.pivot(index="model", columns="metric", values="measured")
    frames = {}
    for name in ("frame", "references"):
        own: pd.DataFrame = getattr(published, name)
        facts = own[own["model"].isin(wide.index)]
        facts = facts[["model", "method", "config", "epochs", "lr", "alpha"]]
        measured = facts.join(wide[[column for column in wide.columns if column in own.columns]], on="model")
        renamed = {column: measured[column] + f" {_MEASURED}" for column in ("model", "method")}
        frames[name] = pd.concat([own, measured.assign(**renamed)], ignore_index=True)
    gaps = [
        (row["model"], metric, f"not measured in {measured_run.source}")
        for row in frames["frame"].to_dict("records")
        if row["model"].endswith(_MEASURED)
        for metric in published.frame.columns
        if isinstance(row[metric], float) and math.isnan(row[metric]) and metric not in ("lr", "alpha")
    ]
    return replace(
        published,
        **frames,
        reasons=pd.concat([published.reasons, pd.DataFrame(gaps, columns=list(REASONS))], ignore_index=True),
        source=f"{published.source}; measured: {measured_run.source}",
    )
