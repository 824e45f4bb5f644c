"""The summary of a file of a stream, read from its header, footer and trailer (docs/format.md, "File")."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from picstore.arrays import Table
from picstore.errors import Corrupt, Truncated
from picstore.storage.format import layout
from picstore.storage.format.checksum import crc32c
from picstore.storage.location.resolve import Where, file_name, locate, read_at

_TAIL_SIZE = 4096  # bytes read at once: trailer and footer of 150 containers


@dataclass(frozen=True, slots=True)
class FileSummary:
    """Numbers of one file, as the manifest lists them, and its footer.

    Attributes:
        footer: ``layout.FOOTER_ROW`` (containers,).
        crc: CRC-32C of the footer.
    """

    stream: int
    file: int
    size: int
    records: int
    crc: int
    footer: Table


def read_summary(root: Where, *, stream: int, file: int) -> FileSummary:
    """Read and check header, trailer and footer of a file.

    Raises:
        NotADataset, UnsupportedVersion: the file is missing, or a later picstore wrote it.
        Damage: it is cut off or damaged; ``recover_containers`` finds the containers that are left.
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
