"""The words of all methods, known without importing any: for help texts and messages."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from uds_lens.unlearning._registry import Objective


OWN_WORDS = tuple(
    sorted(
        file.stem
        for file in (Path(__file__).parent / "_objectives").glob("*.py")
        if not file.stem.startswith("_")
    )
)
"""Methods of this package: each is a file in `objectives/` of its name."""

DECLARED: dict[str, Objective] = {}
"""Every objective declared so far, by its word: a user's own, and those of this package that were used."""


def method_words() -> tuple[str, ...]:
    """The words of all methods: this package's in alphabetical order, then a user's own.

    >>> method_words()[:3]
    ('altpo', 'ga', 'graddiff')
    """
    return (*OWN_WORDS, *(word for word in DECLARED if word not in OWN_WORDS))
