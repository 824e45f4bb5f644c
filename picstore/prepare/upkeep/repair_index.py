"""What index and files say of a data set without its manifest: its files, and what the manifest said of them."""

from __future__ import annotations

import re
from contextlib import suppress
from typing import Any, TypeAlias

import numpy as np

from picstore.arrays import Table
from picstore.errors import Corrupt, Damage, NotADataset, UnsupportedVersion
from picstore.storage.format.checksum import crc32c
from picstore.storage.format.container import ContainerRef, read_header
from picstore.storage.format.file import FileSummary, read_summary
from picstore.storage.format.layout import ALIGNMENT, FOOTER_ROW, SEALED
from picstore.storage.format.recovery import recover_containers
from picstore.storage.location.resolve import EDITS, INDEX, UNFINISHED, Location, file_name, many, read_at
from picstore.storage.manifest import FileEntry, index_rows, load_index

Found: TypeAlias = "tuple[str | None, Table]"  # name and rows of the index; no name where it has to be written

FILE = re.compile(r"(\d{4})/(\d{6,})\.pic")


def find_index(root: Location, left: dict[str, Any]) -> tuple[str | None, Table | None]:
    """The index that belongs to the manifest: the one with the CRC that it tells, or the only or longest one.

    Where one of them is damaged that might have been it, none is taken, as another knows fewer files.
    """
    names = [INDEX, *(f"{EDITS}/{name}" for name, _ in (root / EDITS).files() if name.endswith(".idx"))]
    sound: dict[str, Table] = {}
    for name in names:
        with suppress(NotADataset, Damage, UnsupportedVersion):
            sound[name] = load_index(root / name)
    for name, rows in sound.items():
        if crc32c(rows.tobytes()) == left.get("index_crc32c"):
            return name, rows
    named = left["edits"].get("index") if isinstance(left.get("edits"), dict) else None
    if not sound or len(sound) < len(names) or (named is not None and named not in sound):
        return None, None
    return max(sound.items(), key=lambda item: len(item[1]))


def rows_of_files(root: Location) -> Table:
    """The rows of the index from the footers of all files that are there; Corrupt where these do not suffice."""
    if (root / UNFINISHED).is_folder():
        raise Corrupt("the index is lost, and files of an unfinished append are here; remove them first", str(root))
    found = (FILE.fullmatch(name) for name, _ in root.files())
    places = [(int(match[1]), int(match[2])) for match in found if match is not None]
    return index_rows(list(many(lambda place: _summary(root, *place), sorted(places))))


def _summary(root: Location, stream: int, file: int) -> FileSummary:
    """As ``read_summary``; of a file without its footer what a walk finds, if that is without a gap."""
    try:
        return read_summary(root, stream=stream, file=file)
    except Damage as error:
        at, found = ALIGNMENT, []
        fields = tuple(map(str, range(_width(root, file_name(stream, file), ALIGNMENT) or 0)))
        for ordinal, each in enumerate(recover_containers(root, stream=stream, file=file, fields=fields)):
            if (each.place.offset, each.place.ordinal) != (at, ordinal):
                raise Corrupt("index and footer are lost, and a container; restore one of them", error.place) from error
            header_crc = int.from_bytes(each.buffer[SEALED - 4 : SEALED], "little")
            found.append((at, each.size, len(each), header_crc, 0))
            at += each.size
        footer = np.array(found, dtype=FOOTER_ROW)
        return FileSummary(stream, file, 0, 0, 0, footer)


def entries_of(rows: Table) -> tuple[FileEntry, ...]:
    """What the manifest says of files, from the index: it knows all of their footers."""
    entries = []
    order = np.lexsort((rows["offset"], rows["stream"], rows["file"]))
    ordered = rows[order]
    numbers = ordered["file"].astype(np.int64) << 32 | ordered["stream"]
    for part in np.split(ordered, np.flatnonzero(np.diff(numbers)) + 1) if len(rows) else []:
        footer = np.zeros(len(part), dtype=FOOTER_ROW)
        for name in ("offset", "size", "records", "header_crc"):
            footer[name] = part[name]
        size = int(part["offset"][-1]) + int(part["size"][-1]) + footer.nbytes + SEALED
        records = int(part["records"].sum(dtype=np.int64))
        stream, file = int(part["stream"][0]), int(part["file"][0])
        entries.append(FileEntry(stream, file, size, records, crc32c(footer.tobytes())))
    return tuple(entries)


def attachments_in(root: Location, rows: Table) -> int:
    """How many attachments a record has, as the first container says whose header can be read."""
    for row in rows:
        width = _width(root, file_name(int(row["stream"]), int(row["file"])), int(row["offset"]))
        if width is not None:
            return width
    return 0


def _width(root: Location, name: str, offset: int) -> int | None:
    with suppress(NotADataset, Damage):
        header, _ = read_header(read_at(root / name, offset, SEALED, place=name), place=ContainerRef(name, offset))
        return header.attachments
    return None
