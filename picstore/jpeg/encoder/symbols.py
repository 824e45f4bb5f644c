"""Symbols of a baseline scan: one kernel finds and counts symbols, another writes their codes (T.81, F.1.2).

A symbol with its value is a uint32: the value in the lowest 16 bits, the symbol in the next 8, and the Huffman table in
the highest, 0 or 1 for DC, 2 or 3 for AC. The lower four bits of every symbol are the number of bits of its value.
"""

from __future__ import annotations

import numpy as np

from picstore.jpeg.bit_writer import append_bits, flush_bits
from picstore.jpeg.encoder.fdct import forward_dct
from picstore.jpeg.encoder.rgb_to_ycc import STEP, convert_row, halve_row
from picstore.jpeg.huffman import optimal_codes
from picstore.kernels.jit import device_function, inlined, kernel, memcpy, store_u8
from picstore.kernels.simd import leading_zeros, load_u32, store_i32, trailing_zeros

MAX_SYMBOLS = 64  # largest number of Huffman symbols of a block
_END_OF_BLOCK, _SIXTEEN_ZEROS = 0x00, 0xF0
_u64 = np.uint64


@inlined
def _add_symbol(target, counters, table, symbol, value):
    """Store a symbol with its value, and count the symbol; return the address for the next symbol."""
    store_i32(target, np.int32(table << 24 | symbol << 16 | value))
    counter = counters + _u64(4 * (table << 8 | symbol))
    store_i32(counter, np.int32(load_u32(counter) + 1))
    return target + _u64(4)


@inlined
def _size(value):
    """Return the number of bits that code a coefficient's value, and these bits as an integer (T.81, F.1.2.1)."""
    size = 64 - leading_zeros(_u64(abs(value)))
    return size, value if value >= 0 else value + (1 << size) - 1


@device_function
def _add_block(target, counters, kind, difference, block, nonzero):
    """Store and count the symbols of a block; return the address for the next symbol.

    Args:
        target: address for uint32 symbols.
        counters: address of uint32 (4, 256), frequencies of symbols by table.
        kind: 0 for luma, 1 for chroma.
        difference: the block's DC difference.
        block: int16 (64,), coefficients in zigzag order.
        nonzero: uint64 whose bit *k* is set if coefficient *k* is not zero.
    """
    size, value = _size(difference)
    target = _add_symbol(target, counters, kind, size, value)
    left = nonzero & ~_u64(1)
    before = 0
    while left:
        k = trailing_zeros(left)
        left &= left - _u64(1)
        run = k - before - 1
        while run >= 16:
            target = _add_symbol(target, counters, 2 + kind, _SIXTEEN_ZEROS, 0)
            run -= 16
        size, value = _size(np.int64(block[k]))
        target = _add_symbol(target, counters, 2 + kind, run << 4 | size, value)
        before = k
    if before < 63:
        target = _add_symbol(target, counters, 2 + kind, _END_OF_BLOCK, 0)
    return target


@device_function
def _fill_rows(source, row, shape, rows, stride):
    """Convert the pixels of a row of MCUs to samples of Y, Cb and Cr.

    Args:
        source: four numbers: address of the first pixel; bytes between rows, between pixels, and between channels.
        row: index of the row of MCUs.
        shape: five numbers: width and height of the image, MCUs in a row, horizontal and vertical sampling factor of
            the luma.
        rows: address of three planes at full width, each of 8 rows times the luma's vertical sampling factor; then two
            planes of 8 rows of halved chroma.
        stride: bytes between rows of samples.
    """
    first, down, across, channel = source
    width, height, columns, h, v = shape
    plane = _u64(8 * v * stride)
    halved = rows + _u64(3) * plane
    spare = halved + _u64(16 * stride)
    count = 3 if channel else 1
    top = 8 * v * row
    for y in range(8 * v):
        target = rows + _u64(y * stride)
        if top + y < height:
            pixels = _u64(first + (top + y) * down)
            convert_row(pixels, (across, channel), width, 8 * h * columns, target, plane, spare)
            continue
        # An MCU's rows below the image repeat the image's last row.
        for c in range(count):
            copy = target + _u64(c) * plane
            memcpy(copy, copy - _u64(stride), stride)
    for c in range(1, count if h > 1 else 0):
        for y in range(8):
            target = halved + _u64((8 * (c - 1) + y) * stride)
            if top + y * v < height:
                upper = rows + _u64(c) * plane + _u64(y * v * stride)
                halve_row(upper, upper + _u64((v - 1) * stride), 8 * columns, target)
            else:
                memcpy(target, target - _u64(stride), stride)


@kernel("(UniTuple(int64, 4), UniTuple(int64, 6), int64, uint16[:, :, ::1], uint32[::1], int64[::1], uint32[:, ::1])")
def find_symbols(source, shape, interval, divisors, symbols, ends, frequencies):
    """Quantize an image, or whole restart segments of it, and find the Huffman symbols.

    Args:
        source: four numbers: address of the first pixel; bytes between rows, between pixels, and between channels (0
            for grey).
        shape: six numbers: width and height, MCUs in a row and rows of MCUs, horizontal and vertical sampling factor of
            the luma.
        interval: number of MCUs in a segment.
        divisors: uint16 (2, 3, 64), results of ``make_divisors`` for luma and chroma.
        symbols: uint32, takes at most ``MAX_SYMBOLS`` symbols per block.
        ends: int64 (segments + 1,), takes 0 and the end of each segment in ``symbols``.
        frequencies: uint32 (4, 256), to which the frequencies of the symbols of each Huffman table are added.
    """
    width, height, columns, rows, h, v = shape
    stride = 8 * h * columns + 2 * STEP
    samples = np.empty((3 * 8 * v + 2 * 8) * stride + 3 * STEP, np.uint8)
    block = np.zeros(64, np.int16)
    previous = np.zeros(3, np.int64)
    coefficients = _u64(block.ctypes.data)
    first, counters = _u64(symbols.ctypes.data), _u64(frequencies.ctypes.data)
    target = first
    # Numbers of luma blocks across and down that contain pixels; MCUs at the right and lower edge may have more blocks.
    across, down = (width + 7) // 8, (height + 7) // 8
    per_mcu = h * v + 2 if source[3] else 1
    # Index of Cb's first row of samples: after Y; if chroma is halved, after full-width Y, Cb and Cr (``_fill_rows``).
    chroma = 8 * v if h == 1 else 24 * v
    # Number of rows of samples from Cb's first row to Cr's first row.
    between = 8 * v if h == 1 else 8
    ends[0] = 0
    segment = done = 0
    for row in range(rows):
        # Take the address in the loop and not before it, because numba frees ``samples`` after its last mention.
        planes = _u64(samples.ctypes.data)
        _fill_rows(source, row, (width, height, columns, h, v), planes, stride)
        for column in range(columns):
            for b in range(per_mcu):
                c = max(b - h * v + 1, 0)
                x, y = b % h, b // h
                kind = min(c, 1)
                nonzero = _u64(0)
                if c or (column * h + x < across and row * v + y < down):
                    at = (
                        (chroma + (c - 1) * between) * stride + 8 * column
                        if c
                        else 8 * y * stride + 8 * (column * h + x)
                    )
                    factors = _u64(divisors.ctypes.data + 384 * kind)
                    nonzero = forward_dct(planes + _u64(at), _u64(stride), factors, coefficients)
                    dc = np.int64(block[0])
                else:
                    # A block outside of the image gets the previous DC and no AC, which takes the fewest bits.
                    dc = previous[c]
                target = _add_block(target, counters, kind, dc - previous[c], block, nonzero)
                previous[c] = dc
            done += 1
            if done == interval or (row == rows - 1 and column == columns - 1):
                segment += 1
                ends[segment] = np.int64(target - first) // 4
                previous[:] = 0
                done = 0


@kernel("(uint32[:, ::1], Tuple((uint8[:, ::1], uint8[:, ::1], uint32[:, ::1])))")
def choose_codes(frequencies, tables):
    """Compute the optimal Huffman codes for each table: DC of luma, DC of chroma, AC of luma, AC of chroma.

    Args:
        frequencies: uint32 (4, 256), frequency of each symbol, by table.
        tables: three arrays, which take for each table the results of ``optimal_codes``: counts, uint8 (4, 16);
            symbols, uint8 (4, 256); codes, uint32 (4, 256).

    Returns:
        Number of bits that the codes and values of all symbols take.
    """
    bits = 0
    for table in range(4):
        optimal_codes(frequencies[table], tables[0][table], tables[1][table], tables[2][table])
        for symbol in range(256):
            bits += frequencies[table, symbol] * ((tables[2][table, symbol] & 31) + (symbol & 15))
    return bits


@kernel("(uint32[::1], int64[::1], uint32[:, ::1], int64, uint8[::1], int64[::1])")
def write_symbols(symbols, ends, codes, before, out, starts):
    """Write segments of a scan, each after a restart marker, except the first segment of the scan.

    Args:
        symbols, ends: arrays that ``find_symbols`` has filled.
        codes: uint32 (4, 256), codes of ``choose_codes``.
        before: number of the scan's segments that previous calls have written.
        out: uint8, takes the segments; the caller makes it long enough.
        starts: int64 (segments + 1,), takes the offset in ``out`` of each segment; last, the offset at which a further
            segment would begin, 2 bytes after the end.

    Returns:
        Number of bytes written.
    """
    entry, table = _u64(symbols.ctypes.data), _u64(codes.ctypes.data)
    begin = _u64(out.ctypes.data)
    target = begin
    starts[0] = 2 if before else 0
    for segment in range(ends.size - 1):
        if before + segment:
            store_u8(target, np.uint8(0xFF))
            store_u8(target + _u64(1), np.uint8(0xD0 + (before + segment - 1) % 8))
            target += _u64(2)
        accumulator, pending = _u64(0), 0
        for _ in range(ends[segment], ends[segment + 1]):
            symbol = np.int64(load_u32(entry))
            entry += _u64(4)
            code = np.int64(load_u32(table + _u64(symbol >> 16 << 2)))
            size = symbol >> 16 & 15
            value = _u64(code >> 5 << size | symbol & 0xFFFF)  # code and value, together at most 27 bits
            accumulator, pending, target = append_bits(accumulator, pending, value, (code & 31) + size, target)
        target = flush_bits(accumulator, pending, target)
        starts[segment + 1] = np.int64(target - begin) + 2
    return np.int64(target - begin)
