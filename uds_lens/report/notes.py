"""What a reader must know before quoting the scores: each audit's warnings, and what stands between audits."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple

from uds_lens.results import DepthAudit
from uds_lens.results.caution_levels import LEVELS, Level
from uds_lens.results.comparable import differing_settings, score_settings, weights_of

_PERCENT = re.compile(r"(\d+)%")


class Note(NamedTuple):
    """One warning."""

    names: tuple[str, ...]
    """Audits it is about; empty when it is about all of them together."""
    text: str
    """The sentence."""
    level: Level = "caution"
    """How much it weighs."""


def notes(audits: Mapping[str, DepthAudit]) -> list[Note]:
    """Fatal warnings first, then those between audits and those of single audits; alike ones once.

    Args:
        audits: Name to audit.
    """
    found: dict[tuple[str, Level], dict[str, str]] = {}
    for name, audit in audits.items():
        for level, sentence in audit.cautions:
            found.setdefault((_PERCENT.sub("%", sentence), level), {})[name] = sentence
    own = [Note(tuple(named), _merged(list(named.values())), level) for (_, level), named in found.items()]
    return sorted([*_between(audits), *own], key=lambda note: LEVELS.index(note.level))


def _merged(sentences: list[str]) -> str:
    """One sentence for several that differ in their percentages only.

    >>> _merged(["on 20% of the layers", "on 35% of the layers"])
    'on 20% to 35% of the layers'
    """
    slots = zip(*(map(int, _PERCENT.findall(sentence)) for sentence in sentences), strict=True)
    spans = iter(
        [f"{min(slot)}%" if len(set(slot)) == 1 else f"{min(slot)}% to {max(slot)}%" for slot in slots]
    )
    return _PERCENT.sub(lambda _: next(spans), sentences[0])


def _between(audits: Mapping[str, DepthAudit]) -> list[Note]:
    if len(audits) < 2:
        return []
    every = list(audits.values())
    between = [
        Note(tuple(names), "These audits are of models with identical weights.")
        for names in _same_model(audits)
    ]
    for role in ("full", "retain"):
        if len({weights_of(audit, role) for audit in every}) > 1:
            between.append(
                Note((), f"The audits use different {role} models: their scores have different meanings.")
            )
    differing = differing_settings(every)
    if differing:
        between.append(
            Note((), f"The audits differ in {', '.join(differing)}: their scores are not comparable.")
        )
    if len({audit.provenance.get("ids_hash") for audit in every}) > 1:
        between.append(
            Note((), "The audits were measured on different examples, or read them as different tokens.")
        )
    return between


def _same_model(audits: Mapping[str, DepthAudit]) -> list[list[str]]:
    """Names that share weights and settings; one model measured in several ways is no surprise."""
    by_weights: dict[tuple[object, ...], list[str]] = {}
    for name, audit in audits.items():
        one = (audit.models["unlearned"].fingerprint, *score_settings(audit))
        by_weights.setdefault(one, []).append(name)
    return [names for names in by_weights.values() if len(names) > 1]
