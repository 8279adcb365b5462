"""Runs that Open-Unlearning evaluated, as a table of models."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeAlias

import numpy as np
import pandas as pd

from uds_lens._types import check_choice
from uds_lens.errors import ResultFormatError
from uds_lens.meta._tables import (
    SETUP,
    ModelTable,
    Setup,
    harmonic_means,
    is_within,
    kind,
    number,
    origin_by_name,
    read_object,
    reasons_frame,
    retain_name,
    role_in,
    setup_name,
    setup_of,
)

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

_NOT_BY_DEFAULT = {"em", "mia_loss", "mia_zlib", "mia_min_kpp", "fluency", "para_rouge"}
"""Not measured by Open-Unlearning unless its configuration is extended."""

_SPELLING = {name.lower(): name for name in NAMES}  # releases differ in capitals

_FILES = ("TOFU_EVAL.json", "TOFU_SUMMARY.json")
_RIGHT, _WRONG = "forget_Q_A_PARA_Prob", "forget_Q_A_PERT_Prob"
_OTHER_RATIO = (
    "forget_truth_ratio of Open-Unlearning is another quantity; p_c / (p_c + p_w) needs the per-example losses of "
    f"{_RIGHT} and {_WRONG} in TOFU_EVAL.json"
)

UtilityParts: TypeAlias = Literal["with_fluency", "model_utility"]
"""Definition of utility: the harmonic mean of Model Utility and fluency, or Model Utility alone."""


@dataclass(frozen=True, eq=False)
class _Run:
    """Contents of a run's files."""

    folder: Path
    values: Mapping[str, float]  # by our names; NaN where there is nothing
    reasons: Mapping[str, str]  # why they are NaN
    examples: Mapping[str, Mapping[str, float]]  # value by metric and id of the example, if asked for
    setup: Setup


def read_open_unlearning(
    path: str | os.PathLike[str],
    *,
    retain: str | os.PathLike[str] | None = None,
    full: str | os.PathLike[str] | None = None,
    utility: UtilityParts = "with_fluency",
    examples: bool = False,
) -> ModelTable:
    """Read `TOFU_EVAL.json` and `TOFU_SUMMARY.json` of one run or of a whole folder of runs.

    The Truth Ratio is `p_c / (p_c + p_w)` from the losses per example in `TOFU_EVAL.json` (a summary alone gives NaN):
    `forget_truth_ratio` of Open-Unlearning is how close wrong over right is to 1, which does not grow with knowledge.

    Base model and split are columns, read from `.hydra/config.yaml` beside a run or from its name. A run is compared
    with references of its own base model and split only, and `rank` refuses models of several (`uds_lens.meta.select`
    takes those of one).

    Args:
        path: A file, a run's folder, or a folder with runs at any depth.
        retain: File or folder of the retain model's run: gives the normalised attacks `s_mia_*`. In a folder of several
            runs, those called `..._retain90` and the like; each model takes the one of its base model and split.
        full: File or folder of the full model's run: gives `utility_rel`. Of several as for `retain` (`..._full`).
        utility: Parts of `utility` and `utility_rel`; runs without fluency (`forget_Q_A_gibberish`) have them only with
            "model_utility".
        examples: Keep the values per example, for `stability`; those of retain under the name "retain" (with base model
            and split where there are several).

    Returns:
        One row per run: `model` (the run's folder), `method`, `config`, `lr` and `epochs` as far as the folder's name
        gives them, `base`, `split`, metrics, `utility`, `utility_rel`. `retain` and `full` are not rows. Whatever is
        NaN has a reason.

    Raises:
        ResultFormatError: There is no run, a file is broken, or `retain` or `full` holds no such run, or two of one
            base model and split.
        ConfigError: `utility` is unknown.

    Example:
        >>> read_open_unlearning("nowhere")
        Traceback (most recent call last):
            ...
        uds_lens.errors.ResultFormatError: no TOFU_EVAL.json or TOFU_SUMMARY.json in 'nowhere': name a run of...
    """
    check_choice("utility", utility, UtilityParts)
    root = Path(path)
    references = {
        role: _references(role, Path(at), examples)
        for role, at in (("retain", retain), ("full", full))
        if at is not None
    }
    taken = {run.folder for runs in references.values() for run in runs}
    folders = {folder: files for folder, files in _runs(root).items() if folder not in taken}
    if not folders:
        raise ResultFormatError(f"{str(root)!r} holds no run other than those of retain and full.")
    rows, reasons, runs = [], {}, {}
    for folder, name in _names(root, list(folders)).items():
        run = runs[name] = _read_run(folder, folders[folder], examples, setup_of(folder, name))
        values, reasons[name] = _with_references(run, references, utility)
        rows.append({"model": name, **origin_by_name(name), **dict(zip(SETUP, run.setup, strict=True)), **values})
    retains = references.get("retain", [])
    runs |= {"retain" if len(retains) == 1 else retain_name(run.setup): run for run in retains}
    long = [
        (name, metric, example, value)
        for name, run in runs.items()
        for metric, values in run.examples.items()
        for example, value in values.items()
    ]
    return ModelTable(
        frame=pd.DataFrame(rows),
        reasons=reasons_frame(reasons),
        source=str(root),
        examples=pd.DataFrame(long, columns=["model", "metric", "example_id", "value"]) if examples else None,
    )


def _runs(root: Path) -> dict[Path, tuple[Path, ...]]:
    """Return folders with results, with their files; a single file is a run of its own."""
    if root.is_file():
        return {root.parent.resolve(): (root,)}
    found: dict[Path, tuple[Path, ...]] = {}
    for folder, folders, files in os.walk(root):
        folders.sort()
        if results := tuple(Path(folder) / name for name in _FILES if name in files):
            found[Path(folder).resolve()] = results
    if not found:
        raise ResultFormatError(
            f"no {' or '.join(_FILES)} in {str(root)!r}: name a run of Open-Unlearning, or a folder with runs."
        )
    return found


def _names(root: Path, folders: list[Path]) -> dict[Path, str]:
    """Name each run by its folder below `root`, without `evals` unless two would have one name."""
    top = (root.parent if root.is_file() else root).resolve()
    names = []
    for folder in folders:
        parts = list(folder.relative_to(top).parts)
        while parts and parts[-1] in ("evals", "eval"):
            parts.pop()
        if not parts:  # the run itself was named
            whole = [part for part in top.parts if part not in ("evals", "eval")]
            parts = whole[-2:] if whole and is_within(whole[-1]) else whole[-1:]
        names.append("/".join(parts) or "run")
    if len(set(names)) < len(names):
        names = [str(folder.relative_to(top)) for folder in folders]
    return dict(zip(folders, names, strict=True))


def _references(role: str, root: Path, examples: bool) -> list[_Run]:
    """Read the runs of a reference, one for each base model and split."""
    folders = _runs(root)
    names = _names(root, list(folders))
    if len(folders) > 1:
        names = {folder: name for folder, name in names.items() if role_in(name) == role}
        if not names:
            raise ResultFormatError(
                f"{role}={str(root)!r} holds {len(folders)} runs, none called {role} or {role}90: name the one of "
                f"{role}."
            )
    by_setup: dict[Setup, list[Path]] = {}
    for folder, name in names.items():
        by_setup.setdefault(setup_of(folder, name), []).append(folder)
    for setup, same in by_setup.items():
        if len(same) > 1:
            shown = ", ".join(names[folder] for folder in same[:3])
            raise ResultFormatError(
                f"{role}={str(root)!r} holds {len(same)} runs of {role} ({setup_name(setup)}): {shown}. "
                f"Name the one that counts."
            )
    wanted = examples and role == "retain"
    return [_read_run(folder, folders[folder], wanted, setup) for setup, (folder,) in by_setup.items()]


def _read_run(folder: Path, files: Sequence[Path], examples: bool, setup: Setup) -> _Run:
    """Read the files of one run; a number in both is taken from the evaluation."""
    values = dict.fromkeys(NAMES.values(), math.nan)
    reasons: dict[str, str] = {}
    for theirs, ours in NAMES.items():
        default = " (Open-Unlearning does not measure it by default)" if ours in _NOT_BY_DEFAULT else ""
        reasons[ours] = f"the files have no {theirs}{default}"
    details: dict[str, Mapping[str, Any]] = {}
    for file in files:
        for theirs, entry in read_object(file, expected="results of Open-Unlearning").items():
            name = _SPELLING.get(theirs.lower(), theirs)
            value = entry
            if isinstance(entry, dict):  # an evaluation: in `agg_value`, or in `auc`
                details.setdefault(name, entry)
                value = entry.get("agg_value") if entry.get("agg_value") is not None else entry.get("auc")
            ours = NAMES.get(name, "")
            if ours and math.isnan(values[ours]):
                where = f"{file}, {theirs!r}" + (", 'agg_value'" if isinstance(entry, dict) else "")
                values[ours] = number(value, where=where)
                reasons[ours] = f"{name} has no value in {file.name}"
    ratios, why = truth_ratios(details, where=str(folder))
    values["truth_ratio"] = _mean([value for value in ratios.values() if not math.isnan(value)])
    reasons["truth_ratio"] = why or "no example has all losses"
    missing = {name: reasons[name] for name, value in values.items() if math.isnan(value)}
    return _Run(folder, values, missing, _examples(details, ratios, str(folder)) if examples else {}, setup)


def truth_ratios(details: Mapping[str, Mapping[str, Any]], *, where: str) -> tuple[dict[str, float], str | None]:
    """Compute `p_c / (p_c + p_w)` per example, with p the geometric mean over answers of the probability per token.

    Example:
        >>> entry = lambda loss: {"value_by_index": {"0": {"avg_loss": loss}}}
        >>> details = {"forget_Q_A_PARA_Prob": entry(1.0), "forget_Q_A_PERT_Prob": entry([0.5, 1.5])}
        >>> truth_ratios(details, where="run")
        ({'0': 0.5}, None)
    """
    losses = []
    for name in (_RIGHT, _WRONG):
        by_index = details.get(name, {}).get("value_by_index")
        if not by_index:
            return {}, _OTHER_RATIO
        losses.append(_per_example(by_index, ("avg_loss",), where=f"{where}, {name!r}"))
    right, wrong = losses
    if set(right) != set(wrong):
        return {}, f"{_RIGHT} and {_WRONG} are about different examples"
    # exp(-right) / (exp(-right) + exp(-wrong)) without overflow
    return {key: float(1 / (1 + np.exp(np.clip(right[key] - wrong[key], -700, 700)))) for key in right}, None


def _per_example(by_index: Any, names: Sequence[str], *, where: str) -> dict[str, float]:
    """Return one number per example, the mean where it has several answers; NaN for null."""
    if not isinstance(by_index, dict):
        raise ResultFormatError(f"{where}: 'value_by_index' must be an object; got {kind(by_index)}.")
    values: dict[str, float] = {}
    for key, entry in by_index.items():
        here = f"{where}, example {key[:40]!r}"
        if entry is None:
            values[key] = math.nan
        elif not isinstance(entry, dict):
            raise ResultFormatError(f"{here} must be an object or null; got {kind(entry)}.")
        elif (name := next((name for name in names if name in entry), None)) is not None:
            answers = entry[name] if isinstance(entry[name], list) else [entry[name]]
            values[key] = _mean([number(answer, where=f"{here}, {name!r}") for answer in answers])
    return values


def _examples(
    details: Mapping[str, Mapping[str, Any]], ratios: Mapping[str, float], where: str
) -> dict[str, Mapping[str, float]]:
    values: dict[str, Mapping[str, float]] = {"truth_ratio": ratios} if ratios else {}
    for theirs, ours in NAMES.items():
        entry, here = details.get(theirs, {}), f"{where}, {theirs!r}"
        if entry.get("value_by_index"):
            values[ours] = _per_example(entry["value_by_index"], ("prob", "score", "rougeL_recall"), where=here)
        elif ours in ATTACKS and all(isinstance(entry.get(side), dict) for side in ("forget", "holdout")):
            members, others = (
                _per_example(entry[side].get("value_by_index", {}), ("score",), where=here)
                for side in ("forget", "holdout")
            )
            values[ours] = {**members, **{f"holdout/{key}": value for key, value in others.items()}}
    return values


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values) if values else math.nan


def _with_references(
    run: _Run, references: Mapping[str, Sequence[_Run]], utility: UtilityParts
) -> tuple[dict[str, float], dict[str, str]]:
    """Add to a run's values those that compare it with retain and full; and the reasons of what is missing."""
    values, missing = dict(run.values), dict(run.reasons)
    retain, no_retain = _partner(run, references.get("retain"), "retain", split=True)
    derived: dict[str, tuple[float, str | None]] = {
        f"s_{attack}": (math.nan, no_retain) if retain is None else _normalised(attack, run, retain)
        for attack in ATTACKS
    }
    value, why = derived["utility"] = _utility(run, utility)
    # Model Utility asks nothing of the split; fluency is that of answers to the forget set.
    full, no_full = _partner(run, references.get("full"), "full", split=utility == "with_fluency")
    whole, problem = (math.nan, no_full) if full is None else _utility(full, utility)
    if why is None and problem is not None:
        why = problem if full is None else f"full: {problem}"
    elif why is None and whole == 0:
        why = "the utility of full is 0"
    derived["utility_rel"] = (math.nan if why else value / whole, why)
    for name, (number_, reason) in derived.items():
        values[name] = number_
        missing |= {} if reason is None else {name: reason}
    return values, missing


def _partner(run: _Run, references: Sequence[_Run] | None, role: str, *, split: bool) -> tuple[_Run | None, str]:
    """Return the reference of a run's base model and split; None with the reason. An unknown one fits any."""
    if references is None:
        return None, f"needs the run of {role}: pass {role}="
    sides = 2 if split else 1
    fits = [
        other
        for other in references
        if all(a is None or b is None or a == b for a, b in zip(run.setup[:sides], other.setup[:sides], strict=True))
    ]
    fits = [other for other in fits if other.setup == run.setup] or fits
    if len(fits) == 1 or (fits and not split):
        return fits[0], ""
    there = "; ".join(setup_name(other.setup) for other in references[:4])
    many = "several runs" if fits else "no run"
    return None, f"{many} of {role} for {setup_name(run.setup)}: there are {there}"


def _normalised(attack: str, run: _Run, retain: _Run) -> tuple[float, str | None]:
    """`s = 1 - min(|AUC - AUC_retain| / AUC_retain, 1)`."""
    value, reference = run.values[attack], retain.values[attack]
    if math.isnan(value):
        return math.nan, run.reasons[attack]
    if math.isnan(reference):
        return math.nan, f"retain: {retain.reasons[attack]}"
    if reference == 0:
        return math.nan, "the AUC of retain is 0"
    return 1 - min(abs(value - reference) / reference, 1.0), None


def _utility(run: _Run, utility: UtilityParts) -> tuple[float, str | None]:
    names = ["model_utility"] if utility == "model_utility" else ["model_utility", "fluency"]
    for name in names:
        if math.isnan(run.values[name]):
            hint = '; utility="model_utility" does without' if name == "fluency" else ""
            return math.nan, f"{run.reasons[name]}{hint}"
    return float(harmonic_means(np.array([[run.values[name] for name in names]]))[0]), None
