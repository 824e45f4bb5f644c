"""Huffman codes of a scan, read by a kernel that finds the edits which new restart markers need (T.81, annex F.2).

An edit is a DC code whose difference changes. The first MCU of each new segment loses its predecessor, so its DC
differences are edited; the first MCU of each old segment gets its predecessor back. All bits between edits stay as they
are, and ``bit_writer.write_scan`` copies them in runs. Coefficients are never computed.
"""

from __future__ import annotations

import numpy as np

from picstore.jpeg.bit_reader import BAD_CODE, BAD_DC, TOO_MANY_COEFFICIENTS, TOO_SHORT, refill
from picstore.jpeg.huffman_lookup import END_OF_BLOCK, LOOKUP_BITS, SKIP_SHIFT
from picstore.kernels.jit import array_at, device_function, inlined, kernel, load_u16

# Columns of a row of edits, int64 (edited MCUs + 1, BLOCKS + PER_BLOCK * edited blocks): the bit at which the MCU
# before ended; whether a new segment begins; and for each edited block the bits at which its DC code begins and its
# difference ends, and the new difference. The last row has the end of the last MCU only.
BEFORE, STARTS, BLOCKS, PER_BLOCK = 0, 1, 2, 3
BEGIN, END, DIFFERENCE = 0, 1, 2  # of a block
DC_SIZES = 12  # of differences of 8-bit samples (table F.1)

_u64 = np.uint64
_LOOKUP_SHIFT = np.uint64(64 - LOOKUP_BITS)


@inlined
def bit_length(difference):  # type: ignore[no-untyped-def]
    """Return the size of a DC difference (T.81, F.1.2.1)."""
    size = 0
    while abs(difference) >> size:
        size += 1
    return size


@inlined
def _table_offset(table):  # type: ignore[no-untyped-def]
    """Bytes before the entries of a lookup table."""
    return _u64(table) << _u64(LOOKUP_BITS + 1)


@device_function
def _search_code(accumulator, table, by_length):  # type: ignore[no-untyped-def]
    """Find the code at the head of the accumulator by its length (F.2.2.3): (length, symbol); length 0 for none."""
    ranges = array_at(by_length[0], 54 * (table + 1), np.uint32)
    symbols = array_at(by_length[1], 256 * (table + 1), np.uint32)
    first = 54 * table
    for length in range(1, 17):
        code = np.int64(accumulator >> _u64(64 - length))
        begin = np.int64(ranges[first + length])
        if begin <= code < ranges[first + 18 + length]:
            return length, np.int64(symbols[256 * table + np.int64(ranges[first + 36 + length]) + code - begin])
    return 0, 0


@inlined
def _read_dc(accumulator, table, single, by_length):  # type: ignore[no-untyped-def]
    """Read the DC code at the head of the accumulator: (bits of code and difference, difference) or (negative, 0)."""
    entry = np.int64(load_u16(single + _table_offset(table) + (accumulator >> _LOOKUP_SHIFT << _u64(1))))
    length, size = entry >> 8, entry & 255
    if entry == 0:
        length, size = _search_code(accumulator, table, by_length)
        if length == 0:
            return BAD_CODE, 0
    if size > 11:
        return BAD_DC, 0
    bits = accumulator << _u64(length)
    value = np.int64(bits >> _u64(1) >> _u64(63 - size))
    below = ((1 << size) - 1) & (np.int64(bits >> _u64(63)) - 1)  # without a branch: signs cannot be predicted
    return length + size, value - below


@inlined
def _skip_ac(address, table, lookups, accumulator, valid, byte):  # type: ignore[no-untyped-def]
    """Skip the AC codes of a block; return (accumulator, valid, byte, 0 or the damage)."""
    single, several, by_length = lookups
    single, several = single + _table_offset(table), several + _table_offset(table)
    k = 1
    damage = 0
    while k < 64:
        window = accumulator >> _LOOKUP_SHIFT << _u64(1)
        entry = np.int64(load_u16(several + window))
        # While the entry is loaded: at least 25 bits were left, which are enough to look it up.
        accumulator, valid, byte = refill(address, accumulator, valid, byte)
        skipped = (entry >> SKIP_SHIFT) & 255
        if entry and k + skipped <= 63:
            accumulator <<= _u64(entry & 63)  # 63, as a shift looks at these bits by itself
            valid -= entry & 63
            k += skipped
            if entry & END_OF_BLOCK:
                break
            continue
        # A code longer than LOOKUP_BITS, or the last coefficient: the bits after that belong to the next block.
        entry = np.int64(load_u16(single + window))
        length, symbol = entry >> 8, entry & 255
        if entry == 0:
            length, symbol = _search_code(accumulator, table, by_length)
        if length == 0:
            damage = BAD_CODE
            break
        bits = length + (symbol & 15)
        accumulator <<= _u64(bits)
        valid -= bits
        if symbol & 15 == 0 and symbol != 0xF0:
            break
        k += (symbol >> 4) + 1
        if k > 64:
            damage = TOO_MANY_COEFFICIENTS
    return accumulator, valid, byte, damage


@kernel(
    "(uint8[::1], int64[::1], int64[:, ::1], Tuple((uint16[:, ::1], uint16[:, ::1], uint32[:, :, ::1], "
    "uint32[:, ::1])), Tuple((int64, int64, int64, boolean)), int64[:, ::1], int64[:, ::1])"
)
def find_edits(flat, segments, blocks, tables, intervals, edits, sizes):  # type: ignore[no-untyped-def]  # noqa: C901 - split, 30 % slower
    """Read all codes of a scan and record the edits that new restart markers need.

    Every MCU whose number is a multiple of the new or the old interval begins with edits, one for each block of the MCU
    that is flagged; if ``every``, all MCUs do.

    Args:
        flat: uint8, the data, followed by PADDING zeros.
        segments: int64, the offset of each old segment in bytes, and the end.
        blocks: int64 (blocks of an MCU, 4): component, DC table, AC table, whether its DC is edited.
        tables: arrays of ``huffman_lookup.make_lookups``, over DC and AC tables.
        intervals: int64 (4,): MCUs, new interval, old interval (the MCUs for none), whether every MCU is edited.
        edits: as above, to fill; at least as long as needed.
        sizes: int64 (DC tables, DC_SIZES), to fill: how often each table has to code each size of difference.

    Returns:
        The number of edited MCUs, or negative for damage.
    """
    single, several, ranges, symbols = tables
    # By address: numba counts the references to each array that an inlined function names, by locked instructions,
    # which took a third of the time.
    first, by_length = _u64(single.ctypes.data), (_u64(ranges.ctypes.data), _u64(symbols.ctypes.data))
    lookups = first, _u64(several.ctypes.data), by_length
    sizes[:] = 0
    mcus, interval, old, every = intervals
    actual = np.zeros(4, np.int64)  # DC of the last block of each component
    predictor = np.zeros(4, np.int64)  # the same as a decoder of the new stream will have it
    address = _u64(flat.ctypes.data)
    accumulator, valid, byte = _u64(0), 0, 0
    limit = edit = segment = until_new = until_old = 0
    for mcu in range(mcus + 1):
        position = byte * 8 - valid
        if position > limit:
            return TOO_SHORT
        edited = every or until_new == 0 or until_old == 0
        if edited or mcu == mcus:
            edits[edit, BEFORE] = position
            edits[edit, STARTS] = until_new == 0
        if mcu == mcus:
            break
        if until_old == 0:
            byte = segments[segment]
            segment += 1
            limit = segments[segment] * 8
            accumulator, valid = _u64(0), 0
            actual[:] = 0
            until_old = old
        if until_new == 0:
            predictor[:] = 0
            until_new = interval
        until_old -= 1
        until_new -= 1
        column = BLOCKS
        for b in range(blocks.shape[0]):
            component = blocks[b, 0]
            accumulator, valid, byte = refill(address, accumulator, valid, byte)
            bits, difference = _read_dc(accumulator, blocks[b, 1], first, by_length)
            if bits < 0:
                return bits
            actual[component] += difference
            if edited and blocks[b, 3]:
                difference = actual[component] - predictor[component]
                if not -2047 <= difference <= 2047:  # a baseline JPEG has no others (table F.1)
                    return BAD_DC
                position = byte * 8 - valid
                edits[edit, column + BEGIN] = position
                edits[edit, column + END] = position + bits
                edits[edit, column + DIFFERENCE] = difference
                sizes[blocks[b, 1], bit_length(difference)] += 1
                column += PER_BLOCK
            predictor[component] = actual[component]
            accumulator <<= _u64(bits)
            valid -= bits
            accumulator, valid, byte, damage = _skip_ac(address, blocks[b, 2], lookups, accumulator, valid, byte)
            if damage:
                return damage
        edit += edited
    return edit
