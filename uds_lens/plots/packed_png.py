"""PNGs that take less room: the same pixels, packed harder than a browser packs them."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator

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
