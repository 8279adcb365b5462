"""Runs that Open-Unlearning evaluated, as a table of models."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, TypeAlias

import numpy as np

from uds_lens.checked_arguments import arguments_checked
from uds_lens.errors import ResultFormatError
from uds_lens.meta.harmonic_columns import harmonic_means
from uds_lens.meta.made_by import is_within, role_in, setup_of, told_by_name
from uds_lens.meta.model_table import SETUP, ModelTable, retain_name, setup_name
from uds_lens.meta.open_unlearning_run import ATTACKS, Run, read_run
from uds_lens.meta.required_columns import REASONS
from uds_lens.types import check_choice

Usefulness: TypeAlias = Literal["with_fluency", "model_utility"]
"""What counts as utility: the harmonic mean of Model Utility and fluency, or Model Utility alone."""

_FILES = ("TOFU_EVAL.json", "TOFU_SUMMARY.json")


@arguments_checked
def read_open_unlearning(
    path: str | os.PathLike[str],
    *,
    retain: str | os.PathLike[str] | None = None,
    full: str | os.PathLike[str] | None = None,
    utility: Usefulness = "with_fluency",
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

    check_choice("utility", utility, Usefulness)
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
    name: str, run: Run, references: Mapping[str, Sequence[Run]], utility: Usefulness
) -> tuple[dict[str, Any], dict[str, str]]:
    row: dict[str, Any] = {"model": name, **told_by_name(name), **dict(zip(SETUP, run.setup, strict=True))}
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


def _utility(run: Run, utility: Usefulness) -> tuple[float, str | None]:
    names = ["model_utility"] if utility == "model_utility" else ["model_utility", "fluency"]
    for name in names:
        if math.isnan(run.values[name]):
            hint = '; utility="model_utility" does without' if name == "fluency" else ""
            return math.nan, f"{run.reasons.get(name, f'no {name}')}{hint}"
    return float(harmonic_means(np.array([[run.values[name] for name in names]]))[0]), None


def _relative(
    own: float, why: str | None, full: Run | None, utility: Usefulness, no_full: str
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
