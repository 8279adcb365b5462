"""The method as a picture: one layer's state carried from a source into `full`, and what is read off."""

from __future__ import annotations

from collections.abc import Mapping

from uds_lens.plots import Theme
from uds_lens.plots.palette import palette
from uds_lens.report.filling import template

ON_PAGE: Mapping[str, str] = {
    name: f"var(--{name})"
    for name in (
        "ink",
        "text",
        "faint",
        "line",
        "grid",
        "card",
        "wash",
        "retain",
        "unlearned",
        "erased",
        "known",
        "mixed",
    )
}
"""Colours of the page it stands on, light or dark."""

_MORE = {
    "light": {
        "card": "#ffffff",
        "wash": "#f4f5f7",
        "line": "#c9cdd5",
        "known": "#8fbde0",
        "mixed": "#b8a9a0",
    },
    "dark": {"card": "#1b1f26", "wash": "#1d2229", "line": "#434a56", "known": "#2f6d9c", "mixed": "#7d6a5c"},
}


def method_picture(theme: Theme = "light", *, narrow: bool = False) -> str:
    """The picture as an SVG file of its own, with its background.

    Args:
        theme: Light or dark.
        narrow: For phones: what is read off stands below the models, not beside them.

    Example:
        >>> method_picture("dark").startswith("<svg")
        True
    """
    own = palette(theme)
    names = ("paper", "ink", "text", "faint", "grid", "retain", "unlearned", "erased")
    return drawn({**{name: getattr(own, name) for name in names}, **_MORE[theme]}, paper=True, narrow=narrow)


def drawn(colours: Mapping[str, str], *, paper: bool = False, narrow: bool = False) -> str:
    """The picture in given colours, as markup for a page.

    Args:
        colours: By name, as in `ON_PAGE`; with `paper` also that of the background.
        paper: Whether there is a background.
        narrow: As for `method_picture`.
    """
    return template("method.svg.j2").render(c=colours, paper=paper, narrow=narrow).strip() + "\n"
