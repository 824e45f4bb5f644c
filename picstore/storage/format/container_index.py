"""Positions of containers: the footers of files, and the index ``picstore.idx`` (docs/format.md, "File" and "Index").

The index has one row for each container of a dataset, in **stored order**: by file number, then by the container's
ordinal in its file, then by stream. Reading in stored order thus takes from all streams in turn.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from picstore.arrays import U32, Table
from picstore.errors import Corrupt, TooLarge, Truncated
from picstore.storage.format import layout
from picstore.storage.format.checksum import crc32c
from picstore.storage.location.resolve import Location, Where, file_name, locate, read_at

_TAIL_SIZE = 4096  # bytes to read first from a file's end; enough for the trailer and a footer of 150 containers


@dataclass(frozen=True, slots=True)
class FileSummary:
    """Facts about a file of containers: ``size`` in bytes, ``footer``, FOOTER_ROW (containers,), and its ``crc``."""

    stream: int
    file: int
    size: int
    records: int
    crc: int
    footer: Table


def read_summary(root: Where, *, stream: int, file: int) -> FileSummary:
    """Read and check header, trailer and footer of a file of containers.

    Raise NotADataset if the file is missing, UnsupportedVersion if a later picstore wrote the file, and Damage if the
    file is cut off or damaged. ``recover_containers`` finds the sound containers of a damaged file.
    """
    name = file_name(stream, file)
    path = locate(root) / name
    header = read_at(path, 0, layout.SEALED, file=name)
    layout.FileHeader.unpack(header, file=name, offset=0).check(stream=stream, file=file, name=name)
    size = path.size()
    at = size - layout.SEALED
    end_at = max(size - _TAIL_SIZE, layout.SEALED)
    end = read_at(path, end_at, max(size - end_at, layout.SEALED), file=name)
    tail = end[-layout.SEALED :]
    if tail[: len(layout.TRAILER_MAGIC)] != layout.TRAILER_MAGIC:
        raise Truncated("the file does not end in a trailer: its tail is lost", file=name, offset=at)
    trailer = layout.Trailer.unpack(tail, file=name, offset=at)
    layout.check_version(trailer.version, name)
    if (trailer.stream, trailer.file) != (stream, file):
        raise Corrupt(f"the trailer is of file {trailer.file} of stream {trailer.stream}", file=name, offset=at)
    length = trailer.containers * layout.FOOTER_ROW.itemsize
    if trailer.file_size != size or trailer.footer_offset + length + layout.SEALED != size:
        raise Corrupt(f"the trailer tells of a file of {trailer.file_size} bytes", file=name, offset=at)
    if trailer.footer_offset < end_at:
        end_at, end = trailer.footer_offset, read_at(path, trailer.footer_offset, length, file=name)
    raw = end[trailer.footer_offset - end_at :][:length]
    if crc32c(raw) != trailer.footer_crc:
        raise Corrupt("the footer fails its CRC", file=name, offset=trailer.footer_offset)
    footer = np.frombuffer(raw, dtype=layout.FOOTER_ROW)
    layout.check_rows(footer, file=name)
    edges = layout.ALIGNMENT + np.concatenate(([0], np.cumsum(footer["size"], dtype=np.int64)))
    if (footer["offset"] != edges[:-1]).any() or edges[-1] != trailer.footer_offset:
        raise Corrupt("the footer's containers leave gaps or overlap", file=name, offset=trailer.footer_offset)
    if footer["records"].sum(dtype=np.int64) != trailer.records:
        raise Corrupt("the footer's records do not add up", file=name, offset=trailer.footer_offset)
    return FileSummary(stream, file, size, trailer.records, trailer.footer_crc, footer)


def index_rows(summaries: Sequence[FileSummary]) -> Table:
    """Build the rows of the index, in stored order, from the footers of all files."""
    by_file = []
    ordinals = []
    for summary in summaries:
        rows = np.zeros(len(summary.footer), dtype=layout.INDEX_ROW)
        rows["stream"], rows["file"] = summary.stream, summary.file
        for name in ("offset", "size", "records", "header_crc", "referenced"):
            rows[name] = summary.footer[name]
        by_file.append(rows)
        ordinals.append(np.arange(len(rows)))
    if not by_file:
        return np.zeros(0, dtype=layout.INDEX_ROW)
    joined = np.concatenate(by_file)
    order = np.lexsort((joined["stream"], np.concatenate(ordinals), joined["file"]))
    return joined[order]


def ordinals_of(rows: Table) -> U32:
    """Return each container's ordinal (position among its file's containers), uint32 (rows,), from index rows.

    The rows are in stored order: by file number, then ordinal, then stream number. A new ordinal begins wherever the
    stream number does not increase. 24 million rows take 0.3 s; sorting them by file would take 7 s.
    """
    streams, files = rows["stream"], rows["file"]
    ordinals = np.zeros(len(rows), dtype=np.uint32)
    np.cumsum(streams[1:] <= streams[:-1], out=ordinals[1:])
    begins = np.where(files[1:] != files[:-1], ordinals[1:], 0)
    ordinals[1:] -= np.maximum.accumulate(begins)
    return ordinals


def index_file(rows: Table) -> bytes:
    """Return the bytes of an index file, ``picstore.idx``: a header, then the rows."""
    raw = rows.tobytes()
    header = layout.IndexHeader(
        layout.FORMAT_VERSION, layout.INDEX_ROW.itemsize, len(rows), int(rows["records"].sum()), crc32c(raw)
    )
    return header.pack() + raw


def read_index_file(path: Location) -> Table:
    """Return an index file's rows, ``layout.INDEX_ROW`` (containers,) in stored order; raise NotADataset if missing."""
    file = str(path)
    first = read_at(path, 0, min(layout.SEALED, path.size()), file=file)
    header = layout.IndexHeader.unpack(first, file=file, offset=0)
    layout.check_version(header.version, file)
    if header.row_size != layout.INDEX_ROW.itemsize:
        raise Corrupt(f"the index has rows of {header.row_size} bytes", file=file)
    if header.rows * layout.INDEX_ROW.itemsize > layout.MAX_FILE:
        raise TooLarge(f"the index has {header.rows} rows", file=file)
    raw = read_at(path, layout.SEALED, header.rows * layout.INDEX_ROW.itemsize, file=file)
    if crc32c(raw) != header.rows_crc:
        raise Corrupt("the index fails its CRC; `picstore repair` rebuilds it", file=file, offset=layout.SEALED)
    rows = np.frombuffer(raw, dtype=layout.INDEX_ROW)
    layout.check_rows(rows, file=file)
    return rows
