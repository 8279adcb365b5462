"""Read measured values of published models, from a study, the released script, or Open-Unlearning.

The first part reads run folders of the UDS paper's released script: `summary.json` and `results.json`.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd

from uds_lens import meta, study
from uds_lens._storage.files import read_file
from uds_lens.data import CHAT_STYLES
from uds_lens.data._prompts import ChatStyle
from uds_lens.errors import DataError, ResultFormatError
from uds_lens.meta import ModelTable
from uds_lens.meta._columns import REASONS
from uds_lens.meta._hydra import task_folder
from uds_lens.meta._tables import kind, member, number, origin, parse, read_object
from uds_lens.metrics import METRICS
from uds_lens.metrics._catalogue import resolve
from uds_lens.published._registry import RAW, PublishedModel, find
from uds_lens.study._folder import StudyFolder
from uds_lens.study._plan import audit_settings, metric_settings, style_of

SUMMARY, RESULTS = "summary.json", "results.json"

_EXPECTED = "a run folder of the UDS paper's released script"
_RUN = re.compile(r"\d{4}_\d{6}_tf_(.+)_layer")
"""Folder name used by the script: month, day, time and model."""

_DEFAULT_TAU, _CLOSE = 0.05, 1e-6


@dataclass(frozen=True, eq=False, kw_only=True)
class ReleasedRuns(ModelTable):
    """Runs of the released script: one row per model, with `uds` and `n_measured`; `examples` has every score."""

    layers: pd.DataFrame
    """`model`, `example_id`, `layer`, `s1_delta`, `s2_delta`: nats per token, as written (log-probability under full
    minus log-probability in the patched pass); NaN if the script wrote none."""

    settings: pd.DataFrame
    """`model`, `source`, `full`, `retain`, `dtype`, `tau`, `n_examples`, `n_skipped`."""


def read_released(path: str | os.PathLike[str]) -> ReleasedRuns:
    """Read the output of the UDS paper's released script.

    As in the script, the score of a model is the mean over the examples that have a score. If no example has a score,
    the script writes 0, and this table has NaN with a reason. Every score is recomputed from the layers and must agree
    with the written score.

    Args:
        path: One run folder, or a folder that contains several.

    Returns:
        One row per run. Known models (`find`) have their names from the authors' page, and other models the name of the
        run.

    Raises:
        ResultFormatError: A file is broken or was not written by the script, or `summary.json` is missing because the
            run was killed.
        DataError: There is no run, or two runs measured the same model.

    Example:
        >>> read_released("nowhere")
        Traceback (most recent call last):
            ...
        uds_lens.errors.DataError: no run of the released script at 'nowhere': expected a folder with results.json and
        summary.json.
    """
    folders = released_folders(path)
    if not folders:
        raise DataError(
            f"no run of the released script at {os.fspath(path)!r}: expected a folder with {RESULTS} and {SUMMARY}."
        )
    runs = [_read(folder) for folder in folders]
    names = [run.settings["model"] for run in runs]
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise DataError(f"{os.fspath(path)!r} holds several runs of {twice!r}: pass the folder of one of these runs.")
    rows, reasons = [], []
    for run in runs:
        name, scores = run.settings["model"], [uds for _, uds in run.examples if uds == uds]
        uds = sum(scores) / len(scores) if scores else math.nan
        made = origin(run.settings["source"], "", names=(name,))
        rows.append({"model": name, **made, "uds": uds, "n_measured": len(scores)})
        if not scores:
            reasons.append((name, "uds", "no example is measurable (the script writes 0)"))
    examples = [(run.settings["model"], "uds", example_id, uds) for run in runs for example_id, uds in run.examples]
    layers = [(run.settings["model"], *row) for run in runs for row in run.layers]
    return ReleasedRuns(
        frame=pd.DataFrame(rows),
        reasons=pd.DataFrame(reasons, columns=list(REASONS)),
        source=str(path),
        examples=pd.DataFrame(examples, columns=["model", "metric", "example_id", "value"]),
        layers=pd.DataFrame(layers, columns=["model", "example_id", "layer", "s1_delta", "s2_delta"]),
        settings=pd.DataFrame([run.settings for run in runs]),
    )


def released_folders(path: str | os.PathLike[str]) -> list[Path]:
    """List the run folders at or below a path: those with `results.json`."""
    return sorted(file.parent for file in Path(path).glob(f"**/{RESULTS}"))


@dataclass(frozen=True)
class _Run:
    settings: dict[str, Any]
    examples: Sequence[tuple[str, float]]
    layers: Sequence[tuple[str, int, float, float]]


def _read(folder: Path) -> _Run:
    where = str(folder / SUMMARY)
    summary = read_object(folder / SUMMARY, expected=_EXPECTED)
    tau = number(summary.get("delta_threshold"), where=f"{where}, 'delta_threshold'")
    tau = _DEFAULT_TAU if math.isnan(tau) else tau
    examples, layers = [], []
    for name, record, here in _examples(folder / RESULTS):
        s1, s2 = (_deltas(record, part, here) for part in ("s1_deltas", "s2_deltas"))
        if len(s1) != len(s2):
            raise ResultFormatError(f"{here}: {len(s1)} values of S1 and {len(s2)} of S2.")
        uds = number(record.get("uds"), where=f"{here}, 'uds'")
        again = _score(s1, s2, tau)
        if not (math.isnan(uds) and math.isnan(again)) and not abs(uds - again) <= _CLOSE:
            raise ResultFormatError(f"{here}: its layers give a UDS of {again:.6g}, but the file states {uds:.6g}.")
        examples.append((name, uds))
        layers += [(name, layer, a, b) for layer, a, b in zip(_layers(record, len(s1), here), s1, s2, strict=True)]
    if len({name for name, _ in examples}) < len(examples):
        raise ResultFormatError(f"{str(folder)!r}: an example occurs twice.")
    source = member(summary, "source_model_id", str, where=where) if "source_model_id" in summary else ""
    entry = find(source or _from_name(folder))
    settings = {
        "model": _from_name(folder) if entry is None else entry.name,
        "source": source or _from_name(folder),
        **{name: str(summary.get(f"{name}_model") or "") for name in ("full", "retain")},
        "dtype": str(summary.get("dtype") or ""),
        "tau": tau,
        "n_examples": len(examples),
        "n_skipped": len(member(summary, "skipped_indices", list, where=where)) if "skipped_indices" in summary else 0,
    }
    scores = [uds for _, uds in examples if uds == uds]
    written = number(summary.get("avg_uds"), where=f"{where}, 'avg_uds'")
    mean = sum(scores) / len(scores) if scores else 0.0
    if abs(written - mean) > _CLOSE:
        raise ResultFormatError(f"{where}: 'avg_uds' is {written:.6g}, but the mean over its examples is {mean:.6g}.")
    return _Run(settings, examples, layers)


def _score(s1: Sequence[float], s2: Sequence[float], tau: float) -> float:
    """Return the UDS of one example; NaN if no layer has S1 above tau.

    >>> _score([1.0, 3.0, 0.01], [0.5, 6.0, 0.0], 0.05)
    0.875
    """
    weights = {layer: one for layer, one in enumerate(s1) if one > tau}
    weighted = sum(one * min(max(s2[layer] / one, 0.0), 1.0) for layer, one in weights.items())
    return weighted / sum(weights.values()) if weights else math.nan


def _from_name(folder: Path) -> str:
    run = _RUN.fullmatch(folder.name)
    return run[1] if run else folder.name


def _examples(file: Path) -> list[tuple[str, dict[str, Any], str]]:
    """Return the id, record and location of each example."""
    content = parse(read_file(file), where=str(file), expected=_EXPECTED)
    if not isinstance(content, list):
        raise ResultFormatError(f"{str(file)!r} holds {kind(content)}: expected a list of examples.")
    places = [f"{file}[{at}]" for at in range(len(content))]
    return [(_id(record, here), record, here) for record, here in zip(content, places, strict=True)]


def _id(record: Any, where: str) -> str:
    if not isinstance(record, dict):
        raise ResultFormatError(f"{where} is {kind(record)}: expected an example (a JSON object).")
    idx = record.get("idx")
    if isinstance(idx, bool) or not isinstance(idx, int | str) or not str(idx).strip():
        raise ResultFormatError(f"{where}: 'idx' must be a number or text; got {kind(idx)}.")
    return str(idx)


def _deltas(record: Mapping[str, Any], name: str, where: str) -> list[float]:
    values = record.get(name)
    if not isinstance(values, list):
        raise ResultFormatError(f"{where}: {name!r} must be a list; got {kind(values)}.")
    return [number(value, where=f"{where}, {name!r}") for value in values]


def _layers(record: Mapping[str, Any], count: int, where: str) -> list[int]:
    """Return the number of each layer; the script may have measured only some layers."""
    parts = record.get("layer_records")
    if not parts:
        return list(range(count))
    numbers: list[Any] = []
    if isinstance(parts, list):
        numbers = [part.get("layer") for part in parts if isinstance(part, dict)]
    if not all(type(layer) is int for layer in numbers) or not len(numbers) == len(set(numbers)) == count:
        raise ResultFormatError(f"{where}: expected numbers for {count} layers; got {str(numbers)[:60]}.")
    return numbers


COLUMNS = (
    "group",
    "model",
    "role",
    "metric",
    "state",
    "measured",
    "reason",
    "prompts",
    "dtype",
    "last_layer",
    "otherwise",
    "sampled",
    "at",
)

_TAU = 0.05  # of every published UDS

_ROWS = 367  # rows with entities, on which the paper's UDS is measured


@dataclass(frozen=True, eq=False, kw_only=True)
class MeasuredRun:
    """Values of published models."""

    frame: pd.DataFrame  # one row per model, metric and state: columns `COLUMNS`
    source: str  # where it was read
    kind: str  # what produced them: study, released script, Open-Unlearning
    unknown: tuple[str, ...] = ()  # models in the run that are not among the published models
    folder: StudyFolder | None = field(default=None, repr=False)  # the study, if it is one


def read_run(run: str | os.PathLike[str]) -> MeasuredRun:
    """Read the values of published models in a run."""
    place = Path(run)
    if StudyFolder(place).manifest.is_file():
        measured = _of_study(place)
    elif place.is_dir() and any(place.glob("**/TOFU_*.json")):
        measured = _of_open_unlearning(place)
    elif released_folders(place):
        measured = _of_released(place)
    else:
        raise DataError(
            f"no run at {str(place)[-200:]!r}: expected the folder of uds-lens published run (or of a sweep), run "
            "folders of the UDS paper's released script, or Open-Unlearning's saves."
        )
    if not len(measured.frame):
        names = ", ".join(measured.unknown[:4]) or "nothing measured"
        raise DataError(
            f"{str(place)[-200:]!r} holds no value of a published model ({names}): models are recognised by their Hub "
            "id, or by a folder named after the last part of that id."
        )
    _require_each_once(measured)
    return measured


def _require_each_once(run: MeasuredRun) -> None:
    """Refuse a run with two values of the same metric and model."""
    before = run.frame[run.frame["state"] == "before"]
    for (_, model, metric), same in before.groupby(["group", "model", "metric"], sort=False):
        if len(same) > 1:
            one, other = (str(place)[-120:] for place in same["at"].iloc[:2])
            raise DataError(
                f"{run.source[-120:]!r} holds {metric} of {model} {len(same)} times, as {one!r} and {other!r}: pass a "
                "folder that holds only one of these values."
            )


def _made(rows: list[tuple[Any, ...]], **facts: Any) -> MeasuredRun:
    return MeasuredRun(frame=pd.DataFrame(rows, columns=list(COLUMNS)), **facts)


def _of_study(place: Path) -> MeasuredRun:
    folder = StudyFolder(place)
    full = find(folder.plan.full)
    group = None if full is None else full.group.name
    by_id = {model.model_id: find(model.source) or _by_name(model.model_id, group) for model in folder.models}
    roles = {model.model_id: model.role for model in folder.models}
    sampled = folder.plan.data.limit is not None
    rows = []
    for row in study.table(folder).to_dict("records"):
        entry = by_id[row["model_id"]]
        if entry is not None:
            asked = _as_measured(folder, entry, str(row["metric"]), roles[row["model_id"]], row["state"])
            facts = (entry.group.name, entry.name, entry.role, row["metric"], row["state"], row["value"], row["reason"])
            rows.append((*facts, *asked, sampled, row["model_id"]))
    unknown = tuple(name for name, entry in by_id.items() if entry is None)
    return _made(rows, source=str(place), kind="study", unknown=unknown, folder=folder)


def _by_name(name: str, group: str | None) -> PublishedModel | None:
    """Find a copy by its name on the authors' page, except full and retain, which anyone may use as names."""
    return None if name in ("full", "retain") else find(name, group=group)


def _as_measured(
    folder: StudyFolder, model: PublishedModel, metric: str, role: Any, state: Any
) -> tuple[str, str, str, str]:
    """Return prompts, dtype and last layer of a value, and say how else it differs from the published value."""
    plan, measure = folder.plan, folder.plan.measure
    audit = audit_settings(measure) if metric.startswith("uds") else None
    settings = audit or metric_settings(measure, style_of(measure, metric, role, state))
    internal = audit is None and metric in METRICS and METRICS[metric].group == "representation"
    needed = {need for spec in resolve([metric]) for need in spec.needs} if metric in METRICS else set()
    if audit is not None:
        needed |= {"full", "retain"}
    other_questions = plan.data.tofu is not None and plan.data.split != model.group.split
    otherwise = [
        _references(plan.full if "full" in needed else "", plan.retain if "retain" in needed else "", model),
        f"tau: {audit.tau:g} here, {_TAU:g} there" if audit is not None and audit.tau != _TAU else "",
        f"questions: {plan.data.split} here, {model.group.split} there" if other_questions else "",
    ]
    return (
        RAW if internal else _words(settings.protocol, settings.chat),
        settings.dtype,
        "resid_post" if audit is None else audit.last_layer,
        "; ".join(filter(None, otherwise)),
    )


def _references(full: str, retain: str, model: PublishedModel) -> str:
    """Say which of a run's full and retain are not the published models; "" if unknown or not needed."""
    wanted = {"full": (full, model.group.full), "retain": (retain, model.group.retain)}
    return "; ".join(
        f"{role}: {given[-80:]} here, {there} there"
        for role, (given, there) in wanted.items()
        if given and ((entry := find(given)) is None or entry.hub_id != there)
    )


def _words(protocol: str, chat: ChatStyle) -> str:
    """Describe the prompts: raw, a published style, or the system turn and the date."""
    if protocol == "raw":
        return RAW
    styles: dict[str, ChatStyle] = dict(CHAT_STYLES.items())
    named = (name for name in ("paper_scores", "paper_pools") if styles[name] == chat)
    turn = "no system turn" if chat.system_prompt is None else repr(chat.system_prompt[:40])
    return str(next(named, f"{turn}, {chat.chat_date}"))


def _of_released(place: Path) -> MeasuredRun:
    runs = read_released(place)
    facts = {row["model"]: row for row in runs.settings.to_dict("records")}
    reasons = dict(zip(runs.reasons["model"], runs.reasons["reason"], strict=True))
    rows, unknown = [], []
    for name, uds in zip(runs.frame["model"], runs.frame["uds"], strict=True):
        own = facts[name]
        entry = find(own["source"])
        if entry is None:
            unknown.append(name)
            continue
        few = entry.group.name.startswith("tofu") and own["n_examples"] + own["n_skipped"] < _ROWS
        shared = (entry.group.name, entry.name, entry.role, "uds", "before", uds, reasons.get(name))
        tau = "" if own["tau"] == _TAU else f"tau: {own['tau']:g} here, {_TAU:g} there"
        other = "; ".join(filter(None, (_references(own["full"], own["retain"], entry), tau)))
        rows.append((*shared, RAW, own["dtype"], "post_norm", other, few, name))
    return _made(rows, source=str(place), kind="released script", unknown=tuple(unknown))


def _of_open_unlearning(place: Path) -> MeasuredRun:
    table = meta.read_open_unlearning(place)
    reasons = {(row.model, row.metric): row.reason for row in table.reasons.itertuples()}
    rows, unknown = [], []
    for entry in pd.concat([table.frame, table.references]).to_dict("records"):
        name = str(entry["model"])
        model = None if "checkpoint-" in name else find(task_folder(Path(name)).name)
        elsewhere = (
            model is not None and str(entry["split"]).startswith("forget") and entry["split"] != model.group.split
        )
        if model is None or elsewhere:
            unknown.append(name)
            continue
        for metric in METRICS:
            if metric in entry:
                shared = (model.group.name, model.name, model.role, metric, "before", entry[metric])
                why = reasons.get((name, metric))
                rows.append((*shared, why, "open_unlearning", "bfloat16", "resid_post", "", False, name))
    return _made(rows, source=str(place), kind="Open-Unlearning", unknown=tuple(unknown))


def same_prompts(one: str, other: str) -> bool:
    """Return whether two names stand for the same prompts.

    >>> same_prompts("paper_pools", "open_unlearning"), same_prompts("paper_pools", "paper_scores")
    (True, False)
    """
    styles: dict[str, ChatStyle] = dict(CHAT_STYLES.items())
    return one == other or (one in styles and styles.get(one) == styles.get(other))
