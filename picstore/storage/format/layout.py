"""Fixed-size structures of docs/format.md, each declared once, for reading and writing.

All integers are little-endian. A structure with a CRC-32C of its own holds the CRC in its last four bytes.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar, TypeVar

import numpy as np

from picstore.arrays import Table
from picstore.errors import Corrupt, TooLarge, Truncated, UnsupportedVersion
from picstore.storage.format.checksum import crc32c

# Format version of all structures except two kinds of manifests. The manifest of an edited dataset has EDITED_VERSION;
# the manifest of an index (a dataset that refers to images in their files) has REFERENCES_VERSION.
FORMAT_VERSION = 1
EDITED_VERSION = 2
REFERENCES_VERSION = 3
# First release of picstore that reads each format version.
READ_BY = {FORMAT_VERSION: "0.1.0", EDITED_VERSION: "0.1.0", REFERENCES_VERSION: "0.1.0"}
# Bytes of each structure with a magic number and a CRC: the trailer of a file, and the headers of a file, a container,
# the index and the counts.
SEALED = 64
# Alignment of containers in bytes: a whole page and file-system block, so that direct I/O is possible.
ALIGNMENT = 4096

MAX_CONTAINER = 1 << 30  # Largest number of bytes of a container.
MAX_RECORDS = 1 << 20  # Largest number of records of a container.
MAX_EXTRAS = 1 << 28  # Largest number of bytes of a container's decompressed extras.
MAX_ATTACHMENTS = 64  # Largest number of attachments per record.
MAX_MANIFEST = 1 << 30  # Largest number of bytes of a manifest.
# Largest file in bytes: more than any file system holds, and small enough that sums of offsets stay below 2**63.
MAX_FILE = 1 << 60

# As in PNG's signature, the line ends and the byte above 127 show whether a transfer has changed the file's bytes.
FILE_MAGIC = b"\x89PIC\r\n\x1a\n"
CONTAINER_MAGIC = b"PICC"
TRAILER_MAGIC = b"PICTRAIL"
INDEX_MAGIC = b"PICINDEX"
COUNTS_MAGIC = b"PICCOUNT"

SAMPLINGS = ("", "grey", "444", "422", "440", "420")  # chroma subsamplings, by code in an index entry
# Width and height in pixels of a JPEG's MCU, by index in SAMPLINGS (T.81, A.2); (0, 0) for other subsamplings.
MCU_SIZES = ((0, 0), (8, 8), (8, 8), (16, 8), (8, 16), (16, 16))
# Flag of an index entry: row checksums follow the record's segment lengths in the segment table.
ROW_CRCS = 1
# Flag of an index entry: the image is not an upright JPEG, but a file of any format, decoded as ``convert`` does.
FOREIGN = 2
# Flag of an index entry: entry points follow the record's segment lengths and row checksums in the segment table.
ENTRY_POINTS = 16
# Two adjacent bits of an index entry's flags are an index into ENCODE_PATHS; this is the position of the lower bit.
ENCODE_PATH_SHIFT = 2
# Ways in which a conversion made the stored image, by their codes 0 to 3; "" means unknown.
ENCODE_PATHS = ("", "lossless", "reencoded", "")

ENTRY = np.dtype(
    [
        ("id", "<u8"),
        ("label", "<i8"),
        ("offset", "<u4"),  # bytes from the beginning of the container to the image
        ("length", "<u4"),
        ("crc", "<u4"),
        ("width", "<u2"),
        ("height", "<u2"),
        ("sampling", "u1"),
        ("flags", "u1"),
        ("restart_interval", "<u2"),
        ("header_length", "<u4"),
        ("segment_first", "<u4"),
        ("segment_count", "<u4"),
        ("extra_offset", "<u4"),
        ("extra_length", "<u4"),
        ("reserved", "<u4"),
        ("entry_crc", "<u4"),
    ]
)
ATTACHMENT = np.dtype([("offset", "<u4"), ("length", "<u4"), ("crc", "<u4"), ("entry_crc", "<u4")])
SEGMENT = np.dtype("<u2")
FOOTER_ROW = np.dtype(
    [("offset", "<u8"), ("size", "<u4"), ("records", "<u4"), ("header_crc", "<u4"), ("referenced", "<u4")]
)
INDEX_ROW = np.dtype(
    [
        ("stream", "<u4"),
        ("file", "<u4"),
        ("offset", "<u8"),
        ("size", "<u4"),
        ("records", "<u4"),
        ("header_crc", "<u4"),
        ("referenced", "<u4"),  # bytes in other files to which the container refers
    ]
)
COUNT_ROW = np.dtype([("label", "<i8"), ("records", "<u8")])


def join_entries(tables: Iterable[Table]) -> Table:
    """Join the index entries of several containers as bytes, because NumPy takes 0.5 ms to join structured arrays."""
    return np.frombuffer(b"".join(table.tobytes() for table in tables), dtype=ENTRY)


def aligned(size: int) -> int:
    """Round ``size`` up to a multiple of ALIGNMENT."""
    return -(-size // ALIGNMENT) * ALIGNMENT


def correct_bit_flip(data: bytes | memoryview) -> bytes | None:
    """Correct one flipped bit in a structure that ends in its CRC; return None if no single flip makes the CRC right.

    A structure with two, three or four flipped bits is never corrected to a wrong one, because strings of such lengths
    that differ in fewer than six bits have different CRC-32Cs.
    """
    for bit in range(8 * SEALED):
        candidate = bytearray(data[:SEALED])
        candidate[bit >> 3] ^= 1 << (bit & 7)
        if crc32c(candidate[:-4]) == int.from_bytes(candidate[-4:], "little"):
            return bytes(candidate)
    return None


_S = TypeVar("_S", bound="_Sealed")


@dataclass(frozen=True)
class _Sealed:
    """Structure of SEALED bytes: a magic number, the subclass's fields in order, and the CRC-32C of these bytes."""

    MAGIC: ClassVar[bytes]
    STRUCT: ClassVar[struct.Struct]
    NOUN: ClassVar[str]

    def pack(self) -> bytes:
        body = self.STRUCT.pack(self.MAGIC, *vars(self).values())
        return body + struct.pack("<I", crc32c(body))

    @classmethod
    def unpack(cls: type[_S], data: bytes | memoryview, *, file: str, offset: int) -> _S:
        """Check length, magic number and CRC, and return the structure; raise Truncated or Corrupt if a check fails."""
        if len(data) < SEALED:
            raise Truncated(f"the {cls.NOUN} is cut off after {len(data)} bytes", file=file, offset=offset)
        magic, *fields = cls.STRUCT.unpack_from(data)
        if magic != cls.MAGIC:
            raise Corrupt(f"no {cls.NOUN} here (it begins with {magic!r})", file=file, offset=offset)
        (stored,) = struct.unpack_from("<I", data, cls.STRUCT.size)
        actual = crc32c(data[: cls.STRUCT.size])
        if stored != actual:
            raise Corrupt(f"{cls.NOUN} fails its CRC ({actual:#010x}, stored {stored:#010x})", file, offset)
        return cls(*fields)


@dataclass(frozen=True)
class FileHeader(_Sealed):
    """First 64 bytes of a file of containers; zeros follow up to the first container, at offset ALIGNMENT."""

    MAGIC = FILE_MAGIC
    STRUCT = struct.Struct("<8sIII40x")
    NOUN = "file header"

    version: int
    stream: int
    file: int

    def check(self, *, stream: int, file: int, name: str) -> None:
        """Raise UnsupportedVersion if the version is unknown, and Corrupt if stream or file number is wrong."""
        check_version(self.version, name)
        if (self.stream, self.file) != (stream, file):
            raise Corrupt(f"this is file {self.file} of stream {self.stream}, misplaced", name)


@dataclass(frozen=True)
class ContainerHeader(_Sealed):
    """Header of a container: sizes and checksums, and the container's stream, file and ordinal in the file."""

    MAGIC = CONTAINER_MAGIC
    STRUCT = struct.Struct("<4sHH13I")
    NOUN = "container header"

    attachments: int  # number of attachment-table entries per record
    reserved: int
    records: int
    size: int  # bytes of the whole container, including padding
    segments: int  # number of segment-table entries
    extras_size: int  # bytes of the zstd frame of the extras
    extras_raw: int  # bytes of the extras after decompression
    payload_size: int
    index_crc: int  # CRC of index and attachment table
    segments_crc: int
    extras_crc: int
    payload_crc: int
    stream: int
    file: int
    ordinal: int  # index of the container among the file's containers

    @property
    def crc(self) -> int:
        """CRC-32C at the end of the header, by which a row of footer or index is matched with its container."""
        return crc32c(self.pack()[:-4])

    @property
    def index_size(self) -> int:
        return self.records * (ENTRY.itemsize + self.attachments * ATTACHMENT.itemsize)

    @property
    def segments_at(self) -> int:
        return SEALED + self.index_size

    @property
    def extras_at(self) -> int:
        return self.segments_at + self.segments * SEGMENT.itemsize

    @property
    def payload_at(self) -> int:
        return self.extras_at + self.extras_size

    @property
    def payload(self) -> tuple[int, int]:
        """Beginning and end of the payload, as offsets in the container."""
        return self.payload_at, self.payload_at + self.payload_size

    def check(self, *, file: str, offset: int) -> None:
        """Raise TooLarge if a size exceeds the format's limit, Corrupt if the sections do not add up to the size."""
        for name, value, limit in (
            ("size", self.size, MAX_CONTAINER),
            ("records", self.records, MAX_RECORDS),
            ("attachments", self.attachments, MAX_ATTACHMENTS),
            ("extras", self.extras_raw, MAX_EXTRAS),
        ):
            if value > limit:
                raise TooLarge(f"container {name} {value} is over the limit {limit}", file=file, offset=offset)
        if self.records == 0 or aligned(self.payload[1]) != self.size:
            raise Corrupt("the container's sections do not add up to its size", file=file, offset=offset)


@dataclass(frozen=True)
class Trailer(_Sealed):
    """Last 64 bytes of a file, which state the position of the footer."""

    MAGIC = TRAILER_MAGIC
    STRUCT = struct.Struct("<8sIIQQQIII8x")
    NOUN = "file trailer"

    version: int
    containers: int
    footer_offset: int
    records: int
    file_size: int
    stream: int
    file: int
    footer_crc: int


@dataclass(frozen=True)
class IndexHeader(_Sealed):
    """First 64 bytes of ``picstore.idx``; INDEX_ROWs follow."""

    MAGIC = INDEX_MAGIC
    STRUCT = struct.Struct("<8sIIQQI24x")
    NOUN = "index header"

    version: int
    row_size: int
    rows: int
    records: int
    rows_crc: int


@dataclass(frozen=True)
class CountsHeader(_Sealed):
    """First 64 bytes of ``picstore.counts``; COUNT_ROWs follow."""

    MAGIC = COUNTS_MAGIC
    STRUCT = struct.Struct("<8sIIQQQ16sI")
    NOUN = "header of counts"

    version: int
    row_size: int
    rows: int
    records: int
    ids_end: int  # number above the ids of all records
    uuid: bytes  # uuid of the dataset's version whose records were counted
    rows_crc: int


def check_rows(rows: Table, *, file: str) -> None:
    """Raise Corrupt if a row of a footer or index describes an impossible container, such as one that is too large."""
    bad = (rows["size"] > MAX_CONTAINER) | (rows["size"] < ALIGNMENT) | (rows["size"] % ALIGNMENT != 0)
    bad |= (rows["offset"] < ALIGNMENT) | (rows["offset"] > MAX_FILE) | (rows["offset"] % ALIGNMENT != 0)
    bad |= (rows["records"] == 0) | (rows["records"] > MAX_RECORDS) | (rows["referenced"] > MAX_CONTAINER)
    bad |= SEALED + rows["records"].astype(np.int64) * ENTRY.itemsize > rows["size"]
    if bad.any():
        raise Corrupt(f"row {int(np.flatnonzero(bad)[0])} describes an impossible container", file=file)


def check_version(
    version: int, file: str, *, known: tuple[int, ...] = (FORMAT_VERSION,), read_by: object = None
) -> None:
    """Raise UnsupportedVersion if the format version of ``file`` is not in ``known``.

    ``read_by`` is the first picstore release that can read the file, as the file states; the message names it.
    """
    if version not in known:
        named = isinstance(read_by, str) and re.fullmatch(r"[0-9]{1,4}(\.[0-9]{1,4}){0,3}", read_by)
        raise UnsupportedVersion(
            f"{file}: format version {version}; this picstore reads version {', '.join(map(str, known))}: "
            + (f"upgrade to picstore {read_by} or later" if named else "upgrade picstore")
        )
