"""Wire format of protocol buffers (protobuf.dev, "Encoding"): iterate over the fields of a message."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from picstore.errors import Corrupt

VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5
_SIZES = {FIXED64: 8, FIXED32: 4}
_MAX_VARINT = 10  # largest number of bytes of a varint, an integer of 64 bits in groups of 7

# Function (offset, size) that returns a byte range of the file or memory that holds the message.
Read = Callable[[int, int], bytes]


@dataclass(frozen=True, slots=True)
class Field:
    """Field of a message: number, wire type, and ``value`` if it is a varint, else its byte range (start and size)."""

    number: int
    wire: int
    value: int
    start: int
    size: int


def fields_of(read: Read, start: int, size: int, *, file: str = "") -> Iterator[Field]:
    """Yield the fields of the message in a byte range; raise Corrupt, naming ``file``, if the bytes are malformed."""
    offset, end = start, start + size
    while offset < end:
        tag, offset = read_varint(read, offset, end, file)
        number, wire, value, length = tag >> 3, tag & 7, 0, 0
        if wire == VARINT:
            value, offset = read_varint(read, offset, end, file)
        elif wire == BYTES:
            length, offset = read_varint(read, offset, end, file)
        elif wire in _SIZES:
            length = _SIZES[wire]
        else:
            raise Corrupt(f"not a protocol buffer: wire type {wire}", file, offset)
        if number == 0 or offset + length > end:
            raise Corrupt("not a protocol buffer: a field goes beyond its message", file, offset)
        yield Field(number, wire, value, offset, length)
        offset += length


def read_varint(read: Read, offset: int, end: int, file: str = "") -> tuple[int, int]:
    """Return the unsigned 64-bit varint at ``offset`` and the offset after it; raise Corrupt if it does not end."""
    value = 0
    for k, byte in enumerate(read(offset, min(_MAX_VARINT, end - offset))):
        value |= (byte & 0x7F) << (7 * k)
        if byte < 0x80:
            return value & ((1 << 64) - 1), offset + k + 1
    raise Corrupt("not a protocol buffer: an integer that does not end", file, offset)


def to_signed(value: int) -> int:
    """Reinterpret an unsigned 64-bit integer as a signed integer."""
    return value - (1 << 64) if value >> 63 else value


def memory_reader(data: bytes | memoryview) -> Read:
    """Return a function that reads byte ranges of ``data``; ranges beyond the end of ``data`` are cut off."""
    return lambda offset, size: bytes(data[offset : offset + size])
