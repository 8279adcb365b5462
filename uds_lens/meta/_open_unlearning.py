"""Read runs evaluated by Open-Unlearning as a table of models."""

from __future__ import annotations

import math
import os
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np
import pandas as pd

from uds_lens._types import check_choice
from uds_lens.errors import ResultFormatError
from uds_lens.meta import _hydra as hydra
from uds_lens.meta._columns import MODELS, REASONS
from uds_lens.meta._tables import (
    SETUP,
    ModelTable,
    Setup,
    harmonic_means,
    kind,
    may_be_one,
    number,
    origin_by_name,
    pool_in,
    read_object,
    retain_name,
    role_in,
    setup_name,
    setup_of,
)

_SHARED = {
    "extraction_strength": "es",
    "exact_memorization": "em",
    "mia_loss": "mia_loss",
    "mia_zlib": "mia_zlib",
    "mia_min_k": "mia_min_k",
    "mia_min_k_plus_plus": "mia_min_kpp",
    "mia_reference": "mia_reference",
    "mia_gradnorm": "mia_gradnorm",
    "privleak": "privleak",
}
NAMES = {
    "TOFU": {
        **_SHARED,
        "forget_Q_A_Prob": "prob",
        "forget_Q_A_PARA_Prob": "paraprob",
        "forget_Q_A_ROUGE": "rouge",
        "forget_Q_A_PARA_ROUGE": "para_rouge",
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
    },
    "MUSE": {
        **_SHARED,
        "forget_knowmem_ROUGE": "forget_knowmem_rouge",
        "forget_verbmem_ROUGE": "forget_verbmem_rouge",
        "retain_knowmem_ROUGE": "retain_knowmem_rouge",
        "forget_gibberish": "fluency",
    },
    "UDS": {"uds": "uds", "uds_low": "uds_low", "uds_high": "uds_high"},
}
"""Open-Unlearning's metric names and this library's names for them, by suite. The value of "gibberish" is the share of
clean text, that is, fluency."""

ATTACKS = ("mia_loss", "mia_zlib", "mia_min_k", "mia_min_kpp")

_NOT_BY_DEFAULT = {"em", "fluency", "para_rouge", *ATTACKS, "mia_reference", "mia_gradnorm"} - {"mia_min_k"}
"""Metrics that Open-Unlearning measures only if its configuration is extended."""

_SPELLING = {name.lower(): name for names in NAMES.values() for name in names}  # releases differ in capitalisation

_FILES = {f"{suite}_{part}.json": suite for suite in NAMES for part in ("EVAL", "SUMMARY")}
_HARNESS = "LMEval_SUMMARY.json"  # Open-Unlearning's summary of lm-evaluation-harness results

_RIGHT, _WRONG = "forget_Q_A_PARA_Prob", "forget_Q_A_PERT_Prob"
_USED = {_WRONG.lower(), "forget_truth_ratio"}  # entries that have no column but are read, or explained by a reason

_OTHER_RATIO = (
    "Open-Unlearning's forget_truth_ratio is a different quantity; p_c / (p_c + p_w) needs the per-example losses of "
    f"{_RIGHT} and {_WRONG} in TOFU_EVAL.json"
)

UtilityParts: TypeAlias = Literal["with_fluency", "model_utility"]
"""Definition of utility: the harmonic mean of Model Utility and fluency, or Model Utility alone."""


class _Place(NamedTuple):
    """A folder with results of a run."""

    folder: Path
    name: str  # its path relative to the folder that is read
    files: tuple[Path, ...]  # evaluations before summaries

    @property
    def task(self) -> Path:
        """The task's folder, which contains this folder."""
        return hydra.task_folder(self.folder)

    @property
    def part(self) -> str:
        """Path of the folder relative to the task's folder."""
        return self.folder.relative_to(self.task).as_posix()


@dataclass(frozen=True, eq=False)
class _Run:
    """Contents of a run's files."""

    place: _Place
    values: Mapping[str, float]  # keyed by this library's names; NaN if there is no value
    reasons: Mapping[str, str]  # why they are NaN
    examples: Mapping[str, Mapping[str, float]]  # value by metric and example id, if requested
    setup: Setup

    ignored: Collection[str] = ()  # entries in the files that have no column


def read_open_unlearning(
    path: str | os.PathLike[str],
    *,
    retain: str | os.PathLike[str] | None = None,
    full: str | os.PathLike[str] | None = None,
    utility: UtilityParts = "with_fluency",
    examples: bool = False,
    checkpoints: bool = False,
) -> ModelTable:
    """Read Open-Unlearning's results for one run or a whole folder of runs.

    It reads `TOFU_EVAL.json`, `MUSE_EVAL.json`, `UDS_EVAL.json` (written by `uds_lens.sharing`) and their
    `_SUMMARY.json`. `LMEval_SUMMARY.json`, inside a run or in a folder with the run's name, gives columns such as
    `mmlu/acc`.

    If a run has both an evaluation and its summary, the evaluation is read, because the summary lacks what the Truth
    Ratio needs. Open-Unlearning's `forget_truth_ratio` measures how close the ratio of wrong to right answers is to 1,
    which does not increase with knowledge. Here, the Truth Ratio is `p_c / (p_c + p_w)` from the per-example losses of
    the paraphrased and the perturbed answers; from a summary alone it is NaN. Open-Unlearning has no jailbreak prompts
    and no white-box metrics.

    A folder such as `saves` can hold runs of several base models and splits. Both become columns, read from
    `.hydra/config.yaml` next to a run or from the run's name. A run is compared only with references of its own base
    model and split, and `rank` refuses a mixed table (`uds_lens.meta.select` picks one base model or split).

    Args:
        path: A file, a run's folder, or a folder with runs at any depth.
        retain: File or folder of the retain model's run, which the normalised attacks `s_mia_*` need. In a folder of
            several runs, the runs with names such as `..._retain90` are used, each for the models with its base model
            and split. If None, such names are looked for in `path` and, if `path` is `saves/unlearn`, also in
            `saves/eval`.
        full: File or folder of the full model's run, which `utility_rel` needs. In a folder of several runs, the runs
            with names such as `..._full` are used, as for `retain`.
        utility: Parts of `utility` and `utility_rel`. Runs without fluency (`forget_Q_A_gibberish`) have values only
            with "model_utility". For MUSE, which has no Model Utility, `retain_knowmem_ROUGE` is used.
        examples: Keep the values per example, for `stability`. Among these, the retain model is called "retain",
            followed by base model and split if there are several retain models.
        checkpoints: Also keep `checkpoint-*` of runs that have results for the final weights. Such checkpoints are
            intermediate states (the first is the model before unlearning), not configurations to choose from.

    Returns:
        One row per run: `model` (the run's folder), `method`, `config`, `lr` and `epochs` if its name or Hydra's record
        of the training has them, `base`, `split`, metrics, `utility`, `utility_rel`. Models with and without the
        knowledge (`pos_tofu_...`, `neg_tofu_...`) have `knows`, `variant` and `run`. `retain` and `full` are in
        `references`. Every NaN has a reason, and `notes` lists what was not read.

    Raises:
        ResultFormatError: There is no run; a file is broken; or `retain` or `full` holds no suitable run, or two with
            the same base model and split.
        ConfigError: `utility` is unknown.

    Example:
        >>> read_open_unlearning("nowhere")
        Traceback (most recent call last):
            ...
        uds_lens.errors.ResultFormatError: no TOFU_EVAL.json, MUSE_EVAL.json, UDS_EVAL.json or summary in...
    """
    check_choice("utility", utility, UtilityParts)
    root = Path(path)
    places = _places(root)
    references, notes = _all_references(root, {"retain": retain, "full": full}, places, examples)
    taken = {run.place.folder for runs in references.values() for run in runs}
    left = [place for place in places if place.folder not in taken]
    if not left:
        raise ResultFormatError(f"{str(root)!r} holds no runs except those of retain and full.")
    if not checkpoints:
        left = _last_of_each(left, notes)
    runs = {place.name: _read_run(place, examples) for place in left}
    others, strays = _harness_results(root, runs)
    rows, missing = [], {}
    for model, run in runs.items():
        values, missing[model] = _with_references(run, references, utility)
        rows.append({"model": model, **_origin(run.place.folder, model), **values, **others.get(model, {})})
    columns = dict.fromkeys(name for row in rows for name in row if name not in MODELS or name == "utility_rel")
    reasons = [
        (row["model"], name, missing[row["model"]].get(name, "not among the results of this run"))
        for row in rows
        for name in columns
        if math.isnan(row.get(name, math.nan))
    ]
    retains = references.get("retain", [])
    all_runs = {**runs, **{"retain" if len(retains) == 1 else retain_name(run.setup): run for run in retains}}
    long = [
        (name, metric, example, value)
        for name, run in all_runs.items()
        for metric, values in run.examples.items()
        for example, value in values.items()
    ]
    return ModelTable(
        frame=pd.DataFrame(rows),
        reasons=pd.DataFrame(reasons, columns=list(REASONS)),
        source=str(root),
        examples=pd.DataFrame(long, columns=["model", "metric", "example_id", "value"]) if examples else None,
        references=_reference_frame(references, utility),
        notes=(*notes, *strays, *_unread(root, runs.values(), places)),
    )


def _all_references(
    root: Path, given: Mapping[str, str | os.PathLike[str] | None], places: list[_Place], examples: bool
) -> tuple[dict[str, list[_Run]], list[str]]:
    """Read the given references and those found by their names; a note names the latter.

    References that were not given are searched for in the folder, and in `eval` next to a folder `unlearn`.
    """
    near: dict[Path, list[_Place]] = {}
    # a folder with only references was given on purpose
    if not root.is_file() and not all(role_in(place.name) for place in places):
        near[root], beside = places, root.resolve().parent / "eval"
        if root.resolve().name == "unlearn" and holds_runs(beside):
            near[beside] = _places(beside)
    references, notes = {}, []
    for role, at in sorted(given.items(), key=lambda item: item[1] is None):
        if at is not None:
            references[role] = _references(role, Path(at), _places(Path(at)), examples)
            continue
        for folder, there in near.items():
            if role not in references and any(role_in(place.name) == role for place in there):
                references[role] = _references(role, folder, there, examples)
                called = _some([_called(run) for run in references[role]])
                notes.append(f"used as the {role} reference and therefore not ranked: {called}")
    return references, notes


def _references(role: str, root: Path, places: list[_Place], examples: bool) -> list[_Run]:
    """Read the runs of a reference, one for each base model and split."""
    named = [place for place in places if role_in(place.name) == role or len(places) == 1]
    if not named:
        raise ResultFormatError(
            f"{role}={str(root)!r} holds {len(places)} runs, none of them called {role} or {role}90: pass the "
            f"folder of the {role} run."
        )
    runs = [_read_run(place, examples and role == "retain") for place in named]
    for setup in dict.fromkeys(run.setup for run in runs):
        same = [run.place.name for run in runs if run.setup == setup]
        if len(same) > 1:
            raise ResultFormatError(
                f"{role}={str(root)!r} holds {len(same)} runs of {role} ({setup_name(setup)}): {', '.join(same[:3])}. "
                "Pass the folder of the run to use."
            )
    return runs


def _last_of_each(places: Sequence[_Place], notes: list[str]) -> list[_Place]:
    """Leave out the checkpoints of tasks that have results for the final weights."""
    last = {place.task for place in places if "checkpoint" not in place.part}
    early = [place for place in places if "checkpoint" in place.part and place.task in last]
    if early:
        notes.append(f"intermediate checkpoints, left out: {_some([place.name for place in early])}")
    return [place for place in places if place not in early]


def _some(names: Sequence[str]) -> str:
    """Name the first few."""
    shown = sorted(dict.fromkeys(names))
    return ", ".join(shown[:4]) + (f" and {len(shown) - 4} more" if len(shown) > 4 else "")


def _origin(folder: Path, name: str) -> dict[str, Any]:
    """Return method, configuration, learning rate and epochs from the name or, failing that, from Hydra's records."""
    pool = pool_in(name)
    origin = origin_by_name(name)
    if pool is not None or role_in(name) is not None:
        return origin | (pool or {})
    for record in hydra.configs(folder):
        if origin["method"] is None and (task := hydra.text(record, "task_name")):
            origin |= {key: value for key, value in origin_by_name(task).items() if value is not None}
        if hydra.value(record, "mode") != "unlearn":
            continue
        handler = hydra.text(record, "trainer.handler")
        origin["method"] = origin["method"] or (handler.lower() if handler else None)
        for key, path in (("lr", "learning_rate"), ("epochs", "num_train_epochs")):
            if math.isnan(origin[key]):
                origin[key] = _as_float(hydra.value(record, f"trainer.args.{path}"))
    return origin


def _as_float(value: Any) -> float:
    """Return a number from a YAML file, where 1e-5 is text; NaN for anything else."""
    try:
        return float(value)
    except (TypeError, ValueError):
        return math.nan


def _reference_frame(references: Mapping[str, Sequence[_Run]], utility: UtilityParts) -> pd.DataFrame | None:
    rows = [
        {"model": _called(run), "role": role, **_with_references(run, references, utility)[0]}
        for role, runs in references.items()
        for run in runs
    ]
    return pd.DataFrame(rows) if rows else None


def _called(run: _Run) -> str:
    task, part = run.place.task.name, run.place.part
    return task if part in (".", "evals") else f"{task}/{part}"


def _unread(root: Path, runs: Collection[_Run], places: Sequence[_Place]) -> list[str]:
    """List entries of the files that have no column, and tasks without results."""
    counts = Counter(name for run in runs for name in run.ignored)
    notes = []
    if counts:
        notes.append(f"not read, because this library has no such metrics: {_some(list(counts))}")
    if root.is_file():
        return notes
    tasks = {hydra.task_folder(place.parent.parent) for place in root.resolve().glob("**/.hydra/config.yaml")}
    left = tasks - {place.task for place in places}
    if empty := [task.name for task in left if hydra.value(hydra.read_config(task) or {}, "mode") == "unlearn"]:
        notes.append(f"without results: {_some(empty)}")
    return notes


def _harness_results(root: Path, runs: Mapping[str, _Run]) -> tuple[dict[str, dict[str, float]], list[str]]:
    """Read results of lm-evaluation-harness by run, as `task/metric`, and note those that belong to no run."""
    results: dict[str, dict[str, float]] = {}
    by_folder, strays = {run.place.folder: name for name, run in runs.items()}, 0
    for file in [] if root.is_file() else sorted(root.resolve().glob(f"**/{_HARNESS}")):
        owner = _owner(file.parent, by_folder)
        if owner is None:
            strays += 1
            continue
        values = results.setdefault(owner, {})
        for name, value in read_object(file, expected="results of lm-evaluation-harness").items():
            if "/" in name and "_stderr" not in name and type(value) in (int, float):
                values[name] = number(value, where=f"{file}, {name!r}")
    return results, [f"not read: {strays} {_HARNESS} that belong to no run"] if strays else []


def _owner(folder: Path, runs: Mapping[Path, str]) -> str | None:
    """Return the run that results belong to: in their folder, a parent or its `evals`, or in a task of that name."""
    for place in (folder, *folder.parents):
        for candidate in (place, place / "evals"):
            if candidate in runs:
                return runs[candidate]
    task = hydra.task_folder(folder).name
    same = [name for run, name in runs.items() if hydra.task_folder(run).name == task]
    return same[0] if len(same) == 1 else None


def holds_runs(place: Path) -> bool:
    """Return whether a path is a file that Open-Unlearning wrote, or a folder that contains such files.

    >>> holds_runs(Path("nowhere"))
    False
    """
    return place.name in _FILES or (place.is_dir() and any(next(place.rglob(name), None) for name in _FILES))


def _places(root: Path) -> list[_Place]:
    """Find the folders with results, or the single file; `evals` is dropped from names that stay unique without it."""
    top = (root.parent if root.is_file() else root).resolve()
    results: dict[Path, tuple[Path, ...]] = {top: (root,)} if root.is_file() else {}
    for place, folders, files in os.walk(root):
        folders.sort()
        if own := tuple(Path(place) / name for name in _FILES if name in files):
            results[Path(place).resolve()] = own
    if not results:
        raise ResultFormatError(
            f"no {', '.join(name for name in _FILES if 'EVAL' in name)} or summary in {str(root)!r}: pass an "
            "Open-Unlearning run, or a folder of runs."
        )
    names = []
    for folder in results:
        parts = list(folder.relative_to(top).parts)
        while parts and parts[-1] in ("evals", "eval"):
            parts.pop()
        if not parts:  # the folder of the run itself was given
            whole = [part for part in top.parts if part not in ("evals", "eval")]
            parts = whole[-2:] if whole and hydra.is_within(whole[-1]) else whole[-1:]
        names.append("/".join(parts) or "run")
    if len(set(names)) < len(names):
        names = [str(folder.relative_to(top)) for folder in results]
    return [_Place(folder, name, own) for (folder, own), name in zip(results.items(), names, strict=True)]


def _read_run(place: _Place, examples: bool) -> _Run:
    """Read the files of one run; a number found in several files is taken from the first (evaluations come first)."""
    suites = dict.fromkeys(_FILES.get(file.name, "TOFU") for file in place.files)
    ours_of = {theirs: ours for suite in reversed(list(suites)) for theirs, ours in NAMES[suite].items()}
    values = dict.fromkeys(ours_of.values(), math.nan)
    reasons: dict[str, str] = {}
    for theirs, ours in ours_of.items():
        default = " (Open-Unlearning does not measure it by default)" if ours in _NOT_BY_DEFAULT else ""
        reasons[ours] = f"the files have no {theirs}{default}"
    details: dict[str, Mapping[str, Any]] = {}
    ignored: set[str] = set()
    for file in place.files:
        for theirs, entry in read_object(file, expected="results of Open-Unlearning").items():
            name = _SPELLING.get(theirs.lower(), theirs)
            value = entry
            if isinstance(entry, dict):  # in an evaluation, the value is in `agg_value` or `auc`
                details.setdefault(name, entry)
                value = entry.get("agg_value") if entry.get("agg_value") is not None else entry.get("auc")
            ours = ours_of.get(name, "")
            if not ours and name.lower() not in _USED:
                ignored.add(name)
            if ours and math.isnan(values[ours]):
                where = f"{file}, {theirs!r}" + (", 'agg_value'" if isinstance(entry, dict) else "")
                values[ours] = number(value, where=where)
                reasons[ours] = f"{name} has no value in {file.name}"
    ratios: Mapping[str, float] = {}
    if "TOFU" in suites:
        ratios, why = truth_ratios(details, where=str(place.folder))
        values["truth_ratio"] = _mean([value for value in ratios.values() if not math.isnan(value)])
        reasons["truth_ratio"] = why or "no example has all losses"
    missing = {name: reasons[name] for name, value in values.items() if math.isnan(value)}
    kept = _examples(details, ratios, ours_of, str(place.folder)) if examples else {}
    return _Run(place, values, missing, kept, setup_of(place.folder, place.name), ignored)


def truth_ratios(details: Mapping[str, Mapping[str, Any]], *, where: str) -> tuple[dict[str, float], str | None]:
    """Compute `p_c / (p_c + p_w)` per example, where p is the geometric mean over answers of the probability per token.

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
        return {}, f"{_RIGHT} and {_WRONG} cover different examples"
    # exp(-right) / (exp(-right) + exp(-wrong)) without overflow
    return {key: float(1 / (1 + np.exp(np.clip(right[key] - wrong[key], -700, 700)))) for key in right}, None


def _per_example(by_index: Any, names: Sequence[str], *, where: str) -> dict[str, float]:
    """Return one number per example, the mean if it has several answers; NaN for null."""
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
    details: Mapping[str, Mapping[str, Any]], ratios: Mapping[str, float], ours_of: Mapping[str, str], where: str
) -> dict[str, Mapping[str, float]]:
    values: dict[str, Mapping[str, float]] = {"truth_ratio": ratios} if ratios else {}
    for theirs, ours in ours_of.items():
        entry, here = details.get(theirs, {}), f"{where}, {theirs!r}"
        if entry.get("value_by_index"):
            names = ("prob", "score", "rougeL_recall")
            values[ours] = _per_example(entry["value_by_index"], names, where=here)
            continue
        sides = [entry.get("forget"), entry.get("holdout")]
        if ours in ATTACKS and all(isinstance(side, dict) for side in sides):
            members, others = (
                _per_example((side or {}).get("value_by_index", {}), ("score",), where=here) for side in sides
            )
            values[ours] = {**members, **{f"holdout/{key}": value for key, value in others.items()}}
    return values


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values) if values else math.nan


def _with_references(
    run: _Run, references: Mapping[str, Sequence[_Run]], utility: UtilityParts
) -> tuple[dict[str, Any], dict[str, str]]:
    """Return a run's setup and values, also relative to retain and full, and the reasons for missing values."""
    values: dict[str, Any] = {**dict(zip(SETUP, run.setup, strict=True)), **run.values}
    missing = dict(run.reasons)

    def note(name: str, value: float, why: str | None) -> None:
        values[name] = value
        if why is not None:
            missing[name] = why

    retain, no_retain = _partner(run, references.get("retain"), "retain", split=True)
    for attack in ATTACKS if "mia_loss" in values else ():
        note(f"s_{attack}", *((math.nan, no_retain) if retain is None else _normalised(attack, run, retain)))
    if not any(name in values for name in _KEPT):  # UDS alone
        return values, missing
    value, why = _utility(run, utility)
    note("utility", value, why)
    # Model Utility does not depend on the split; fluency does, because it is measured on answers to the forget set.
    full, no_full = _partner(run, references.get("full"), "full", split=utility == "with_fluency")
    whole, problem = (math.nan, no_full) if full is None else _utility(full, utility)
    if why is None and problem is not None:
        why = problem if full is None else f"full: {problem}"
    elif why is None and whole == 0:
        why = "the utility of full is 0"
    note("utility_rel", math.nan if why else value / whole, why)
    return values, missing


def _partner(run: _Run, references: Sequence[_Run] | None, role: str, *, split: bool) -> tuple[_Run | None, str]:
    """Return the reference with a run's base model and split, or None with a reason. Unknown ones match any."""
    if references is None:
        return None, f"needs the run of {role}: pass {role}="
    sides = 2 if split else 1
    fits = [other for other in references if may_be_one(run.setup[:sides], other.setup[:sides])]
    fits = [other for other in fits if other.setup == run.setup] or fits
    one_base = len({other.setup[0] for other in fits}) == 1
    if len(fits) == 1 or (one_base and not split):
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


_KEPT = ("model_utility", "retain_knowmem_rouge")
"""Metrics of retained knowledge, for TOFU and MUSE."""


def _utility(run: _Run, utility: UtilityParts) -> tuple[float, str | None]:
    kept = next(name for name in _KEPT if name in run.values)
    names = [kept] if utility == "model_utility" else [kept, "fluency"]
    for name in names:
        if math.isnan(run.values[name]):
            hint = '; utility="model_utility" does without' if name == "fluency" else ""
            return math.nan, f"{run.reasons[name]}{hint}"
    return float(harmonic_means(np.array([[run.values[name] for name in names]]))[0]), None
