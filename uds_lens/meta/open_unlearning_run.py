"""One run of Open-Unlearning: the numbers in its files, by our names."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from uds_lens.errors import ResultFormatError
from uds_lens.meta.json_files import kind, number, read_object

NAMES = {
    "extraction_strength": "es",
    "exact_memorization": "em",
    "forget_Q_A_Prob": "prob",
    "forget_Q_A_PARA_Prob": "paraprob",
    "forget_Q_A_ROUGE": "rouge",
    "forget_Q_A_PARA_ROUGE": "para_rouge",
    "mia_loss": "mia_loss",
    "mia_zlib": "mia_zlib",
    "mia_min_k": "mia_min_k",
    "mia_min_k_plus_plus": "mia_min_kpp",
    "retain_Q_A_Prob": "retain_q_prob",
    "retain_Q_A_ROUGE": "retain_q_rouge",
    "retain_Truth_Ratio": "retain_truth_ratio",
    "ra_Q_A_Prob_normalised": "ra_q_prob",
    "ra_Q_A_ROUGE": "ra_q_rouge",
    "ra_Truth_Ratio": "ra_truth_ratio",
    "wf_Q_A_Prob_normalised": "wf_q_prob",
    "wf_Q_A_ROUGE": "wf_q_rouge",
    "wf_Truth_Ratio": "wf_truth_ratio",
    "model_utility": "model_utility",
    "forget_Q_A_gibberish": "fluency",
    "forget_quality": "forget_quality",
    "privleak": "privleak",
}
"""Theirs to ours. The classifier behind "gibberish" gives the share of clean text, which is fluency."""

ATTACKS = ("mia_loss", "mia_zlib", "mia_min_k", "mia_min_kpp")

_ASKED_FOR = {"em", "mia_loss", "mia_zlib", "mia_min_kpp", "fluency", "para_rouge"}
"""Not measured by Open-Unlearning unless its configuration is extended."""

_SPELLING = {name.lower(): name for name in NAMES}
"""Releases differ in capitals."""

_PER_EXAMPLE = ("prob", "score", "rougeL_recall")
_RIGHT, _WRONG = "forget_Q_A_PARA_Prob", "forget_Q_A_PERT_Prob"
_OTHER_RATIO = (
    "forget_truth_ratio of Open-Unlearning is another quantity; p_c / (p_c + p_w) needs the per-example losses of "
    f"{_RIGHT} and {_WRONG} in TOFU_EVAL.json"
)


@dataclass(frozen=True, eq=False)
class Run:
    """What a run's files hold."""

    folder: Path
    values: Mapping[str, float]
    """By our names; NaN where there is nothing."""

    reasons: Mapping[str, str]
    """Why they are NaN."""

    examples: Mapping[str, Sequence[tuple[str, float]]]
    """Id and value per example, if asked for."""

    setup: tuple[str | None, str | None] = (None, None)
    """Base model, and split that was to be forgotten."""


def read_run(
    folder: Path,
    files: Sequence[Path],
    *,
    examples: bool,
    setup: tuple[str | None, str | None] = (None, None),
) -> Run:
    """Read the files of one run; of a number that stands in both, the evaluation's is taken.

    Raises:
        ResultFormatError: A file is broken or of another layout.
    """
    found: dict[str, float] = {}
    nulls: dict[str, str] = {}
    details: dict[str, Mapping[str, Any]] = {}
    for file in files:
        content = read_object(file, expected="results of Open-Unlearning")
        for theirs, entry in content.items():
            name = _SPELLING.get(theirs.lower(), theirs)
            if isinstance(entry, dict):
                details.setdefault(name, entry)
            if name in NAMES and math.isnan(found.get(name, math.nan)):
                found[name] = _aggregate(entry, where=f"{file}, {theirs!r}")
                nulls[name] = f"{theirs} has no value in {file.name}"
    values, reasons = _by_our_names(found, nulls)
    ratios, why = truth_ratios(details, where=str(folder))
    values["truth_ratio"] = _mean(ratios)
    if math.isnan(values["truth_ratio"]):
        reasons["truth_ratio"] = why or "no example has all losses"
    return Run(folder, values, reasons, _examples(details, ratios, str(folder)) if examples else {}, setup)


def _by_our_names(
    found: Mapping[str, float], nulls: Mapping[str, str]
) -> tuple[dict[str, float], dict[str, str]]:
    values = {ours: found.get(theirs, math.nan) for theirs, ours in NAMES.items()}
    reasons: dict[str, str] = {}
    for theirs, ours in NAMES.items():
        if math.isnan(values[ours]):
            default = " (Open-Unlearning does not measure it by default)" if ours in _ASKED_FOR else ""
            reasons[ours] = nulls.get(theirs, f"the files have no {theirs}{default}")
    return values, reasons


def _aggregate(entry: Any, *, where: str) -> float:
    """The number of an entry: it stands alone (summary), in `agg_value`, or in `auc` (evaluation)."""
    if isinstance(entry, dict):
        value = entry.get("agg_value")
        return number(entry.get("auc") if value is None else value, where=f"{where}, 'agg_value'")
    return number(entry, where=where)


def truth_ratios(
    details: Mapping[str, Mapping[str, Any]], *, where: str
) -> tuple[dict[str, float], str | None]:
    """`p_c / (p_c + p_w)` per example, with p the geometric mean over answers of the probability per token.

    Args:
        details: Entries of the evaluation.
        where: The run, for messages.

    Returns:
        Ratio by example, NaN where a loss is missing; and why there is none.

    Example:
        >>> entry = lambda loss: {"value_by_index": {"0": {"avg_loss": loss}}}
        >>> details = {"forget_Q_A_PARA_Prob": entry(1.0), "forget_Q_A_PERT_Prob": entry([0.5, 1.5])}
        >>> truth_ratios(details, where="run")
        ({'0': 0.5}, None)
    """
    losses = []
    for name in (_RIGHT, _WRONG):
        found = details.get(name, {}).get("value_by_index")
        if not found:
            return {}, _OTHER_RATIO
        losses.append(_per_example(found, ("avg_loss",), where=f"{where}, {name!r}"))
    right, wrong = losses
    if set(right) != set(wrong):
        return {}, f"{_RIGHT} and {_WRONG} are about different examples"
    return {key: _share(right[key], wrong[key]) for key in right}, None


def _share(right: float, wrong: float) -> float:
    """`exp(-right) / (exp(-right) + exp(-wrong))` without overflow."""
    return float(1 / (1 + np.exp(np.clip(right - wrong, -700, 700))))


def _per_example(found: Any, names: Sequence[str], *, where: str) -> dict[str, float]:
    """One number per example, the mean where it has several answers; NaN for null."""
    if not isinstance(found, dict):
        raise ResultFormatError(f"{where}: 'value_by_index' must be an object; got {kind(found)}.")
    values: dict[str, float] = {}
    for key, entry in found.items():
        if entry is None:
            values[key] = math.nan
            continue
        if not isinstance(entry, dict):
            raise ResultFormatError(
                f"{where}, example {key[:40]!r} must be an object or null; got {kind(entry)}."
            )
        name = next((name for name in names if name in entry), None)
        if name is not None:
            values[key] = _answers(entry[name], where=f"{where}, example {key[:40]!r}, {name!r}")
    return values


def _answers(value: Any, *, where: str) -> float:
    if not isinstance(value, list):
        return number(value, where=where)
    return _plain_mean([number(each, where=where) for each in value])


def _examples(
    details: Mapping[str, Mapping[str, Any]], ratios: Mapping[str, float], where: str
) -> dict[str, list[tuple[str, float]]]:
    found: dict[str, list[tuple[str, float]]] = {"truth_ratio": list(ratios.items())} if ratios else {}
    for theirs, ours in NAMES.items():
        entry, here = details.get(theirs, {}), f"{where}, {theirs!r}"
        if entry.get("value_by_index"):
            found[ours] = list(_per_example(entry["value_by_index"], _PER_EXAMPLE, where=here).items())
            continue
        sides = (entry.get("forget"), entry.get("holdout"))
        if ours in ATTACKS and all(isinstance(side, dict) for side in sides):
            members, others = (
                _per_example(side.get("value_by_index", {}), ("score",), where=here)
                for side in sides
                if isinstance(side, dict)
            )
            found[ours] = [*members.items(), *((f"holdout/{key}", value) for key, value in others.items())]
    return found


def _mean(values: Mapping[str, float]) -> float:
    defined = [value for value in values.values() if not math.isnan(value)]
    return _plain_mean(defined)


def _plain_mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values) if values else math.nan
