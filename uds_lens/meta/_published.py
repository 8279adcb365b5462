"""The numbers the UDS paper's repository publishes, as tables."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pandas as pd

from uds_lens.errors import ConfigError, ResultFormatError
from uds_lens.meta._columns import PUBLISHED
from uds_lens.meta._pools import logit_interval, normal_quantile, wilson_interval
from uds_lens.meta._tables import Published, member, number, read_object, reasons_frame
from uds_lens.results._statistics import NO_INTERVAL, Interval

# Values that the UDS paper's tables and figures print but its files lack: Lee, Kim and Jo (2026), arXiv 2605.24614, and
# the figures of its repository. The columns are robustness and Overall as printed, then the number of models, the
# threshold, Q and R under the utility filter alone.
_COLUMNS = ("rob_printed", "overall_printed", "n", "threshold", "q_utility", "r_utility")
_PRINTED = """
es                  .859 .875  14 .07  .816 .384
em                  .750 .782  16 .62  .974 .674
prob                .757 .786  43 .24  .925 .674
paraprob            .875 .782  40 .05  .925 .604
truth_ratio         .379 .542  17 .59  .995 .389
rouge               .333 .456  80 .39  .930 .209
para_rouge          .119 .209 102 .30  .952 .077
jailbreak_rouge     .308 .438  74 .37  .960 .172
mia_loss            .668 .767  33 .62  .972 .408
mia_zlib            .641 .737  18 .38  .971 .445
mia_min_k           .675 .774  32 .62  .969 .395
mia_min_kpp         .579 .677  28 .51  .953 .419
s_mia_loss          .690 .778  33 .63  .919 .235
s_mia_zlib          .724 .790  18 .23  .937 .246
s_mia_min_k         .704 .786  32 .64  .920 .212
s_mia_min_kpp       .602 .686  28 .38  .865 .374
cka                 .026 .051   9 .98 1.000 .001
fisher_masked_0.001 .721 .716  48 .36  .621 .561
logit_lens          .879 .902  16 .32  .918 .620
uds                 .932 .951  12 .23  .948 .625
"""

SHIPPED = Path(__file__).parent / "uds_paper"  # the copy of the files that comes with the library, with their licence

_FORGOTTEN = {
    "one_minus_es": "es",
    "one_minus_em": "em",
    "one_minus_paraprob": "paraprob",
    "one_minus_truth": "truth_ratio",
}
"""Entries in the paper's files that are one minus the metric."""

_SAME = {
    "s_loss": "s_mia_loss",
    "s_zlib": "s_mia_zlib",
    "s_mink": "s_mia_min_k",
    "s_minkpp": "s_mia_min_kpp",
    "uds": "uds",
    "logit_lens": "logit_lens",
    "utility": "utility",
    "model_utility": "model_utility",
    "fluency": "fluency",
    **{
        f"{data}_{part}": f"{data}_{part}"
        for data in ("retain", "ra", "wf")
        for part in ("q_prob", "q_rouge", "truth_ratio")
    },
    "mem": "published_memorization",
    "privacy_mia": "published_mia",
    "privacy": "published_privacy",
    "utility_rel": "published_utility_rel",
    "overall": "published_score_with",
}
"""Entries in the paper's files that are the metric itself, under another name."""

_FAITHFULNESS = {"auc_roc": "auc", "p_mean": "mean_p", "n_mean": "mean_n"}
_ROBUSTNESS = {"quantization": "q", "relearning": "r", "agg": "rob"}


def read_published(path: str | os.PathLike[str] | None = None) -> Published:
    """Read the UDS paper's per-model values and its evaluation of metrics.

    The files contain no values of pools or perturbed models, so F, Q and R cannot be recomputed from them.
    `utility_rel` is computed from the utilities, because the value in the files is capped at 1.

    Args:
        path: Directory with `method_results.json` and `meta_eval.json`; if None, the copy that comes with this library
            is read (`uds_lens/meta/uds_paper`; Copyright 2026 Jaeung Lee, Apache License 2.0).

    Returns:
        The tables: `frame` (unlearned models), `references` (`full`, `retain`), `metrics` (columns of
        `COLUMNS["published"]`), `reasons`.

    Raises:
        ResultFormatError: A file is missing or malformed.

    Example:
        >>> read_published("nowhere")
        Traceback (most recent call last):
            ...
        uds_lens.errors.ResultFormatError: no file at 'nowhere/method_results.json': expected the UDS paper's
        per-model...
    """
    folder = SHIPPED if path is None else Path(path)
    methods = read_object(folder / "method_results.json", expected="the UDS paper's per-model values")
    judged = read_object(folder / "meta_eval.json", expected="the UDS paper's evaluation of metrics")
    where = str(folder / "method_results.json")
    full_utility = {
        epoch: number(value, where=f"{where}, full_utility {epoch!r}")
        for epoch, value in member(methods, "full_utility", dict, where=where).items()
    }
    rows, reasons = [], {}
    for place, entry in enumerate(member(methods, "models", list, where=where)):
        row, missing = _model(entry, full_utility, f"{where}, models[{place}]")
        rows.append(row)
        reasons[row["model"]] = missing
    models = pd.DataFrame(rows)
    if not len(models):
        raise ResultFormatError(f"{where} holds no models.")
    twice = models["model"][models["model"].duplicated()]
    if len(twice):
        raise ResultFormatError(f"{where}: the model {twice.iloc[0]!r} occurs twice.")
    reference = models.pop("is_reference")
    return Published(
        frame=models[~reference].reset_index(drop=True),
        reasons=reasons_frame(reasons),
        source=str(folder) if path is not None else "the UDS paper's files, as this library ships them",
        metrics=pd.DataFrame(_metrics(judged, str(folder / "meta_eval.json")), columns=list(PUBLISHED)),
        references=models[reference].reset_index(drop=True),
    )


def _model(entry: Any, full_utility: Mapping[str, float], where: str) -> tuple[dict[str, Any], dict[str, str]]:
    """Return a row, and the reason for each missing value."""
    if not isinstance(entry, dict):
        raise ResultFormatError(f"{where} must be an object.")
    name, method, epoch = (member(entry, key, str, where=where) for key in ("model", "method", "epoch"))
    steps = re.fullmatch(r"ep(\d{1,4})", epoch)
    if steps is None:
        raise ResultFormatError(f"{where}: 'epoch' must look like 'ep10'; got {epoch[:40]!r}.")
    row: dict[str, Any] = {
        "model": name,
        "method": method,
        "config": name.removeprefix(f"{method}_"),
        "epochs": int(steps[1]),
        "is_reference": member(entry, "is_reference", bool, where=where),
    }
    row |= _numbers(entry, {"lr": "lr", "alpha": "alpha"}, where)
    values = {ours: 1 - value for ours, value in _numbers(entry, _FORGOTTEN, where).items()}
    values |= _numbers(entry, _SAME, where)
    missing = {ours: "the file has no value" for ours, value in values.items() if math.isnan(value)}
    of_full = full_utility.get(epoch)
    row |= values | {"utility_rel": values["utility"] / of_full if of_full else math.nan}
    if math.isnan(row["utility_rel"]) and not math.isnan(values["utility"]):
        missing["utility_rel"] = f"full_utility has no {epoch!r}"
    return row, missing


def _metrics(judged: Mapping[str, Any], where: str) -> list[dict[str, Any]]:
    printed = {
        line.split()[0]: dict(zip(_COLUMNS, map(float, line.split()[1:]), strict=True))
        for line in _PRINTED.strip().splitlines()
    }
    parts = [
        (member(judged, part, dict, where=where), columns)
        for part, columns in (("faithfulness", _FAITHFULNESS), ("robustness", _ROBUSTNESS))
    ]
    rows = []
    for place, entry in enumerate(member(judged, "metrics", list, where=where)):
        here = f"{where}, metrics[{place}]"
        if not isinstance(entry, dict):
            raise ResultFormatError(f"{here} must be an object.")
        name = member(entry, "key", str, where=here)
        row = {"metric": name, **{key: member(entry, key, str, where=here) for key in ("label", "category")}}
        row["label"] = row["label"].removesuffix(" (Ours)")
        row["tags"] = "".join(map(str, member(entry, "tags", list, where=here)))
        for table, columns in parts:
            numbers = table.get(name, {})
            if not isinstance(numbers, dict):
                raise ResultFormatError(f"{where}: the entry {name!r} must be an object.")
            row |= _numbers(numbers, columns, f"{where}, {name!r}")
        rows.append(row | printed.get(name, {}))
    return rows


def _numbers(entry: Mapping[str, Any], columns: Mapping[str, str], where: str) -> dict[str, float]:
    """Return the numbers in an object under this library's names; NaN if missing."""
    return {ours: number(entry.get(theirs), where=f"{where}, {theirs!r}") for theirs, ours in columns.items()}


def hanley_mcneil(auc: float | int, n_p: int, n_n: int, *, confidence: float | int = 0.95) -> Interval:
    """Estimate the interval of an AUC from the sizes of the pools, if the values behind it were not published.

    `var = (F(1 - F) + (n_P - 1)(Q1 - F^2) + (n_N - 1)(Q2 - F^2)) / (n_P n_N)` with `Q1 = F / (2 - F)` and `Q2 = 2
    F^2 / (1 + F)`, on the logit scale; Wilson's interval with the smaller pool at F = 0 or 1. Checkpoints of one run
    are not independent, so the true interval is wider. NaN without F or with an empty pool.

    Raises:
        ConfigError: F lies outside [0, 1].

    Example:
        >>> [round(end, 3) for end in hanley_mcneil(0.971, 30, 30)]
        [0.875, 0.994]

    References:
        Hanley and McNeil (1982), Radiology 143, 29-36.
    """
    if math.isnan(auc) or n_p < 1 or n_n < 1:
        return NO_INTERVAL
    if not 0 <= auc <= 1:
        raise ConfigError(f"auc must lie between 0 and 1; got {auc!r}.")
    z = normal_quantile(confidence)
    if auc in (0, 1):
        return wilson_interval(float(auc), min(n_p, n_n), z)
    one, other = auc / (2 - auc), 2 * auc**2 / (1 + auc)
    spread = auc * (1 - auc) + (n_p - 1) * (one - auc**2) + (n_n - 1) * (other - auc**2)
    return logit_interval(float(auc), math.sqrt(spread / (n_p * n_n)), z)
