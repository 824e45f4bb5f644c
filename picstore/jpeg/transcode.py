"""Adding restart markers to a JPEG without losing one bit of its quality.

The Huffman codes are read, coefficients are not: of each new segment the first DC differences are restated, all other
bits are copied (ITU-T T.81, E.1.4 and F.2). What decoders do not need is left behind.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from picstore.arrays import I64, U8
from picstore.errors import ImageError, NotTranscodable, UsageError
from picstore.jpeg import entropy
from picstore.jpeg.headers import Coding, Huffman, read_coding, write_headers
from picstore.jpeg.huffman import optimal_table
from picstore.jpeg.huffman_lookup import lookups
from picstore.jpeg.markers import EOI, Header, Segment, read_header, walk
from picstore.jpeg.tiles import restart_interval

_DAMAGE = {
    entropy.BAD_CODE: "a code that its Huffman table lacks",
    entropy.TOO_SHORT: "its entropy-coded data ends early",
    entropy.TOO_MANY_COEFFICIENTS: "a block with more than 64 coefficients",
    entropy.BAD_DC: "a DC coefficient out of range",
    entropy.BAD_MARKER: "restart markers out of order",
    entropy.TOO_MANY_SEGMENTS: "more restart markers than its headers announce",
}
_DC_SIZES = 12  # of differences of 8-bit samples (table F.1)


@dataclass(frozen=True, slots=True)
class Marked:
    """A JPEG that got restart markers, and what reading it again would tell.

    Attributes:
        header: as of ``markers.parse``.
        lengths: int64 (segments,), bytes of each restart segment without the marker that ends it.
    """

    jpeg: bytes
    header: Header
    lengths: I64


def add_restart_markers(jpeg: bytes | memoryview, interval: int | None = None) -> bytes:
    """Add restart markers to a baseline JPEG, or replace those it has, without loss.

    Coefficients, and so pixels, stay the same. JFIF and Adobe markers stay, as they decide how colours are read; other
    APPn and COM segments go. A Huffman table that lacks a code for a DC difference which begins a segment is extended.

    Args:
        jpeg: the stream. Bytes after EOI are left behind, and EOI may be missing.
        interval: MCUs between markers (T.81, B.2.4.4), 1 … 65,535; by default one tile, see
            :func:`picstore.jpeg.tiles.restart_interval`.

    Raises:
        NotTranscodable: the stream is progressive, arithmetic-coded, lossless, not of 8 bits, CMYK or RGB, of an
            unusual sampling, in several scans, rotated by EXIF, or damaged; the message names the reason.
        UsageError: the interval is none that can be written.
    """
    segments, header = read_segments(jpeg)
    return mark(jpeg, segments, header, interval).jpeg


def read_segments(jpeg: bytes | memoryview) -> tuple[tuple[Segment, ...], Header]:
    """The marker segments of the headers and what they tell; NotTranscodable where they are damaged."""
    try:
        segments = tuple(walk(jpeg))
        return segments, read_header(segments)
    except ImageError as error:
        raise NotTranscodable(f"damaged JPEG: {error}") from error


def mark(jpeg: bytes | memoryview, segments: Sequence[Segment], header: Header, interval: int | None = None) -> Marked:
    """As :func:`add_restart_markers`, for who has read the headers and wants to know the segments of the scan."""
    try:
        coding = read_coding(segments)
    except ImageError as error:
        raise NotTranscodable(f"damaged JPEG: {error}") from error
    reason = reason_not_lossless(header, coding)
    if reason:
        raise NotTranscodable(reason)
    if interval is None:
        interval = restart_interval(header.mcus[0], header.mcu_size[0])
    if not 1 <= interval <= 0xFFFF:
        raise UsageError(f"a restart interval of {interval} MCUs cannot be written; 1 to 65,535 can")
    found = _Scan(header, coding, interval, *_flatten(jpeg, header))
    found.read(every=False)
    huffman = found.tables()
    if huffman is None:
        found.read(every=True)
        huffman = found.rebuilt_tables()
    headers = write_headers(header, coding, huffman, interval)
    made, lengths = found.write(huffman, headers)
    components = header.components
    if len(components) == 1:
        components = (replace(components[0], horizontal=1, vertical=1),)
    marked = replace(header, process="baseline", components=components, restart_interval=interval, length=len(headers))
    return Marked(made, marked, lengths)


def reason_not_lossless(header: Header, coding: Coding) -> str:
    """Why a JPEG cannot get restart markers losslessly, by its headers; empty if it can."""
    adobe = coding.adobe[11] if coding.adobe else None
    ids = bytes(component.id for component in header.components)
    tables = {table for s in coding.selectors for table in ((0, s.dc), (1, s.ac))}
    missing = {component.quantisation for component in header.components} - (set(coding.quantisation) & {0, 1, 2, 3})
    dc = [coding.huffman[table].symbols for table in tables & set(coding.huffman) if table[0] == 0]
    reasons = (
        (header.process not in ("baseline", "extended"), f"{header.process} JPEG"),
        (header.precision != 8, f"JPEG of {header.precision} bits"),
        (len(header.components) == 4, "CMYK JPEG"),
        (len(header.components) not in (1, 3), f"JPEG of {len(header.components)} components"),
        (header.scan_components != len(header.components), "JPEG in several scans"),
        (len(ids) == 3 and not coding.jfif and (adobe == 0 or (adobe is None and ids == b"RGB")), "RGB JPEG"),
        (not header.sampling, "JPEG of an unusual sampling"),
        (coding.orientation != 1, "rotated by EXIF"),
        (bytes(s.component for s in coding.selectors) != ids, "damaged JPEG: its scan has other components"),
        (coding.spectral != b"\0\x3f\0", "damaged JPEG: its scan is not sequential"),
        (any(k > 1 for _, k in tables), "JPEG with more than two tables of a kind"),
        (bool(tables - set(coding.huffman)), "damaged JPEG: a Huffman table is missing"),
        (any(max(symbols, default=0) > 15 for symbols in dc), "damaged JPEG: a DC Huffman table has codes for no size"),
        (bool(missing), "damaged JPEG: a quantisation table is missing"),
        (any(body[0] >> 4 for body in coding.quantisation.values()), "JPEG with quantisation tables of 16 bits"),
    )
    return next((reason for holds, reason in reasons if holds), "")


def _flatten(jpeg: bytes | memoryview, header: Header) -> tuple[U8, I64]:
    """The entropy-coded data without stuffing and markers, zeros behind, and where each old segment begins in it."""
    source = np.frombuffer(jpeg, np.uint8)
    columns, rows = header.mcus
    expected = -(-columns * rows // header.restart_interval) if header.restart_interval else 1
    if 2 * (expected - 1) > source.size:  # each marker between segments takes two bytes
        raise NotTranscodable(f"damaged JPEG: {_DAMAGE[entropy.TOO_SHORT]}")
    segments = np.zeros(expected + 1, np.int64)
    flat = np.empty(source.size - header.length + entropy.PADDING, np.uint8)
    count, length = entropy.unstuff(np.uint64(source.ctypes.data), source.size, header.length, flat, segments)
    if count != expected:
        raise NotTranscodable(f"damaged JPEG: {_DAMAGE.get(count, 'restart markers are missing')}")
    flat[length : length + entropy.PADDING] = 0
    return flat, segments


class _Scan:
    """One scan being rewritten: which tables it is coded with, and the edits that new segments need."""

    def __init__(self, header: Header, coding: Coding, interval: int, flat: U8, segments: I64) -> None:
        self._flat, self._segments, self._interval = flat, segments, interval
        self._huffman = coding.huffman
        self._dc = sorted({selector.dc for selector in coding.selectors})
        self._ac = sorted({selector.ac for selector in coding.selectors})
        columns, rows = header.mcus
        self._mcus, self._old = columns * rows, header.restart_interval
        blocks = []
        for number, (c, selector) in enumerate(zip(header.components, coding.selectors, strict=True)):
            repeat = 1 if len(header.components) == 1 else c.horizontal * c.vertical
            tables = self._dc.index(selector.dc), len(self._dc) + self._ac.index(selector.ac)
            blocks += [(number, *tables, k == 0) for k in range(repeat)]
        self._blocks = np.array(blocks, np.int64)
        self._edited = self._edited_tables()
        # Each block has at least a DC and an AC code; this bounds all that is allocated by the length of the data.
        if 8 * int(segments[-1]) < 2 * len(blocks) * self._mcus:
            raise NotTranscodable(f"damaged JPEG: {_DAMAGE[entropy.TOO_SHORT]}")

    def read(self, *, every: bool) -> None:
        """Find the edits; ``every`` makes every DC code one."""
        if every:
            self._blocks[:, 3] = 1
            self._edited = self._edited_tables()
        edited = np.arange(0, self._mcus, 1 if every else self._interval)
        if self._old and not every:
            edited = np.union1d(edited, np.arange(0, self._mcus, self._old))
        width = int(self._blocks[:, 3].sum())
        self._is_start = edited % self._interval == 0
        at, end = np.empty((2, len(edited), width), np.int64)
        before, differences = np.zeros(len(edited) + 1, np.int64), np.empty((len(edited), width), np.int32)
        self._edits = at, end, before, differences
        dc, ac = (tuple(self._huffman[kind, k] for k in ids) for kind, ids in ((0, self._dc), (1, self._ac)))
        plan = np.array([self._mcus, self._interval, self._old or self._mcus, every], np.int64)
        count = entropy.scan(self._flat, self._segments, self._blocks, lookups(dc, ac), plan, self._edits)
        if count < 0:
            raise NotTranscodable(f"damaged JPEG: {_DAMAGE[count]}")

    def _frequencies(self) -> I64:
        """How often each DC table has to code each size of difference: (tables, sizes)."""
        frequencies = np.zeros((len(self._dc), _DC_SIZES), np.int64)
        entropy.count_sizes(self._edits[3], self._edited, frequencies)
        return frequencies

    def _edited_tables(self) -> I64:
        """The DC table of each edited block of an MCU."""
        tables: I64 = self._blocks[self._blocks[:, 3] == 1, 1]
        return tables

    def tables(self) -> Huffman | None:
        """The Huffman tables with codes for all edits, those there are unchanged; None if there is no room for one."""
        huffman = dict(self._huffman)
        for k, frequencies in zip(self._dc, self._frequencies(), strict=True):
            table = self._huffman[0, k]
            missing = {size for size, count in enumerate(frequencies.tolist()) if count and size not in table.symbols}
            if missing:
                extended = table.extended(missing)
                if extended is None:
                    return None
                huffman[0, k] = extended
        return huffman

    def rebuilt_tables(self) -> Huffman:
        """The Huffman tables, those for DC made anew for this image; every DC code must be an edit."""
        made = {(0, k): optimal_table(f.tolist()) for k, f in zip(self._dc, self._frequencies(), strict=True)}
        return {**self._huffman, **made}

    def write(self, huffman: Huffman, headers: bytes) -> tuple[bytes, I64]:
        """The stream: headers, the scan with its edits and new markers, EOI; and the lengths of its segments."""
        codes = [huffman[0, k].codes() for k in self._dc]
        coding = (
            self._edited,
            np.array([code for code, _ in codes]),
            np.array([lengths for _, lengths in codes]),
        )
        # An edit takes at most 16 + 11 bits, stuffing doubles at most, a marker and its padding take 3 bytes.
        edits, first = self._edits[0], len(headers)
        out = np.empty(first + 2 * (int(self._segments[-1]) + 4 * edits.size) + 4 * len(edits) + 64, np.uint8)
        starts = np.empty(-(-self._mcus // self._interval) + 1, np.int64)
        length = entropy.emit(self._flat, self._edits, self._is_start, coding, out[first:], starts)
        end = first + length
        out[:first] = np.frombuffer(headers, np.uint8)
        out[end : end + 2] = 0xFF, EOI
        return out[: end + 2].tobytes(), np.diff(starts) - 2
