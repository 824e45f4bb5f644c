"""Reading a container in part: the tables before its payload, and the header and needed tile rows of each image.

A crop of 256 × 256 pixels needs a tenth of the bytes of a photograph of 12 megapixels. Rows of tiles have checksums
(docs/format.md, "Row checksums"), so partial reads are checked as whole containers are. The tables of large images take
about a thousandth of a container. Keeping tables for the next epochs saves a fifth of the time in which one thread
reads crops from memory, and saves a request to a store per container.
"""

from __future__ import annotations

import contextlib
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import TypeAlias

import numpy as np

from picstore.arrays import I64, U8, Bools, Table
from picstore.errors import Damage, NotADataset
from picstore.storage.format.checksum import crc32c
from picstore.storage.format.container import Container, ContainerRef
from picstore.storage.format.layout import MAX_CONTAINER, MCU_SIZES, join_entries
from picstore.storage.format.read_container import ParsedHeader, read_header
from picstore.storage.format.segment_table import FoundRows, find_rows, wrong_row
from picstore.storage.location.abstract_location import Piece, Range, first_of_runs
from picstore.storage.location.resolve import Allocate, Location, fresh

# Function that takes the index entries (``layout.ENTRY``) of n images, and returns the range of tile rows needed of
# each, int64 (n, 2): the first row and the last row + 1, or two equal numbers if no row is needed.
RowsOf: TypeAlias = Callable[[Table], I64]

# Smallest mean number of bytes per record of a container that is read in part; other containers are read whole.
MIN_MEAN = 1 << 19
# Largest share of a container's bytes to read as separate parts; if more is needed, one read of the whole is faster.
_MAX_SHARE = 0.5
# Largest gap in bytes between parts that are read together; reading the gap takes less than another request or seek.
_NEAR = 1 << 16
# Smallest number of bytes of the first read of a container's tables (all bytes before the payload: header, index,
# attachment table, segment table and extras). The first read shows how large the tables are.
_FIRST_READ = 4096
# Largest share of a container that the first read takes, unless _FIRST_READ is more. Photographs' tables take 1 %.
_MAX_TABLES_SHARE = 1 / 64
# Bytes of tables to keep in memory, enough for about 4,000 containers. Ends of tile rows, computed from the tables,
# take half as much in addition. Tables are never evicted: each is used once per epoch, so all would be evicted unused.
_KEPT_BYTES = 64 << 20


@dataclass(frozen=True, slots=True)
class _Part:
    """Part of a container to read and check: an image, an image's header with some rows of tiles, or an attachment.

    Attributes:
        number: record number in the container.
        begin: offset of the image or attachment in the container.
        at, length: offset of the part in ``PartialRead.buffer``, and its number of bytes.
        crc: CRC-32C of the part.
        header: number of bytes of the image's header if only some rows of the image are read, else 0.
        header_at: offset in the buffer to which the header is read, before it is moved to ``at``, in front of the rows.
        rows: rows of restart tiles that are read.
        attachment: index of the attachment among the record's attachments; None for an image.
    """

    number: int
    begin: int
    at: int
    length: int
    crc: int
    header: int = 0
    header_at: int = 0
    rows: range = range(0)
    attachment: int | None = None


@dataclass(frozen=True, slots=True)
class PartialRead:
    """Plan to read ``pieces`` of a file to ``buffer``. They hold parts of a container whose tables are in memory."""

    container: Container
    pieces: list[Piece]
    parts: list[_Part]
    buffer: memoryview

    def run(self, path: Location) -> None:
        """Read the pieces from a file, and check the parts' CRCs; raise Damage or NotADataset if reading fails."""
        path.read_pieces(self.pieces, file=self.container.ref.name)
        self._finish()

    def run_cached(self, path: Location) -> bool:
        """If all pieces are in the system's page cache, do as :meth:`run` and return True; else return False."""
        done = path.read_cached(self.pieces)
        if done:
            self._finish()
        return done

    def _finish(self) -> None:
        """Give the container its buffer, join each JPEG's header to its rows, and mark records with wrong checksums."""
        buffer, container = self.buffer, self.container
        container.buffer = buffer
        container.read_size += len(buffer)
        view = np.frombuffer(buffer, np.uint8)
        for part in self.parts:
            at, header_at = part.at, part.header_at
            buffer[at : at + part.header] = buffer[header_at : header_at + part.header]
            stream = view[at : at + part.length]
            if crc32c(stream) != part.crc:
                _mark_lost(container, part, stream)


def whole_images(entries: Table) -> I64:
    """Request more tile rows of each image than any has, so that images are read whole; a :data:`RowsOf` function."""
    return np.tile(np.array([0, 1 << 16]), (len(entries), 1))


def plan_reads(
    containers: Sequence[Container], wanted: Sequence[Bools], rows_of: RowsOf, *, attachments: bool, allocate: Allocate
) -> list[PartialRead | None]:
    """Plan partial reads of containers; set each container's ``held`` to describe what its buffer will hold.

    All containers are planned together, because a NumPy call takes as long for 2 images as for 32. Images without row
    checksums are read whole; images of which no row is needed are not read.

    Args:
        containers: containers without their payloads, as :class:`TableReader` returns them.
        wanted: for each container the mask of the records to read, bool (n,).

    Returns:
        For each container its PartialRead, or None if reading the whole container is faster.
    """
    owner, number, entries, rows = _needed(containers, wanted, rows_of)
    header, length = entries["header_length"].astype(np.int64), entries["length"].astype(np.int64)
    stored = [containers[k].stored_rows(record) for k, record in zip(owner.tolist(), number.tolist(), strict=True)]
    found = find_rows(header, stored, rows)
    begin, first = entries["offset"].astype(np.int64), np.where(found.there, header, length)
    cells = _attached(containers, owner, number) if attachments else np.empty((0, 6), np.int64)
    owners = np.concatenate([owner, owner, cells[:, 0]])
    begins = np.concatenate([begin, begin + found.begins, cells[:, 3]])
    lengths = np.concatenate([first, found.ends - found.begins, cells[:, 4]])
    ranges, at = _merge(owners, begins, lengths)
    header_at, rows_at, attached_at = np.split(at, [len(owner), 2 * len(owner)])
    at = np.where(found.there, rows_at - first, header_at)
    crcs = np.where(found.there, found.crcs, entries["crc"]).astype(np.int64)
    sizes, headers = first + found.ends - found.begins, np.where(found.there, first, 0)
    images = np.column_stack([owner, number, begin, at, sizes, crcs, headers, header_at, rows])
    parts = _list_parts(images, np.column_stack([cells, attached_at]))
    held, tops = _describe(entries, rows, found, at)
    bounds = np.searchsorted(owner, np.arange(len(containers) + 1)).tolist()
    shares = np.bincount(owners, lengths, minlength=len(containers)).tolist()
    reads: list[PartialRead | None] = []
    for k, container in enumerate(containers):
        if shares[k] > _MAX_SHARE * container.size:
            reads.append(None)
            continue
        mine = slice(bounds[k], bounds[k + 1])
        _hold(container, number[mine], held[mine], tops[mine], parts[k])
        ends = [0, *accumulate(end - begin for begin, end in ranges[k])]
        buffer = allocate(max(ends[-1], 1))[: ends[-1]]
        places = zip(ranges[k], pairwise(ends), strict=True)
        pieces = [(container.ref.offset + begin, buffer[first:last]) for (begin, _), (first, last) in places]
        reads.append(PartialRead(container, pieces, parts[k], buffer))
    return reads


def _needed(containers: Sequence[Container], wanted: Sequence[Bools], rows_of: RowsOf) -> tuple[I64, I64, Table, I64]:
    """Return four arrays with a row per image to read: index of its container, record number, index entry, tile rows.

    One call of ``rows_of`` draws crop boxes in 200 µs for 2 images, in 250 µs for 32.
    """
    numbers = [np.flatnonzero(chosen & each.good) for each, chosen in zip(containers, wanted, strict=True)]
    owner = np.repeat(np.arange(len(containers)), list(map(len, numbers)))
    entries = join_entries(each.index.take(chosen) for each, chosen in zip(containers, numbers, strict=True))
    rows = rows_of(entries) if len(entries) else np.empty((0, 2), np.int64)
    needed = rows[:, 0] < rows[:, 1]
    number = np.concatenate([np.empty(0, np.int64), *numbers])
    return owner[needed], number[needed], entries[needed], rows[needed]


def _list_parts(images: I64, attached: I64) -> dict[int, list[_Part]]:
    parts: dict[int, list[_Part]] = defaultdict(list)
    for k, record, begin, at, size, crc, header, header_at, first, stop in images.tolist():
        parts[k].append(_Part(record, begin, at, size, crc, header, header_at, range(first, stop)))
    for k, record, field, begin, size, crc, at in attached.tolist():
        parts[k].append(_Part(record, begin, at, size, crc, attachment=field))
    return parts


def _attached(containers: Sequence[Container], owner: I64, number: I64) -> I64:
    """Return the records' attachments, int64 (n, 6): container, record and attachment index; offset, length, CRC."""
    found = [
        (k, record, field, *cell.tolist()[:3])
        for k, record in zip(owner.tolist(), number.tolist(), strict=True)
        for field, cell in enumerate(containers[k].attached[record])
        if cell["length"]
    ]
    return np.array(found, np.int64).reshape(-1, 6)


def _merge(owner: I64, begin: I64, length: I64) -> tuple[dict[int, list[Range]], I64]:
    """Merge parts that lie near each other in a container into byte ranges to read; leave out empty parts.

    ``owner`` holds the index of each part's container; parts must not overlap. Return each container's ascending byte
    ranges, by index of the container; and each part's offset in its container's buffer, int64 (n,).
    """
    ranges: dict[int, list[Range]] = defaultdict(list)
    at = np.zeros(len(owner), np.int64)
    order = np.lexsort((begin, owner))
    order = order[length[order] > 0]
    if len(order):
        mine, low, high = owner[order], begin[order], (begin + length)[order]
        apart = mine * (2 * MAX_CONTAINER)  # added to offsets, so that parts of different containers never join
        starts = first_of_runs(apart + low, apart + high, _NEAR)
        which = np.repeat(np.arange(len(starts)), np.diff(starts, append=len(order)))
        low_ends, high_ends = low[starts], np.maximum.reduceat(high, starts)
        before = np.cumsum(high_ends - low_ends) - (high_ends - low_ends)
        # Subtract the bytes of previous containers, and so get each range's offset in its own buffer.
        before -= before[np.searchsorted(mine[starts], mine[starts])]
        at[order] = before[which] + low - low_ends[which]
        for k, first, last in zip(mine[starts].tolist(), low_ends.tolist(), high_ends.tolist(), strict=True):
            ranges[k].append((first, last))
    return ranges, at


def _describe(entries: Table, rows: I64, found: FoundRows, at: I64) -> tuple[Table, I64]:
    """Return the values of ``Container.held`` and ``Container.tops`` for images at the offsets ``at`` in a buffer.

    If ``found.there`` marks an image, its values describe only its tile rows ``rows``, else the whole image.
    """
    held = entries.copy()
    held["offset"] = at
    height = np.array(MCU_SIZES)[entries["sampling"], 1]
    tops, there = rows[:, 0] * height, found.there
    held["length"][there] = (entries["header_length"] + found.ends - found.begins)[there]
    held["height"][there] = (np.minimum(rows[:, 1] * height, entries["height"]) - tops)[there]
    all_rows = -(-entries["height"][there].astype(np.int64) // height[there])
    per_row = entries["segment_count"][there] // all_rows
    held["segment_first"][there] += (rows[there, 0] * per_row).astype(np.uint32)
    held["segment_count"][there] = (rows[there, 1] - rows[there, 0]) * per_row
    return held, np.where(there, tops, 0)


def _hold(container: Container, numbers: I64, held: Table, tops: I64, parts: Sequence[_Part]) -> None:
    """Set a container's ``held``, ``tops`` and ``attached`` to describe the parts that its buffer will hold.

    ``numbers`` holds the record number of each element of ``held``. Images and attachments that are not among the parts
    get length 0.
    """
    container.held, container.attached = container.index.copy(), container.attached.copy()
    container.held["length"] = container.held["segment_count"] = container.attached["length"] = 0
    container.held[numbers], container.tops[numbers] = held, tops
    for part in parts:
        if part.attachment is not None:
            cell = container.attached[part.number, part.attachment]
            cell["offset"], cell["length"] = part.at, part.length


def _mark_lost(container: Container, part: _Part, stream: U8) -> None:
    what, offset = f"record {container.index['id'][part.number]}", part.begin
    stored = container.stored_rows(part.number) if part.header else None
    if stored is not None:
        ends, crcs = stored
        row = wrong_row(stream, ends, crcs, part.rows)
        if row is not None and row >= 0:
            what, offset = f"tile row {row} of {what}", offset + int(ends[row])
        else:
            what = f"the header of {what}"
    container.mark_lost(part.number, f"{what} fails its CRC", offset)


class TableReader:
    """Thread-safe reader of containers' tables, the bytes before the payload; ``rows`` is the dataset's index."""

    def __init__(self, rows: Table) -> None:
        self._rows = rows
        self._share = 0.0  # largest share of a container that its tables have taken so far, at most _MAX_TABLES_SHARE
        self._kept: dict[int, Container] = {}
        self._kept_bytes = 0

    def read(
        self,
        places: Mapping[int, tuple[Location, ContainerRef]],
        unpack: Callable[[int, memoryview, ParsedHeader], Container],
    ) -> dict[int, Container]:
        """Read the bytes before the payloads of containers; return each container, without payload, by its number.

        Containers that are damaged or cannot be read are left out. ``places`` maps each container's number to its file
        and position. ``unpack`` builds a container from its number, the bytes before its payload, and its header.
        ``read_size`` of a container is 0 if these bytes were still in memory.
        """
        begun = {number: self._begin(number, path) for number, (path, _) in places.items() if number not in self._kept}
        found = {}
        for number, (path, ref) in places.items():
            if number not in begun:
                found[number] = self._kept[number].without_payload()
                found[number].read_size = 0
                continue
            buffer, filled = begun[number]
            with contextlib.suppress(Damage, NotADataset):
                guess, size = len(buffer), int(self._rows["size"][number])
                buffer, header = self._finish(path, ref, buffer, size=size, filled=filled)
                tables = unpack(number, buffer, header)
                if not tables.damage:
                    self._keep(number, tables)
                    tables.read_size = max(guess, len(buffer))
                    found[number] = tables
        return found

    def _begin(self, number: int, path: Location) -> tuple[memoryview, bool]:
        """Allocate memory of the probable size of a container's tables, and fill it if the page cache has the bytes.

        Return the memory, and whether it is filled.
        """
        size = int(self._rows["size"][number])
        buffer = fresh(min(size, max(_FIRST_READ, int(size * (self._share or _MAX_TABLES_SHARE)))))
        return buffer, path.read_cached([(int(self._rows["offset"][number]), buffer)])

    def _finish(
        self, path: Location, ref: ContainerRef, buffer: memoryview, *, size: int, filled: bool
    ) -> tuple[memoryview, ParsedHeader]:
        """Read what ``buffer`` lacks of the bytes before a container's payload; return these bytes, and the header."""
        guess = len(buffer)
        if not filled:
            path.read_pieces([(ref.offset, buffer)], file=ref.name)
        header = read_header(buffer, ref=ref)
        end = header[0].payload_at
        # Copy the tables, so that ``buffer`` is freed: for small tables, the first read is up to ten times as large.
        tables = fresh(end)
        tables[:guess] = buffer[:end]
        if end > guess:
            path.read_pieces([(ref.offset + guess, tables[guess:])], file=ref.name)
        self._share = min(max(self._share, end / size), _MAX_TABLES_SHARE)
        return tables, header

    def _keep(self, number: int, tables: Container) -> None:
        """Keep a container without its payload in memory, unless all kept containers would then exceed _KEPT_BYTES.

        There is no lock, because a fork could leave it locked forever; two threads may thus count too few bytes.
        """
        if self._kept_bytes + len(tables.buffer) <= _KEPT_BYTES:
            # The copy shares the dictionary ``tile_rows``, so row ends that are computed later are kept too.
            self._kept[number] = tables.without_payload()
            self._kept_bytes += len(tables.buffer)
