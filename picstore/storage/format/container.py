"""A container: many records in one checked, aligned block (docs/format.md, "Container").

Damage is told apart to the record: every part has a CRC that one pass checks, and only when that fails are the CRCs of
single entries and images used to tell the good records from the bad. Entries locate images from the beginning of the
container, so even a container whose header is lost can be read when the file's footer says how many records it holds.
A header with one flipped bit is put right by its own CRC.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import zstandard

from picstore.arrays import U16, Bools, Table
from picstore.errors import Corrupt, Damage, Truncated
from picstore.storage.format.checksum import crc32c, entry_crcs
from picstore.storage.format.layout import (
    ATTACHMENT,
    ENTRY,
    SAMPLINGS,
    SEALED,
    SEGMENT,
    ContainerHeader,
    correct_bit_flip,
)
from picstore.storage.format.record import NO_SEGMENTS, ImageInfo, Record


@dataclass(frozen=True, slots=True)
class ContainerRef:
    """Where a container lies, as messages name it and its header repeats it."""

    name: str
    offset: int
    stream: int = 0
    file: int = 0
    ordinal: int = 0


@dataclass
class Container:
    """A container in memory, read and checked by :func:`unpack`.

    Attributes:
        index: ``layout.ENTRY`` (n,).
        good: bool (n,), False where a record is lost.
        damage: what is wrong, empty for a sound container. Damage that loses no record (the segment table, the extras)
            is listed too.
        read: fetches bytes of the container by offset and length when ``buffer`` ends before the payload; what it
            returns is checked record by record. None when the whole container is in ``buffer`` and checked.
    """

    ref: ContainerRef
    buffer: memoryview
    size: int
    index: Table
    fields: tuple[str, ...]
    good: Bools
    attached: Table
    segment_table: U16 | None
    extras: bytes | None
    damage: list[Damage] = field(default_factory=list)
    read: Callable[[int, int], memoryview] | None = None
    _addresses: tuple[int, int] | None = field(default=None, init=False, repr=False, compare=False)

    def __len__(self) -> int:
        return len(self.index)

    def addresses(self) -> tuple[int, int]:
        """Where ``buffer`` and ``segment_table`` lie in memory, for kernels; 0 for a table that is damaged or empty."""
        if self._addresses is None:  # asked for in each batch, and NumPy takes 2 us to say it
            table = self.segment_table
            tables_at = 0 if table is None or not len(table) else table.ctypes.data
            self._addresses = np.frombuffer(self.buffer, np.uint8).ctypes.data, tables_at
        return self._addresses

    def jpeg(self, k: int) -> memoryview:
        """The image of record ``k``, without a copy."""
        return self._blob(self.index[k])

    def _blob(self, cell: Any) -> memoryview:
        offset, length = int(cell["offset"]), int(cell["length"])
        if self.read is None:
            return self.buffer[offset : offset + length]
        blob = self.read(offset, length)
        if crc32c(blob) != cell["crc"]:
            raise Corrupt("an image fails its CRC", file=self.ref.name, offset=self.ref.offset + offset)
        return blob

    def _refuse(self, what: str) -> Corrupt:
        return Corrupt(
            f"{what} of container {self.ref.ordinal} is damaged",
            file=self.ref.name,
            offset=self.ref.offset,
        )

    def info(self, k: int) -> ImageInfo:
        """Size, sampling and segments of record ``k``; the segments are empty where their table is damaged."""
        entry = self.index[k]
        segments = NO_SEGMENTS
        if self.segment_table is not None:
            first = int(entry["segment_first"])
            segments = self.segment_table[first : first + int(entry["segment_count"])]
        return ImageInfo(
            width=int(entry["width"]),
            height=int(entry["height"]),
            sampling=SAMPLINGS[entry["sampling"]],
            restart_interval=int(entry["restart_interval"]),
            header_length=int(entry["header_length"]),
            segments=segments,
        )

    def record(self, k: int) -> Record:
        """Record ``k``, its image still a view of the container; Corrupt if it or its extra is damaged."""
        entry = self.index[k]
        if not self.good[k]:
            raise self._refuse(f"record {k}")
        extra = b""
        if entry["extra_length"]:
            if self.extras is None:
                raise self._refuse("the frame of extras")
            first = int(entry["extra_offset"])
            extra = self.extras[first : first + int(entry["extra_length"])]
        attachments: dict[str, bytes | memoryview] = {
            name: self._blob(cell) for name, cell in zip(self.fields, self.attached[k], strict=True) if cell["length"]
        }
        return Record(
            id=int(entry["id"]),
            label=int(entry["label"]),
            jpeg=self.jpeg(k),
            info=self.info(k),
            extra_json=extra,
            attachments=attachments,
            crc=int(entry["crc"]),
        )


def unpack(
    buffer: memoryview,
    *,
    ref: ContainerRef,
    fields: Sequence[str] = (),
    records: int | None = None,
    header_crc: int | None = None,
    size: int | None = None,
    read: Callable[[int, int], memoryview] | None = None,
) -> Container:
    """Check a container and make its records accessible.

    Args:
        buffer: the container's bytes; up to the payload is enough when ``read`` is given.
        ref: for messages, and compared with the header.
        fields: names of the attachments.
        records: how many the footer says there are; with it a container without a sound header can still be read, but
            for its extras.
        header_crc: what the footer or the index says it is; shows a file of another conversion under the same name.
        size: bytes of the whole container, ``len(buffer)`` by default.
        read: see :class:`Container`.

    Raises:
        Damage: nothing of the container can be read: its header is lost and ``records`` is not given, or the header
            is sound and is that of other bytes or another position.
    """
    size = len(buffer) if size is None else size
    damage: list[Damage] = []
    header: ContainerHeader | None = None
    try:
        header, flipped = read_header(buffer, ref=ref)
        damage += [flipped] if flipped else []
    except Damage as error:
        width = ENTRY.itemsize + len(fields) * ATTACHMENT.itemsize
        if records is None or len(buffer) < SEALED + records * width:
            raise
        damage.append(error)
        count = records
    else:
        _compare(header, ref=ref, fields=len(fields), size=size)
        if records not in (None, header.records) or header_crc not in (None, header.crc):
            raise Corrupt("the container is another than the footer says", file=ref.name, offset=ref.offset)
        count = header.records
    index = np.frombuffer(buffer, dtype=ENTRY, count=count, offset=SEALED)
    attached = np.frombuffer(
        buffer, dtype=ATTACHMENT, count=count * len(fields), offset=SEALED + count * ENTRY.itemsize
    )
    container = Container(
        ref=ref,
        buffer=buffer,
        size=size,
        index=index,
        fields=tuple(fields),
        good=np.ones(count, dtype=np.bool_),
        attached=attached.reshape(count, len(fields)),
        segment_table=None,
        extras=None,
        damage=damage,
        read=read,
    )
    _check_index(container, header)
    if read is None:
        _check_payload(container, header)
    if header is not None:
        _load_segments(container, header)
        _load_extras(container, header)
    return container


def read_header(buffer: memoryview, *, ref: ContainerRef) -> tuple[ContainerHeader, Damage | None]:
    """The header at the beginning of a container, and what was wrong with it if one bit of it had to be put right."""
    flipped: Damage | None = None
    try:
        header = ContainerHeader.unpack(buffer, file=ref.name, offset=ref.offset)
    except Corrupt as error:
        whole = correct_bit_flip(buffer)
        if whole is None:
            raise
        header = ContainerHeader.unpack(whole, file=ref.name, offset=ref.offset)
        flipped = error
    header.check(file=ref.name, offset=ref.offset)
    return header, flipped


def _compare(header: ContainerHeader, *, ref: ContainerRef, fields: int, size: int) -> None:
    """Refuse a sound header of other bytes or another position."""
    if header.size > size:
        raise Truncated(
            f"the container of {header.size} bytes is cut off after {size}",
            file=ref.name,
            offset=ref.offset,
        )
    if header.size < size:
        raise Corrupt("the container is smaller than the index says", file=ref.name, offset=ref.offset)
    if header.attachments != fields:
        raise Corrupt("the container has other attachments than the manifest", file=ref.name, offset=ref.offset)
    if (header.stream, header.file, header.ordinal) != (ref.stream, ref.file, ref.ordinal):
        raise Corrupt("the container belongs elsewhere", file=ref.name, offset=ref.offset)


def _lost(container: Container, what: str, bad: Bools) -> None:
    count = int((bad & container.good).sum())
    container.good &= ~bad
    text = f"{what} of container {container.ref.ordinal} is damaged, {count} of {len(bad)} records lost"
    container.damage.append(Corrupt(text, file=container.ref.name, offset=container.ref.offset))


def _check_index(container: Container, header: ContainerHeader | None) -> None:
    """Find entries that fail their CRC or point outside of the payload."""
    index, attached = container.index, container.attached
    whole = container.buffer[SEALED : SEALED + index.nbytes + attached.nbytes]
    bad = np.zeros(len(index), dtype=np.bool_)
    if header is None or crc32c(whole) != header.index_crc:
        bad |= index["entry_crc"] != entry_crcs(index)
        bad |= (attached["entry_crc"] != entry_crcs(attached)).any(axis=1)
    first, last = (SEALED + len(whole), container.size) if header is None else header.payload
    starts = np.column_stack((index["offset"], attached["offset"])).astype(np.int64)
    ends = starts + np.column_stack((index["length"], attached["length"]))
    bad |= ((starts < first) | (ends > last)).any(axis=1)
    if (starts[~bad].ravel()[1:] < ends[~bad].ravel()[:-1]).any():
        bad[:] = True  # each entry holds its CRC and two claim the same bytes: no writer made this
    bad |= (index["width"] == 0) | (index["height"] == 0) | (index["sampling"] >= len(SAMPLINGS))
    if bad.any():
        _lost(container, "the index", bad)


def _check_payload(container: Container, header: ContainerHeader | None) -> None:
    if header is not None:
        first, last = header.payload
        if crc32c(container.buffer[first:last]) == header.payload_crc:
            return
    bad = np.zeros(len(container), dtype=np.bool_)
    for k in np.flatnonzero(container.good):
        for cell in (container.index[k], *container.attached[k]):
            first = int(cell["offset"])
            bad[k] |= crc32c(container.buffer[first : first + int(cell["length"])]) != cell["crc"]
    if bad.any():
        _lost(container, "the payload", bad)


def _load_segments(container: Container, header: ContainerHeader) -> None:
    raw = container.buffer[header.segments_at : header.extras_at]
    ends = container.index["segment_first"].astype(np.int64) + container.index["segment_count"]
    if crc32c(raw) == header.segments_crc and (ends[container.good] <= header.segments).all():
        container.segment_table = np.frombuffer(raw, dtype=SEGMENT)
        return
    text = f"the segment table of container {container.ref.ordinal} is damaged, no record lost"
    container.damage.append(Corrupt(text, file=container.ref.name, offset=container.ref.offset))


def _load_extras(container: Container, header: ContainerHeader) -> None:
    raw = container.buffer[header.extras_at : header.payload_at]
    extras = b"" if header.extras_raw == 0 else None
    if crc32c(raw) == header.extras_crc and header.extras_raw:
        extras = _decompress(raw, header.extras_raw)
    ends = container.index["extra_offset"].astype(np.int64) + container.index["extra_length"]
    if extras is not None and (ends[container.good] <= len(extras)).all():
        container.extras = extras
        return
    text = f"the extras of container {container.ref.ordinal} are damaged, the images are not"
    container.damage.append(Corrupt(text, file=container.ref.name, offset=container.ref.offset))


def _decompress(frame: memoryview, size: int) -> bytes | None:
    """The extras, None where the frame does not hold just ``size`` bytes (bounded by MAX_EXTRAS before)."""
    try:
        if zstandard.frame_content_size(frame) != size:
            return None
        return zstandard.ZstdDecompressor().decompress(frame, max_output_size=size)
    except zstandard.ZstdError:
        return None
