"""Reading a container of large images in part: its tables, and of each image the header and the rows of tiles needed.

A crop of 256 × 256 pixels needs a tenth of the bytes of a photograph of 12 megapixels. Rows of tiles have checksums
(docs/format.md, "Row checksums"), so what was read is checked as a whole container is.
"""

from __future__ import annotations

import mmap
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from picstore.arrays import I64, U32, Bools, Table
from picstore.storage.format.checksum import crc32c
from picstore.storage.format.container import Container
from picstore.storage.format.tile_rows import row_ends, stored_checksums, wrong_row
from picstore.storage.location.resolve import Location, Range

# From the index entries of a container, (n,), the rows of tiles that are needed of each image: int64 (n, 2), the first
# and the last + 1; none where these are equal.
RowsOf: TypeAlias = Callable[[Table], I64]

MIN_MEAN = 1 << 19  # bytes of a container for each of its records, below which it is read whole
_MAX_SHARE = 0.5  # of a payload; one long read is faster than several that take more than that
_NEAR = 1 << 16  # bytes between two reads that are worth less than another request or seek


@dataclass(frozen=True, slots=True)
class _Part:
    """A part of a container to read: of record ``number`` the image, some rows of it, or an attachment.

    ``begin`` and ``end`` are offsets in the container; of an image in rows, those of the header. ``crc`` is that of
    these bytes; of an image in rows, ``crcs`` has that of each, and ``ends`` where they end in the image.
    """

    number: int
    begin: int
    end: int
    crc: int = 0
    rows: range = range(0)
    ends: I64 | None = None
    crcs: U32 | None = None

    def ranges(self) -> list[Range]:
        """Where the part lies in the container: of rows, that of the header and that of the rows."""
        if self.ends is None:
            return [(self.begin, self.end)]
        return [
            (self.begin, self.end),
            (self.begin + int(self.ends[self.rows.start]), self.begin + int(self.ends[self.rows.stop])),
        ]


def whole_images(entries: Table) -> I64:
    """All rows of each image: a :data:`RowsOf`."""
    return np.tile(np.array([0, 1 << 16]), (len(entries), 1))


def sparse_memory(size: int) -> memoryview:
    """Map zeros of which only the pages that are written take memory; each takes 1.4 us when it is first written.

    Not an array of zeros: malloc keeps the memory of earlier ones, and clears all of it, 0.6 ms for 4 MB.
    """
    memory = mmap.mmap(-1, size)
    if hasattr(mmap, "MADV_NOHUGEPAGE"):  # one page of 2 MiB would be cleared for each piece
        memory.madvise(mmap.MADV_NOHUGEPAGE)
    return memoryview(memory)


def read_rows(path: Location, container: Container, rows_of: RowsOf, *, wanted: Bools, attachments: bool) -> bool:
    """Read the rows that are needed of a container's images into its buffer, and mark records that fail a checksum.

    Args:
        path: the file.
        container: with sound tables, and a buffer of the container's size that holds no payload yet.
        rows_of: rows to read; images without row checksums are read whole.
        wanted: bool (n,), the records to read.
        attachments: read those too.

    Returns:
        False, and nothing is read, if one read of the whole container is faster.

    Raises:
        Damage: the file ends before, or the disk cannot read it.
        NotADataset: it is missing.
    """
    numbers = np.flatnonzero(wanted & container.good)
    rows = rows_of(container.index[numbers])
    parts = [
        part
        for number, (first, stop) in zip(numbers.tolist(), rows.tolist(), strict=True)
        if first < stop
        for part in _parts(container, number, range(first, stop), attachments=attachments)
    ]
    ranges = [each for part in parts for each in part.ranges()]
    payload = int(container.index["length"].sum(dtype=np.int64) + container.attached["length"].sum(dtype=np.int64))
    if sum(end - begin for begin, end in ranges) > _MAX_SHARE * payload:
        return False
    ranges = _merged(ranges)
    path.read_ranges(ranges, container.buffer, at=container.ref.offset, file=container.ref.name)
    container.read_size += sum(end - begin for begin, end in ranges)
    for part in parts:
        _check(container, part)
    return True


def _parts(container: Container, number: int, rows: range, *, attachments: bool) -> list[_Part]:
    """List what to read of a record."""
    entry, table = container.index[number], container.segment_table
    begin, length = int(entry["offset"]), int(entry["length"])
    image = _Part(number, begin, begin + length, int(entry["crc"]))
    crcs = None if table is None else stored_checksums(container.index, table, number)
    if crcs is not None:
        ends = row_ends(container.info(number), length)
        if ends is not None and rows.stop < len(ends):
            image = _Part(number, begin, begin + int(ends[0]), rows=rows, ends=ends, crcs=crcs)
    cells = container.attached[number] if attachments else ()
    attached = [
        _Part(number, int(cell["offset"]), int(cell["offset"]) + int(cell["length"]), int(cell["crc"]))
        for cell in cells
        if cell["length"]
    ]
    return [image, *attached]


def _merged(ranges: Sequence[Range]) -> list[Range]:
    """Join ranges that are near each other."""
    merged: list[Range] = []
    for begin, end in sorted(ranges):
        if merged and begin - merged[-1][1] <= _NEAR:
            merged[-1] = merged[-1][0], max(end, merged[-1][1])
        else:
            merged.append((begin, end))
    return merged


def _check(container: Container, part: _Part) -> None:
    """Mark the part's record lost if a checksum fails."""
    view = container.buffer
    id_ = container.index["id"][part.number]
    if part.ends is None or part.crcs is None:
        if crc32c(view[part.begin : part.end]) != part.crc:
            container.mark_lost(part.number, f"record {id_} fails its CRC", part.begin)
        return
    image = view[part.begin : part.begin + int(part.ends[-1])]
    row = wrong_row(image, part.ends, part.crcs, part.rows)
    if row is not None:
        what = f"tile row {row}" if row >= 0 else "the header"
        offset = part.begin + (int(part.ends[row]) if row >= 0 else 0)
        container.mark_lost(part.number, f"{what} of record {id_} fails its CRC", offset)
