"""Bit reading for kernels: removal of stuffing and markers from entropy-coded data, and a refillable accumulator.

Without stuffing, the position of any bit is plain arithmetic (ITU-T T.81, B.1.1.5). A bit reader's state is three
numbers: the accumulator, a 64-bit word whose highest bits are the next bits; the number of valid bits in the
accumulator, at least 56 after ``refill``; and the offset of the next byte.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from picstore.jpeg.huffman import MAX_CODE_BITS
from picstore.kernels.jit import array_at, device_function, inlined, kernel, load_u64, store_u8
from picstore.kernels.simd import VectorMemory, load_u8, load_u32, trailing_zeros, vector_function

# Negative codes that kernels return for a damaged scan; the decoder and ``transcode`` turn them into messages.
TOO_MANY_SEGMENTS, BAD_MARKER, BAD_DC, TOO_MANY_COEFFICIENTS, TOO_SHORT, BAD_CODE = range(-6, 0)

# Number of zero bytes to append to a scan's data. Readers notice only after an MCU that the data has ended, and an MCU
# has at most 6 blocks of 27 bits for the DC and 63 * 31 bits for the other coefficients: 1,485 bytes, read 8 at a time.
PADDING = 2048

_STEP = 32  # number of bytes that ``_copy_step`` copies, and compares with 0xFF, as one vector
_u64, _u8 = np.uint64, np.uint8
_ONES, _TOPS = np.uint64(0x0101010101010101), np.uint64(0x8080808080808080)


@device_function
def search_code(accumulator, ranges, symbols, shortest):
    """Return symbol | length << 8 of the code in the accumulator's highest bits (T.81, F.2.2.3), or 0 without a code.

    ``ranges`` and ``symbols`` are addresses of a Huffman table's rows in the arrays of
    ``transcode_lookup.make_lookups``. ``shortest`` is the number of bits of the shortest codes to try.
    """
    for length in range(shortest, MAX_CODE_BITS + 1):
        code = np.int64(accumulator >> _u64(64 - length))
        bounds = ranges + _u64(4 * length)
        begin = np.int64(load_u32(bounds))
        if begin <= code < np.int64(load_u32(bounds + _u64(72))):
            index = np.int64(load_u32(bounds + _u64(144))) + code - begin
            return np.int64(load_u32(symbols + _u64(4 * index))) | length << 8
    return 0


@inlined
def has_byte_ff(word):
    """Return nonzero if any byte of a uint64 is 0xFF, else 0."""
    return (~word - _ONES) & word & _TOPS


@inlined
def refill(address, accumulator, valid, byte):
    """Fill the accumulator, whose highest bits are the stream's next bits, to at least 56 bits.

    Return the accumulator, the number of its valid bits, and the offset from ``address`` of the next byte to load.
    """
    accumulator |= load_u64(address + _u64(byte)) >> _u64(valid)
    byte += (63 - valid) >> 3
    return accumulator, valid | 56, byte


@vector_function(2, returns=True)
def _copy_step(memory: VectorMemory, source: Any, target: Any) -> Any:
    """Copy _STEP bytes; return a mask whose bit *k* is set if copied byte *k* is not 0xFF."""
    copied = memory.load(source, _STEP, 8)
    memory.store(target, copied)
    return (copied ^ -1).nonzero()


@inlined
def _copy_plain(source, target, size, readable):
    """Copy the bytes before the first 0xFF; return their number, which may exceed ``size`` by up to _STEP - 1."""
    count = 0
    while count < size:
        if count + _STEP <= readable:
            plain = trailing_zeros(~_copy_step(source + _u64(count), target + _u64(count)))
            count += plain
            if plain < _STEP:
                break
        else:
            byte = load_u8(source + _u64(count))
            if byte == _u8(0xFF):
                break
            store_u8(target + _u64(count), byte)
            count += 1
    return count


@kernel("(uint64, int64, int64, uint8[::1], int64[::1])")
def unstuff(address, size, start, flat, segments):
    """Copy entropy-coded data without stuffed zeros and restart markers (T.81, B.1.1.5).

    Args:
        address, size: address and size in bytes of the JPEG, because numba would compile a second version for read-only
            arrays.
        start: offset of the data in the JPEG.
        flat: uint8, takes the data; at least as long as the rest of the JPEG.
        segments: int64, takes the offset of each restart segment in ``flat``, and the end of the last segment.

    Returns:
        Three integers: the number of segments, or a negative code of damage; the number of bytes in ``flat``; and the
        offset in the JPEG at which the data ends: at a marker, at fill bytes before a marker, or at the JPEG's end.
    """
    source, n = array_at(address, size, np.uint8), size
    offset = start
    out = 0
    count = 0
    segments[0] = 0
    begin, target = address, _u64(flat.ctypes.data)
    while offset < n:
        plain = _copy_plain(begin + _u64(offset), target + _u64(out), n - offset, n - offset)
        offset += plain
        out += plain
        if offset == n:
            break
        following = offset + 1
        while following < n and source[following] == 0xFF:
            following += 1  # Skip fill bytes (0xFF before a marker).
        if following >= n:
            break
        code = source[following]
        # Accept a stuffed zero only after a single 0xFF. Several bytes 0xFF may only precede a marker; if a zero
        # follows them, libjpeg-turbo decodes some blocks wrongly.
        if code == 0 and following == offset + 1:
            flat[out] = _u8(0xFF)
            out += 1
        elif 0xD0 <= code <= 0xD7:
            if code != 0xD0 + count % 8:
                return BAD_MARKER, out, offset
            count += 1
            if count + 1 >= segments.size:
                return TOO_MANY_SEGMENTS, out, offset
            segments[count] = out
        else:
            break
        offset = following + 1
    segments[count + 1] = out
    return count + 1, out, offset


@device_function
def unstuff_segment(source, size, readable, target):
    """Copy a restart segment without its stuffed zeros.

    Args:
        source, size: address and size of the segment, without the marker that ends it. The segment may end in fill
            bytes.
        readable: number of readable bytes at ``source``.
        target: address of ``size`` + 64 writable bytes.

    Returns:
        Number of bytes written that belong to the segment, or BAD_MARKER.
    """
    offset = out = 0
    while True:
        plain = _copy_plain(source + _u64(offset), target + _u64(out), size - offset, readable - offset)
        offset += plain
        out += plain
        if offset >= size:
            return out - (offset - size)
        begin = offset
        while offset < size and load_u8(source + _u64(offset)) == _u8(0xFF):
            offset += 1
        if offset == size:
            return out
        if offset > begin + 1 or load_u8(source + _u64(offset)) != _u8(0):
            return BAD_MARKER
        store_u8(target + _u64(out), _u8(0xFF))
        out += 1
        offset += 1
