"""A container in memory: a checked, aligned block of many records (docs/format.md, "Container").

``unpack_container`` reads and checks a container; ``pack_container`` writes a container.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from picstore.arrays import I64, U16, Bools, Table
from picstore.errors import Corrupt, Damage
from picstore.storage.format.checksum import crc32c
from picstore.storage.format.layout import ENCODE_PATH_SHIFT, ENCODE_PATHS, FOREIGN, SAMPLINGS
from picstore.storage.format.record import NO_SEGMENTS, ImageInfo, Record
from picstore.storage.format.segment_table import StoredRows, entries_of, find_entry_points, row_ends, stored_checksums
from picstore.storage.format.zstd import ZstdDecompressor, ZstdError


@dataclass(frozen=True, slots=True)
class ContainerRef:
    """Position of a container: name of its file, and byte offset.

    The container's header states ``stream``, ``file`` and ``ordinal`` (position among the file's containers).
    """

    name: str
    offset: int
    stream: int = 0
    file: int = 0
    ordinal: int = 0

    def corrupt(self, what: str, offset: int = 0) -> Corrupt:
        """Return a Corrupt error, with the message ``what``, for damage at ``offset`` in the container."""
        return Corrupt(what, self.name, self.offset + offset)


@dataclass
class Container:
    """A container in memory, read and checked by :func:`picstore.storage.format.read_container.unpack_container`.

    Attributes:
        index: the container's index entries, ``layout.ENTRY`` (n,), one per record.
        good: bool (n,), False for a lost record.
        damage: all damage that was found; damage to the segment table or extras loses no record.
        read: function that reads bytes of the container from storage, given offset and length; None if ``buffer`` holds
            the payload, or the needed part of the payload.
        read_size: number of bytes that were read from storage; less than ``size`` if the container was read in part.
        held: ``layout.ENTRY`` (n,), index entries of the images as ``buffer`` holds them; ``index`` itself unless the
            container was read in part. Of an image that was read in part, ``buffer`` holds the header, which states the
            stored height, and some rows of restart tiles; the entry states the height and segments of these rows. The
            entry's length is 0 if nothing of the image was read.
        tops: int64 (n,), number of the stored image's pixel rows above the first row in ``buffer``.
        causes: by record number, the damage with which :meth:`add_loss` marked the record as lost.
        records: in a copy by :meth:`extract`, the record number of each row of ``index``, ``good``, ``held``,
            ``attached`` and ``tops``, int64 (n,), ascending; else None, because row k belongs to record k.
        tile_rows: results of ``stored_rows`` by record number.
        origin: function that returns file and offset of a byte of ``buffer``; None if all bytes are from one file.
        extras_frame: zstd frame of the extras, a view of ``buffer``; empty if there are no extras, None if it is
            damaged.
        extras_size: number of bytes of the decompressed extras.
    """

    ref: ContainerRef
    buffer: memoryview
    size: int
    index: Table
    fields: tuple[str, ...]
    good: Bools
    attached: Table
    segment_table: U16 | None
    extras_frame: memoryview | None
    extras_size: int
    damage: list[Damage] = field(default_factory=list)
    read: Callable[[int, int], memoryview] | None = None
    read_size: int = 0
    held: Table = field(init=False, repr=False, compare=False)
    tops: I64 = field(init=False, repr=False, compare=False)
    causes: dict[int, Damage] = field(default_factory=dict)
    records: I64 | None = None
    tile_rows: dict[int, StoredRows | None] = field(default_factory=dict, repr=False, compare=False)
    origin: Callable[[int], tuple[str, int]] | None = None
    _extras: bytes | None = field(default=None, init=False, repr=False, compare=False)
    _addresses: tuple[int, int] | None = field(default=None, init=False, repr=False, compare=False)
    _index_at: tuple[Table, int] | None = field(default=None, init=False, repr=False, compare=False)
    _place: tuple[int, ...] | None = field(default=None, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        self.held, self.tops = self.index, np.zeros(len(self.index), np.int64)

    def __len__(self) -> int:
        return len(self.index)

    def addresses(self) -> tuple[int, int]:
        """Return for kernels the addresses of ``buffer`` and ``segment_table``, the latter 0 if damaged or empty."""
        # The addresses are kept, because every batch needs them, and NumPy takes 2 µs to return them.
        if self._addresses is None:
            table = self.segment_table
            tables_at = 0 if table is None or not len(table) else table.ctypes.data
            self._addresses = np.frombuffer(self.buffer, np.uint8).ctypes.data, tables_at
        return self._addresses

    def set_addresses(self, buffer: int, segment_table: int, index: int) -> None:
        """Set the addresses in memory of ``buffer``, ``segment_table`` and ``index``, if the caller knows them.

        Looking them up in NumPy would take 10 µs with cold caches.
        """
        self._addresses, self._index_at = (buffer, segment_table), (self.index, index)

    def place(self) -> tuple[int, ...]:
        """Return the addresses of buffer, segment table, index, ``held`` and ``tops`` for kernels; then two counts.

        The counts are the numbers of records and of segment-table entries. The address of ``tops`` may be 0 if all
        values of ``tops`` are 0. The container must not change afterwards, because the result is kept.
        """
        if self._place is None:
            if self._index_at is not None and self._index_at[0] is self.index is self.held:
                tables = [self._index_at[1], self._index_at[1], 0]
            else:
                tables = [table.__array_interface__["data"][0] for table in (self.index, self.held, self.tops)]
            self._place = (*self.addresses(), *tables, len(self.index), len(self.segments))
        return self._place

    @property
    def segments(self) -> U16:
        """Segment table: lengths of restart segments, row checksums and entry points; empty if it is damaged."""
        return NO_SEGMENTS if self.segment_table is None else self.segment_table

    @property
    def extras(self) -> bytes | None:
        """Extras of all records, joined, decompressed on first use; None if the extras are damaged.

        A few KB of a hostile container decompress to 256 MiB, so readers must not use this property unless they need
        extras.
        """
        # Use a local variable, because another thread may set ``self._extras`` to None at any moment.
        extras, frame = self._extras, self.extras_frame
        if extras is None and frame is not None:
            extras = _decompress(frame, self.extras_size)
            if extras is None:
                self.mark_extras_damaged()
            self._extras = extras
        return extras

    def without_payload(self) -> Container:
        """Copy the container without its payload; another part of the payload can be read into the copy.

        The copy shares the index, attachment table, segment table and extras with the original.
        """
        container = replace(self, read=None, good=self.good.copy(), damage=[*self.damage], causes={**self.causes})
        container._extras = self._extras
        return container

    def rows(self, records: I64) -> I64:
        """Convert record numbers to row numbers of ``index``; both differ only in a copy by :meth:`extract`."""
        return records if self.records is None else np.searchsorted(self.records, records)

    def extract(self, records: I64, *, attachments: bool) -> Container:
        """Copy sound records, whose numbers ``records`` lists in ascending order, to a container in new memory.

        Offsets in ``held`` and ``attached`` of the copy refer to its buffer; ``index`` keeps the stored offsets.
        """
        index = self.index[records]
        held, attached = self.held[records], self.attached[records]
        if not attachments:
            attached["length"] = 0
        blobs: list[memoryview] = []
        end = 0
        for cells in (held, *attached.T):
            for k, (offset, length) in enumerate(zip(cells["offset"].tolist(), cells["length"].tolist(), strict=True)):
                blobs.append(self.buffer[offset : offset + length])
                cells["offset"][k], end = end, end + length
        table = self.segment_table
        if table is not None:
            pieces = [table[entries_of(entry, table)] for entry in index]
            lengths = np.array([len(piece) for piece in pieces])
            moved = np.cumsum(lengths) - lengths - index["segment_first"]
            table = np.concatenate(pieces)
            # As uint32, a negative distance d becomes 2**32 + d; the sum is right, because it is modulo 2**32.
            index["segment_first"] += moved.astype(np.uint32)
            held["segment_first"] += moved.astype(np.uint32)
        extracted = replace(
            self,
            buffer=memoryview(b"".join(blobs)),
            index=index,
            good=self.good[records],
            attached=attached,
            segment_table=table,
            extras_frame=None if self.extras_frame is None else memoryview(bytes(self.extras_frame)),
            damage=[],
            causes={},
            records=records,
            tile_rows={},
        )
        extracted.held, extracted.tops = held, self.tops[records]
        return extracted

    def release_extras(self, *, above: int) -> None:
        """Free the decompressed extras if they have more than ``above`` bytes; the next use decompresses them again."""
        if self.extras_size > above:
            self._extras = None

    def mark_lost(self, k: int, what: str, offset: int) -> None:
        """Mark record ``k`` as lost because of the problem ``what`` at byte ``offset`` of the container."""
        self.add_loss(k, Corrupt(what, *self.locate(offset)))

    def add_loss(self, k: int, cause: Damage) -> None:
        self.good[k] = False
        self.causes[k] = cause
        self.damage.append(cause)

    def mark_extras_damaged(self) -> None:
        """Set ``extras_frame`` to None, which stands for damaged extras, and list the damage in ``damage``."""
        self.extras_frame = None
        text = f"the extras of container {self.ref.ordinal} are damaged, the images are not"
        self.damage.append(self.ref.corrupt(text))

    def jpeg(self, k: int) -> memoryview:
        """Return record ``k``'s image, whole or only the rows that ``held`` describes.

        The result is a view of ``buffer`` if ``buffer`` holds the image.
        """
        return self._blob(self.held[k])

    def _blob(self, cell: Any) -> memoryview:
        offset, length = int(cell["offset"]), int(cell["length"])
        if self.read is None:
            return self.buffer[offset : offset + length]
        blob = self.read(offset, length)
        if crc32c(blob) != cell["crc"]:
            raise Corrupt("an image fails its CRC", *self.locate(offset))
        return blob

    def locate(self, offset: int) -> tuple[str, int]:
        """Return the name of the file from which a byte of ``buffer`` was read, and the byte's offset in that file."""
        return (self.ref.name, self.ref.offset + offset) if self.origin is None else self.origin(offset)

    def info(self, k: int) -> ImageInfo:
        """Return the header fields of record ``k``'s image; its segments are empty if the segment table is damaged."""
        entry = self.index[k]
        first = int(entry["segment_first"])
        points = find_entry_points(entry, self.segments)
        return ImageInfo(
            width=int(entry["width"]),
            height=int(entry["height"]),
            sampling=SAMPLINGS[entry["sampling"]],
            restart_interval=int(entry["restart_interval"]),
            header_length=int(entry["header_length"]),
            segments=self.segments[first : first + int(entry["segment_count"])],
            foreign=bool(entry["flags"] & FOREIGN),
            entry_points=None if points is None else self.segments[points],
            encode_path=ENCODE_PATHS[entry["flags"] >> ENCODE_PATH_SHIFT & 3],
        )

    def stored_rows(self, k: int) -> StoredRows | None:
        """Return ends and CRCs of record ``k``'s rows of restart tiles; None if the ends or the CRCs are not known."""
        if k not in self.tile_rows:
            crcs = stored_checksums(self.index, self.segments, k)
            ends = None if crcs is None else row_ends(self.info(k), int(self.index["length"][k]))
            self.tile_rows[k] = None if crcs is None or ends is None else (ends, crcs)
        return self.tile_rows[k]

    def record(self, k: int) -> Record:
        """Return record ``k``, whose image is a view of ``buffer``; raise Corrupt if record or extra is damaged."""
        entry = self.index[k]
        if not self.good[k]:
            raise self.ref.corrupt(f"record {k} of container {self.ref.ordinal} is damaged")
        return Record(
            id=int(entry["id"]),
            label=int(entry["label"]),
            jpeg=self.jpeg(k),
            info=self.info(k),
            extra_json=self.extra_json(k),
            attachments=self.attachments(k),
            crc=int(entry["crc"]),
        )

    def extra_json(self, k: int) -> bytes:
        """Return the extra of record ``k`` as JSON, empty if it has none; raise Corrupt if the extras are damaged."""
        first, length = int(self.index["extra_offset"][k]), int(self.index["extra_length"][k])
        if not length:
            return b""
        extras = self.extras
        if extras is None:
            raise self.ref.corrupt(f"the frame of extras of container {self.ref.ordinal} is damaged")
        return extras[first : first + length]

    def attachments(self, k: int) -> dict[str, bytes | memoryview]:
        """Return the attachments of record ``k`` by name; raise Corrupt if an attachment fails its CRC."""
        cells = zip(self.fields, self.attached[k], strict=True)
        return {name: self._blob(cell) for name, cell in cells if cell["length"]}


def _decompress(frame: memoryview, size: int) -> bytes | None:
    """Decompress extras; return None unless the frame holds exactly ``size`` bytes."""
    if not size:
        return b""
    try:
        extras = ZstdDecompressor().decompress(frame, size)
    except ZstdError:
        return None
    return extras if len(extras) == size else None
