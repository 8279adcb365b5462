"""Names that are too long for where they stand: without their middle, but still told apart."""

from __future__ import annotations

import re
from collections.abc import Sequence

from uds_lens.progress import shortened


def shortened_names(names: Sequence[str], room: int) -> list[str]:
    """Names in no more than `room` signs each; where several would look alike, from the word in which they differ.

    >>> shortened_names(["forget10_NPO_lr2e-05_epoch10", "forget10_NPL_lr2e-05_epoch10", "full"], 16)
    ['...NPO_lr2e-0...', '...NPL_lr2e-0...', 'full']
    """
    alike: dict[str, list[str]] = {}
    for name in dict.fromkeys(names):
        alike.setdefault(shortened(name, room), []).append(name)
    found = {
        name: short if len(group) == 1 else _from(_difference(group), name, room)
        for short, group in alike.items()
        for name in group
    }
    return [found[name] for name in names]


def _difference(names: Sequence[str]) -> int:
    """Where the first word begins in which names differ."""
    signs = enumerate(zip(*names, strict=False))
    shared = next((place for place, each in signs if len(set(each)) > 1), min(map(len, names)))
    return max((end.end() for end in re.finditer(r"[^A-Za-z0-9.]", names[0][:shared])), default=0)


def _from(start: int, name: str, room: int) -> str:
    text = f"...{name[start:]}"
    return text if len(text) <= room else f"{text[: room - 3]}..."
