"""The numbers the UDS paper's repository publishes, as tables."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from uds_lens.checked_arguments import arguments_checked
from uds_lens.errors import ResultFormatError
from uds_lens.meta.json_files import member, number, read_object
from uds_lens.meta.model_table import Published
from uds_lens.meta.printed import printed
from uds_lens.meta.required_columns import PUBLISHED, REASONS

SHIPPED = Path(__file__).parent / "uds_paper"
"""The files as they come with the library, with their licence."""

_FORGOTTEN = {
    "one_minus_es": "es",
    "one_minus_em": "em",
    "one_minus_paraprob": "paraprob",
    "one_minus_truth": "truth_ratio",
}
"""Written as one minus the metric."""

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
"""Written as they are, under another name."""


@arguments_checked
def read_published(path: str | os.PathLike[str] | None = None) -> Published:
    """Read the UDS paper's per-model values and its judgement of metrics.

    The files hold no pool and no perturbed values: no F, Q or R can be computed again from them. `utility_rel` is
    taken anew from the utilities, because theirs is capped at 1.

    Args:
        path: Directory with `method_results.json` and `meta_eval.json`; None reads the copy that comes with this
            library (`uds_lens/meta/uds_paper`; Copyright 2026 Jaeung Lee, Apache License 2.0).

    Returns:
        The tables: `frame` (unlearned models), `references` (`full`, `retain`), `metrics` (columns of
        `uds_lens.meta.PUBLISHED`), `reasons`.

    Raises:
        ResultFormatError: A file is missing or not what it should be.

    Example:
        >>> read_published("nowhere")
        Traceback (most recent call last):
            ...
        uds_lens.errors.ResultFormatError: no file at 'nowhere/method_results.json': expected the UDS paper's
        per-model...
    """
    import pandas as pd

    folder = SHIPPED if path is None else Path(path)
    methods = read_object(folder / "method_results.json", expected="the UDS paper's per-model values")
    judged = read_object(folder / "meta_eval.json", expected="the UDS paper's judgement of metrics")
    where = str(folder / "method_results.json")
    whole = {
        name: number(value, where=f"{where}, full_utility {name!r}")
        for name, value in member(methods, "full_utility", dict, where=where).items()
    }
    rows, reasons = [], []
    for place, found in enumerate(member(methods, "models", list, where=where)):
        row, missing = _model(found, whole, f"{where}, models[{place}]")
        rows.append(row)
        reasons += missing
    models = pd.DataFrame(rows)
    if not len(models):
        raise ResultFormatError(f"{where} holds no models.")
    twice = models["model"][models["model"].duplicated()]
    if len(twice):
        raise ResultFormatError(f"{where}: the model {twice.iloc[0]!r} occurs twice.")
    reference = models.pop("is_reference")
    return Published(
        frame=models[~reference].reset_index(drop=True),
        reasons=pd.DataFrame(reasons, columns=list(REASONS)),
        source=str(folder) if path is not None else "the UDS paper's files, as this library ships them",
        metrics=_metrics(judged, str(folder / "meta_eval.json")),
        references=models[reference].reset_index(drop=True),
    )


def _model(found: Any, whole: Mapping[str, float], where: str) -> tuple[dict[str, Any], list[dict[str, str]]]:
    if not isinstance(found, dict):
        raise ResultFormatError(f"{where} must be an object.")
    name, method = member(found, "model", str, where=where), member(found, "method", str, where=where)
    epoch = member(found, "epoch", str, where=where)
    steps = re.fullmatch(r"ep(\d{1,4})", epoch)
    if steps is None:
        raise ResultFormatError(f"{where}: 'epoch' must look like 'ep10'; got {epoch[:40]!r}.")
    row: dict[str, Any] = {
        "model": name,
        "method": method,
        "config": name.removeprefix(f"{method}_"),
        "epochs": int(steps[1]),
        "is_reference": member(found, "is_reference", bool, where=where),
    }
    for key in ("lr", "alpha"):
        row[key] = number(found.get(key), where=f"{where}, {key!r}")
    row |= {
        ours: 1 - number(found.get(theirs), where=f"{where}, {theirs!r}")
        for theirs, ours in _FORGOTTEN.items()
    }
    row |= {ours: number(found.get(theirs), where=f"{where}, {theirs!r}") for theirs, ours in _SAME.items()}
    row["utility_rel"] = row["utility"] / whole.get(epoch, math.nan) if whole.get(epoch) else math.nan
    missing = [
        {"model": name, "metric": ours, "reason": "the file has no value"}
        for ours in (*_FORGOTTEN.values(), *_SAME.values())
        if math.isnan(row[ours])
    ]
    if math.isnan(row["utility_rel"]) and not math.isnan(row["utility"]):
        missing.append({"model": name, "metric": "utility_rel", "reason": f"full_utility has no {epoch!r}"})
    return row, missing


def _metrics(judged: Mapping[str, Any], where: str) -> Any:
    import pandas as pd

    faithful = member(judged, "faithfulness", dict, where=where)
    robust = member(judged, "robustness", dict, where=where)
    rows, beside = [], printed()
    for place, found in enumerate(member(judged, "metrics", list, where=where)):
        here = f"{where}, metrics[{place}]"
        if not isinstance(found, dict):
            raise ResultFormatError(f"{here} must be an object.")
        name = member(found, "key", str, where=here)
        rows.append(
            {
                "metric": name,
                "label": member(found, "label", str, where=here),
                "category": member(found, "category", str, where=here),
                "tags": "".join(map(str, member(found, "tags", list, where=here))),
                **_numbers(faithful, name, {"auc_roc": "auc", "p_mean": "mean_p", "n_mean": "mean_n"}, where),
                **_numbers(robust, name, {"quantization": "q", "relearning": "r", "agg": "rob"}, where),
                **beside.get(name, {}),
            }
        )
    return pd.DataFrame(rows, columns=list(PUBLISHED))


def _numbers(table: Mapping[str, Any], name: str, columns: Mapping[str, str], where: str) -> dict[str, float]:
    found = table.get(name, {})
    if not isinstance(found, dict):
        raise ResultFormatError(f"{where}: the entry {name!r} must be an object.")
    return {
        ours: number(found.get(theirs), where=f"{where}, {name!r}, {theirs!r}")
        for theirs, ours in columns.items()
    }
