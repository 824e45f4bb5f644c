"""Reuse of a row's previous files by ``convert --retry-failed``, so that converted images are not read from the source.

One more image moves all records after it to other streams and containers, so a retry writes the whole row again, from
its stored records. The previous files and their ledger lines lie in ``unfinished/kept-…`` until the row is finished,
which makes a retry resumable. Saved files are hard links in a folder, and server-side copies in an object store.
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
from picstore.prepare.image.training_jpeg import parse_image_info
from picstore.storage.format.container import Container, ContainerRef
from picstore.storage.format.container_index import read_summary
from picstore.storage.format.read_container import recover_containers, unpack_container
from picstore.storage.format.record import Record, copy_record
from picstore.storage.location.resolve import (
    LEDGER,
    UNFINISHED,
    Location,
    WritableLocation,
    file_name,
    map_concurrently,
    read_at,
)
from picstore.storage.manifest import FileEntry

_LEDGER = re.compile(rf"kept-(\d{{6,}})/{re.escape(LEDGER)}")
_FILE = re.compile(r"(\d{4})/(\d{6,})\.pic")


def reuse_folder(root: WritableLocation, row: int) -> WritableLocation:
    """Return the folder in which ``convert --retry-failed`` keeps the previous files of a row of the job."""
    return root / UNFINISHED / f"kept-{row:06d}"


def save_for_reuse(
    root: WritableLocation, row: int, files: Iterable[FileEntry], lines: Sequence[ledger.LedgerLine]
) -> None:
    """Save a row's files for a retry, then the ledger ``lines`` of its inputs that need not be converted again.

    A file whose checksum differs from the manifest's is left out. A file with a damaged footer is saved, because its
    records can still be read.
    """
    folder = reuse_folder(root, row)

    def copy(entry: FileEntry) -> None:
        name = file_name(entry.stream, entry.file)
        with suppress(NotADataset):  # Skip a missing file: the retry will convert the inputs whose records it held.
            try:
                if read_summary(root, stream=entry.stream, file=entry.file).crc != entry.crc32c:
                    return
            except Damage:
                pass
            (root / name).copy_to(folder / name)

    list(map_concurrently(copy, files))
    ledger.write_lines(folder / LEDGER, lines)


def find_reusable_rows(root: Location) -> set[int]:
    """Return the indices of the job's rows whose previous files :func:`save_for_reuse` has saved."""
    found = (_LEDGER.fullmatch(name) for name, _ in (root / UNFINISHED).files())
    return {int(match[1]) for match in found if match is not None}


class ReusableRow:
    """Inputs of a row that were converted before or are duplicates, with their records and ledger lines.

    ``folder`` holds the row's previous files, of which memory holds one container (block of records) each; None if
    there are none. ``settled_ids`` are the inputs' ids. An input whose record proves damaged is converted again.
    """

    def __init__(self, folder: Location | None, fields: Sequence[str]) -> None:
        self._lines: dict[int, ledger.LedgerLine] = {}
        self._records: Iterator[Record] = iter(())
        if folder is not None:
            self._lines = {line.id: line for line in ledger.read_lines(folder / LEDGER, skip_damaged=True)}
            self._records = _read_by_id(folder, tuple(fields))
        self._next: Record | None = next(self._records, None)
        self.settled_ids = self._lines.keys()

    def copy_record(self, id_: int, writer: RowWriter) -> ledger.LedgerLine | None:
        """Copy the stored record of input ``id_`` to ``writer``; return its ledger line, or None to convert the input.

        Ids must ascend from call to call.
        """
        line = self._lines.get(id_)
        if line is None or line.status == ledger.DUPLICATE:
            return line
        while self._next is not None and self._next.id < id_:
            self._next = next(self._records, None)
        if self._next is None or self._next.id != id_:
            return None
        writer.add(copy_record(self._next))
        return line


def _read_by_id(folder: Location, fields: tuple[str, ...]) -> Iterator[Record]:
    """Yield the undamaged records of all files in a folder by ascending id, which is the order in each file too."""
    found = (_FILE.fullmatch(name) for name, _ in sorted(folder.files()))
    addresses = [(int(match[1]), int(match[2])) for match in found if match is not None]
    records = (_read_records(folder, stream, file, fields) for stream, file in addresses)
    return heapq.merge(*records, key=lambda record: record.id)


def _read_records(folder: Location, stream: int, file: int, fields: tuple[str, ...]) -> Iterator[Record]:
    for container in _read_containers(folder, stream, file, fields):
        for k in range(len(container)):
            with suppress(Damage):
                record = container.record(k)
                # If the container's table of restart segments is damaged, find the segments in the JPEG by its markers.
                if container.segment_table is None:
                    info = replace(parse_image_info(bytes(record.jpeg)), encode_path=record.info.encode_path)
                    record = replace(record, info=info)
                yield record


def _read_containers(folder: Location, stream: int, file: int, fields: tuple[str, ...]) -> Iterator[Container]:
    try:
        footer = read_summary(folder, stream=stream, file=file).footer
    except Damage:
        yield from recover_containers(folder, stream=stream, file=file, fields=fields)
        return
    name = file_name(stream, file)
    for ordinal, row in enumerate(footer):
        offset, size = int(row["offset"]), int(row["size"])
        with suppress(Damage):
            yield unpack_container(
                read_at(folder / name, offset, size, file=str(folder / name)),
                ref=ContainerRef(name, offset, stream, file, ordinal),
                fields=fields,
                records=int(row["records"]),
                header_crc=int(row["header_crc"]),
            )
