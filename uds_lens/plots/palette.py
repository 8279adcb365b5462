"""The colours of every figure, light and dark: safe for the colour-blind, and apart from each other in grey."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Literal, TypeAlias

from uds_lens.types import check_choice

Theme: TypeAlias = Literal["light", "dark"]
"""Colours for light or for dark surroundings."""


@dataclass(frozen=True, kw_only=True)
class Palette:
    """One set of colours, `#rrggbb` or `rgba(...)`. No colour occurs twice: one set can be mapped to another."""

    paper: str
    """Behind the figure."""
    ink: str
    """Titles."""
    text: str
    """Axis titles, ticks and legends."""
    faint: str
    """Notes, and marks that step back."""
    grid: str
    """Grid lines."""
    missing: str
    """Cells without a value."""
    share: str
    """Bars of a share that stands beneath a curve."""
    other: str
    """Models that step back behind the one that is looked at."""
    retain: str
    """Stage 1: what retain's state costs."""
    retain_band: str
    """Its spread."""
    unlearned: str
    """Stage 2: what the unlearned model's state costs."""
    unlearned_band: str
    """Its spread."""
    erased: str
    """Erasure: LER and UDS."""
    erased_band: str
    """Its spread."""
    hover: str
    """Behind hover texts."""
    series: tuple[str, ...]
    """Models, sites: any number of equals."""
    scale: tuple[str, ...]
    """0 (intact) to 1 (erased), evenly spaced, lightness rising."""


LIGHT = Palette(
    paper="#ffffff",
    ink="#16191f",
    text="#454b57",
    faint="#747b88",
    grid="#e5e7eb",
    missing="#e3e4e8",
    share="#d3d8e2",
    other="#a9cdc3",
    retain="#0a6cb0",
    retain_band="rgba(10,108,176,0.15)",
    unlearned="#c9540a",
    unlearned_band="rgba(201,84,10,0.15)",
    erased="#0b7a5c",
    erased_band="rgba(11,122,92,0.16)",
    hover="#fefefe",
    series=("#0072b2", "#d55e00", "#009e73", "#aa4a8c", "#c48a00", "#45a3d9", "#5c6370"),
    scale=("#30407f", "#2f6f9f", "#2f9c95", "#7cc47a", "#f0d94a"),
)

DARK = Palette(
    paper="#14171c",
    ink="#f1f3f6",
    text="#bcc3ce",
    faint="#8b93a1",
    grid="#2a2f38",
    missing="#343943",
    share="#3a4250",
    other="#2f5a4e",
    retain="#5ab0ee",
    retain_band="rgba(90,176,238,0.18)",
    unlearned="#f28f45",
    unlearned_band="rgba(242,143,69,0.18)",
    erased="#41c79e",
    erased_band="rgba(65,199,158,0.18)",
    hover="#1f242c",
    series=("#4aa8e8", "#f0853a", "#2fc296", "#d985bf", "#e3b341", "#8fd0f5", "#a3abb8"),
    scale=("#4255a8", "#3583b5", "#35a9a1", "#84cb80", "#f5df55"),
)


def palette(theme: Theme = "light") -> Palette:
    """The colours of a theme.

    Raises:
        ConfigError: No such theme.

    Example:
        >>> palette("light").paper
        '#ffffff'
    """
    check_choice("theme", theme, Theme)
    return LIGHT if theme == "light" else DARK


def recolouring() -> dict[str, str]:
    """Each colour of the light palette to its dark counterpart.

    >>> recolouring()["#ffffff"]
    '#14171c'
    """
    pairs: dict[str, str] = {}
    for field in fields(Palette):
        light, dark = getattr(LIGHT, field.name), getattr(DARK, field.name)
        pairs.update({light: dark} if isinstance(light, str) else zip(light, dark, strict=True))
    return pairs
