"""The segment table of a container: segment lengths, row checksums and entry points of each record (docs/format.md).

Because each row of tiles has a checksum, a reader can read only an image's header and the rows under a crop box. Entry
points divide segments that span whole rows into parts of a tile's usual width, so that a lane of a GPU reads one part.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, TypeAlias

import numpy as np

from picstore.arrays import I64, U8, U16, U32, Bools, Table
from picstore.jpeg.tiles import entry_interval
from picstore.storage.format.checksum import combine_runs, crc32c
from picstore.storage.format.layout import ENTRY_POINTS, MCU_SIZES, ROW_CRCS, SAMPLINGS, SEGMENT
from picstore.storage.format.record import NO_SEGMENTS, ImageInfo
from picstore.storage.location.abstract_location import Buffer

# Two arrays (1 + rows,) with an element for a JPEG's header, then one for each row of restart tiles: the offset in the
# JPEG at which that part ends, and the part's CRC-32C.
StoredRows: TypeAlias = "tuple[I64, U32]"
# Smallest size in bytes of an image with row checksums; reading a smaller image in part saves too little time.
MIN_BYTES = 1 << 18


def checksum_entries(entry: Any) -> int:
    """Return the number of segment-table entries that hold a record's row checksums, given its index entry."""
    if not entry["flags"] & ROW_CRCS or not entry["sampling"]:
        return 0
    return 2 * (1 - int(entry["height"]) // -MCU_SIZES[entry["sampling"]][1])


def find_entry_points(entry: Any, table: U16) -> slice | None:
    """Return the slice of the segment table with a record's entry points; None if they are missing or impossible."""
    if not entry["flags"] & ENTRY_POINTS:
        return None
    count, interval = int(entry["segment_count"]), int(entry["restart_interval"])
    first = int(entry["segment_first"]) + count + checksum_entries(entry)
    step = int(table[first]) if first < len(table) else 0
    if not 0 < step < interval:
        return None
    found = slice(first, first + 1 + count * points_of_segment(interval, step))
    return found if found.stop <= len(table) else None


def points_of_segment(interval: int, step: int) -> int:
    """Return the number of entry points in a segment of ``interval`` MCUs with an entry point every ``step`` MCUs."""
    return (interval - 1) // step


def entries_of(entry: Any, table: U16) -> slice:
    """Return the slice of all of a record's entries in the segment table: lengths, row checksums and entry points."""
    first, found = int(entry["segment_first"]), find_entry_points(entry, table)
    end = first + int(entry["segment_count"]) + checksum_entries(entry) if found is None else found.stop
    return slice(first, end)


def row_ends(info: ImageInfo, length: int) -> I64 | None:
    """Return the end offsets of the header and of each row of restart tiles in a JPEG of ``length`` bytes.

    Returns:
        int64 (rows + 1,); None if the restart segments do not form whole rows of tiles, or do not end at ``length``.
    """
    mcu_width, mcu_height = MCU_SIZES[SAMPLINGS.index(info.sampling)]
    if not mcu_width or not info.restart_interval or not info.header_length:
        return None
    columns, rows = -(-info.width // mcu_width), -(-info.height // mcu_height)
    tiles, rest = divmod(columns, info.restart_interval)
    if rest or len(info.segments) != tiles * rows:
        return None
    # Add 2 bytes for each segment, because its length leaves out the marker at its end.
    in_rows = info.segments.astype(np.int64).reshape(rows, tiles).sum(axis=1) + 2 * tiles
    ends: I64 = info.header_length + np.concatenate([[0], np.cumsum(in_rows)])
    return ends if ends[-1] == length else None


def row_checksums(jpeg: Buffer, info: ImageInfo) -> U16:
    """Compute the row checksums of a large image as entries of the segment table.

    Returns:
        uint16 (2 × (1 + rows),): for the header and for each row of restart tiles, the low and the high half of its
        CRC-32C; empty if the image has fewer than MIN_BYTES bytes or no rows of tiles.
    """
    ends = None if len(jpeg) < MIN_BYTES else row_ends(info, len(jpeg))
    if ends is None:
        return np.empty(0, SEGMENT)
    view = memoryview(jpeg)
    starts = [0, *ends[:-1].tolist()]
    crcs = [crc32c(view[start:end]) for start, end in zip(starts, ends.tolist(), strict=True)]
    return np.array(crcs, "<u4").view(SEGMENT)


def count_row_checksums(jpeg: Buffer, info: ImageInfo) -> int:
    """Return an upper bound of the number of entries that :func:`row_checksums` returns, computing no checksum."""
    mcu_height = MCU_SIZES[SAMPLINGS.index(info.sampling)][1]
    return 2 * (1 - info.height // -mcu_height) if mcu_height and len(jpeg) >= MIN_BYTES else 0


def stored_checksums(entries: Table, table: U16, number: int) -> U32 | None:
    """Return a record's row checksums, uint32 (1 + rows,); None if there are none or they exceed the segment table.

    ``entries`` is the container's index, ``layout.ENTRY`` (n,); ``number`` is the record number.
    """
    entry = entries[number]
    count = checksum_entries(entry)
    first = int(entry["segment_first"]) + int(entry["segment_count"])
    halves = table[first : first + count]
    return halves.copy().view("<u4") if count and len(halves) == count else None


@dataclass(frozen=True, slots=True)
class FoundRows:
    """Byte ranges and checksums of the requested rows of restart tiles in n images.

    Attributes:
        there: bool (n,), False if the image has no row checksums or none of its rows is requested; the image's values
            in the other arrays are then meaningless.
        begins, ends: int64 (n,), offsets in the JPEG where the first requested row begins and the last one ends.
        crcs: uint32 (n,), CRC-32C of the header followed by the requested rows.
    """

    there: Bools
    begins: I64
    ends: I64
    crcs: U32


def find_rows(headers: I64, stored: Sequence[StoredRows | None], rows: I64) -> FoundRows:
    """Find the requested rows of restart tiles in n images; 32 images take as long as one.

    Args:
        headers: int64 (n,), number of bytes of each image's header.
        stored: result of ``Container.stored_rows`` for each image.
        rows: int64 (n, 2), for each image the first requested row of restart tiles, and the last one + 1.
    """
    count = len(stored)
    there, begins = np.zeros(count, np.bool_), np.zeros(count, np.int64)
    found = FoundRows(there, begins, begins.copy(), np.zeros(count, np.uint32))
    bounds, checksums = [], []
    for k, (each, (low, high)) in enumerate(zip(stored, rows.tolist(), strict=True)):
        if each is not None and low < high < len(each[0]):
            ends, crcs = each
            there[k] = True
            bounds.append(ends[low : high + 1])
            checksums += [crcs[:1], crcs[1 + low : 1 + high]]
    if bounds:
        last = np.cumsum([len(piece) for piece in bounds]) - 1
        first = np.append(0, last[:-1] + 1)
        joined = np.concatenate(bounds)
        # Sizes of the byte strings whose checksums are combined, header first. The first difference of each image
        # spans two images, so the size of the header replaces it.
        sizes = np.diff(joined, prepend=0)
        sizes[first] = headers[there]
        found.begins[there], found.ends[there] = joined[first], joined[last]
        found.crcs[there] = combine_runs(np.concatenate(checksums), sizes, first)
    return found


def wrong_row(stream: Buffer | U8, ends: I64, crcs: Sequence[int] | U32, rows: range) -> int | None:
    """Return the first row of restart tiles with a wrong checksum, −1 if the header's is wrong, None if all are right.

    ``stream`` holds the image's header and the rows ``rows``, counted from the image's top. ``ends`` and ``crcs``
    describe all rows of the image: they are the two arrays of its ``StoredRows``.
    """
    view = np.frombuffer(stream, np.uint8)
    bounds = (ends[rows.start : rows.stop + 1] - ends[rows.start] + ends[0]).tolist()
    numbers: list[int] = [-1, *rows]
    for row, (begin, end) in zip(numbers, pairwise([0, *bounds]), strict=True):
        if crc32c(view[begin:end]) != crcs[row + 1]:
            return row
    return None


def count_entry_points(jpeg: Buffer, info: ImageInfo) -> int:
    """Return an upper bound of the number of entries that :func:`entry_points` returns, without parsing the JPEG."""
    step = _step(jpeg, info)
    return 1 + len(info.segments) * points_of_segment(info.restart_interval, step) if step else 0


def entry_points(jpeg: Buffer, info: ImageInfo) -> U16:
    """Return segment-table entries for an image's entry points: bit positions at which decoding may begin.

    The entries are taken from ``info`` if their number and first value are right, else computed from the JPEG.

    Returns:
        uint16: first the number of MCUs from one entry point to the next; then for each entry point the number of bits
        from the previous entry point, or from the beginning of the restart segment. Empty if the tiles are too narrow
        or the image is damaged.
    """
    step = _step(jpeg, info)
    if not step:
        return NO_SEGMENTS
    count, known = count_entry_points(jpeg, info), info.entry_points
    if known is not None and len(known) == count and known[0] == step:
        return known
    made = compute_entry_points(jpeg, step)
    # Another number of entries means that the JPEG contradicts ``info``.
    return made if len(made) == count else NO_SEGMENTS


def compute_entry_points(jpeg: Buffer, step: int) -> U16:
    """Compute the entries of :func:`entry_points` by parsing a JPEG; entry points are ``step`` MCUs apart."""
    # Imported only here, because the import loads numba and kernels, which reading a dataset may not need.
    from picstore.jpeg.transcode import find_entry_points as read_entry_points

    points = read_entry_points(memoryview(jpeg), step)
    return NO_SEGMENTS if points is None else make_entries(step, points)


def make_entries(step: int, points: U16) -> U16:
    """Build segment-table entries from ``step``, the MCUs between entry points, and ``points``, distances in bits."""
    return np.concatenate([np.array([step], SEGMENT), points.ravel()])


def _step(jpeg: Buffer, info: ImageInfo) -> int:
    """Return the number of MCUs between entry points; 0 if the image has no entry points."""
    mcu_width = MCU_SIZES[SAMPLINGS.index(info.sampling)][0]
    step = entry_interval(info.restart_interval, mcu_width) if mcu_width else 0
    return step if step and row_ends(info, len(jpeg)) is not None else 0
