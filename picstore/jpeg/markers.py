"""Markers of a JPEG: its headers with size and sampling, and the restart markers of its scan (ITU-T T.81, annex B)."""

from __future__ import annotations

import reprlib
import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from picstore.arrays import I64
from picstore.errors import ImageError, UsageError

MarkerSegment: TypeAlias = tuple[int, bytes, int]  # marker, body, offset after the segment

TEM, SOI, EOI, SOS, DRI = 0x01, 0xD8, 0xD9, 0xDA, 0xDD
SOF0, DHT, DQT = 0xC0, 0xC4, 0xDB
APP0, APP1, APP14 = 0xE0, 0xE1, 0xEE
RST0, RST7 = 0xD0, 0xD7
# For each marker SOFn, which begins a frame, its n (T.81, table B.1). DHT (C4), JPG (C8) and DAC (CC) begin none.
FRAMES = {marker: marker - 0xC0 for marker in range(0xC0, 0xD0) if marker not in (0xC4, 0xC8, 0xCC)}
_PROCESSES = {0: "baseline", 1: "extended", 2: "progressive", 3: "lossless"}
_PROCESSES |= {9: "arithmetic-coded", 10: "arithmetic-coded progressive", 11: "arithmetic-coded lossless"}
_SAMPLINGS = {(1, 1): "444", (2, 1): "422", (1, 2): "440", (2, 2): "420"}


@dataclass(frozen=True, slots=True)
class Component:
    """Component of a frame: identifier, sampling factors, and number of the quantization table (T.81, B.2.2)."""

    id: int
    horizontal: int
    vertical: int
    quantization: int


@dataclass(frozen=True, slots=True)
class Header:
    """Size, sampling and coding process of a JPEG.

    Attributes:
        process: ``"baseline"``, ``"extended"``, ``"progressive"``, ``"lossless"``, ``"arithmetic-coded"`` (extended),
            ``"arithmetic-coded progressive"``, ``"arithmetic-coded lossless"`` or ``"SOF<n>"``.
        precision: number of bits of a sample.
        width, height: size in pixels.
        components: components in the order of the frame header.
        scan_components: number of components in the first scan.
        restart_interval: number of MCUs between restart markers; 0 if there are no markers (T.81, B.2.4.4).
        length: number of bytes before the entropy-coded data of the first scan.
    """

    process: str
    precision: int
    width: int
    height: int
    components: tuple[Component, ...]
    scan_components: int
    restart_interval: int
    length: int

    @property
    def sampling(self) -> str:
        """Name of the chroma sampling: ``"grey"``, ``"444"``, ``"422"``, ``"440"``, ``"420"``; ``""`` for any other."""
        if len(self.components) == 1:
            return "grey"
        first, *others = self.components
        if len(others) != 2 or any((c.horizontal, c.vertical) != (1, 1) for c in others):
            return ""
        return _SAMPLINGS.get((first.horizontal, first.vertical), "")

    @property
    def mcu_size(self) -> tuple[int, int]:
        """Width and height of an MCU in pixels; 8 × 8 for a single component (T.81, A.2)."""
        if len(self.components) == 1:
            return 8, 8
        return 8 * max(c.horizontal for c in self.components), 8 * max(c.vertical for c in self.components)

    @property
    def mcus(self) -> tuple[int, int]:
        """Number of columns, and number of rows, of MCUs."""
        width, height = self.mcu_size
        return -(-self.width // width), -(-self.height // height)


def iterate_marker_segments(jpeg: bytes | memoryview) -> Iterator[MarkerSegment]:
    """Yield the marker segments of a JPEG, up to and including the first SOS.

    Raises:
        ImageError: the bytes are not a JPEG, or its headers are cut off or are not a chain of segments.
        UsageError: ``jpeg`` is not bytes.
    """
    if not isinstance(jpeg, (bytes, bytearray, memoryview, np.ndarray)):
        raise UsageError(f"{reprlib.repr(jpeg)} is not the bytes of a JPEG; give a file's as pathlib.Path.read_bytes()")
    if len(jpeg) < 4 or jpeg[0] != 0xFF or jpeg[1] != SOI:
        raise ImageError("not a JPEG: no SOI marker at its beginning")
    offset, marker = 2, 0
    while marker != SOS:
        marker, offset = _next_marker(jpeg, offset)
        body = _read_body(jpeg, offset)
        offset += 2 + len(body)
        yield marker, body, offset


def parse_header(jpeg: bytes | memoryview) -> Header:
    """Parse the headers of a JPEG.

    Raises:
        ImageError: the bytes are not a JPEG, or its headers break T.81; the message has the offset.
    """
    return header_from_segments(iterate_marker_segments(jpeg))


def header_from_segments(segments: Iterable[MarkerSegment]) -> Header:
    """Build the header from the results of :func:`iterate_marker_segments`; raise ImageError if they break T.81."""
    interval, frame, body, end = 0, None, b"", 0
    for marker, body, end in segments:
        if marker in FRAMES:
            if frame is not None:
                raise ImageError(f"two frame headers, the second ends at byte {end}")
            frame = _parse_frame(body, FRAMES[marker])
        elif marker == DRI:
            if len(body) != 2:
                raise ImageError(f"the DRI segment that ends at byte {end} has {len(body)} bytes")
            interval = int.from_bytes(body, "big")
    if frame is None:
        raise ImageError("a scan begins before any frame header")
    if not body or len(body) != 4 + 2 * body[0]:
        raise ImageError(f"the scan header that ends at byte {end} has a wrong length")
    return Header(*frame, scan_components=body[0], restart_interval=interval, length=end)


def find_restart_segments(jpeg: bytes | memoryview, header: Header) -> tuple[I64, I64]:
    """Return the offsets at which a JPEG's restart segments begin, and those at which they end, both int64 (segments,).

    ``header`` is the JPEG's header, with one interleaved scan. A JPEG without restart markers has one segment.

    Raises:
        ImageError: the restart markers contradict the headers, or EOI is missing.
    """
    data = np.frombuffer(jpeg, dtype=np.uint8)[header.length :]
    # A marker is 0xFF and a code. In entropy-coded data, 0x00 (stuffing) and 0xFF (fill) are not codes (B.1.1.5).
    offsets = np.flatnonzero(data[:-1] == 0xFF)
    codes = data[offsets + 1]
    is_marker = (codes != 0x00) & (codes != 0xFF)
    offsets, codes = offsets[is_marker], codes[is_marker]
    is_end = np.flatnonzero((codes < RST0) | (codes > RST7))
    if len(is_end) == 0 or codes[is_end[0]] != EOI:
        raise ImageError("the scan does not end in EOI: truncated, or it has more than one scan")
    restarts = is_end[0]
    columns, rows = header.mcus
    interval = header.restart_interval or columns * rows
    expected = -(-columns * rows // interval) - 1
    if restarts != expected:
        raise ImageError(f"{restarts} restart markers where the headers announce {expected}")
    if (codes[:restarts] != RST0 + np.arange(restarts) % 8).any():
        raise ImageError("restart markers are out of order")
    ends = offsets[: restarts + 1] + header.length
    starts = np.concatenate(([header.length], ends[:-1] + 2))
    return starts.astype(np.int64), ends.astype(np.int64)


def _next_marker(jpeg: bytes | memoryview, first: int) -> tuple[int, int]:
    """Return the marker at offset ``first``, or after fill bytes there (T.81, B.1.1.2), and the offset after it."""
    offset = first
    while offset < len(jpeg) and jpeg[offset] == 0xFF:
        offset += 1
    if offset >= len(jpeg):
        raise ImageError(f"the headers are cut off at byte {offset}")
    marker = jpeg[offset]
    if offset == first or marker == 0x00:
        raise ImageError(f"no marker at byte {first}")
    if marker in (TEM, SOI, EOI) or RST0 <= marker <= RST7:
        raise ImageError(f"marker FF{marker:02X} at byte {offset - 1}, before any scan")
    return marker, offset + 1


def _read_body(jpeg: bytes | memoryview, offset: int) -> bytes:
    """Read the body of the marker segment whose length field is at ``offset``."""
    length = int.from_bytes(jpeg[offset : offset + 2], "big")
    if offset + 2 > len(jpeg) or offset + length > len(jpeg):
        raise ImageError(f"the headers are cut off at byte {len(jpeg)}")
    if length < 2:
        raise ImageError(f"a marker segment at byte {offset} has length {length}")
    return bytes(jpeg[offset + 2 : offset + length])


def _parse_frame(body: bytes, process: int) -> tuple[str, int, int, int, tuple[Component, ...]]:
    if len(body) < 6 or len(body) != 6 + 3 * body[5]:
        raise ImageError("the frame header has a wrong length")
    precision, height, width, count = struct.unpack_from(">BHHB", body)
    if height == 0:
        raise ImageError("the height comes in a DNL marker, after the first scan")
    if width == 0 or count == 0:
        raise ImageError("the frame has no columns or no components")
    components = []
    for k in range(count):
        identifier, sampling = body[6 + 3 * k], body[7 + 3 * k]
        horizontal, vertical = sampling >> 4, sampling & 15
        if not (1 <= horizontal <= 4 and 1 <= vertical <= 4):
            raise ImageError(f"component {identifier} has sampling factors {horizontal} × {vertical}")
        components.append(Component(identifier, horizontal, vertical, body[8 + 3 * k]))
    return _PROCESSES.get(process, f"SOF{process}"), precision, width, height, tuple(components)
