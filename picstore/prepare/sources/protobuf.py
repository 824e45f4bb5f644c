"""Protocol buffers' wire format (protobuf.dev, "Encoding"): as much as walking through messages of a file needs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from picstore.errors import Corrupt

VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5
_SIZES = {FIXED64: 8, FIXED32: 4}
_LONGEST = 10  # bytes of a varint

Read = Callable[[int, int], bytes]  # offset and size to bytes


@dataclass(frozen=True, slots=True)
class Field:
    """A field of a message.

    Attributes:
        number, wire: its number and wire type.
        value: of a varint.
        start, size: where its bytes are, for all others.
    """

    number: int
    wire: int
    value: int
    start: int
    size: int


def fields_of(read: Read, start: int, size: int, *, place: str = "") -> Iterator[Field]:
    """The fields of the message that lies there; what they hold is not read.

    Raises:
        Corrupt: it is no message, or a field goes beyond it.
    """
    at, end = start, start + size
    while at < end:
        tag, at = varint(read, at, end, place)
        number, wire, value, length = tag >> 3, tag & 7, 0, 0
        if wire == VARINT:
            value, at = varint(read, at, end, place)
        elif wire == BYTES:
            length, at = varint(read, at, end, place)
        elif wire in _SIZES:
            length = _SIZES[wire]
        else:
            raise Corrupt(f"no protocol buffer: wire type {wire}", place, at)
        if number == 0 or at + length > end:
            raise Corrupt("no protocol buffer: a field goes beyond its message", place, at)
        yield Field(number, wire, value, at, length)
        at += length


def varint(read: Read, at: int, end: int, place: str = "") -> tuple[int, int]:
    """An integer of 64 bits without sign, and where it ends."""
    value = 0
    for k, byte in enumerate(read(at, min(_LONGEST, end - at))):
        value |= (byte & 0x7F) << (7 * k)
        if byte < 0x80:
            return value & ((1 << 64) - 1), at + k + 1
    raise Corrupt("no protocol buffer: an integer that does not end", place, at)


def signed(value: int) -> int:
    """The same bits as a signed integer of 64 bits."""
    return value - (1 << 64) if value >> 63 else value


def reader_of(data: bytes | memoryview) -> Read:
    """Reads from memory; what lies beyond is not there."""
    return lambda offset, size: bytes(data[offset : offset + size])
