"""How a JPEG is coded and its colours are meant: tables, selectors, JFIF and Adobe markers, EXIF orientation."""

from __future__ import annotations

import struct
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TypeAlias

from picstore.errors import ImageError
from picstore.jpeg.huffman import HuffmanTable
from picstore.jpeg.markers import APP0, APP1, APP14, DHT, DQT, DRI, SOF0, SOI, SOS, Header, Segment

Huffman: TypeAlias = dict[tuple[int, int], HuffmanTable]  # by class (0 DC, 1 AC) and destination

_ORIENTATION = 0x0112  # EXIF 2.32, 4.6.4: 1 is upright
_INTEGERS = {1: "B", 3: "H", 4: "I"}  # BYTE, SHORT, LONG; the standard wants a SHORT, and readers take them all


@dataclass(frozen=True, slots=True)
class Selector:
    """Which tables a component of the scan is coded with (T.81, B.2.3)."""

    component: int
    dc: int
    ac: int


@dataclass(frozen=True, slots=True)
class Coding:
    """What the headers say besides size and sampling.

    Attributes:
        quantisation: bodies of the tables by destination, with their precision in the upper half of the first byte.
        huffman: by class and destination; a later definition replaces an earlier one.
        selectors: of the first scan's components.
        spectral: the three bytes behind them: 0, 63, 0 in a sequential scan.
        jfif, adobe: bodies of those APP0 and APP14 segments, empty for none.
        orientation: as EXIF gives it, 1 … 8.
    """

    quantisation: dict[int, bytes]
    huffman: Huffman
    selectors: tuple[Selector, ...]
    spectral: bytes
    jfif: bytes
    adobe: bytes
    orientation: int


def read_coding(segments: Iterable[Segment]) -> Coding:
    """Read the segments between SOI and the scan, as ``markers.walk`` found them.

    Raises:
        ImageError: a segment is cut off or makes no table.
    """
    quantisation: dict[int, bytes] = {}
    huffman: Huffman = {}
    jfif = adobe = body = b""
    orientation = 1
    for marker, body, _ in segments:
        if marker == DQT:
            quantisation.update(_quantisation(body))
        elif marker == DHT:
            huffman.update(_huffman(body))
        elif marker == APP0 and body.startswith(b"JFIF\0") and len(body) >= 14:  # libjpeg overlooks shorter ones
            # Of revision 1, as libjpeg warns of any other, which decoders may call an error; without a thumbnail.
            jfif = body[:5] + b"\1" + body[6:12] + b"\0\0"
        elif marker == APP14 and body.startswith(b"Adobe") and len(body) >= 12:
            adobe = body[:12]
        elif marker == APP1 and body.startswith(b"Exif\0\0") and orientation == 1:  # of several, any may turn it
            orientation = _orientation(body[6:])
    count = body[0] if body else 0
    if len(body) != 4 + 2 * count:
        raise ImageError("the scan header has a wrong length")
    selectors = tuple(Selector(body[1 + 2 * k], body[2 + 2 * k] >> 4, body[2 + 2 * k] & 15) for k in range(count))
    return Coding(quantisation, huffman, selectors, body[1 + 2 * count :], jfif, adobe, orientation)


def _quantisation(body: bytes) -> dict[int, bytes]:
    """Tables of a DQT segment (B.2.4.1)."""
    found = {}
    at = 0
    while at < len(body):
        size = 1 + (128 if body[at] >> 4 else 64)
        if at + size > len(body):
            raise ImageError("a quantisation table is cut off")
        found[body[at] & 15] = body[at : at + size]
        at += size
    return found


def _huffman(body: bytes) -> Huffman:
    """Tables of a DHT segment (B.2.4.2)."""
    found = {}
    at = 0
    while at < len(body):
        counts = body[at + 1 : at + 17]
        end = at + 17 + sum(counts)
        found[body[at] >> 4, body[at] & 15] = HuffmanTable(counts, body[at + 17 : end])
        at = end
    return found


def _orientation(tiff: bytes) -> int:
    """The orientation in an EXIF block; 1 where it has none or cannot be read."""
    order = {b"II": "<", b"MM": ">"}.get(tiff[:2])
    if order is None or len(tiff) < 8:
        return 1
    (directory,) = struct.unpack_from(order + "I", tiff, 4)
    if directory + 2 > len(tiff):
        return 1
    (count,) = struct.unpack_from(order + "H", tiff, directory)
    for at in range(directory + 2, min(directory + 2 + 12 * count, len(tiff) - 11), 12):
        tag, kind = struct.unpack_from(order + "HH", tiff, at)
        if tag == _ORIENTATION and kind in _INTEGERS:
            (value,) = struct.unpack_from(order + _INTEGERS[kind], tiff, at + 8)
            return value if 1 <= value <= 8 else 1
    return 1


def write_headers(header: Header, coding: Coding, huffman: Huffman, interval: int) -> bytes:
    """The headers of a baseline JPEG of one scan, from SOI to SOS, without anything that decoders do not need."""
    single = len(header.components) == 1
    parts = [bytes([0xFF, SOI])]
    if coding.jfif:
        parts.append(_segment(APP0, coding.jfif))
    if coding.adobe:
        parts.append(_segment(APP14, coding.adobe))
    wanted = sorted({component.quantisation for component in header.components})
    parts.append(_segment(DQT, b"".join(coding.quantisation[k] for k in wanted)))
    frame = struct.pack(">BHHB", header.precision, header.height, header.width, len(header.components))
    for c in header.components:
        # The sampling factors of a single component mean nothing (A.2.2), and 1 × 1 is what decoders expect.
        sampling = 0x11 if single else c.horizontal << 4 | c.vertical
        frame += bytes([c.id, sampling, c.quantisation])
    parts.append(_segment(SOF0, frame))
    used = sorted({(0, s.dc) for s in coding.selectors} | {(1, s.ac) for s in coding.selectors})
    tables = [bytes([k << 4 | n]) + huffman[k, n].counts + huffman[k, n].symbols for k, n in used]
    parts.append(_segment(DHT, b"".join(tables)))
    parts.append(_segment(DRI, struct.pack(">H", interval)))
    scan = b"".join(bytes([s.component, s.dc << 4 | s.ac]) for s in coding.selectors)
    parts.append(_segment(SOS, bytes([len(coding.selectors)]) + scan + coding.spectral))
    return b"".join(parts)


def _segment(marker: int, body: bytes) -> bytes:
    return struct.pack(">BBH", 0xFF, marker, len(body) + 2) + body
