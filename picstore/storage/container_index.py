"""The index ``picstore.idx``: one row for each container of a data set (docs/format.md, "Index").

Rows are in **stored order**: by file number, then by the container's ordinal in its file, then by stream. Reading in
stored order thus takes from all streams in turn.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from picstore.arrays import I64, Table
from picstore.errors import Corrupt, TooLarge
from picstore.storage.format.checksum import crc32c
from picstore.storage.format.file import FileSummary
from picstore.storage.format.layout import (
    FORMAT_VERSION,
    INDEX_ROW,
    MAX_FILE,
    SEALED,
    IndexHeader,
    check_rows,
    check_version,
)
from picstore.storage.location.resolve import Location, read_at


def index_rows(summaries: Sequence[FileSummary]) -> Table:
    """Build the rows of the index, in stored order, from the files' footers."""
    by_file = []
    ordinals = []
    for summary in summaries:
        rows = np.zeros(len(summary.footer), dtype=INDEX_ROW)
        rows["stream"], rows["file"] = summary.stream, summary.file
        for name in ("offset", "size", "records", "header_crc"):
            rows[name] = summary.footer[name]
        by_file.append(rows)
        ordinals.append(np.arange(len(rows)))
    if not by_file:
        return np.zeros(0, dtype=INDEX_ROW)
    joined = np.concatenate(by_file)
    order = np.lexsort((joined["stream"], np.concatenate(ordinals), joined["file"]))
    return joined[order]


def ordinals_of(rows: Table) -> I64:
    """Count the containers of each file: int64 (rows,), each row's ordinal in its file."""
    order = np.lexsort((rows["offset"], rows["stream"], rows["file"]))
    numbers = np.arange(len(rows))
    same = np.zeros(len(rows), dtype=np.bool_)
    a, b = rows[order[:-1]], rows[order[1:]]
    same[1:] = (a["file"] == b["file"]) & (a["stream"] == b["stream"])
    first = np.maximum.accumulate(np.where(same, 0, numbers)) if len(rows) else numbers
    ordinals = np.empty(len(rows), dtype=np.int64)
    ordinals[order] = numbers - first
    return ordinals


def index_file(rows: Table) -> bytes:
    """Serialise an index: header and rows."""
    raw = rows.tobytes()
    header = IndexHeader(FORMAT_VERSION, INDEX_ROW.itemsize, len(rows), int(rows["records"].sum()), crc32c(raw))
    return header.pack() + raw


def read_index_file(path: Location) -> Table:
    """Read and check an index file: ``layout.INDEX_ROW`` (containers,) in stored order.

    Raises:
        NotADataset: the file is missing.
        Truncated: the file ends before its last row.
        Corrupt: a checksum or a field does not hold.
        TooLarge: the header promises more rows than the format allows.
        UnsupportedVersion: the index has another format version.
    """
    file = str(path)
    first = read_at(path, 0, min(SEALED, path.size()), file=file)
    header = IndexHeader.unpack(first, file=file, offset=0)
    check_version(header.version, file)
    if header.row_size != INDEX_ROW.itemsize:
        raise Corrupt(f"the index has rows of {header.row_size} bytes", file=file)
    if header.rows * INDEX_ROW.itemsize > MAX_FILE:
        raise TooLarge(f"the index has {header.rows} rows", file=file)
    raw = read_at(path, SEALED, header.rows * INDEX_ROW.itemsize, file=file)
    if crc32c(raw) != header.rows_crc:
        raise Corrupt("the index fails its CRC; `picstore repair` rebuilds it", file=file, offset=SEALED)
    rows = np.frombuffer(raw, dtype=INDEX_ROW)
    check_rows(rows, file=file)
    return rows
