"""Short names for audits that stand side by side: the unlearned model, and more only where that is not enough."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from itertools import count
from pathlib import PurePath
from typing import TYPE_CHECKING

from uds_lens.checked_arguments import arguments_checked
from uds_lens.results.comparable import differing_settings

if TYPE_CHECKING:
    from uds_lens.results.audit_scores import AuditScores

_VAGUE = re.compile(
    r"(checkpoint|ckpt|step|epoch)?[-_]?\d*|final|last|best|model|weights|output", re.IGNORECASE
)


@arguments_checked
def audit_names(
    audits: Sequence[AuditScores], *, places: Sequence[str | os.PathLike[str]] | None = None
) -> list[str]:
    """Names that tell audits apart, in their order.

    The last part of the unlearned model's path or Hub id, with the part before it where it says little (`final`,
    `checkpoint-500`). Where two audits share that name: more of the path; else the settings that differ; else where
    the audits were saved; else a number.

    Args:
        audits: Any number of them.
        places: Directories they were saved in.

    Returns:
        One name per audit, all different.
    """
    names = [_ending(audit, 1) for audit in audits]
    for group in _alike(names):
        members = [audits[i] for i in group]
        saved = None if places is None else [str(places[i]) for i in group]
        for i, name in zip(group, _apart(members, saved), strict=True):
            names[i] = name
    for group in list(_alike(names)):
        for i in group[1:]:
            numbered = (f"{names[i]} ({number})" for number in count(2))
            names[i] = next(name for name in numbered if name not in names)
    return names


def _apart(audits: Sequence[AuditScores], places: Sequence[str] | None) -> list[str]:
    """The first of the ways of naming that tell most of a group apart."""
    longest = max(len(_parts(audit.models["unlearned"].name)) for audit in audits)
    ways = [[_ending(audit, depth) for audit in audits] for depth in range(1, longest + 1)]
    ways.append([_with_settings(audit, audits) for audit in audits])
    if places is not None:
        parts = [PurePath(place).parts for place in places]
        ways += [["/".join(path[-depth:]) for path in parts] for depth in range(1, max(map(len, parts)) + 1)]
    return max(ways, key=lambda names: len(set(names)))


def _ending(audit: AuditScores, depth: int) -> str:
    parts = _parts(audit.models["unlearned"].name)
    if depth == 1 and len(parts) > 1 and _VAGUE.fullmatch(parts[-1]):
        depth = 2
    return "/".join(parts[-depth:]) or "unlearned"


def _parts(name: str) -> tuple[str, ...]:
    path = PurePath(name)
    return path.relative_to(path.anchor).parts


def _with_settings(audit: AuditScores, others: Sequence[AuditScores]) -> str:
    differing = differing_settings(others)
    values = [f"tau {audit.config.tau:g}" if s == "tau" else str(getattr(audit.config, s)) for s in differing]
    return ", ".join([_ending(audit, 1), *values])


def _alike(names: Sequence[str]) -> Iterator[list[int]]:
    """Places of names that occur more than once."""
    for name in dict.fromkeys(names):
        places = [i for i, other in enumerate(names) if other == name]
        if len(places) > 1:
            yield places
