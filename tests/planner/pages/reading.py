"""What a page would fetch, and the pixels of a screenshot."""

import struct
import zlib
from collections.abc import Iterator
from html.parser import HTMLParser


def fetched(page: str) -> list[str | None]:
    """Everything that the elements of a page refer to; scripts and styles are not elements."""
    found: list[str | None] = []

    class Sources(HTMLParser):
        def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
            found.extend(value for name, value in attrs if name in ("src", "href"))

    Sources().feed(page)
    return found


def pixels(png: bytes) -> Iterator[tuple[int, int, int]]:
    """Colours of an 8-bit RGB or RGBA image without interlacing."""
    width, height, _, kind = struct.unpack(">IIBB", png[16:26])
    size = {2: 3, 6: 4}[kind]
    chunks, at = b"", 8
    while at < len(png):
        (length,) = struct.unpack(">I", png[at : at + 4])
        chunks += png[at + 8 : at + 8 + length] if png[at + 4 : at + 8] == b"IDAT" else b""
        at += length + 12
    raw, line = zlib.decompress(chunks), bytes(width * size)
    for row in range(height):
        start = row * (width * size + 1)
        line = unfilter(raw[start], raw[start + 1 : start + 1 + width * size], line, size)
        for x in range(0, width * size, size):
            yield line[x], line[x + 1], line[x + 2]


def unfilter(kind: int, row: bytes, above: bytes, size: int) -> bytes:
    """One line of a PNG: each byte is the difference from its left, upper, mean or Paeth neighbour."""
    out = bytearray(row)
    for x in range(len(out)):
        left = out[x - size] if x >= size else 0
        corner = above[x - size] if x >= size else 0
        out[x] = (
            out[x] + (0, left, above[x], (left + above[x]) // 2, paeth(left, above[x], corner))[kind]
        ) % 256
    return bytes(out)


def paeth(left: int, above: int, corner: int) -> int:
    return min((left, above, corner), key=lambda near: abs(left + above - corner - near))
