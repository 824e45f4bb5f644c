"""Row writer: builds records of training JPEGs, deals a row's records to one file of each stream, and counts them.

A row's counts lie in ``unfinished/`` beside the row's ledger fragment until the job ends. Without stored counts, the
end of a conversion would have to read the indexes of all containers.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack
from typing import Any

import numpy as np

from picstore import rng
from picstore.arrays import Bools
from picstore.errors import Damage, NotADataset, UnsupportedVersion
from picstore.prepare.convert.ledger import Tally
from picstore.prepare.convert.row_division import DatasetShape
from picstore.prepare.image.training_jpeg import parse_image_info
from picstore.storage.dataset_reader import ContainerReader
from picstore.storage.format.checksum import crc32c
from picstore.storage.format.container_index import FileSummary, index_rows
from picstore.storage.format.container_writer import FileWriter
from picstore.storage.format.record import ImageInfo, Record, extra_to_json
from picstore.storage.location.resolve import UNFINISHED, Location, WritableLocation, file_name, map_concurrently
from picstore.storage.record_counts import RecordCounts, Relabel, count_records, counts_file, read_counts_file

# Number of a row's files that are closed at a time, in threads, because closing a file waits for the disk.
_CLOSING_THREADS = 4


def make_record(
    jpeg: bytes,
    *,
    id: int,
    label: int,
    extra: Any = None,
    attachments: dict[str, bytes] | None = None,
    info: ImageInfo | None = None,
) -> Record:
    """Build the record of a training JPEG; if ``info`` is None, read it from the JPEG's headers.

    Raise ImageError if the JPEG is damaged, UsageError if ``extra`` is not JSON or is too large.
    """
    return Record(
        id=id,
        label=label,
        jpeg=jpeg,
        info=info or parse_image_info(jpeg),
        extra_json=extra_to_json(extra),
        attachments=dict(attachments or {}),
        # Compute the checksum while the JPEG is in the CPU cache; later, it would take twice as long.
        crc=crc32c(jpeg),
    )


class RowWriter(AbstractContextManager["RowWriter"]):
    """Writer of file number ``row`` in every stream (sub-directory) of a dataset.

    Of each group of ``streams`` consecutive records, every stream gets one, in an order derived from seed, row and
    group, so each file holds an even sample of the row. Memory holds one container (block of records) per stream.

    Attributes:
        bytes: total size of the JPEGs, extras and attachments so far.
    """

    def __init__(self, root: WritableLocation, *, row: int, shape: DatasetShape, fields: Sequence[str] = ()) -> None:
        self.bytes = 0
        self._added = self._ids_end = 0
        self._labels: Counter[int] = Counter()
        self._root, self._row, self._seed = root, row, shape.seed
        self._writers: list[FileWriter] = []
        # If the file of a stream cannot be opened, ``opened`` abandons the files that were opened for other streams.
        with ExitStack() as opened:
            for stream in range(shape.streams):
                size = shape.container_size
                writer = FileWriter(root, stream=stream, file=row, container_size=size, fields=fields)
                self._writers.append(opened.enter_context(writer))
            opened.pop_all()
        self._streams = rng.permutation(rng.key(rng.DEAL, shape.seed, row, 0), shape.streams)

    def add(self, record: Record, *, referenced: int = 0) -> None:
        """Append a record to the file of the next stream; ``referenced`` is as for :meth:`FileWriter.add`."""
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
        """Number of the records added so far, by label."""
        return RecordCounts.of(self._labels, ids_end=self._ids_end)

    def end_containers(self) -> None:
        """End the open container of each stream, so that the next record of the stream begins a new container."""
        for writer in self._writers:
            writer.end_container()

    def close(self) -> list[FileSummary]:
        """Finish the file of each stream that has records; in other streams, remove any old file of the same name."""
        for writer in self._writers:
            if writer.empty:
                writer.abandon()
                (self._root / file_name(writer.stream, writer.file)).remove()
        written = [writer for writer in self._writers if not writer.empty]
        # End the containers in one thread: several threads would wait for the GIL for a tenth of convert's time.
        for writer in written:
            writer.end_container()
        with ThreadPoolExecutor(_CLOSING_THREADS) as threads:
            return list(threads.map(FileWriter.close, written))

    def __exit__(self, *_: object) -> None:
        with ExitStack() as abandoned:  # Abandon the files of all streams, even if abandoning one of them fails.
            for writer in self._writers:
                abandoned.callback(writer.abandon)


def write_row_counts(root: WritableLocation, row: int, counts: RecordCounts) -> None:
    """Write a row's record counts; call this before ``write_fragment``, which declares the row finished."""
    (root / _name(row)).write(counts_file(counts))


def copy_row_counts(source: Location, target: WritableLocation, row: int) -> None:
    """Copy the record counts of a row of the job, if they exist, from one unfinished dataset to another."""
    if (counts := source / _name(row)).is_file():
        counts.copy_to(target / _name(row))


def join_row_counts(
    root: Location,
    tallies: Sequence[Tally],
    summaries: Sequence[FileSummary],
    *,
    fields: tuple[str, ...],
    first_file: int = 0,
    relabel: Relabel | None = None,
) -> RecordCounts | None:
    """Add up the record counts of a job's rows; if a row has no stored counts, count the records in its files.

    Return None if a file that has to be read is damaged.

    Args:
        tallies: counts of ledger lines by status, for each row.
        fields: names of the attachments.
        first_file: number of row 0's file in each stream.
        relabel: function from ids and stored labels to present labels; if given, all records are counted from files.
            None if no label was edited.
    """

    def read(row: int) -> RecordCounts | None:
        try:
            return None if relabel else read_counts_file(root / _name(row), records=tallies[row].images)
        except (NotADataset, Damage, UnsupportedVersion):
            return None

    unknown: set[int] = set()

    def known() -> Iterator[RecordCounts]:
        for row, counts in enumerate(map_concurrently(read, range(len(tallies)))):
            if counts is None:
                unknown.add(first_file + row)
            else:
                yield counts

    found = RecordCounts.join(known())
    rows = index_rows([summary for summary in summaries if summary.file in unknown])
    reader = ContainerReader(root, rows, fields)

    def all_live(number: int) -> Bools:
        return np.ones(int(rows["records"][number]), dtype=np.bool_)

    try:
        rest = count_records(range(len(rows)), reader.index, live=all_live, relabel=relabel)
    except (Damage, NotADataset):
        return None
    return RecordCounts.join([found, rest])


def _name(row: int) -> str:
    return f"{UNFINISHED}/row-{row:06d}.counts"
