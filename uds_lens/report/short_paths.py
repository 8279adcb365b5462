"""Paths of the machine, cut to their ends before a page is shared."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from uds_lens.results import DepthAudit, ModelRecord

KEPT = 2
"""Parts of a path that stay."""

_PATH = re.compile(r"(?<![\w.:/\\])(?:~|\.{1,2})?(?:[A-Za-z]:)?(?:[/\\]+[^\s/\\'\",;:]+){2,}[/\\]?")


def short_path(text: str) -> str:
    """Absolute paths, and those that begin with `~`, `.` or `..`, cut to their last two parts; no user's name is left.

    >>> short_path("uds-lens audit --full /home/ada/models/ckpt/full --out ../../home/ada/runs/npo")
    'uds-lens audit --full .../ckpt/full --out .../runs/npo'
    >>> short_path("/home/ada/full, /Users/ada, ~/ckpt/full")
    '.../full, ..., .../ckpt/full'
    >>> short_path("open-unlearning/tofu_full"), short_path("https://host/a/b/c")
    ('open-unlearning/tofu_full', 'https://host/a/b/c')
    """
    return _PATH.sub(lambda found: _ending(found[0]), text)


def _ending(path: str) -> str:
    parts = [part for part in re.split(r"[/\\]+", path) if part]
    inside = parts[1:] if parts[0].endswith(":") else parts
    if inside[0] in ("home", "Users"):
        return "/".join(["...", *inside[2:][-KEPT:]])
    return "/".join(["...", *parts[-KEPT:]]) if len(parts) > KEPT else path


def shortened(audits: Mapping[str, DepthAudit]) -> dict[str, DepthAudit]:
    """The audits with short paths in the names of models and in what was recorded; examples stay as they are."""
    found = {
        name: replace(
            audit,
            models=_records(audit.models),
            retains=tuple(replace(one, model=_records({"": one.model})[""]) for one in audit.retains),
            provenance=_plain(audit.provenance),
        )
        for name, audit in audits.items()
    }
    names = [short_path(name) for name in found]
    return dict(zip(names if len(set(names)) == len(names) else list(found), found.values(), strict=True))


def _records(models: Mapping[str, ModelRecord]) -> dict[str, ModelRecord]:
    return {role: replace(record, name=short_path(record.name)) for role, record in models.items()}


def _plain(value: Any) -> Any:
    """Every text in a record; its first prompt is what the models read and stays."""
    if isinstance(value, str):
        return short_path(value)
    if isinstance(value, Mapping):
        return {key: part if key == "first_prompt" else _plain(part) for key, part in value.items()}
    return [_plain(part) for part in value] if isinstance(value, list | tuple) else value
