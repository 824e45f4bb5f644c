"""Headers of a baseline JPEG parsed by a kernel, for decoding without Python (ITU-T T.81, annex B)."""

from __future__ import annotations

import numpy as np

from picstore.jpeg.bit_reader import TOO_SHORT
from picstore.jpeg.decoder.coefficients import (
    BY_LENGTH,
    BY_LENGTHS,
    LOOKUP_BITS,
    OTHER_BLOCK,
    PAIR_ZIGZAG,
    PAIRS,
    QUANTIZATIONS,
    SINGLES,
    fill_pairs,
    fill_table,
)
from picstore.jpeg.huffman import MAX_CODE_BITS
from picstore.kernels.jit import device_function
from picstore.kernels.simd import load_byte, store_i16

_u64 = np.uint64

# Error codes of streams with damaged headers, and of streams of a kind that this decoder does not support.
DAMAGED_HEADER, UNSUPPORTED = -10, -11

# Indices in a frame, int64 (FRAME,), which holds the values of a stream's headers. HORIZONTAL, VERTICAL: sampling
# factors of the luma. COMPONENTS: number of components. INTERVAL: MCUs between restart markers, 0 if there are none.
# START: bytes before the entropy-coded data. QUANTIZATION, DC, AC: each is the index of the first of three values, the
# numbers of the components' tables.
WIDTH, HEIGHT, HORIZONTAL, VERTICAL, COMPONENTS, INTERVAL, START, QUANTIZATION, DC, AC = 0, 1, 2, 3, 4, 5, 6, 7, 10, 13
# _IDS: index of the first of three components' ids. _DEFINED: index of a number with a bit for each table, which
# is set if the headers define the table. _COLORS: index of the bits _JFIF and _ADOBE_RGB.
_IDS, _DEFINED, _COLORS = 16, 19, 20
# Each is the index of the first of four addresses in the stream. QUANTIZATION_AT: addresses of the quantization tables,
# 64 bytes each. HUFFMAN_AT: addresses of counts and symbols of the Huffman tables DC 0, DC 1, AC 0 and AC 1.
QUANTIZATION_AT, HUFFMAN_AT = 21, 25
FRAME = 29
_JFIF, _ADOBE_RGB = 1, 2


@device_function
def _u16(address):
    return load_byte(address) << 8 | load_byte(address + _u64(1))


@device_function
def parse_frame(begin, size, frame, tables):
    """Parse the headers up to the entropy-coded data.

    Args:
        begin, size: address and size in bytes of the JPEG.
        frame: int64 (FRAME,), takes the values of the headers.
        tables: address of TABLES bytes, which take the tables of ``coefficients.py``; 0 to write no tables.

    Returns:
        0, or a negative code if the JPEG cannot be decoded.
    """
    for k in range(FRAME):
        frame[k] = 0
    if size < 4 or _u16(begin) != 0xFFD8:
        return DAMAGED_HEADER
    offset = 2
    marker = 0
    while marker != 0xDA:
        while offset + 4 <= size and _u16(begin + _u64(offset)) == 0xFFFF:
            offset += 1  # Skip fill bytes (0xFF before a marker).
        if offset + 4 > size or load_byte(begin + _u64(offset)) != 0xFF:
            return DAMAGED_HEADER
        marker = load_byte(begin + _u64(offset + 1))
        body, length = begin + _u64(offset + 4), _u16(begin + _u64(offset + 2)) - 2
        offset += 4 + length
        if length < 0 or offset > size:
            return DAMAGED_HEADER
        code = _parse_segment(marker, body, length, frame, tables)
        if code:
            return code
    frame[START] = offset
    return 0


@device_function
def blocks_of_mcu(frame):
    """Return the number of blocks in an MCU, from the headers' values in ``frame``."""
    return 1 if frame[COMPONENTS] == 1 else frame[HORIZONTAL] * frame[VERTICAL] + 2


@device_function
def count_mcus(frame):
    """Return the number of columns and the number of rows of MCUs, from the headers' values in ``frame``."""
    h, v = 8 * frame[HORIZONTAL], 8 * frame[VERTICAL]
    return (frame[WIDTH] + h - 1) // h, (frame[HEIGHT] + v - 1) // v


@device_function
def count_segments(frame, size):
    """Return the number of restart segments, or TOO_SHORT if ``size`` bytes of data cannot hold all blocks.

    If the restart interval in ``frame`` is 0, set it to the number of MCUs.
    """
    columns, rows = count_mcus(frame)
    if frame[INTERVAL] == 0:
        frame[INTERVAL] = columns * rows
    count = (columns * rows + frame[INTERVAL] - 1) // frame[INTERVAL]
    # A block takes at least two bits, and a marker two bytes, so this test limits allocations by the size of the data.
    if 8 * size < 2 * blocks_of_mcu(frame) * columns * rows or size < 2 * (count - 1):
        return TOO_SHORT
    return count


@device_function
def _parse_segment(marker, body, length, frame, tables):
    if marker == 0xDB:
        return _parse_quantization(body, length, frame, tables)
    if marker == 0xC4:
        return _parse_huffman(body, length, frame, tables)
    if marker == 0xC0:
        return _parse_frame_header(body, length, frame)
    if marker == 0xDA:
        return _parse_scan_header(body, length, frame)
    if marker == 0xDD:
        if length != 2:
            return DAMAGED_HEADER
        frame[INTERVAL] = _u16(body)
        return 0
    if length >= 12:
        _parse_colors(marker, body, length, frame)
    return 0 if 0xE0 <= marker < 0xF0 or marker == 0xFE else UNSUPPORTED


@device_function
def _parse_colors(marker, body, length, frame):
    """Set bit _JFIF for a JFIF segment, _ADOBE_RGB for an Adobe segment that does not state YCbCr, as in libjpeg."""
    name = (_u16(body) << 16 | _u16(body + _u64(2))) << 8 | load_byte(body + _u64(4))
    if marker == 0xE0 and length >= 14 and name == 0x4A46494600:
        frame[_COLORS] |= _JFIF
    elif marker == 0xEE and name == 0x41646F6265 and load_byte(body + _u64(11)) != 1:
        frame[_COLORS] |= _ADOBE_RGB


@device_function
def _parse_quantization(body, length, frame, tables):
    """Parse a segment of 8-bit quantization tables (B.2.4.1); return 0 or a negative code."""
    if length % 65:
        return UNSUPPORTED
    for _ in range(length // 65):
        table = load_byte(body)
        if table > 3:
            return UNSUPPORTED
        frame[QUANTIZATION_AT + table] = np.int64(body + _u64(1))
        for k in range(64 if tables else 0):
            target = tables + _u64(QUANTIZATIONS + 256 * table + 2 * np.int64(PAIR_ZIGZAG[k]))
            factor = np.int16(load_byte(body + _u64(1 + k)))
            store_i16(target, factor)
            store_i16(target + _u64(2 * OTHER_BLOCK), factor)
        frame[_DEFINED] |= 1 << table
        body += _u64(65)
    return 0


@device_function
def _parse_huffman(body, length, frame, tables):
    """Parse a segment of Huffman tables (B.2.4.2); return 0 or a negative code."""
    while length > 0:
        if length < 1 + MAX_CODE_BITS:
            return DAMAGED_HEADER
        kind, destination = load_byte(body) >> 4, load_byte(body) & 15
        if kind > 1 or destination > 1:
            return UNSUPPORTED
        total = _count_codes(body + _u64(1))
        if total > 256 or length < 1 + MAX_CODE_BITS + total:
            return DAMAGED_HEADER
        for k in range(1 + MAX_CODE_BITS, 1 + MAX_CODE_BITS + total):
            # Accept only sizes (SSSS) of T.81's tables F.1 and F.2: the bit reader cannot load larger values.
            symbol = load_byte(body + _u64(k))
            if (kind == 0 and symbol > 11) or symbol & 15 > 10 + (kind == 0):
                return UNSUPPORTED
        table = 2 * kind + destination
        frame[HUFFMAN_AT + table] = np.int64(body + _u64(1))
        if not _has_codes(body + _u64(1)):
            return DAMAGED_HEADER
        if tables:
            single = tables + _u64(SINGLES + (table << (LOOKUP_BITS + 1)))
            fill_table(body + _u64(1), single, tables + _u64(BY_LENGTHS + 4 * BY_LENGTH * table))
            if kind == 1:
                fill_pairs(single, tables + _u64(PAIRS + (destination << (LOOKUP_BITS + 3))))
        frame[_DEFINED] |= 1 << (4 + table)
        length -= 1 + MAX_CODE_BITS + total
        body += _u64(1 + MAX_CODE_BITS + total)
    return 0


@device_function
def _count_codes(counts):
    total = 0
    for k in range(MAX_CODE_BITS):
        total += load_byte(counts + _u64(k))
    return total


@device_function
def _has_codes(counts):
    """Return whether code lengths give a prefix code that leaves the code of all ones free (C.2), as in libjpeg."""
    code = 0
    for length in range(1, MAX_CODE_BITS + 1):
        code += load_byte(counts + _u64(length - 1))
        if code >= 1 << length:
            return False
        code <<= 1
    return True


@device_function
def _parse_frame_header(body, length, frame):
    """Parse the frame header (B.2.2); accept one component, or three whose chroma is sampled once per MCU."""
    if frame[COMPONENTS] or length < 6 or length != 6 + 3 * load_byte(body + _u64(5)):
        return DAMAGED_HEADER
    count = load_byte(body + _u64(5))
    frame[HEIGHT], frame[WIDTH] = _u16(body + _u64(1)), _u16(body + _u64(3))
    if load_byte(body) != 8 or (count != 1 and count != 3) or frame[HEIGHT] == 0 or frame[WIDTH] == 0:
        return UNSUPPORTED
    frame[COMPONENTS] = count
    for c in range(count):
        field = body + _u64(6 + 3 * c)
        frame[_IDS + c], factors = load_byte(field), load_byte(field + _u64(1))
        frame[QUANTIZATION + c] = load_byte(field + _u64(2))
        if c == 0:
            frame[HORIZONTAL], frame[VERTICAL] = factors >> 4, factors & 15
            if not (1 <= frame[HORIZONTAL] <= 4 and 1 <= frame[VERTICAL] <= 4):
                return DAMAGED_HEADER
        if frame[QUANTIZATION + c] > 3 or (c and factors != 0x11):
            return UNSUPPORTED
    # Sampling factors of a single component have no effect (A.2.2).
    if count == 1:
        frame[HORIZONTAL], frame[VERTICAL] = 1, 1
    good = 1 <= frame[HORIZONTAL] <= 2 and 1 <= frame[VERTICAL] <= 2
    return 0 if good else UNSUPPORTED


@device_function
def _parse_scan_header(body, length, frame):
    """Parse the header (B.2.3) of a sequential scan of all components in order; check that its tables were defined."""
    count = frame[COMPONENTS]
    if count == 0 or length != 4 + 2 * count or load_byte(body) != count:
        return UNSUPPORTED
    for c in range(count):
        field = body + _u64(1 + 2 * c)
        dc, ac = load_byte(field + _u64(1)) >> 4, load_byte(field + _u64(1)) & 15
        if load_byte(field) != frame[_IDS + c] or dc > 1 or ac > 1:
            return UNSUPPORTED
        frame[DC + c], frame[AC + c] = dc, ac
        needed = 1 << frame[QUANTIZATION + c] | 1 << (4 + dc) | 1 << (6 + ac)
        if frame[_DEFINED] & needed != needed:
            return DAMAGED_HEADER
    rest = body + _u64(1 + 2 * count)
    if _u16(rest) != 63 or load_byte(rest + _u64(2)) != 0:
        return UNSUPPORTED
    named = frame[_IDS] == 0x52 and frame[_IDS + 1] == 0x47 and frame[_IDS + 2] == 0x42
    rgb = frame[_COLORS] == _ADOBE_RGB or (named and frame[_COLORS] & _JFIF == 0)
    return UNSUPPORTED if count == 3 and rgb else 0
