"""Figures as files: a page that opens offline, or a picture."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from uds_lens.checked_arguments import arguments_checked
from uds_lens.errors import ConfigError, MissingDependencyError, UdsLensError
from uds_lens.optional_packages import require_package
from uds_lens.plots.packed_png import packed
from uds_lens.plots.picture_marks import marked
from uds_lens.storage import atomic_write_bytes, located, require_fresh

if TYPE_CHECKING:
    import plotly.graph_objects as go

_PICTURES = ("png", "svg", "pdf", "jpeg", "webp")


@arguments_checked
def save_figure(
    figure: go.Figure,
    path: str | os.PathLike[str],
    *,
    width: int = 860,
    height: int | None = None,
    scale: float | int = 2,
) -> Path:
    """Write a figure as `.html` (self-contained), or as a picture (`.png`, `.svg`, `.pdf`, `.jpeg`, `.webp`).

    Args:
        figure: Any plotly figure.
        path: File to write; the suffix chooses the format.
        width: Width of a picture in pixels.
        height: Its height in pixels; None takes the figure's own.
        scale: Pixels per pixel, for sharp bitmaps.

    Returns:
        The path.

    Raises:
        ConfigError: The suffix names no known format.
        MissingDependencyError: A picture needs kaleido, and kaleido needs Chrome or Chromium.
        ResultFormatError: Something that this library did not write stands at `path`.
        StorageError: The system refuses to write.
    """
    path = located(path)
    kind = path.suffix.lower().removeprefix(".").replace("jpg", "jpeg")
    if kind == "html":
        require_fresh(path, directory=False)
        page = figure.to_html(include_plotlyjs=True, full_html=True).encode("utf-8", "backslashreplace")
        atomic_write_bytes(path, marked(page, "html"))
        return path
    if kind not in _PICTURES:
        raise ConfigError(
            f"figures are saved as .html, {', '.join('.' + name for name in _PICTURES)}; got {path.name!r}."
        )
    require_fresh(path, directory=False)
    atomic_write_bytes(path, marked(_picture(figure, kind, width=width, height=height, scale=scale), kind))
    return path


def _picture(figure: go.Figure, kind: str, *, width: int, height: int | None, scale: float | int) -> bytes:
    require_package("kaleido", needed_by=f"saving a figure as .{kind} needs", instead="Or save it as .html.")
    try:
        return packed(figure.to_image(format=kind, width=width, height=height, scale=scale))
    except Exception as error:
        if "chrome" in f"{type(error).__name__} {error}".lower():
            raise MissingDependencyError(
                f"saving a figure as .{kind} needs Chrome or Chromium: install it, or run plotly_get_chrome. "
                "Or save it as .html."
            ) from error
        raise UdsLensError(f"kaleido could not draw the figure: {error}") from error
