"""What a row keeps while it is made anew: its files of before, and what the ledger says of them.

One failed input that is sound by now moves all records behind it to other places, so the row's files are written anew;
but out of what is stored. The files of before lie in ``unfinished/kept-…`` until the row is finished, so that an
interruption costs nothing. In a folder they are second names, in a store copies that it makes itself.
"""

from __future__ import annotations

import heapq
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace

from picstore.errors import Damage, NotADataset
from picstore.prepare.convert import ledger
from picstore.prepare.convert.row_writer import RowWriter
from picstore.prepare.image.image_info import parse_image_info
from picstore.storage.format.container import Container, ContainerRef, unpack
from picstore.storage.format.file import read_summary
from picstore.storage.format.record import Record, owned
from picstore.storage.format.recovery import recover_containers
from picstore.storage.location.resolve import LEDGER, UNFINISHED, Location, file_name, many, read_at
from picstore.storage.manifest import FileEntry

_FOLDER = "kept-{:06d}"
_LEDGER = re.compile(rf"kept-(\d{{6,}})/{re.escape(LEDGER)}")
_FILE = re.compile(r"(\d{4})/(\d{6,})\.pic")


def folder_of(root: Location, row: int) -> Location:
    """Where a row keeps what it has."""
    return root / UNFINISHED / _FOLDER.format(row)


def keep(root: Location, row: int, files: Iterable[FileEntry], lines: Sequence[ledger.Line]) -> None:
    """Keep a row's files beside the data set, and then the lines of the inputs that are settled.

    A file that is not the manifest's is not kept. One whose footer is damaged is, and read as far as it goes.
    """
    folder = folder_of(root, row)

    def copy(entry: FileEntry) -> None:
        name = file_name(entry.stream, entry.file)
        with suppress(NotADataset):  # it is missing
            try:
                if read_summary(root, stream=entry.stream, file=entry.file).crc != entry.crc32c:
                    return
            except Damage:
                pass
            (root / name).copy_to(folder / name)

    for _ in many(copy, files):
        pass
    ledger.write_lines(folder / LEDGER, lines)


def kept_rows(root: Location) -> set[int]:
    """The rows that have kept something."""
    found = (_LEDGER.fullmatch(name) for name, _ in (root / UNFINISHED).files())
    return {int(match[1]) for match in found if match is not None}


class Kept:
    """The inputs of a row that are settled: converted before, or duplicates of others.

    Holds a container of each file in memory.

    Args:
        folder: what ``keep`` has made; None where nothing is kept.
        fields: names of the attachments.

    Attributes:
        ids: of these inputs; the records of some may turn out to be damaged.
    """

    def __init__(self, folder: Location | None, fields: Sequence[str]) -> None:
        self._lines: dict[int, ledger.Line] = {}
        self._records: Iterator[Record] = iter(())
        if folder is not None:
            self._lines = {line.id: line for line in ledger.read_lines(folder / LEDGER)}
            self._records = _in_order(folder, tuple(fields))
        self._next: Record | None = next(self._records, None)
        self.ids = self._lines.keys()

    def move(self, id_: int, writer: RowWriter) -> ledger.Line | None:
        """Add a record to the row as it is; None where it is not kept. Called with ascending ids."""
        line = self._lines.get(id_)
        if line is None or line.status == ledger.DUPLICATE:
            return line
        while self._next is not None and self._next.id < id_:
            self._next = next(self._records, None)
        if self._next is None or self._next.id != id_:
            return None
        writer.add(owned(self._next))
        return line


def _in_order(folder: Location, fields: tuple[str, ...]) -> Iterator[Record]:
    """The readable records of some files by ascending id, as they are in each file."""
    found = (_FILE.fullmatch(name) for name, _ in sorted(folder.files()))
    places = [(int(match[1]), int(match[2])) for match in found if match is not None]
    records = (_records(folder, stream, file, fields) for stream, file in places)
    return heapq.merge(*records, key=lambda record: record.id)


def _records(folder: Location, stream: int, file: int, fields: tuple[str, ...]) -> Iterator[Record]:
    for container in _containers(folder, stream, file, fields):
        for k in range(len(container)):
            with suppress(Damage):
                record = container.record(k)
                if container.segment_table is None:  # damaged; the image says the same
                    record = replace(record, info=parse_image_info(bytes(record.jpeg)))
                yield record


def _containers(folder: Location, stream: int, file: int, fields: tuple[str, ...]) -> Iterator[Container]:
    try:
        footer = read_summary(folder, stream=stream, file=file).footer
    except Damage:
        yield from recover_containers(folder, stream=stream, file=file, fields=fields)
        return
    name = file_name(stream, file)
    for ordinal, row in enumerate(footer):
        offset, size = int(row["offset"]), int(row["size"])
        with suppress(Damage):
            yield unpack(
                read_at(folder / name, offset, size, file=str(folder / name)),
                ref=ContainerRef(name, offset, stream, file, ordinal),
                fields=fields,
                records=int(row["records"]),
                header_crc=int(row["header_crc"]),
            )
