"""Figures as pictures, and pages by a headless Chrome or Chromium from the PATH."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import plotly.graph_objects as go

import uds_lens as ul

HERE = Path(__file__).parent

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")


def photograph(page: Path, picture: Path, *, theme: str = "light", width: int = 1280, height: int = 1130) -> None:
    """The top of a page, light or dark, as a PNG."""
    browser = next(filter(None, map(shutil.which, NAMES)))
    flags = ["--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--virtual-time-budget=8000"]
    scheme = f"--blink-settings=preferredColorScheme={0 if theme == 'dark' else 1}"
    words = [browser, *flags, scheme, f"--window-size={width},{height}", f"--screenshot={picture}", page.as_uri()]
    subprocess.run(words, check=True, capture_output=True, timeout=120)


def draw(name: str, figure: Callable[..., go.Figure], *, for_phones: bool = True) -> None:
    """Draw a figure for light and for dark surroundings, and for phones: without a title, which the page has.

    Of a drawing without dots (SVG) the site makes the dark one, see `docs/building/dark_pictures.py`.
    """
    for theme in ("light", "dark"):
        drawn = {name: figure(theme=theme, width=760)}
        if for_phones:
            drawn[narrow(name)] = figure(theme=theme, width=390, title=None)
        for file, each in drawn.items():
            light = HERE / file
            if theme == "light" or light.suffix != ".svg" or "data:image" in light.read_text("utf-8"):
                scale = 1.25 if file == name else 2
                ul.plots.save_figure(each, HERE / beside(file, theme), scale=scale, overwrite=True)


def beside(picture: str, theme: str) -> str:
    """The name of a picture in a theme: `x.png`, and `x_dark.png` beside it.

    >>> beside("x.png", "dark")
    'x_dark.png'
    """
    stem, dot, kind = picture.rpartition(".")
    return picture if theme == "light" else f"{stem}_dark{dot}{kind}"


def narrow(picture: str) -> str:
    """The name of a picture for phones: `x.png`, and `x_narrow.png` beside it.

    >>> beside(narrow("x.png"), "dark")
    'x_narrow_dark.png'
    """
    stem, dot, kind = picture.rpartition(".")
    return f"{stem}_narrow{dot}{kind}"
