"""Packing: training JPEGs become records, and one contiguous slice of them becomes a row of files."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from types import TracebackType
from typing import Any

from picstore import rng
from picstore.prepare.image.image_info import parse_image_info
from picstore.storage.format.checksum import crc32c
from picstore.storage.format.file import FileSummary, FileWriter
from picstore.storage.format.record import ImageInfo, Record, extra_to_json
from picstore.storage.location.resolve import Location, file_name

_CLOSING = 4  # files at a time, so that some are packed while others wait for the disk; each is in memory twice


def make_record(
    jpeg: bytes,
    *,
    id: int,
    label: int,
    extra: Any = None,
    attachments: dict[str, bytes] | None = None,
    info: ImageInfo | None = None,
) -> Record:
    """A record of a training JPEG, described by ``info`` or, without, from its own headers.

    Raises:
        ImageError: the stream is damaged.
        UsageError: ``extra`` is not JSON.
    """
    return Record(
        id=id,
        label=label,
        jpeg=jpeg,
        info=info or parse_image_info(jpeg),
        extra_json=extra_to_json(extra),
        attachments=dict(attachments or {}),
        crc=crc32c(jpeg),  # while it is in the cache; a container later it is not, and takes twice as long
    )


class RowWriter:
    """Writes row ``row``: file ``row`` of every stream.

    Of every ``streams`` consecutive records a permutation keyed by (seed, row, group) gives one to each stream, so each
    file holds an even sample of the row. Holds one open container a stream in memory.

    Args:
        root: the data set.
        streams: how many there are.
        container_size: bytes.
        fields: names of the attachments.
    """

    def __init__(
        self,
        root: Location,
        *,
        row: int,
        streams: int,
        container_size: int,
        seed: int,
        fields: Sequence[str] = (),
    ) -> None:
        self.bytes = 0
        self._added = 0
        self._root, self._row, self._seed = root, row, seed
        self._writers = [
            FileWriter(root, stream=stream, file=row, container_size=container_size, fields=fields)
            for stream in range(streams)
        ]
        self._deal = rng.permutation(rng.key(rng.DEAL, seed, row, 0), streams)

    def add(self, record: Record) -> None:
        """Append one record to the stream that is its turn."""
        group, turn = divmod(self._added, len(self._writers))
        if turn == 0:
            self._deal = rng.permutation(rng.key(rng.DEAL, self._seed, self._row, group), len(self._writers))
        self._writers[self._deal[turn]].add(record)
        self._added += 1
        self.bytes += len(record.jpeg) + len(record.extra_json) + sum(map(len, record.attachments.values()))

    def close(self) -> list[FileSummary]:
        """Finish every file that got a record; the others leave nothing behind, nor stays one of before."""
        for writer in self._writers:
            if writer.empty:
                writer.abandon()
                (self._root / file_name(writer.stream, writer.file)).remove()
        written = [writer for writer in self._writers if not writer.empty]
        with ThreadPoolExecutor(_CLOSING) as threads:
            return list(threads.map(FileWriter.close, written))

    def __enter__(self) -> RowWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for writer in self._writers:
            writer.abandon()
