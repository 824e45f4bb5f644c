"""Row writer: makes records of training JPEGs, and deals the records of a row to one file of each stream."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any

from picstore import rng
from picstore.prepare.convert.resumable_job import DatasetShape
from picstore.prepare.image.image_info import parse_image_info
from picstore.storage.format.checksum import crc32c
from picstore.storage.format.container_index import FileSummary
from picstore.storage.format.container_writer import FileWriter
from picstore.storage.format.record import ImageInfo, Record, extra_to_json
from picstore.storage.location.resolve import WritableLocation, file_name
from picstore.storage.record_counts import RecordCounts

_CLOSING_THREADS = 4  # to wait for the disk


def make_record(
    jpeg: bytes,
    *,
    id: int,
    label: int,
    extra: Any = None,
    attachments: dict[str, bytes] | None = None,
    info: ImageInfo | None = None,
) -> Record:
    """Make a record of a training JPEG, with its image info or, if that is None, with what its headers say.

    ImageError if the JPEG is damaged, UsageError if ``extra`` is not JSON or is too large.
    """
    return Record(
        id=id,
        label=label,
        jpeg=jpeg,
        info=info or parse_image_info(jpeg),
        extra_json=extra_to_json(extra),
        attachments=dict(attachments or {}),
        crc=crc32c(jpeg),  # the JPEG is in the CPU cache here; when its container is written, this takes twice as long
    )


class RowWriter:
    """Writes file ``row`` of every stream.

    So far ``bytes`` sums JPEGs, extras and attachments, and ``counts`` counts the records.

    Each group of ``streams`` consecutive records is dealt one to each stream, by a permutation keyed by (seed, row,
    group), so each file holds an even sample of the row. Holds one open container a stream in memory.
    """

    def __init__(self, root: WritableLocation, *, row: int, shape: DatasetShape, fields: Sequence[str] = ()) -> None:
        self.bytes = 0
        self._added = self._ids_end = 0
        self._labels: Counter[int] = Counter()
        self._root, self._row, self._seed = root, row, shape.seed
        self._writers: list[FileWriter] = []
        with ExitStack() as opened:  # where one cannot be opened, the others leave nothing
            for stream in range(shape.streams):
                size = shape.container_size
                writer = FileWriter(root, stream=stream, file=row, container_size=size, fields=fields)
                self._writers.append(opened.enter_context(writer))
            opened.pop_all()
        self._streams = rng.permutation(rng.key(rng.DEAL, shape.seed, row, 0), shape.streams)

    def add(self, record: Record, *, referenced: int = 0) -> None:
        """Append one record to the next stream of the permutation; ``referenced`` as for :meth:`FileWriter.add`."""
        group, turn = divmod(self._added, len(self._writers))
        if turn == 0:
            self._streams = rng.permutation(rng.key(rng.DEAL, self._seed, self._row, group), len(self._writers))
        self._writers[self._streams[turn]].add(record, referenced=referenced)
        self._added += 1
        self._labels[record.label] += 1
        self._ids_end = max(self._ids_end, record.id + 1)
        self.bytes += len(record.jpeg) + len(record.extra_json) + sum(map(len, record.attachments.values()))

    @property
    def counts(self) -> RecordCounts:
        """Counts of the records so far."""
        return RecordCounts.of(self._labels, ids_end=self._ids_end)

    def end_containers(self) -> None:
        """Let the next record of each stream begin a container."""
        for writer in self._writers:
            writer.end_container()

    def close(self) -> list[FileSummary]:
        """Finish every file that has records, and remove files of the same names in streams without records."""
        for writer in self._writers:
            if writer.empty:
                writer.abandon()
                (self._root / file_name(writer.stream, writer.file)).remove()
        written = [writer for writer in self._writers if not writer.empty]
        for writer in written:
            writer.end_container()  # in this thread: others would wait for Python's lock, a tenth of convert's time
        with ThreadPoolExecutor(_CLOSING_THREADS) as threads:
            return list(threads.map(FileWriter.close, written))

    def __enter__(self) -> RowWriter:
        return self

    def __exit__(self, *_: object) -> None:
        with ExitStack() as abandoned:  # all of them, even where one fails
            for writer in self._writers:
                abandoned.callback(writer.abandon)
