"""Figures as files: a page that opens offline, or a picture."""

from __future__ import annotations

import os
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from uds_lens._optional_packages import require_package
from uds_lens._storage import atomic_write_bytes, atomic_write_text, generator, located, require_fresh
from uds_lens.errors import ConfigError, MissingDependencyError, ResultFormatError, UdsLensError

if TYPE_CHECKING:
    import plotly.graph_objects as go


# PNGs that take less room: the same pixels, packed harder than a browser packs them.

_BEGIN = b"\x89PNG\r\n\x1a\n"


def packed(picture: bytes) -> bytes:
    """The picture with its pixels compressed as far as zlib can; anything that is no PNG comes back as it is.

    Args:
        picture: Content of a file.

    Example:
        >>> packed(b"<svg></svg>")
        b'<svg></svg>'
    """
    if not picture.startswith(_BEGIN):
        return picture
    parts = list(_chunks(picture))
    pixels = zlib.decompress(b"".join(content for kind, content in parts if kind == b"IDAT"))
    first = next(place for place, (kind, _) in enumerate(parts) if kind == b"IDAT")
    kept = [part for part in parts if part[0] != b"IDAT"]
    kept.insert(first, (b"IDAT", zlib.compress(pixels, 9)))
    return _BEGIN + b"".join(
        struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))
        for kind, content in kept
    )


def _chunks(picture: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Kind and content of each part of a PNG."""
    at = len(_BEGIN)
    while at < len(picture):
        (length,) = struct.unpack(">I", picture[at : at + 4])
        yield picture[at + 4 : at + 8], picture[at + 8 : at + 8 + length]
        at += 12 + length


_PICTURES = ("png", "svg", "pdf", "jpeg", "webp")


def save_figure(
    figure: go.Figure,
    path: str | os.PathLike[str],
    *,
    width: int = 860,
    height: int | None = None,
    scale: float | int = 2,
    overwrite: bool = False,
) -> Path:
    """Write a figure as `.html` (self-contained), or as a picture (`.png`, `.svg`, `.pdf`, `.jpeg`, `.webp`).

    Args:
        figure: Any plotly figure.
        path: File to write; the suffix chooses the format.
        width: Width of a picture in pixels.
        height: Its height in pixels; None takes the figure's own.
        scale: Pixels per pixel, for sharp bitmaps.
        overwrite: Replace a picture that stands there. A page of ours says so itself, and is replaced anyway.

    Returns:
        The path.

    Raises:
        ConfigError: The suffix names no known format.
        MissingDependencyError: A picture needs kaleido, and kaleido needs Chrome or Chromium.
        ResultFormatError: Something stands at `path` that is not to be replaced.
        StorageError: The system refuses to write.
    """
    path = located(path)
    kind = path.suffix.lower().removeprefix(".").replace("jpg", "jpeg")
    if kind == "html":
        require_fresh(path, directory=False)
        page = figure.to_html(include_plotlyjs=True, full_html=True)
        atomic_write_text(path, page.replace("<head>", f"<head>{generator()}", 1))
        return path
    if kind not in _PICTURES:
        raise ConfigError(
            f"figures are saved as .html, {', '.join('.' + name for name in _PICTURES)}; got {path.name!r}."
        )
    if path.exists() and not overwrite:
        raise ResultFormatError(
            f"{str(path)[-200:]!r} exists: choose another name, or save with overwrite=True."
        )
    require_fresh(path, directory=False, begins=b"")
    atomic_write_bytes(path, _picture(figure, kind, width=width, height=height, scale=scale))
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
