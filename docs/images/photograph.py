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


def photograph(page: Path, picture: Path, *, width: int = 1280, height: int = 1130) -> None:
    """Save the top of a page as a PNG."""
    browser = next(filter(None, map(shutil.which, NAMES)))
    flags = ["--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--virtual-time-budget=8000"]
    light = "--blink-settings=preferredColorScheme=1"
    words = [browser, *flags, light, f"--window-size={width},{height}", f"--screenshot={picture}", page.as_uri()]
    subprocess.run(words, check=True, capture_output=True, timeout=120)


def draw(name: str, figure: Callable[..., go.Figure], *, for_phones: bool = True, dark: bool = False) -> None:
    """Draw a figure, and one for phones without a title, which the page has; for GitHub, `dark` ones as well."""
    for end, theme in {"": "light", "_dark": "dark"}.items() if dark else [("", "light")]:
        drawn = {named(name, end): figure(theme=theme, width=760)}
        if for_phones:
            drawn[named(name, f"_narrow{end}")] = figure(theme=theme, width=390, title=None)
        for file, each in drawn.items():
            scale = 2 if "_narrow" in file else 1.25
            ul.plots.save_figure(each, HERE / file, scale=scale, overwrite=True)


def named(picture: str, end: str) -> str:
    """Return the name of another version of a picture.

    >>> named("x.png", "_narrow")
    'x_narrow.png'
    """
    stem, dot, kind = picture.rpartition(".")
    return f"{stem}{end}{dot}{kind}"
