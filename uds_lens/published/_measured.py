"""Read the values that a run measured of published models: a study, the released script, or Open-Unlearning."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from uds_lens import meta, study
from uds_lens.data import CHAT_STYLES, ChatStyle
from uds_lens.errors import DataError
from uds_lens.meta._hydra import task_folder
from uds_lens.published._registry import PublishedModel, find
from uds_lens.published._released import read_released, released_folders
from uds_lens.published._values import RAW
from uds_lens.study._folder import MANIFEST, StudyFolder
from uds_lens.study._models import AUDIT
from uds_lens.study._plan import audit_settings, metric_settings, style_of

if TYPE_CHECKING:
    import pandas as pd

COLUMNS = (
    *("group", "model", "role", "metric", "state", "measured", "reason"),
    *("prompts", "dtype", "last_layer", "otherwise", "sampled", "at"),
)

_TAU = 0.05  # of every published UDS

_ROWS = 367  # rows with entities that the paper's UDS is measured on


@dataclass(frozen=True, eq=False, kw_only=True)
class MeasuredRun:
    """Values of published models."""

    frame: pd.DataFrame  # one row per model, metric and state: columns `COLUMNS`
    source: str  # where it was read
    kind: str  # who measured: study, released script, Open-Unlearning
    unknown: tuple[str, ...] = ()  # models of the run that are none of the published ones
    folder: StudyFolder | None = field(default=None, repr=False)  # the study, where it is one


def read_run(run: str | os.PathLike[str]) -> MeasuredRun:
    """Read the values of published models from a run."""
    place = Path(run)
    if (place / MANIFEST).is_file():
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
            f"{str(place)[-200:]!r} holds no value of a published model ({names}): models are known by their Hub id, "
            "or by a folder called as the last part of it."
        )
    _require_each_once(measured)
    return measured


def _require_each_once(run: MeasuredRun) -> None:
    """Refuse two values of one number: nothing says which of them is meant."""
    before = run.frame[run.frame["state"] == "before"]
    for (_, model, metric), same in before.groupby(["group", "model", "metric"], sort=False):
        if len(same) > 1:
            one, other = (str(place)[-120:] for place in same["at"].iloc[:2])
            raise DataError(
                f"{run.source[-120:]!r} holds {metric} of {model} {len(same)} times, as {one!r} and {other!r}: name "
                "a folder that holds one of them."
            )


def _made(rows: list[tuple[Any, ...]], **facts: Any) -> MeasuredRun:
    import pandas as pd

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
            asked = _as_measured(folder, str(row["metric"]), roles[row["model_id"]], row["state"])
            facts = (entry.group.name, entry.name, entry.role, row["metric"], row["state"], row["value"], row["reason"])
            other = _otherwise(folder, entry, str(row["metric"]))
            rows.append((*facts, *asked, other, sampled, row["model_id"]))
    unknown = tuple(name for name, entry in by_id.items() if entry is None)
    return _made(rows, source=str(place), kind="study", unknown=unknown, folder=folder)


def _by_name(name: str, group: str | None) -> PublishedModel | None:
    """Find a copy by its name on the authors' page; full and retain are names that anybody may use."""
    return None if name in ("full", "retain") else find(name, group=group)


def _as_measured(folder: StudyFolder, metric: str, role: Any, state: Any) -> tuple[str, str, str]:
    """Return the prompts, the dtype and the last layer of a value."""
    from uds_lens.metrics import METRICS

    measure = folder.plan.measure
    audit = audit_settings(measure)
    if metric.startswith("uds") and audit is not None and AUDIT in folder.models[0].items["before"]:
        return _words(audit.protocol, audit.chat), audit.dtype, audit.last_layer
    options = metric_settings(measure, style_of(measure, metric, role, state))
    internal = metric in METRICS and METRICS[metric].group == "representation"
    return RAW if internal else _words(options.protocol, options.chat), options.dtype, "resid_post"


def _otherwise(folder: StudyFolder, model: PublishedModel, metric: str) -> str:
    """Say which references, tau and questions are not those of the published value."""
    from uds_lens.metrics import METRICS
    from uds_lens.metrics._catalogue import resolve

    plan, audit = folder.plan, audit_settings(folder.plan.measure)
    by_audit = metric.startswith("uds") and audit is not None
    needed = {need for spec in resolve([metric]) for need in spec.needs} if metric in METRICS else set()
    if by_audit:
        needed |= {"full", "retain"}
    words = [
        _references(plan.full if "full" in needed else "", plan.retain if "retain" in needed else "", model),
        f"tau: {audit.tau:g} here, {_TAU:g} there" if audit is not None and by_audit and audit.tau != _TAU else "",
        f"questions: {plan.data.split} here, {model.group.split} there"
        if plan.data.tofu is not None and plan.data.split != model.group.split
        else "",
    ]
    return "; ".join(filter(None, words))


def _references(full: str, retain: str, model: PublishedModel) -> str:
    """Say which of a run's full and retain are not the published ones; "" is unknown, or not needed."""
    wanted = {"full": (full, model.group.full), "retain": (retain, model.group.retain)}
    return "; ".join(
        f"{role}: {given[-80:]} here, {there} there"
        for role, (given, there) in wanted.items()
        if given and ((entry := find(given)) is None or entry.hub_id != there)
    )


def _words(protocol: str, chat: ChatStyle) -> str:
    """Name the prompts: raw, a published style, or the system turn and date themselves."""
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
        rows.append((*shared, RAW, own["dtype"], "post_norm", other, few or not own["complete"], name))
    return _made(rows, source=str(place), kind="released script", unknown=tuple(unknown))


def _of_open_unlearning(place: Path) -> MeasuredRun:
    import pandas as pd

    from uds_lens.metrics import METRICS

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
    """Tell whether two names stand for the same prompts.

    >>> same_prompts("paper_pools", "open_unlearning"), same_prompts("paper_pools", "paper_scores")
    (True, False)
    """
    styles: dict[str, ChatStyle] = dict(CHAT_STYLES.items())
    return one == other or (one in styles and styles.get(one) == styles.get(other))
