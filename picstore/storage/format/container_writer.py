"""Writing of containers, each with as many records as fit into ``container_size``, and of files of containers.

A file has a header, containers, a footer and a trailer (docs/format.md, "File" and "Container").
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager

import numpy as np

from picstore.arrays import I64, Array, Table
from picstore.errors import UsageError, counted
from picstore.storage.format import layout, segment_table
from picstore.storage.format.checksum import combine_crcs, crc32c, entry_crcs
from picstore.storage.format.container import ContainerRef
from picstore.storage.format.container_index import FileSummary
from picstore.storage.format.layout import ENTRY_POINTS, FOREIGN, ROW_CRCS
from picstore.storage.format.record import Record
from picstore.storage.format.segment_table import entry_points, row_checksums
from picstore.storage.format.zstd import compress
from picstore.storage.location.abstract_location import Buffer
from picstore.storage.location.resolve import Where, file_name, locate_writable


def packed_size(records: int, *, attachments: int, segments: int, extras: int, payload: int) -> int:
    """Return an upper bound of a container's size in bytes, with padding, that holds even if extras do not compress."""
    entries = records * (layout.ENTRY.itemsize + attachments * layout.ATTACHMENT.itemsize)
    frame = extras + (extras >> 8) + 64 if extras else 0  # zstd's upper bound of a frame with incompressible data
    return layout.aligned(layout.SEALED + entries + segments * layout.SEGMENT.itemsize + frame + payload)


def pack_container(records: Sequence[Record], *, fields: Sequence[str] = (), ref: ContainerRef) -> list[Buffer]:
    """Serialize records to a container of a multiple of 4,096 bytes; the same records give the same bytes.

    Return buffers to be written one after the other; they are not joined, because joining would take as long as all
    checksums. ``fields`` names the attachments in the manifest's order. The header states stream, file and ordinal of
    ``ref``. Raise UsageError if the records exceed a limit of the format.
    """
    extras = b"".join(record.extra_json for record in records)
    frame = compress(extras, level=3) if extras else b""
    behind = [(row_checksums(r.jpeg, r.info), entry_points(r.jpeg, r.info)) for r in records]
    pieces = [piece for r, more in zip(records, behind, strict=True) for piece in (r.info.segments, *more)]
    segments = np.concatenate(pieces)
    count, width = len(records), len(fields)
    entries = count * (layout.ENTRY.itemsize + width * layout.ATTACHMENT.itemsize)
    payload_at = layout.SEALED + entries + segments.nbytes + len(frame)
    payload_size = sum(len(r.jpeg) + sum(len(r.attachments.get(name, b"")) for name in fields) for r in records)
    size = layout.aligned(payload_at + payload_size)
    if count > layout.MAX_RECORDS or size > layout.MAX_CONTAINER or len(extras) > layout.MAX_EXTRAS:
        raise UsageError(
            f"a container does not hold {counted(count, 'record')} of {size} bytes; use smaller containers"
        )
    if width > layout.MAX_ATTACHMENTS:
        raise UsageError(f"{width} attachments a record; at most {layout.MAX_ATTACHMENTS} can be stored")
    counts = np.array([[len(crcs), len(points)] for crcs, points in behind])
    index, table, blobs, payload_crc = _index(records, fields, payload_at, counts)
    padding = bytes(size - payload_at - payload_size)
    header = layout.ContainerHeader(
        attachments=width,
        reserved=0,
        records=count,
        size=size,
        segments=len(segments),
        extras_size=len(frame),
        extras_raw=len(extras),
        payload_size=payload_size,
        index_crc=crc32c(index + table),
        segments_crc=crc32c(segments.tobytes()),
        extras_crc=crc32c(frame),
        payload_crc=payload_crc,
        stream=ref.stream,
        file=ref.file,
        ordinal=ref.ordinal,
    )
    return [header.pack(), index, table, segments.tobytes(), frame, *blobs, padding]


def _index(
    records: Sequence[Record], fields: Sequence[str], at: int, behind: I64
) -> tuple[bytes, bytes, list[Buffer], int]:
    """Return a container's index, attachment table, payload (a list of images and attachments) and payload CRC.

    ``at`` is the offset of the payload in the container. ``behind``, int64 (n, 2), holds each record's numbers of
    segment-table entries for row checksums and for entry points.
    """
    index = np.zeros(len(records), dtype=layout.ENTRY)
    table = np.zeros((len(records), len(fields)), dtype=layout.ATTACHMENT)
    rows = [[record.jpeg, *(record.attachments.get(name, b"") for name in fields)] for record in records]
    lengths = np.array([[len(blob) for blob in row] for row in rows], np.int64)
    offsets = at + _starts(lengths.ravel()).reshape(lengths.shape)
    index["offset"], index["length"] = offsets[:, 0], lengths[:, 0]
    table["offset"], table["length"] = offsets[:, 1:], lengths[:, 1:]
    index["crc"] = [crc32c(r.jpeg) if r.crc is None else r.crc for r in records]
    table["crc"] = np.array([[crc32c(blob) for blob in row[1:]] for row in rows], np.uint32).reshape(table.shape)
    index["id"], index["label"] = [r.id for r in records], [r.label for r in records]
    index["segment_count"] = [len(r.info.segments) for r in records]
    index["extra_length"] = [len(r.extra_json) for r in records]
    index["segment_first"] = _starts(index["segment_count"] + behind.sum(axis=1))
    index["extra_offset"] = _starts(index["extra_length"])
    foreign = np.array([r.info.foreign for r in records])
    index["flags"] = np.where(behind[:, 0], ROW_CRCS, 0) | np.where(behind[:, 1], ENTRY_POINTS, 0)
    index["flags"] |= np.where(foreign, FOREIGN, 0).astype(np.uint8)
    paths = np.array([layout.ENCODE_PATHS.index(r.info.encode_path) for r in records], np.uint8)
    index["flags"] |= paths << layout.ENCODE_PATH_SHIFT
    index["sampling"] = [layout.SAMPLINGS.index(r.info.sampling) for r in records]
    for name in ("width", "height", "restart_interval", "header_length"):
        index[name] = [getattr(r.info, name) for r in records]
    crcs = np.column_stack([index["crc"], table["crc"]])
    _seal(index)
    _seal(table)
    blobs: list[Buffer] = [blob for row in rows for blob in row]
    return index.tobytes(), table.tobytes(), blobs, combine_crcs(crcs.ravel(), lengths.ravel())


def _starts(lengths: Array) -> I64:
    """Return the offset of each of n adjacent items, such as images, from the first item, given the items' lengths."""
    ends = np.cumsum(lengths, dtype=np.int64)
    return ends - lengths


def _seal(table: Table) -> None:
    table["entry_crc"] = entry_crcs(table)


class FileWriter(AbstractContextManager["FileWriter"]):
    """Writer of one file of containers. ``close`` publishes the file; a ``with`` block without ``close`` discards it.

    Records are kept in memory until they fill a container of ``container_size`` bytes; a larger record becomes a
    container of its own. ``fields`` names the attachments. A writer is not thread-safe.
    """

    def __init__(self, root: Where, *, stream: int, file: int, container_size: int, fields: Sequence[str] = ()) -> None:
        self.stream, self.file = stream, file
        self._container_size = container_size
        self._fields = tuple(fields)
        self._name = file_name(stream, file)
        self._out = (locate_writable(root) / self._name).create()
        header = layout.FileHeader(layout.FORMAT_VERSION, stream, file).pack()
        self._out.write(header.ljust(layout.ALIGNMENT, b"\0"))
        self._offset = layout.ALIGNMENT
        self._rows: list[tuple[int, int, int, int, int]] = []
        self._records = 0
        self._pending: list[Record] = []
        self._segments = self._extras = self._payload = self._referenced = 0

    def add(self, record: Record, *, referenced: int = 0) -> None:
        """Append a record; raise UsageError and append nothing if the record exceeds the limits of a container.

        ``referenced`` is the number of bytes in other files that the record refers to. The container's size includes
        these bytes, so that containers of references hold the same records as containers of the images would.
        """
        blob, info = record.jpeg, record.info
        behind = segment_table.count_row_checksums(blob, info) + segment_table.count_entry_points(blob, info)
        segments = self._segments + len(info.segments) + behind
        extras = self._extras + len(record.extra_json)
        payload = self._payload + len(record.jpeg) + sum(map(len, record.attachments.values()))
        count, width = len(self._pending) + 1, len(self._fields)
        size = packed_size(count, attachments=width, segments=segments, extras=extras, payload=payload)
        size += self._referenced + referenced
        exceeded = size > self._container_size
        full = exceeded or extras > layout.MAX_EXTRAS or len(self._pending) == layout.MAX_RECORDS
        if self._pending and full:
            self.end_container()
            self.add(record, referenced=referenced)
            return
        self._pending.append(record)
        self._referenced += referenced
        self._segments, self._extras, self._payload = segments, extras, payload
        # No further record fits. If the container did not end now, 16 streams could each keep a huge image in memory.
        if exceeded:
            self.end_container()

    @property
    def empty(self) -> bool:
        """Whether no record has been added to the file so far."""
        return not self._pending and not self._rows

    def end_container(self) -> int:
        """Write the records in memory to the file as a container; return the file's number of containers so far."""
        if self._pending:
            ref = ContainerRef(self._name, self._offset, self.stream, self.file, len(self._rows))
            records, self._pending = self._pending, []
            referenced, self._referenced = self._referenced, 0
            self._segments = self._extras = self._payload = 0
            buffers = pack_container(records, fields=self._fields, ref=ref)
            for buffer in buffers:
                self._out.write(buffer)
            size = sum(map(len, buffers))
            header_crc = int.from_bytes(buffers[0][layout.SEALED - 4 : layout.SEALED], "little")
            self._rows.append((self._offset, size, len(records), header_crc, referenced))
            self._offset += size
            self._records += len(records)
        return len(self._rows)

    def close(self) -> FileSummary:
        """Write the last container, footer and trailer; publish the file durably, and return its summary."""
        self.end_container()
        footer = np.array(self._rows, dtype=layout.FOOTER_ROW)
        crc = crc32c(footer.tobytes())
        size = self._offset + footer.nbytes + layout.SEALED
        trailer = layout.Trailer(
            version=layout.FORMAT_VERSION,
            containers=len(footer),
            footer_offset=self._offset,
            records=self._records,
            file_size=size,
            stream=self.stream,
            file=self.file,
            footer_crc=crc,
        )
        self._out.write(footer.tobytes() + trailer.pack())
        self._out.close()
        return FileSummary(self.stream, self.file, size, self._records, crc, footer)

    def abandon(self) -> None:
        self._out.abandon()

    def __exit__(self, *error: object) -> None:
        self.abandon()
