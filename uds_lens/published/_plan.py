"""A study plan for published models, in which each metric has the prompts behind its published number."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from uds_lens import study
from uds_lens._storage.files import atomic_write_marked, check_writable, located
from uds_lens.errors import ConfigError
from uds_lens.metrics import METRICS
from uds_lens.published._registry import PublishedModel, metrics_published
from uds_lens.results import AuditConfig
from uds_lens.study import StudyPlan
from uds_lens.study._plan import as_mapping

DEFAULT_METRICS = ("uds", "es")

_ENTITIES = "tofu-annotated/forget10:"  # the entities of forget10, which locuslab/TOFU lacks

_BEGINS = "# Plan to measure published models again, written by uds-lens published plan.\n"

_RELEARNING = {"protocol": "chat", "system_prompt": "You are a helpful assistant."}
"""Settings that differ from the defaults of `RelearnConfig`."""


def plan(
    models: Sequence[PublishedModel],
    *,
    metrics: Iterable[str] | None = DEFAULT_METRICS,
    perturb: bool = False,
    data: str | os.PathLike[str] | None = None,
    limit: int | None = None,
) -> StudyPlan:
    """Plan to measure published models the way their published numbers were measured.

    UDS is measured by an audit with the paper's settings (raw prompts, bfloat16, the released script's last layer). All
    other metrics are also measured in bfloat16, each in the chat style of its published table, which depends on metric,
    role and state.

    Args:
        models: Models from `models`, all in one group; every plan includes this group's full and retain.
        metrics: Names of metrics; by default all metrics published for any of these models.
        perturb: Also measure unlearned models, full and retain in 4 bits and after relearning, as the paper did.
        data: TOFU directory or Hub id to use instead of the group's data set.
        limit: Number of rows to sample from each set, spread over the subjects, for a quick look rather than a
            reproduction.

    Returns:
        A plan for `uds_lens.published.run` (`uds_lens.study.run` would keep all downloads).

    Raises:
        ConfigError: The models are from several groups, or a metric is unknown or has no published values.

    Example:
        >>> from uds_lens.published import models
        >>> made = plan(models(method="npo"), metrics=["uds", "es"])
        >>> made.measure.audit["last_layer"], made.measure.prompts[-1].style, len(made.model)
        ('post_norm', 'paper_scores', 18)
    """
    groups = {model.group.name: model.group for model in models}
    if len(groups) != 1:
        some = ", ".join(groups) or "none"
        raise ConfigError(f"a plan has one full and one retain model: choose one group of models; got {some}.")
    ((name, group),) = groups.items()
    if metrics is None:
        published = {metric for model in models for metric in metrics_published(model.name, group=name)}
        metrics = [metric for metric in METRICS if metric in published] or list(DEFAULT_METRICS)
    wanted = list(dict.fromkeys(metrics))
    is_tofu = group.data == "locuslab/TOFU"
    useful = [metric for metric in wanted if metric in METRICS and METRICS[metric].group in ("utility", "aggregate")]
    output = [metric for metric in wanted if metric != "uds" and metric not in useful]
    measure: dict[str, Any] = {
        "metrics": output,
        "utility": useful,
        "fluency": "hub",
        "options": {"dtype": "bfloat16", "protocol": "chat" if is_tofu else "raw", "entity_space": "always"},
    }
    if is_tofu:
        measure["prompts"] = _prompts([*output, *useful], perturb)
    if "uds" in wanted:
        paper, plain = AuditConfig.preset("paper").to_dict(), AuditConfig().to_dict()
        measure["audit"] = {key: value for key, value in paper.items() if value != plain[key]}
    made: dict[str, Any] = {
        "name": f"published-{name}",
        "full": group.full,
        "retain": group.retain,
        "data": _data(group.data, group.split, data, limit),
        "model": [_given(model) for model in models if model.role not in ("full", "retain")],
        "measure": measure,
    }
    if perturb:
        source = {"source": made["data"].get("tofu", made["data"].get("forget"))}
        made["train"] = {"forget": [source | ({"split": group.split} if is_tofu else {})]}
        made["perturb"] = {"quantise": True, "relearn": {"settings": _RELEARNING}}
    return study.plan(made)


def _prompts(asked: Sequence[str], perturb: bool) -> list[dict[str, Any]]:
    """Return the rules of the paper's tables; the first that matches a measurement applies."""
    rouge = [name for name in ("rouge", "para_rouge", "jailbreak_rouge") if name in asked]
    rules: list[dict[str, Any]] = [
        {"style": "paper_perturbed", "states": ["quantised", "relearned"]},
        {"style": "paper_pools", "roles": ["pool"]},
    ]
    if rouge:
        if perturb:  # R compares retain before and after relearning, so both need the same prompts
            rules.append({"style": "paper_perturbed", "roles": ["retain"], "states": ["before"], "metrics": rouge})
        rules.append({"style": "paper_pools", "metrics": rouge})
    return [*rules, {"style": "paper_scores"}]


def _data(name: str, split: str, given: str | os.PathLike[str] | None, limit: int | None) -> dict[str, Any]:
    sample = {} if limit is None else {"limit": limit}
    if name != "locuslab/TOFU":
        place = "" if given is None else os.fspath(given)
        parts = {"retain": f"{name}/retain:{place}"} if name.startswith("muse") else {}
        return {"forget": f"{name}/{split}:{place}", **parts, **sample}
    place = name if given is None else os.fspath(given)
    annotated = any(Path(place).glob(f"{split}_filtered.*"))
    return {"tofu": place, "split": split, **({} if annotated else {"entities": _ENTITIES}), **sample}


def _given(model: PublishedModel) -> dict[str, Any]:
    given = {name: getattr(model, name) for name in ("name", "role", "method", "knows", "variant", "run")}
    return given | {"path": model.hub_id, "config": model.config if model.method else None}


def write_plan(plan: StudyPlan, path: str | os.PathLike[str]) -> Path:
    """Write a plan as TOML that can be read, edited and run.

    Args:
        plan: From `plan`.
        path: File to write (atomically).

    Returns:
        The path.

    Raises:
        ResultFormatError: The path already holds something else.
    """
    place = check_writable(located(path), directory=False)
    atomic_write_marked(place, _BEGINS + "\n" + _toml(as_mapping(plan)))
    return place


def _toml(table: Mapping[str, Any], at: str = "") -> str:
    """Format a table: first its values, then its nested tables; each table in a list becomes a [[table]].

    >>> print(_toml({"name": "x", "data": {"limit": 3}, "model": [{"name": "a"}]}), end="")
    name = "x"
    <BLANKLINE>
    [data]
    limit = 3
    <BLANKLINE>
    [[model]]
    name = "a"
    """
    own, below = "", ""
    for name, value in table.items():
        place = f"{at}{name}"
        if isinstance(value, Mapping):
            below += f"\n[{place}]\n{_toml(value, f'{place}.')}" if value else ""
        elif isinstance(value, list) and value and isinstance(value[0], Mapping):
            below += "".join(f"\n[[{place}]]\n{_toml(entry, f'{place}.')}" for entry in value)
        elif value != []:
            own += f"{name} = {json.dumps(value, ensure_ascii=False)}\n"
    return own + below
