"""Save figures as HTML pages that open offline, or as images."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from uds_lens._optional_packages import require_package
from uds_lens._storage.files import atomic_write_bytes, atomic_write_text, check_writable, generator, located
from uds_lens.errors import ConfigError, MissingDependencyError, ResultFormatError, UdsLensError
from uds_lens.plots._style import WIDTH

if TYPE_CHECKING:
    import plotly.graph_objects as go

_PICTURES = ("png", "svg", "pdf", "jpeg", "webp")


def save_figure(
    figure: go.Figure,
    path: str | os.PathLike[str],
    *,
    width: int | None = None,
    height: int | None = None,
    scale: float | int = 2,
    overwrite: bool = False,
) -> Path:
    """Write a figure as a self-contained `.html` page or as an image (`.png`, `.svg`, `.pdf`, `.jpeg`, `.webp`).

    Args:
        figure: Any plotly figure.
        path: File to write; its suffix determines the format.
        width: Width of an image in pixels; None uses the figure's own width, or 860 if it has none.
        height: Height of an image in pixels; None uses the figure's own height.
        scale: Resolution of bitmap images: image pixels per pixel of width or height.
        overwrite: Replace an existing image. Pages written by this function are always replaced.

    Returns:
        The path.

    Raises:
        ConfigError: The format is unknown.
        MissingDependencyError: An image needs kaleido, which needs Chrome or Chromium.
        ResultFormatError: The file exists and must not be replaced.
        StorageError: The file cannot be written.
    """
    path = located(path)
    kind = path.suffix.lower().removeprefix(".").replace("jpg", "jpeg")
    if kind == "html":
        check_writable(path, directory=False)
        page = figure.to_html(include_plotlyjs=True, full_html=True)
        atomic_write_text(path, page.replace("<head>", f"<head>{generator()}", 1))
        return path
    if kind not in _PICTURES:
        raise ConfigError(
            f"figures are saved as .html, {', '.join('.' + name for name in _PICTURES)}; got {path.name!r}."
        )
    if path.exists() and not overwrite:
        raise ResultFormatError(f"{str(path)[-200:]!r} exists: choose another name, or save with overwrite=True.")
    check_writable(path, directory=False, overwrite=True)
    require_package(
        "kaleido", needed_by=f"saving a figure as .{kind} needs", instead="Alternatively, save the figure as .html."
    )
    try:
        picture = figure.to_image(format=kind, width=width or figure.layout.width or WIDTH, height=height, scale=scale)
    except Exception as error:
        if "chrome" in f"{type(error).__name__} {error}".lower():
            raise MissingDependencyError(
                f"saving a figure as .{kind} needs Chrome or Chromium: install it, or run plotly_get_chrome. "
                "Alternatively, save the figure as .html."
            ) from error
        raise UdsLensError(f"kaleido could not draw the figure: {error}") from error
    atomic_write_bytes(path, picture)
    return path
