import struct
import zlib

from uds_lens.plots._export import packed


def chunk(kind: bytes, content: bytes) -> bytes:
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))


def test_the_pixels_stay_and_take_less_room():
    pixels = b"".join(b"\0" + bytes(range(200)) for _ in range(200))
    loose = zlib.compress(pixels, 0)
    head = b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", bytes(13)) + chunk(b"tEXt", b"Software\0mine")
    end = chunk(b"IEND", b"")
    found = packed(head + chunk(b"IDAT", loose[:5000]) + chunk(b"IDAT", loose[5000:]) + end)
    assert found.startswith(head) and found.endswith(end) and len(found) < len(loose) / 10
    assert zlib.decompress(found[len(head) + 8 : -len(end) - 4]) == pixels
    assert packed(found) == found
