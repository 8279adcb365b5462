"""How much a warning weighs."""

from __future__ import annotations

from typing import Literal, NamedTuple, TypeAlias

Level: TypeAlias = Literal["fatal", "caution", "note"]
"""How much a warning weighs, most serious first."""

LEVELS: tuple[Level, ...] = ("fatal", "caution", "note")
"""All levels, most serious first."""


class Caution(NamedTuple):
    """One warning."""

    level: Level
    """`fatal`: the score does not mean what a score means, so that no words for it are given. `caution`: it may
    mislead. `note`: how it was measured."""
    text: str
    """The sentence."""


def fatal(text: str) -> Caution:
    """A warning that forbids a reading."""
    return Caution("fatal", text)


def caution(text: str) -> Caution:
    """A warning that the score may mislead."""
    return Caution("caution", text)


def note(text: str) -> Caution:
    """How it was measured."""
    return Caution("note", text)
