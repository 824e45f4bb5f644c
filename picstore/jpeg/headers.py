"""Headers of a JPEG: reading tables and JFIF, Adobe and EXIF segments; writing headers (ITU-T T.81, annex B)."""

from __future__ import annotations

import struct
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TypeAlias

from picstore.errors import ImageError
from picstore.jpeg.huffman import HuffmanTable
from picstore.jpeg.markers import APP0, APP1, APP14, DHT, DQT, DRI, SOF0, SOI, SOS, Header, MarkerSegment

# Huffman tables by (class, destination); class 0 is DC, class 1 is AC.
HuffmanTables: TypeAlias = dict[tuple[int, int], HuffmanTable]

_ORIENTATION = 0x0112  # tag of EXIF 2.32, 4.6.4; the value 1 means upright
# Formats of ``struct`` for EXIF's BYTE, SHORT and LONG. The orientation is a SHORT, but readers accept all three.
_INTEGERS = {1: "B", 3: "H", 4: "I"}


@dataclass(frozen=True, slots=True)
class TableSelector:
    """Component of a scan, and the destinations of its DC and AC Huffman tables (T.81, B.2.3)."""

    component: int
    dc: int
    ac: int


@dataclass(frozen=True, slots=True)
class CodingParameters:
    """Contents of a JPEG's headers except size and sampling.

    Attributes:
        quantization: for each destination (T.81, B.2.4.1) the quantization table, with its first byte (precision and
            destination).
        huffman: Huffman tables; the last of several definitions counts.
        selectors: components of the first scan, with their Huffman tables.
        spectral: last three bytes of the scan header: 0, 63, 0 in a sequential scan.
        jfif, adobe: bodies of the APP0 and the APP14 segment, empty if there is no such segment.
        orientation: orientation in EXIF, 1 … 8.
    """

    quantization: dict[int, bytes]
    huffman: HuffmanTables
    selectors: tuple[TableSelector, ...]
    spectral: bytes
    jfif: bytes
    adobe: bytes
    orientation: int


def read_coding_parameters(segments: Iterable[MarkerSegment]) -> CodingParameters:
    """Read coding parameters from marker segments; raise ImageError if a table or the scan header is invalid."""
    quantization: dict[int, bytes] = {}
    huffman: HuffmanTables = {}
    jfif = adobe = body = b""
    exif: list[bytes] = []
    for marker, body, _ in segments:
        if marker == DQT:
            quantization.update(_read_quantization(body))
        elif marker == DHT:
            huffman.update(_read_huffman(body))
        elif marker == APP0 and body.startswith(b"JFIF\0") and len(body) >= 14:  # libjpeg ignores shorter segments
            # Set JFIF's major version to 1, because decoders may reject other versions; drop the thumbnail.
            jfif = body[:5] + b"\1" + body[6:12] + b"\0\0"
        elif marker == APP14 and body.startswith(b"Adobe") and len(body) >= 12:
            # The code of the color transform is 0 for none. For YCbCr write 1, because decoders may reject other codes.
            adobe = body[:11] + bytes([min(body[11], 1)])
        elif marker == APP1:
            exif.append(body)
    count = body[0] if body else 0
    if len(body) != 4 + 2 * count:
        raise ImageError("the scan header has a wrong length")
    selectors = tuple(TableSelector(body[1 + 2 * k], body[2 + 2 * k] >> 4, body[2 + 2 * k] & 15) for k in range(count))
    return CodingParameters(
        quantization, huffman, selectors, body[1 + 2 * count :], jfif, adobe, find_orientation(exif)
    )


def _read_quantization(body: bytes) -> dict[int, bytes]:
    """Return the tables of a DQT segment (B.2.4.1), each with its first byte, by destination."""
    tables = {}
    while body:
        size = 1 + (128 if body[0] >> 4 else 64)
        if size > len(body):
            raise ImageError("a quantization table is cut off")
        tables[body[0] & 15] = body[:size]
        body = body[size:]
    return tables


def _read_huffman(body: bytes) -> HuffmanTables:
    """Return the tables of a DHT segment (B.2.4.2) by (class, destination)."""
    tables = {}
    while body:
        counts = body[1:17]
        end = 17 + sum(counts)
        tables[body[0] >> 4, body[0] & 15] = HuffmanTable(counts, body[17:end])
        body = body[end:]
    return tables


def find_orientation(bodies: Iterable[bytes]) -> int:
    """Return the EXIF orientation, 1 … 8, in the bodies of APP1 segments: the first that is not 1, else 1."""
    blocks = (body[6:] for body in bodies if body.startswith(b"Exif\0\0"))
    return next((found for found in map(_read_orientation, blocks) if found != 1), 1)


def _read_orientation(tiff: bytes) -> int:
    order = {b"II": "<", b"MM": ">"}.get(tiff[:2])
    if order is None or len(tiff) < 8:
        return 1
    (directory,) = struct.unpack_from(order + "I", tiff, 4)
    if directory + 2 > len(tiff):
        return 1
    (count,) = struct.unpack_from(order + "H", tiff, directory)
    for entry in range(directory + 2, min(directory + 2 + 12 * count, len(tiff) - 11), 12):
        tag, kind = struct.unpack_from(order + "HH", tiff, entry)
        if tag == _ORIENTATION and kind in _INTEGERS:
            (value,) = struct.unpack_from(order + _INTEGERS[kind], tiff, entry + 8)
            return value if 1 <= value <= 8 else 1
    return 1


def write_headers(header: Header, coding: CodingParameters, huffman: HuffmanTables, interval: int) -> bytes:
    """Return the headers, SOI to SOS, of a baseline JPEG of one scan, without segments that decoders do not need."""
    quantization = sorted({component.quantization for component in header.components})
    frame = struct.pack(">BHHB", header.precision, header.height, header.width, len(header.components))
    for c in header.components:
        # Write sampling factors 1 × 1 for a single component: others have no effect (A.2.2), and decoders expect these.
        sampling = 0x11 if len(header.components) == 1 else c.horizontal << 4 | c.vertical
        frame += bytes([c.id, sampling, c.quantization])
    used = sorted({(0, s.dc) for s in coding.selectors} | {(1, s.ac) for s in coding.selectors})
    tables = [bytes([k << 4 | n]) + huffman[k, n].counts + huffman[k, n].symbols for k, n in used]
    scan = b"".join(bytes([s.component, s.dc << 4 | s.ac]) for s in coding.selectors)
    segments = (
        (APP0, coding.jfif),
        (APP14, coding.adobe),
        (DQT, b"".join(coding.quantization[k] for k in quantization)),
        (SOF0, frame),
        (DHT, b"".join(tables)),
        (DRI, struct.pack(">H", interval)),
        (SOS, bytes([len(coding.selectors)]) + scan + coding.spectral),
    )
    written = (struct.pack(">BBH", 0xFF, marker, len(body) + 2) + body for marker, body in segments if body)
    return bytes([0xFF, SOI]) + b"".join(written)
