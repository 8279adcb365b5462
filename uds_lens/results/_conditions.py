"""Conditions of a measurement (everything except the measured model): one rule for all tables of several results."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from uds_lens.data._examples import named, plain

if TYPE_CHECKING:
    from uds_lens.results._depth_audit import DepthAudit

PROMPT_SETTINGS = ("protocol", "system_prompt", "chat_date", "template_kwargs", "entity_space")
"""Settings that determine the prompts."""

SCORE_SETTINGS = (
    "site",
    "scope",
    "last_layer",
    *PROMPT_SETTINGS,
    "dtype",
    "tau",
    "stand_in",
    "counterfactual",
    "draws",
    "words",
)
"""Settings that determine the meaning of a score; if one of them differs, scores are not comparable."""

QUESTIONS = "questions"
"""The condition that paired comparisons ignore, since they use only the questions that both results share."""


def weights_of(audit: DepthAudit, role: str) -> tuple[str, ...]:
    """Return the fingerprints of the models in a role, sorted if there are several retain models."""
    if role == "retain" and audit.retains:
        return tuple(sorted(retain.model.fingerprint for retain in audit.retains))
    return (audit.models[role].fingerprint,)


def conditions_of(audit: DepthAudit) -> dict[str, Any]:
    """Return the settings of a score, the weights of `full` and `retain`, and a hash of what was asked.

    The hash covers the tokens of all rows, and so the questions, the prompts and the sample.
    """
    found: dict[str, Any] = {name: getattr(audit.config, name) for name in SCORE_SETTINGS}
    found |= {role: " ".join(weights_of(audit, role)) for role in ("full", "retain") if role in audit.models}
    asked = audit.provenance.get("ids_hash")
    return found if asked is None else found | {QUESTIONS: asked}


def differing(conditions: Iterable[tuple[str, Mapping[str, Any]]]) -> dict[str, dict[str, list[str]]]:
    """Return the conditions that differ: for each of them, its values and the results with each value.

    If a result lacks a condition, it matches every value.

    Args:
        conditions: Names of results with their conditions, which are plain JSON values.

    Example:
        >>> differing([("a", {"tau": 0.05, "full": "f"}), ("b", {"tau": 0.1, "full": "f"}), ("c", {})])
        {'tau': {'0.05': ['a'], '0.1': ['b']}}
    """
    found: dict[str, dict[str, list[str]]] = {}
    for result, of_result in conditions:
        for name, value in of_result.items():
            found.setdefault(name, {}).setdefault(json.dumps(value, sort_keys=True), []).append(result)
    return {name: values for name, values in found.items() if len(values) > 1}


def mixed(conditions: Iterable[tuple[str, Mapping[str, Any]]]) -> str | None:
    """Say in which conditions which results differ; None if all were measured in the same way.

    >>> mixed([("a", {"tau": 0.05}), ("b", {"tau": 0.1})])
    'tau (0.05: `a`; 0.1: `b`)'
    """
    told = []
    for name, values in differing(conditions).items():
        groups = [f"{plain(value, 24)}: {named(names, 60)}" for value, names in values.items()]
        told.append(f"{plain(name, 40)} ({'; '.join(groups[:4])}{'; ...' if len(groups) > 4 else ''})")
    more = f"; and {len(told) - 3} more conditions" if len(told) > 3 else ""
    return "; ".join(told[:3]) + more if told else None


def marks(conditions: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return each result's values of the conditions that differ, as JSON; an empty list if none differs.

    >>> marks([{"tau": 0.05, "full": "f"}, {"tau": 0.1, "full": "f"}]), marks([{"tau": 0.05}, {}])
    (['{"tau": 0.05}', '{"tau": 0.1}'], [])
    """
    names = differing(("", each) for each in conditions)
    kept = [{name: value for name, value in each.items() if name in names} for each in conditions]
    return [json.dumps(each, sort_keys=True) for each in kept] if names else []
