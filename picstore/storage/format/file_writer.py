"""Writer of a file of a stream: header, containers, footer, trailer (docs/format.md, "File")."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from picstore.storage.format import layout, segment_table
from picstore.storage.format.checksum import crc32c
from picstore.storage.format.container import ContainerRef
from picstore.storage.format.file_summary import FileSummary
from picstore.storage.format.pack_container import pack_container, packed_size
from picstore.storage.format.record import Record
from picstore.storage.location.resolve import Where, file_name, locate_writable


class FileWriter:
    """Writer of one file, which appears when ``close`` is called; leaving the ``with`` block otherwise leaves nothing.

    Holds one container of ``container_size`` bytes in memory; a record that exceeds that is written at once. Not
    thread-safe. ``fields`` names the attachments.
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
        """Append one record; UsageError, and nothing appended, if it is larger than a container may be.

        ``referenced`` bytes elsewhere count as the record's own: a container of references is as large as its images.
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
        if exceeded:  # nothing else fits: a row of 16 streams would hold 16 images of any size
            self.end_container()

    @property
    def empty(self) -> bool:
        """Whether no record was added."""
        return not self._pending and not self._rows

    def end_container(self) -> int:
        """Write the pending records as a container; returns the number of containers in the file."""
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
        """Write footer and trailer, and make the file appear, durable."""
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
        """Discard the file. Does nothing after ``close``."""
        self._out.abandon()

    def __enter__(self) -> FileWriter:
        return self

    def __exit__(self, *error: object) -> None:
        self.abandon()
