"""Runs that Open-Unlearning evaluated, as a table of models."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeAlias

import numpy as np

from uds_lens._types import check_choice
from uds_lens.errors import ResultFormatError
from uds_lens.meta._columns import REASONS
from uds_lens.meta._tables import (
    SETUP,
    ModelTable,
    harmonic_means,
    is_within,
    kind,
    number,
    origin_by_name,
    read_object,
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
    """Contents of a run's files."""

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
    values = {ours: found.get(theirs, math.nan) for theirs, ours in NAMES.items()}
    reasons: dict[str, str] = {}
    for theirs, ours in NAMES.items():
        if math.isnan(values[ours]):
            default = " (Open-Unlearning does not measure it by default)" if ours in _NOT_BY_DEFAULT else ""
            reasons[ours] = nulls.get(theirs, f"the files have no {theirs}{default}")
    ratios, why = truth_ratios(details, where=str(folder))
    values["truth_ratio"] = _mean([value for value in ratios.values() if not math.isnan(value)])
    if math.isnan(values["truth_ratio"]):
        reasons["truth_ratio"] = why or "no example has all losses"
    return Run(folder, values, reasons, _examples(details, ratios, str(folder)) if examples else {}, setup)


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
            here = f"{where}, example {key[:40]!r}, {name!r}"
            answers = entry[name] if isinstance(entry[name], list) else [entry[name]]
            values[key] = _mean([number(answer, where=here) for answer in answers])
    return values


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


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values) if values else math.nan


UtilityParts: TypeAlias = Literal["with_fluency", "model_utility"]
"""Definition of utility: the harmonic mean of Model Utility and fluency, or Model Utility alone."""

_FILES = ("TOFU_EVAL.json", "TOFU_SUMMARY.json")


def read_open_unlearning(
    path: str | os.PathLike[str],
    *,
    retain: str | os.PathLike[str] | None = None,
    full: str | os.PathLike[str] | None = None,
    utility: UtilityParts = "with_fluency",
    examples: bool = False,
) -> ModelTable:
    """Read `TOFU_EVAL.json` and `TOFU_SUMMARY.json` of one run or of a whole folder of runs.

    `TOFU_EVAL.json` is taken where it is there, because the summary lacks what it takes for the Truth Ratio:
    `forget_truth_ratio` of Open-Unlearning is how close wrong over right is to 1, which does not grow with knowledge.
    Here it is `p_c / (p_c + p_w)` from the per-example losses of the paraphrased and the perturbed answers; a summary
    alone gives NaN. Open-Unlearning knows no jailbreak prompts and no white-box metrics.

    A folder such as `saves` holds runs of several base models and splits: both are columns, read from
    `.hydra/config.yaml` beside a run or from its name. A run is compared with references of its own base model and
    split only, and `rank` refuses models of several (`uds_lens.meta.select` takes those of one).

    Args:
        path: A file, a run's folder, or a folder with runs at any depth.
        retain: File or folder of the retain model's run: gives the normalised attacks `s_mia_*`. In a folder of several
            runs, those called `..._retain90` and the like; each model takes the one of its base model and split.
        full: File or folder of the full model's run: gives `utility_rel`. Of several as for `retain` (`..._full`).
        utility: What `utility` and `utility_rel` are made of; runs without fluency (`forget_Q_A_gibberish`) have the
            former only with "model_utility".
        examples: Keep the values per example, for `stability`; those of retain under the name "retain" (with base model
            and split where there are several).

    Returns:
        One row per run: `model` (the run's folder), `method`, `config`, `lr` and `epochs` as far as the folder's name
        tells them, `base`, `split`, metrics, `utility`, `utility_rel`. `retain` and `full` are no rows. Whatever is NaN
        has a reason.

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
    import pandas as pd

    check_choice("utility", utility, UtilityParts)
    root = Path(path)
    references = {
        role: _references(role, at, examples)
        for role, at in (("retain", retain), ("full", full))
        if at is not None
    }
    taken = {run.folder for runs in references.values() for run in runs}
    runs = {folder: files for folder, files in _runs(root).items() if folder not in taken}
    if not runs:
        raise ResultFormatError(f"{str(root)!r} holds no run beside those of retain and full.")
    rows, reasons, tables = [], [], []
    for (folder, files), name in zip(runs.items(), _names(root, list(runs)), strict=True):
        run = read_run(folder, files, examples=examples, setup=setup_of(folder, name))
        row, missing = _row(name, run, references, utility)
        rows.append(row)
        reasons += [{"model": name, "metric": metric, "reason": why} for metric, why in missing.items()]
        tables += _long(name, run)
    retains = references.get("retain", [])
    for run in retains:
        tables += _long("retain" if len(retains) == 1 else retain_name(run.setup), run)
    long = pd.DataFrame(tables, columns=["model", "metric", "example_id", "value"]) if examples else None
    return ModelTable(
        frame=pd.DataFrame(rows),
        reasons=pd.DataFrame(reasons, columns=list(REASONS)),
        source=str(root),
        examples=long,
    )


def _long(name: str, run: Run) -> list[tuple[str, str, str, float]]:
    return [
        (name, metric, example, value) for metric, found in run.examples.items() for example, value in found
    ]


def _runs(root: Path) -> dict[Path, tuple[Path, ...]]:
    """Folders with results, with their files; a single file is a run of its own."""
    if root.is_file():
        return {root.parent.resolve(): (root,)}
    found: dict[Path, tuple[Path, ...]] = {}
    for folder, folders, files in os.walk(root):
        folders.sort()
        own = tuple(Path(folder) / name for name in _FILES if name in files)
        if own:
            found[Path(folder).resolve()] = own
    if not found:
        raise ResultFormatError(
            f"no {' or '.join(_FILES)} in {str(root)!r}: name a run of Open-Unlearning, or a folder with runs."
        )
    return found


def _references(role: str, path: str | os.PathLike[str], examples: bool) -> list[Run]:
    """The runs of a reference, one for each base model and split."""
    root = Path(path)
    found = _runs(root)
    names = dict(zip(found, _names(root, list(found)), strict=True))
    if len(found) > 1:
        own = {folder: files for folder, files in found.items() if role_in(names[folder]) == role}
        if not own:
            raise ResultFormatError(
                f"{role}={str(path)!r} holds {len(found)} runs, none called {role} or {role}90: name the one of {role}."
            )
        found = own
    setups = {folder: setup_of(folder, names[folder]) for folder in found}
    for setup in setups.values():
        same = [names[folder] for folder, other in setups.items() if other == setup]
        if len(same) > 1:
            raise ResultFormatError(
                f"{role}={str(path)!r} holds {len(same)} runs of {role} ({setup_name(setup)}): {', '.join(same[:3])}. "
                f"Name the one that counts."
            )
    return [
        read_run(folder, files, examples=examples and role == "retain", setup=setups[folder])
        for folder, files in found.items()
    ]


def _partner(run: Run, references: Sequence[Run] | None, role: str, *, split: bool) -> tuple[Run | None, str]:
    """The reference of a run's base model and split; None with the reason. What is not known hinders nothing."""
    if references is None:
        return None, f"needs the run of {role}: pass {role}="
    sides = 2 if split else 1
    fits = [
        other
        for other in references
        if all(
            a is None or b is None or a == b
            for a, b in zip(run.setup[:sides], other.setup[:sides], strict=True)
        )
    ]
    fits = [other for other in fits if other.setup == run.setup] or fits
    if len(fits) == 1 or (fits and not split):
        return fits[0], ""
    there = "; ".join(setup_name(other.setup) for other in references[:4])
    many = "several runs" if fits else "no run"
    return None, f"{many} of {role} for {setup_name(run.setup)}: there are {there}"


def _names(root: Path, folders: list[Path]) -> list[str]:
    """The folders of the runs below `root`, without what is the same for all."""
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
    return names if len(set(names)) == len(names) else [str(folder.relative_to(top)) for folder in folders]


def _row(
    name: str, run: Run, references: Mapping[str, Sequence[Run]], utility: UtilityParts
) -> tuple[dict[str, Any], dict[str, str]]:
    row: dict[str, Any] = {"model": name, **origin_by_name(name), **dict(zip(SETUP, run.setup, strict=True))}
    missing = dict(run.reasons)
    row |= run.values
    retain, no_retain = _partner(run, references.get("retain"), "retain", split=True)
    # Model Utility asks nothing of the split; fluency is that of answers to the forget set.
    full, no_full = _partner(run, references.get("full"), "full", split=utility == "with_fluency")
    for attack in ATTACKS:
        row[f"s_{attack}"], why = _normalised(attack, run, retain, no_retain)
        if why is not None:
            missing[f"s_{attack}"] = why
    row["utility"], why = _utility(run, utility)
    if why is not None:
        missing["utility"] = why
    row["utility_rel"], why = _relative(row["utility"], why, full, utility, no_full)
    if why is not None:
        missing["utility_rel"] = why
    return row, missing


def _normalised(attack: str, run: Run, retain: Run | None, no_retain: str) -> tuple[float, str | None]:
    """`s = 1 - min(|AUC - AUC_retain| / AUC_retain, 1)`."""
    if retain is None:
        return math.nan, no_retain
    own, reference = run.values[attack], retain.values[attack]
    if math.isnan(own):
        return math.nan, run.reasons.get(attack, f"no {attack}")
    if math.isnan(reference):
        return math.nan, f"retain: {retain.reasons.get(attack, f'no {attack}')}"
    if reference == 0:
        return math.nan, "the AUC of retain is 0"
    return 1 - min(abs(own - reference) / reference, 1.0), None


def _utility(run: Run, utility: UtilityParts) -> tuple[float, str | None]:
    names = ["model_utility"] if utility == "model_utility" else ["model_utility", "fluency"]
    for name in names:
        if math.isnan(run.values[name]):
            hint = '; utility="model_utility" does without' if name == "fluency" else ""
            return math.nan, f"{run.reasons.get(name, f'no {name}')}{hint}"
    return float(harmonic_means(np.array([[run.values[name] for name in names]]))[0]), None


def _relative(
    own: float, why: str | None, full: Run | None, utility: UtilityParts, no_full: str
) -> tuple[float, str | None]:
    if why is not None:
        return math.nan, why
    if full is None:
        return math.nan, no_full
    reference, problem = _utility(full, utility)
    if problem is not None:
        return math.nan, f"full: {problem}"
    if reference == 0:
        return math.nan, "the utility of full is 0"
    return own / reference, None
